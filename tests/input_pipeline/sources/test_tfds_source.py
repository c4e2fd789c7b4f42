"""Data sets that TFDS prepares here, read back as a run would read them."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources import tfds_source
from input_pipeline.sources.base import BadRecordError, MissingSplitError
from tests.input_pipeline.tfds_builders import TinyImages, TinyPairs, TinyReviews
from tests.tiny import data_config, masking


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The directory in which all of the above has been prepared."""
    directory = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    where = dict(data_dir=directory, file_format="array_record")
    images = [TinyImages(config=config, **where) for config in ("grey", "colour")]
    for builder in (TinyPairs(**where), TinyReviews(**where), *images):
        builder.download_and_prepare()
    return directory


@pytest.fixture(autouse=True)
def data_dir(prepared, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))


def load(name, kind, **changes):
    return tfds_source.load(data_config(source="tfds", name=name, kind=kind, **changes))


def pairs(**changes):
    return load("tiny_pairs", "pairs", **{**ENGLISH_TO_GERMAN, **changes})


def reviews(**changes):
    return load("tiny_reviews", "labelled", **{"text_field": "sentence", **changes})


ENGLISH_TO_GERMAN = {"source_language": "en", "target_language": "de"}


def test_pairs_go_from_the_one_language_to_the_other():
    splits = pairs()
    assert (splits.kind, len(splits.train), list(splits.evals)) == ("pairs", 20, ["validation"])
    numbers = {int(example["source"].removeprefix("size ")) for example in splits.train}
    assert numbers == set(range(20))
    for example in splits.train:
        assert example["target"] == example["source"].replace("size", "Größe")


def test_documents_are_one_field():
    splits = load("tiny_reviews", "documents", text_field="reply")
    assert {e["text"] for e in splits.evals["validation"]} == {f"no, film {n}" for n in range(1, 6)}
    assert splits.labels == ()


def test_labelled_text_has_a_second_text_only_if_asked():
    one, two = reviews(), reviews(text_pair_field="reply")
    assert one.labels == ("bad", "good")
    for single, double in zip(one.evals["validation"], two.evals["validation"], strict=True):
        number = int(single["text"].removeprefix("film "))
        assert single == {"text": f"film {number}", "label": number % 2}
        assert double == {**single, "text_pair": f"no, film {number + 1}"}


@pytest.mark.parametrize(("config", "channels"), [("grey", 1), ("colour", 3)])
def test_images_have_the_channels_of_the_data_set(config, channels):
    splits = load(f"tiny_images/{config}", "images")
    assert splits.labels == tuple(str(n) for n in range(20))
    for example in splits.train:
        expected = np.full((5, 5, channels), example["label"], np.uint8)
        np.testing.assert_array_equal(example["image"], expected, strict=True)


def test_splits_are_cut_as_tfds_cuts_them():
    cut = pairs(train_split="train[:75%]+validation", eval_split="train[-5:]")
    full_split = list(pairs().train)
    assert list(cut.train)[:15] == full_split[:15]
    assert (len(cut.train), list(cut.evals["train[-5:]"])) == (20, full_split[15:])


def test_the_pipeline_batches_them(tmp_path):
    data = data_config(
        source="tfds",
        name="tiny_pairs",
        kind="pairs",
        **ENGLISH_TO_GERMAN,
        batch_size=4,
        length=32,
        cache_dir=str(tmp_path),
    )
    loaded = pipeline.load(data, objective="seq2seq", masking=masking(), seed=0)
    assert loaded.train_batch(0)["targets"].shape == (4, 32)
    assert loaded.description["contents"][""]["tfds"] == "tiny_pairs/1.2.0"


