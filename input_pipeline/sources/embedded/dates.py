"""Dates written out in many languages -> ISO 8601: "lundi 9 mars 1987" -> "1987-03-09".

The texts are Babel's full, long and medium Gregorian formats of every day from 1900 to 2099.
A held-out date is held out in every language, and held-out languages are evaluated on held-out
dates only, so training sees no text and no answer of either evaluation.

The languages are chosen so that no text means two dates, no text of a held-out language is also a
text of a training language, every month has a name, and a text has at most 71 bytes (which excludes
Thai, Bengali and a few more). The tests check all four.
"""

import dataclasses
import datetime
import re
from collections.abc import Sequence
from importlib.metadata import version

from input_pipeline.sources.base import Source, Splits, content_digest, hash_fraction, split_by_hash

TRAIN_LANGUAGES = {
    "Latin": "ca cs da de en es et fi fr hr hu id is it lt lv nb nl pl pt ro sl sv sw tr vi",
    "Cyrillic": "bg kk ru sr uk",
    "Arabic": "ar fa ur",
    "Devanagari": "hi mr",
    "Han": "ja zh",
    "Armenian": "hy",
    "Ethiopic": "am",
    "Georgian": "ka",
    "Greek": "el",
    "Gujarati": "gu",
    "Hangul": "ko",
    "Hebrew": "he",
    "Khmer": "km",
    "Tamil": "ta",
    "Telugu": "te",
}
EVAL_LANGUAGES = {
    "Latin": "bs eo fur uz",
    "Cyrillic": "ky tg",
    "Arabic": "ps",
    "Devanagari": "ne",
}
STYLES = ("full", "long", "medium")
FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
EVAL_SHARE = 0.03  # of the days
EVAL_SIZES = {"dates": 2000, "languages": 1000}

# The parts of a date that a text can show, and for each part days with all its values.
_PARTS = {
    "weekday": [datetime.date(2024, 1, day) for day in range(1, 8)],
    "month": [datetime.date(2024, month, 1) for month in range(1, 13)],
    "day": [datetime.date(2024, 1, day) for day in range(1, 32)],
    "year": [datetime.date(year, 1, 1) for year in range(FIRST_DAY.year, LAST_DAY.year + 1)],
}
# The first letter of a CLDR field -> the part it shows.
_PART_OF_FIELD = {"E": "weekday", "c": "weekday", "M": "month", "d": "day", "y": "year"}


def _parts(date: datetime.date) -> dict[str, int]:
    return {"weekday": date.weekday(), "month": date.month, "day": date.day, "year": date.year}


@dataclasses.dataclass(frozen=True)
class Phrase:
    """One language's way of writing a date: a template, and tables with the text of each part.

    Babel fills the tables. They write the same text about ten times as fast as Babel itself.
    """

    language: str
    style: str
    template: str  # "%s %s. %s %s"
    blanks: tuple[tuple[str, dict[int, str]], ...]  # (part, its value -> text) for each %s

    def write(self, date: datetime.date) -> str:
        parts = _parts(date)
        return self.template % tuple([table[parts[part]] for part, table in self.blanks])


def phrase(language: str, style: str) -> Phrase:
    """The way in which a language writes dates in a style, with tables from Babel."""
    from babel import Locale
    from babel.dates import DateTimeFormat, get_date_format

    locale = Locale.parse(language)
    pattern = get_date_format(style, locale=locale).format  # "%(EEEE)s %(d)s. %(MMMM)s %(y)s"
    blanks = []
    for field in re.findall(r"%\((\w+)\)s", pattern):
        part = _PART_OF_FIELD[field[0]]
        table = {_parts(day)[part]: DateTimeFormat(day, locale)[field] for day in _PARTS[part]}
        blanks.append((part, table))
    return Phrase(language, style, re.sub(r"%\(\w+\)s", "%s", pattern), tuple(blanks))


def phrases(languages: dict[str, str]) -> list[Phrase]:
    """The phrases of all styles, for a table of languages by script."""
    return [
        phrase(language, style)
        for listed in languages.values()
        for language in listed.split()
        for style in STYLES
    ]


class EveryPhraseOfEveryDate(Sequence):
    """All dates in all phrases; texts are written on access."""

    def __init__(self, dates: list[datetime.date], phrases: list[Phrase]):
        self._dates, self._phrases = dates, phrases

    def __len__(self):
        return len(self._dates) * len(self._phrases)

    def __getitem__(self, index):
        date, phrase = divmod(index, len(self._phrases))
        return _example(self._dates[date], self._phrases[phrase])


def _example(date: datetime.date, phrase: Phrase) -> dict[str, str]:
    return {"source": phrase.write(date), "target": date.isoformat(), "language": phrase.language}


def load() -> Splits:
    """Pairs of a written date and its ISO form; evaluated on new dates and on new languages."""
    days = (LAST_DAY - FIRST_DAY).days + 1
    dates = [FIRST_DAY + datetime.timedelta(day) for day in range(days)]
    train_dates, eval_dates = split_by_hash(dates, datetime.date.isoformat, EVAL_SHARE)
    known, unknown = phrases(TRAIN_LANGUAGES), phrases(EVAL_LANGUAGES)
    train = EveryPhraseOfEveryDate(train_dates, known)
    evals = {
        "dates": _sample(eval_dates, known, EVAL_SIZES["dates"]),
        "languages": _sample(eval_dates, unknown, EVAL_SIZES["languages"]),
    }
    description = {
        "babel": version("babel"),
        "train_languages": len(known) // len(STYLES),
        "train_scripts": len(TRAIN_LANGUAGES),
        "held_out_languages": len(unknown) // len(STYLES),
    }
    digest = content_digest([repr(known), repr(evals)])
    return Splits("pairs", train, evals, (), description, digest, "none")


SOURCE = Source("dates", lambda data: load(), "pairs")


def _sample(dates: list[datetime.date], phrases: list[Phrase], size: int) -> list[dict[str, str]]:
    """One text each for `size` dates, chosen by hash."""
    drawn = sorted(dates, key=lambda date: hash_fraction(f"draw {date}"))[:size]
    return [
        _example(date, phrases[int(hash_fraction(f"phrase {date}") * len(phrases))])
        for date in drawn
    ]
