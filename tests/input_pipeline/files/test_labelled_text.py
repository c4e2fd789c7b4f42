import json

import pytest

from input_pipeline.files import labelled_text
from input_pipeline.source import BadRecordError
from schema import ConfigError
from tests.input_pipeline.files.test_reading import written
from tests.tiny import data_config

TRAIN = [("good", "a fine film"), ("bad", "a poor film"), ("bad", 'say "no" \\ to it')]
PAIRS = [("yes", "it rains", "it is wet"), ("no", "it rains", "it is dry")]


def tsv(records):
    return "".join("\t".join(record) + "\n" for record in records)


def jsonl(records):
    keys = ("label", "text", "text_pair")
    return "".join(json.dumps(dict(zip(keys, r, strict=False))) + "\n" for r in records)


FILMS, FILM = tsv(TRAIN), tsv(TRAIN[:1])


def load(directory, train=FILMS, validation=FILM, ending=".tsv"):
    written(directory / f"train{ending}", train, zipped=ending.endswith(".gz"))
    written(directory / f"validation{ending}", validation, zipped=ending.endswith(".gz"))
    return labelled_text.load(data_config(source="labelled_text_files", path=str(directory)))


def refusal_of(records, index):
    with pytest.raises(BadRecordError) as refusal:
        records[index]
    return str(refusal.value)


@pytest.mark.parametrize("records", [TRAIN, PAIRS])
@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz"])
def test_every_form_of_file_gives_the_same_examples(records, ending, tmp_path):
    form = tsv if ".tsv" in ending else jsonl
    splits = load(tmp_path, form(records), form(records[:1]), ending)
    keys = ("text", "text_pair")
    expected = [
        {"label": splits.labels.index(label), **dict(zip(keys, texts, strict=False))}
        for label, *texts in records
    ]
    assert [*splits.train] == expected
    assert [*splits.evals["validation"]] == expected[:1]
    assert splits.labels == tuple(sorted({record[0] for record in records}))
    assert splits.text_pairs == (records is PAIRS)


def test_labels_may_be_numbers_in_json(tmp_path):
    splits = load(tmp_path, jsonl([(3, "a"), (1, "b")]), jsonl([(1, "c")]), ".jsonl")
    assert splits.labels == ("1", "3")
    assert [example["label"] for example in splits.train] == [1, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("good", "1 columns; needs label, tab, text"),
        ("good\ta\tb\tc", "4 columns"),
        ("", "1 columns"),
        ("\ta text", "label '' is neither text nor"),
        ("good\t ", "text is empty or no text"),
        ("good\ta\t", "text_pair is empty or no text"),
        ("good\ta text\tanother", "the first record has no second text, and this one differs"),
    ],
)
def test_a_bad_line_of_tsv_is_named(line, reason, tmp_path):
    splits = load(tmp_path, tsv(TRAIN[:1]) + f"{line}\n")
    assert f"{tmp_path}/train.tsv:2: {reason}" in refusal_of(splits.train, 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"label": true, "text": "a"}', "label True is neither"),
        ('{"label": null, "text": "a"}', "label None is neither"),
        ('{"label": "good", "text": 3}', "text is empty or no text"),
        ('{"label": "good"}', "lacks 'text'"),
        ('{"text": "a", "lable": "good"}', "lacks 'label'"),
        ("good\ta text", "not JSON"),
    ],
)
def test_a_bad_line_of_json_is_named(line, reason, tmp_path):
    splits = load(tmp_path, jsonl(TRAIN[:1]) + f"{line}\n", jsonl(TRAIN[:1]), ".jsonl")
    assert f"{tmp_path}/train.jsonl:2: {reason}" in refusal_of(splits.train, 1)


def test_a_record_without_the_second_text_of_the_others_is_named(tmp_path):
    splits = load(tmp_path, tsv(PAIRS) + "yes\talone\n", tsv(PAIRS))
    assert "train.tsv:3: the first record has a second text" in refusal_of(splits.train, 2)


def test_a_label_that_training_lacks_is_named(tmp_path):
    splits = load(tmp_path, validation=tsv(TRAIN) + "gud\ta text\n")
    message = refusal_of(splits.evals["validation"], 3)
    assert message.endswith("validation.tsv:4: label 'gud' does not occur in training")


def test_a_file_of_which_nothing_can_be_used_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.tsv is empty"):
        load(tmp_path, "")
    with pytest.raises(ConfigError, match=r"train\.tsv:1: 1 columns.*no line of the file can be"):
        load(tmp_path, "a,b\nc,d\n")


def test_two_forms_side_by_side_are_refused(tmp_path):
    load(tmp_path)
    with pytest.raises(ConfigError, match=r"has train\.tsv and train\.jsonl; keep one of them"):
        load(tmp_path, jsonl(TRAIN), jsonl(TRAIN), ".jsonl")
