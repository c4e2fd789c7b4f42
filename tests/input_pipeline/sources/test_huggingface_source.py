"""Data sets made in memory and saved to disk, read back as a run would read them."""

import io
import sys

import numpy as np
import pytest
from absl import logging
from PIL import Image

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources import huggingface_source, record_fields
from input_pipeline.sources.base import BadRecordError, MissingSplitError
from input_pipeline.sources.files import labelled_text
from tests.tiny import data_config, masking


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


def load(name, kind, **changes):
    changes = {"eval_split": "test", **changes}
    data = data_config(source="huggingface", name=str(name), kind=kind, **changes)
    return huggingface_source.load(data)


@pytest.fixture
def pairs(datasets, tmp_path):
    features = datasets.Features({"translation": datasets.Translation(["de", "en"])})
    rows = [{"translation": {"de": f"Größe {n}", "en": f"size {n}"}} for n in range(20)]
    made = datasets.Dataset.from_list(rows, features=features)
    splits = {"train": made.select(range(15)), "test": made.select(range(15, 20))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "pairs")
    return tmp_path / "pairs"


@pytest.fixture
def reviews(datasets, tmp_path):
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "score": datasets.Value("float32"),
        }
    )
    rows = [
        {"premise": f"a{n}", "hypothesis": f"b{n}", "label": n % 2, "score": 0.5} for n in range(10)
    ]
    rows.append({"premise": "secret", "hypothesis": "", "label": -1, "score": 0.5})
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "reviews")
    return tmp_path / "reviews"


LANGUAGES = {"source_language": "en", "target_language": "de"}


def test_pairs_are_found_in_the_translation(pairs):
    splits = load(pairs, "pairs", **LANGUAGES)
    assert list(splits.train) == [
        {"source": f"size {n}", "target": f"Größe {n}"} for n in range(15)
    ]
    assert [e["source"] for e in splits.evals["test"]] == [f"size {n}" for n in range(15, 20)]


def test_labelled_text_and_a_split_of_its_own(reviews):
    keys = {"text_field": "premise", "text_pair_field": "hypothesis"}
    splits = load(reviews, "labelled", train_split="train[:8]", eval_split="train[8:]", **keys)
    assert splits.labels == ("no", "yes")
    assert list(splits.train) == [
        {"text": f"a{n}", "text_pair": f"b{n}", "label": n % 2} for n in range(8)
    ]
    eval_set = splits.evals["train[8:]"]
    assert [eval_set[n]["text"] for n in range(2)] == ["a8", "a9"]
    with pytest.raises(BadRecordError, match=r"split train\[8:\], record 2: its label is -1"):
        _ = eval_set[2]


NAMED = [("noun", "Haus"), ("verb", "gehen"), ("adjective", "rot"), ("noun", "Baum")]
UNSEEN = ("adverb", "oft")


@pytest.mark.parametrize("number_labels", [False, True])
def test_labels_that_are_text_give_what_the_same_lines_give_as_files(
    datasets, tmp_path, number_labels
):
    """Oracle: the source that reads TSV files."""

    def label_of(name):
        return (
            {"noun": 10, "verb": 9, "adjective": -1, "adverb": 2}[name] if number_labels else name
        )

    splits = {"train": NAMED, "test": [NAMED[1], NAMED[0], UNSEEN]}
    made = {}
    for split, rows in splits.items():
        rows = [(label_of(label), text) for label, text in rows]
        lines = [f"{label}\t{text}\n" for label, text in rows]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
        columns = dict(zip(("label", "text"), map(list, zip(*rows, strict=True)), strict=True))
        made[split] = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    files = labelled_text.load(
        data_config(source="labelled_text_files", path=str(tmp_path), eval_split="test")
    )
    found = load(tmp_path / "saved", "labelled")
    assert found.labels == files.labels
    assert list(found.train) == list(files.train)
    for index in range(2):
        assert found.evals["test"][index] == files.evals["test"][index]
    unseen = f"label '{label_of(UNSEEN[0])}' does not occur in training"
    for each in (found, files):
        with pytest.raises(BadRecordError, match=unseen):
            _ = each.evals["test"][2]