def test_reading_takes_no_tensorflow_and_no_jax():
    code = f"""
import sys
from configs import default
from input_pipeline.sources import tfds_source
from input_pipeline.config import DataConfig
keys = dict(source="tfds", name="tiny_pairs", kind="pairs", **{ENGLISH_TO_GERMAN})
data = DataConfig(**{{**default.get_config().data.to_dict(), **keys}})
print(tfds_source.load(data).train[0]["source"])
assert not {{"tensorflow", "jax"}} & set(sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout[:5]) == (0, "size "), ended.stderr


def test_the_digest_follows_the_examples():
    digest = pairs().digest
    assert digest == pairs(version="1.2.0").digest
    others = [
        pairs(train_split="train[:50%]").digest,
        pairs(eval_split="validation[:3]").digest,
        pairs(source_language="de", target_language="en").digest,
        load("tiny_reviews", "documents", text_field="sentence").digest,
        load("tiny_reviews", "documents", text_field="reply").digest,
    ]
    assert len({digest, *others}) == 6


def failing(splits):
    """The error of each example that cannot be used."""
    for index in range(len(splits.train)):
        try:
            splits.train[index]
        except BadRecordError as error:
            yield index, str(error)


def test_a_broken_record_is_named_with_the_reason():
    found = dict(failing(reviews()))
    assert len(found) == 2
    for index, message in found.items():
        assert message.startswith(f"tiny_reviews, split train, record {index}: ")
    reasons = sorted(message.split(": ", 1)[1] for message in found.values())
    assert reasons == [
        "its label is -1: this split has no labels; choose another",
        "sentence is not UTF-8 at byte 0",
    ]


def test_a_field_of_another_type_is_named():
    with pytest.raises(BadRecordError, match="stars is of type int, not text"):
        _ = load("tiny_reviews", "documents", text_field="stars").train[0]


def refusal(load, *args, **changes):
    with pytest.raises(ConfigError) as refused:
        load(*args, **changes)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    return message


def test_a_wrong_field_is_refused_with_the_right_ones():
    message = refusal(reviews, text_field="sentense")
    assert message == (
        "data.text_field: tiny_reviews has no field 'sentense' but 'label', 'rating', 'reply', "
        "'sentence', 'stars'. Did you mean 'sentence'?"
    )
    assert "data.target_language: tiny_pairs has no field 'fr'" in refusal(
        pairs, target_language="fr"
    )
    assert "tiny_reviews has no field 'image'" in refusal(load, "tiny_reviews", "images")
    message = refusal(reviews, label_field="rating")
    assert re.search(
        r"'rating' of tiny_reviews cannot be used: its label \d+\.5 is neither", message
    )


def test_a_missing_split_is_refused_with_the_known_ones():
    assert "It has: train, validation" in refusal(pairs, eval_split="dev")
    with pytest.raises(MissingSplitError) as refused:
        pairs(eval_split="dev")
    assert (refused.value.split, refused.value.known) == ("dev", ("train", "validation"))
    assert "data.train_split='train[:'" in refusal(pairs, train_split="train[:")


@pytest.mark.parametrize(
    "eval_split", ["train", "train[:1]", "train[19:]", "validation+train[5:6]"]
)
def test_a_record_cannot_be_in_both_splits(eval_split):
    assert "share records" in refusal(pairs, eval_split=eval_split)


def test_an_unprepared_data_set_is_refused_with_the_command_that_prepares_it(prepared):
    for name in ("wmt17_translate/de-en", "cifar10"):
        message = refusal(load, name, "documents")
        assert message.startswith(f"{name} is not prepared in {prepared} (TFDS_DATA_DIR); prepare")
        assert "pip install tensorflow first; reading them needs none" in message
    # Up to the download, the command runs without TensorFlow.
    message = refusal(load, "glue/sst2", "documents", version="2.0.0")
    command = shlex.split(message.partition("once: ")[2].partition(" (if")[0])
    assert command[:2] == ["python", "-c"]
    code = command[2].replace(".download_and_prepare()", ".info.full_name")
    imports, _, last = code.partition("; ")
    shown = f"{imports}; print({last}); {NO_TENSORFLOW}"
    ended = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "glue/sst2/2.0.0\n"), ended.stderr


NO_TENSORFLOW = "import sys; assert 'tensorflow' not in sys.modules"
OWN_BUILDER = """
import sys
import tensorflow_datasets as tfds

class MyReviews(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text(), "label": tfds.features.Text()}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(8), "validation": self._generate_examples(4)}

    def _generate_examples(self, size):
        for number in range(size):
            yield number, {"text": f"film {number}", "label": ("good", "bad")[number % 2]}

