import hashlib
import pickle

import pytest

from experiment.schema import ConfigError
from input_pipeline.sources.base import BadRecordError, content_digest
from input_pipeline.sources.files import translation
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config


def corpus(directory, **changes):
    """Two pairs to train on, one held out; a file given as None is left out."""
    files = {
        "train.en": "a dog\n two cats \n",
        "train.de": "ein Hund\nzwei Katzen\n",
        "validation.en": "a cow\n",
        "validation.de": "eine Kuh\n",
    }
    for name, content in {**files, **changes}.items():
        if content is not None:
            written(directory / name, content, zipped=name.endswith(".gz"))
    return directory


def load(path, source="en", target="de", **keys):
    languages = dict(source_language=source, target_language=target)
    return translation.load(
        data_config(source="translation_files", path=str(path), **languages, **keys)
    )


def test_equal_lines_make_a_pair(tmp_path):
    splits = load(corpus(tmp_path))
    assert [*splits.train] == [
        {"source": "a dog", "target": "ein Hund"},
        {"source": "two cats", "target": "zwei Katzen"},
    ]
    assert [*splits.evals["validation"]] == [{"source": "a cow", "target": "eine Kuh"}]
    backwards = load(tmp_path, source="de", target="en")
    assert backwards.train[0] == {"source": "ein Hund", "target": "a dog"}
    assert backwards.digest != splits.digest


def test_gzip_gives_the_same(tmp_path):
    zipped = {"train.en": None, "train.en.gz": "a dog\n two cats \n"}
    plain, zipped = load(corpus(tmp_path / "a")), load(corpus(tmp_path / "b", **zipped))
    assert [*plain.train] == [*zipped.train] and plain.digest == zipped.digest


def test_the_digest_hashes_the_file_contents(tmp_path):
    splits = load(corpus(tmp_path))
    names = ("train.en", "train.de", "validation.en", "validation.de")
    contents = [(tmp_path / name).read_bytes() for name in names]
    assert splits.digest == content_digest(hashlib.sha256(c).hexdigest() for c in contents)


@pytest.mark.parametrize(
    ("source", "target", "key"), [("en", "it", "target"), ("fr", "de", "source")]
)
def test_a_language_that_is_not_there_is_named_by_its_key(source, target, key, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load(corpus(tmp_path), source=source, target=target)
    wrong = {"source": source, "target": target}[key]
    assert f"no train.{wrong}: data.{key}_language={wrong}" in str(refused.value)
    assert str(refused.value).endswith("set it to one that is there: de, en")


SHARDS = {
    "train.en": None,
    "train.de": None,
    "train.part1.en.gz": "a dog\n",
    "train.part1.de": "ein Hund\n",
    "train.part2.en": " two cats \n",
    "train.part2.de": "zwei Katzen\n",
}


def test_shards_give_the_same_pairs(tmp_path):
    unsharded, cut = load(corpus(tmp_path / "a")), load(corpus(tmp_path / "b", **SHARDS))
    assert [*cut.train] == [*unsharded.train] and cut.evals.keys() == unsharded.evals.keys()
    assert [*pickle.loads(pickle.dumps(cut.train))] == [*unsharded.train]
    assert [*load(tmp_path / "b" / "*").train] == [*unsharded.train]
    below = {name.replace("train.part", "train/"): text for name, text in SHARDS.items()}
    assert [*load(corpus(tmp_path / "c", **below)).train] == [*unsharded.train]
    assert [*load(f"{tmp_path}/[ab]/*").train] == [*unsharded.train, *unsharded.train]


def test_a_shard_without_its_other_side_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.part2\.en has no train\.part2\.de beside it"):
        load(corpus(tmp_path / "a", **{**SHARDS, "train.part2.de": None}))
    with pytest.raises(ConfigError, match=r"train\.part1\.de has no train\.part1\.en beside it"):
        load(corpus(tmp_path / "b", **{**SHARDS, "train.part1.en.gz": None}))


def test_errors_name_the_shard(tmp_path):
    # As many lines in all, but not in each.
    moved = {**SHARDS, "train.part1.en.gz": "", "train.part2.en": "a dog\ntwo cats\n"}
    with pytest.raises(ConfigError, match=r"part1\.en\.gz has 0 lines and .*part1\.de 1: they do"):
        load(corpus(tmp_path / "a", **moved))
    pairs = load(corpus(tmp_path / "b", **{**SHARDS, "train.part2.de": " \n"})).train
    with pytest.raises(BadRecordError, match=r"train\.part2\.de:1: an empty line"):
        pairs[1]


def test_one_file_is_no_parallel_corpus(tmp_path):
    with pytest.raises(
        ConfigError, match=r"train\.en is one file, but there must be one for each language"
    ):
        load(corpus(tmp_path) / "train.en")
    with pytest.raises(ConfigError, match=r"has no validation\.en, no shards"):
        load(tmp_path / "train.*")


def test_files_of_unequal_length_are_refused(tmp_path):
    corpus(tmp_path, **{"train.de": "ein Hund\n"})
    with pytest.raises(ConfigError, match=r"train\.en has 2 lines and .*train\.de 1: they do not"):
        load(tmp_path)


def test_a_missing_split_is_refused_with_the_files_found(tmp_path):
    with pytest.raises(ConfigError, match=r"no test\.en, no shards .* it has: train\.de, tr"):
        load(corpus(tmp_path), eval_split="test")
    with pytest.raises(ConfigError, match=r"data\.source_language is empty; set it"):
        load(tmp_path, source="")


def test_a_file_beside_its_gzipped_copy_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has train\.en and train\.en\.gz; keep one"):
        load(corpus(tmp_path, **{"train.en.gz": "a\nb\n"}))


@pytest.mark.parametrize("line", ["", " \t"])
def test_an_empty_line_is_a_bad_record(line, tmp_path):
    pairs = load(corpus(tmp_path, **{"train.de": f"ein Hund\n{line}\n"})).train
    assert pairs[0]["target"] == "ein Hund"
    with pytest.raises(BadRecordError, match=r"train\.de:2: an empty line"):
        pairs[1]