def test_a_record_without_a_label_is_bad_and_the_others_are_not(datasets, tmp_path):
    columns = {"text": ["a", "b", "c", "d"], "label": ["x", None, "y", "x"]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    found = load(tmp_path / "saved", "labelled", train_split="train[:3]", eval_split="train[3:]")
    assert found.labels == ("x", "y")
    with pytest.raises(BadRecordError, match=r"record 1: its label None is neither text nor"):
        _ = found.train[1]


def test_a_field_of_texts_is_refused_as_the_label(datasets, tmp_path):
    columns = {"text": ["x", "y"] * 40, "label": [f"text {n}" for n in range(80)]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    refused = (
        "60 classes for 60 rows, 60 of them with one row: data.label_field='label' does "
        "not hold classes, choose another field"
    )
    with pytest.raises(ConfigError, match=refused):
        load(tmp_path / "saved", "labelled", train_split="train[:60]", eval_split="train[60:]")


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), (None, 1)])
def test_images(datasets, tmp_path, mode, channels):
    (tmp_path / "2.png").write_bytes(png(2))
    stored = [{"bytes": png(n), "path": None} for n in range(2)]
    stored.append({"bytes": None, "path": str(tmp_path / "2.png")})
    features = datasets.Features(
        {"image": datasets.Image(mode), "label": datasets.ClassLabel(num_classes=3)}
    )
    made = datasets.Dataset.from_dict({"image": stored, "label": [0, 1, 2]}, features=features)
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "images")
    for example in load(tmp_path / "images", "images").train:
        expected = np.full((5, 5, channels), example["label"], np.uint8)
        np.testing.assert_array_equal(example["image"], expected, strict=True)


def png(shade, mode="L"):
    file = io.BytesIO()
    Image.fromarray(np.full((5, 5), shade, np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("modes", "declared", "channels", "said"),
    [
        (["L", "LA", "L", "1"], None, 1, ["1 of 4 images have transparency"]),
        (["L", "L", "L", "RGB"], None, 3, ["3 of 4 images are grey"]),
        (["L", "L", "LA", "RGB"], "L", 1, []),
        (["RGBA"] * 4, "RGBA", 3, ["4 of 4 images have transparency"]),
    ],
)
def test_all_images_decide_about_the_channels(
    datasets, tmp_path, monkeypatch, modes, declared, channels, said
):
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    (tmp_path / "last.png").write_bytes(png(3, modes[3]))
    stored = [{"bytes": png(n, mode), "path": None} for n, mode in enumerate(modes[:3])]
    stored.append({"bytes": None, "path": str(tmp_path / "last.png")})
    features = datasets.Features(
        {"image": datasets.Image(declared), "label": datasets.ClassLabel(num_classes=4)}
    )
    made = datasets.Dataset.from_dict({"image": stored, "label": [0] * 4}, features=features)
    made.save_to_disk(tmp_path / "images")
    keys = dict(train_split="train[:1]+train[3:]", eval_split="train[1:3]")
    splits = load(tmp_path / "images", "images", cache_dir=str(tmp_path / "cache"), **keys)
    parts = splits.train, *splits.evals.values()
    shapes = [each["image"].shape for part in parts for each in part]
    assert shapes == [(5, 5, channels)] * 4
    assert [line.partition(" (")[0] for line in lines] == said


def test_headers_are_read_without_the_rest_of_the_files(datasets, tmp_path, monkeypatch):
    sizes = []
    read = record_fields.read_header

    def noted(start):
        sizes.append(len(start))
        return read(start)

    monkeypatch.setattr(record_fields, "read_header", noted)
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=1)}
    )
    stored = [{"bytes": file.getvalue(), "path": None}] * 6
    made = datasets.Dataset.from_dict({"image": stored, "label": [0] * 6}, features=features)
    made.save_to_disk(tmp_path / "images")
    keys = dict(train_split="train[:5]", eval_split="train[5:]", cache_dir=str(tmp_path / "cache"))
    load(tmp_path / "images", "images", **keys)
    assert sizes == [huggingface_source.HEADER_BYTES] * 6 and len(file.getvalue()) > 20_000
    load(tmp_path / "images", "images", **keys)
    assert len(sizes) == 6, "the counts are in the cache"


