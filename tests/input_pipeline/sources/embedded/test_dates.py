import collections
import datetime
import itertools
import random
import re
import unicodedata

import pytest
from babel.dates import format_date

from input_pipeline.sources.embedded import dates


@pytest.fixture(scope="module")
def splits():
    return dates.load()


def phrases_by_side():
    return {
        "train": dates.phrases(dates.TRAIN_LANGUAGES),
        "held out": dates.phrases(dates.EVAL_LANGUAGES),
    }


def one_year_of_each_calendar():
    """Every text names its year in four digits, so two dates can only be confused within a year,
    and a year has one of 14 calendars."""
    calendars = {}
    for year in range(dates.FIRST_DAY.year, dates.LAST_DAY.year + 1):
        first, last = datetime.date(year, 1, 1), datetime.date(year, 12, 31)
        calendars.setdefault((first.weekday(), last.weekday()), first)
    assert len(calendars) == 14
    for first in calendars.values():
        days = (first.replace(year=first.year + 1) - first).days
        yield from (first + datetime.timedelta(day) for day in range(days))


def test_the_example_of_the_documentation():
    written = dates.phrase("fr", "full").write(datetime.date(1987, 3, 9))
    assert written == "lundi 9 mars 1987"


def test_texts_are_babels_own():
    draw = random.Random(0)
    days = (dates.LAST_DAY - dates.FIRST_DAY).days
    for phrase in itertools.chain(*phrases_by_side().values()):
        for _ in range(20):
            date = dates.FIRST_DAY + datetime.timedelta(draw.randint(0, days))
            assert phrase.write(date) == format_date(date, phrase.style, phrase.language)


def test_texts_are_unambiguous_and_eval_languages_are_distinct():
    sides = phrases_by_side()
    date_of = {}
    for date in one_year_of_each_calendar():
        known = {phrase.write(date) for phrase in sides["train"]}
        unknown = {phrase.write(date) for phrase in sides["held out"]}
        assert not known & unknown
        for text in known | unknown:
            assert date_of.setdefault(text, date) == date, text


def test_every_text_has_its_year_in_four_digits_and_a_name_for_its_month():
    date = datetime.date(1987, 3, 9)
    for phrase in itertools.chain(*phrases_by_side().values()):
        text = phrase.write(date)
        assert re.findall(r"\d{4}", text) == ["1987"]
        assert "M03" not in text  # CLDR's stand-in where a name is missing


def test_the_numbers_of_languages_and_scripts_are_as_documented():
    def letters_of(language):
        date = datetime.date(1987, 3, 9)
        texts = [dates.phrase(language, style).write(date) for style in dates.STYLES]
        return {unicodedata.name(c).split()[0] for text in texts for c in text if c.isalpha()}

    languages = " ".join(dates.TRAIN_LANGUAGES.values()).split()
    assert len(set(languages)) == len(languages) >= 40
    assert not set(languages) & set(" ".join(dates.EVAL_LANGUAGES.values()).split())
    unicode_name = {"Han": "CJK"}
    for script, listed in (*dates.TRAIN_LANGUAGES.items(), *dates.EVAL_LANGUAGES.items()):
        for language in listed.split():
            assert letters_of(language) == {unicode_name.get(script, script).upper()}
    assert len(dates.TRAIN_LANGUAGES) >= 10


def test_held_out_dates_are_never_trained_on(splits):
    phrases = len(dates.phrases(dates.TRAIN_LANGUAGES))
    trained_on = {splits.train[i]["target"] for i in range(0, len(splits.train), phrases)}
    assert len(trained_on) * phrases == len(splits.train)
    for examples in splits.evals.values():
        targets = [example["target"] for example in examples]
        assert len(set(targets)) == len(targets)
        assert not trained_on & set(targets)


def test_evaluations_have_their_sizes_and_languages(splits):
    assert {name: len(examples) for name, examples in splits.evals.items()} == dates.EVAL_SIZES
    for name, table in (("dates", dates.TRAIN_LANGUAGES), ("languages", dates.EVAL_LANGUAGES)):
        counts = collections.Counter(example["language"] for example in splits.evals[name])
        assert set(counts) == set(" ".join(table.values()).split())


def test_no_text_has_more_than_71_bytes():
    # A week of two-digit days in each month has every month with every weekday.
    days = [datetime.date(2024, month, day) for month in range(1, 13) for day in range(20, 27)]
    phrases = itertools.chain(*phrases_by_side().values())
    assert max(len(phrase.write(day).encode()) for phrase in phrases for day in days) <= 71


def test_any_example_is_found_by_its_index(splits):
    assert splits.train[0]["target"] == "1900-01-01"
    assert splits.train[len(splits.train) - 1]["target"] == "2099-12-31"
    with pytest.raises(IndexError):
        splits.train[len(splits.train)]