MyReviews(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def test_a_custom_builder_is_prepared_without_tensorflow_and_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    refused = refusal(load, "my_reviews", "labelled")
    assert (
        f"data.name='my_reviews' is neither in {tmp_path} (TFDS_DATA_DIR), which has nothing"
        in (refused)
    )
    assert f"YourBuilder(data_dir='{tmp_path}', file_format='array_record')" in refused
    program = [sys.executable, "-c", f"{OWN_BUILDER}\n{NO_TENSORFLOW}", str(tmp_path)]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    by_name = load("my_reviews", "labelled")
    # Labels that are text are the classes, sorted, as in files of one's own.
    assert by_name.labels == ("bad", "good")
    assert {(e["text"], e["label"]) for e in by_name.evals["validation"]} == {
        (f"film {n}", 1 - n % 2) for n in range(4)
    }
    directory = tmp_path / "my_reviews" / "1.0.0"
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
    by_directory = load(str(directory), "labelled")
    assert list(by_directory.train) == list(by_name.train)
    assert by_directory.digest == by_name.digest
    assert "data.version='2.0.0', but" in refusal(load, str(directory), "labelled", version="2.0.0")


def test_a_missing_version_or_configuration_is_refused_with_the_known_ones(prepared, monkeypatch):
    assert refusal(pairs, version="3.0.0") == (
        f"data.version='3.0.0' of tiny_pairs is not in {prepared} (TFDS_DATA_DIR), which has "
        "1.2.0; choose one of these, or '' for the newest"
    )
    monkeypatch.setattr(tfds_source, "known_builders", list)
    assert refusal(load, "tiny_images/gray", "images").endswith(
        "(TFDS_DATA_DIR), which has tiny_images/colour, tiny_images/grey; choose one of these"
    )


def test_a_name_that_tfds_does_not_know_is_refused_with_the_nearest():
    assert "Did you mean 'wmt17_translate'?" in refusal(load, "wmt17_translat", "documents")
    assert refusal(load, "wmt17_translate/en-de", "documents").endswith(
        "wmt17_translate has no 'en-de' but cs-en, de-en, fi-en, lv-en, ru-en, tr-en, zh-en."
    )
    assert refusal(load, "wikipedia/20230601de", "documents").endswith(
        "... Did you mean '20230601.de'?"
    )
    assert "Parsing builder name string" in refusal(load, "wmt17/de/en", "documents")
    assert "Invalid version" in refusal(pairs, version="newest")


def test_files_that_cannot_be_read_in_any_order_are_refused_with_the_conversion(
    prepared, tmp_path, monkeypatch
):
    directory = tmp_path / "tiny_pairs" / "1.2.0"
    directory.mkdir(parents=True)
    for file in (prepared / "tiny_pairs" / "1.2.0").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    info = json.loads((directory / "dataset_info.json").read_text())
    (directory / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert refusal(pairs) == (
        f"{directory} holds tfrecord files, which cannot be read in any order; prepare the data "
        "set again in another directory with file_format='array_record', which takes no TensorFlow "
        "(see docs/data.md), or convert these files where TensorFlow is installed: "
        f"tfds convert_format --out_file_format=array_record --dataset_version_dir={directory}"
    )
    # The conversion puts the new files beside the old ones, which stay the first choice.
    info = {**info, "fileFormat": "tfrecord", "alternativeFileFormats": ["array_record"]}
    (directory / "dataset_info.json").write_text(json.dumps(info))
    assert len(pairs().train) == 20


def test_mocked_data_stands_in_where_only_a_data_set_s_description_is(prepared, tmp_path):
    """As tfds.testing.mock_data lets others test: random records of the right types."""
    described = tmp_path / "tiny_pairs" / "1.2.0"
    described.mkdir(parents=True)
    for file in (prepared / "tiny_pairs" / "1.2.0").glob("*.json"):
        shutil.copy(file, described)
    policy = tfds.testing.MockPolicy.USE_FILES
    with tfds.testing.mock_data(num_examples=20, policy=policy, data_dir=str(tmp_path)):
        mocked = list(pairs().train)
    assert len(mocked) == 20 and mocked != list(pairs().train)
    assert all(set(example["source"]) <= set(" abcdefghij") for example in mocked)