@pytest.mark.parametrize("stored", [{"bytes": b"no image", "path": None}, None])
def test_an_image_that_cannot_be_read_is_named(datasets, tmp_path, stored):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=1)}
    )
    good = {"bytes": png(1), "path": None}
    rows = [{"image": image, "label": 0} for image in (good, stored, good)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "images")
    keys = dict(train_split="train[:2]", eval_split="train[2:]", cache_dir=str(tmp_path / "cache"))
    with pytest.raises(
        ConfigError, match=r"record 1: its image is not a PNG or JPEG image; mend it"
    ):
        load(tmp_path / "images", "images", **keys)
    splits = load(tmp_path / "images", "images", **keys, max_bad_records=1)
    assert [len(splits.train), len(splits.evals["train[2:]"])] == [1, 1]


def test_a_directory_of_files(datasets, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "files" / "test.jsonl").write_text('{"text": "three"}\n')
    splits = load(tmp_path / "files", "documents")
    assert [e["text"] for e in splits.train] == ["one", "two"]
    assert [e["text"] for e in splits.evals["test"]] == ["three"]


def test_the_digest_follows_the_examples(pairs):
    digest = load(pairs, "pairs", **LANGUAGES).digest
    assert digest == load(pairs, "pairs", **LANGUAGES).digest
    swapped = {"source_language": "de", "target_language": "en"}
    assert digest != load(pairs, "pairs", **swapped).digest
    assert digest != load(pairs, "pairs", train_split="train[:5]", **LANGUAGES).digest


def refusal(*args, **changes):
    with pytest.raises(ConfigError) as refused:
        load(*args, **changes)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    return message


def test_missing_fields_and_splits_are_refused(pairs, reviews):
    changes = {**LANGUAGES, "target_language": "fr"}
    assert "has no field 'fr' but 'de', 'en'." in refusal(pairs, "pairs", **changes)
    assert "It has: train, test" in refusal(pairs, "pairs", eval_split="dev", **LANGUAGES)
    with pytest.raises(MissingSplitError) as refused:
        load(pairs, "pairs", eval_split="dev[:2]", **LANGUAGES)
    assert (refused.value.split, refused.value.known) == ("dev[:2]", ("train", "test"))
    assert "share records" in refusal(pairs, "pairs", eval_split="train[3:]", **LANGUAGES)
    changes = {"text_field": "premise", "label_field": "score", "train_split": "train[:8]"}
    message = refusal(reviews, "labelled", eval_split="train[8:]", **changes)
    assert "data.label_field='score' of" in message
    assert "its label 0.5 is neither text nor a whole number; it takes text, whole" in message


def test_a_data_set_that_cannot_be_reached_is_named(datasets, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert refusal("glue:sst2", "documents").startswith("data.name='glue:sst2' cannot be loaded: ")


def test_the_configuration_is_named_after_a_colon(datasets, monkeypatch):
    asked = []
    made = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": ["a"]}) for name in ("train", "test")}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or made)
    load("glue:sst2", "documents", version="abc")
    load("lm1b", "documents")
    assert asked == [
        (("glue", "sst2"), {"revision": "abc"}),
        (("lm1b", None), {"revision": None}),
    ]


def test_processes_read_disjoint_shares_of_an_epoch(datasets, tmp_path):
    """Together, what one process reads, in a random order that all of them know."""
    rows = {"text": [f"text {n}" for n in range(32)], "label": [n % 2 for n in range(32)]}
    made = datasets.Dataset.from_dict(rows)
    parts = {"train": made.select(range(24)), "test": made.select(range(24, 32))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    data = data_config(
        source="huggingface", name=str(tmp_path / "set"), kind="labelled", eval_split="test",
        batch_size=4, length=16, cache_dir=str(tmp_path / "tables"),
    )  # fmt: skip

    def epoch(index, count):
        loaded = pipeline.load(
            data, objective="classify_text", masking=masking(), seed=0,
            process_index=index, process_count=count,
        )  # fmt: skip
        return [loaded.train_ids(n) for n in range(6)]

    first, second, alone = epoch(0, 2), epoch(1, 2), epoch(0, 1)
    assert [a + b for a, b in zip(first, second, strict=True)] == alone
    flat = [each for batch in alone for each in batch]
    assert len(set(flat)) == len(flat) == 24 and flat != sorted(flat)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails, installed or not
    assert refusal("glue:sst2", "documents").endswith("pip install 'backbone[huggingface]'")
