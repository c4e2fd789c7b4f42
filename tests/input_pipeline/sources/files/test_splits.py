import pytest

from experiment.schema import ConfigError
from input_pipeline.sources.base import MissingSplitError
from input_pipeline.sources.files.splits import find_splits
from tests.input_pipeline.sources.files.test_reading import written

NAMES = "train", "validation"


def find(path, *names, endings=(".tsv", ".jsonl"), splits=NAMES, allow_unsplit=True):
    """Creates these files; returns the relative paths of those that are found."""
    top = path if path.is_dir() else path.parent
    for name in names:
        written(top / name, "")
    found = find_splits(str(path), splits, endings, allow_unsplit=allow_unsplit)
    return [[str(file.relative_to(top)) for file in files.values()] for files in found]


def refusal(path, *names, **keys):
    with pytest.raises(ConfigError) as refused:
        find(path, *names, **keys)
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize(
    "train",
    [
        ["train.tsv"],
        ["train.tsv.gz"],
        ["train.jsonl"],
        ["train-00000-of-00002.tsv", "train-00001-of-00002.tsv"],
        ["train_1_of_3.jsonl", "train_2_of_3.jsonl", "train_3_of_3.jsonl.gz"],
        ["train.part1.tsv", "train.part2.tsv"],
        ["train-shard-07.tsv", "train-shard-08.tsv.gz"],
        ["train.0.tsv", "train_1.jsonl"],
        ["train/anything.tsv", "train/below/it.jsonl.gz"],
        ["train/part-00000-of-00002.tsv", "train/part-00001-of-00002.tsv"],
        ["train/validation.tsv"],
    ],
)
def test_a_split_is_one_file_shards_or_a_subdirectory(train, tmp_path):
    others = [
        "test.tsv", "test.tsv.gz", "training.tsv", "train.txt", "train.backup.tsv", "train-1b.tsv",
        "train.tsv.xz", "train_matched.tsv", "old/train.tsv", "train/.hidden.tsv",
        "train/.git/a.tsv", ".train.tsv",
    ]  # fmt: skip
    expected = [train, ["validation.tsv"]]
    assert find(tmp_path, *train, *others, "validation.tsv") == expected


def test_no_file_is_in_two_splits(tmp_path):
    """Not even where one looks like a shard of the other, or lies in its directory."""
    parted = find(tmp_path, "train.tsv", "train_2.tsv", splits=("train", "train_2"))
    assert parted == [["train.tsv"], ["train_2.tsv"]]
    written(tmp_path / "a/train/validation.tsv", "")
    written(tmp_path / "a/validation/train.tsv", "")
    found = find_splits(f"{tmp_path}/a/*/*", NAMES, [".tsv"], allow_unsplit=True)
    assert [[f.parent.name for f in files.values()] for files in found] == [
        ["train"],
        ["validation"],
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.tsv", [["train.tsv"], ["validation.tsv"]]),
        ("*a*/*.tsv*", [["a/train-0.tsv", "train/c.tsv"], ["a/validation.tsv.gz"]]),
        ("*/train*.*", [["a/train-0.tsv", "b/train.jsonl"], []]),
        ("b/tr*", [["b/train.jsonl"], []]),
        ("train/*", [["train/c.tsv"], []]),
        ("b/c*", [["b/c.tsv", "b/cc.tsv"], []]),
        ("b/c.tsv", [["b/c.tsv"], []]),
        ("validation.tsv", [["validation.tsv"], []]),
    ],
)
def test_a_glob_finds_named_splits_or_unsplit_files(pattern, expected, tmp_path, monkeypatch):
    names = [
        "train.tsv", "validation.tsv", "a/train-0.tsv", "a/validation.tsv.gz", "a/other.tsv",
        "b/train.jsonl", "b/c.tsv", "b/cc.tsv", "train/c.tsv",
    ]  # fmt: skip
    for name in names:
        written(tmp_path / name, "")
    monkeypatch.chdir(tmp_path)
    for path in (pattern, f"./{pattern}", str(tmp_path / pattern)):
        found = find_splits(path, NAMES, (".tsv", ".jsonl"), allow_unsplit=True)
        relative = [[tmp_path / file for file in files.values()] for files in found]
        assert relative == [[tmp_path / name for name in files] for files in expected]


@pytest.mark.parametrize("names", [["train.tsv", "val.tsv"], ["validation.tsv", "other.tsv"]])
def test_a_missing_split_is_refused_with_the_files_found(names, tmp_path):
    missing = "validation" if "train.tsv" in names else "train"
    message = refusal(tmp_path, *names)
    assert (
        f"{tmp_path} has no {missing}.tsv or {missing}.jsonl, no shards like {missing}-" in message
    )
    assert f"it has: {', '.join(sorted(names))}. Set data.train_split and" in message
    # Not held out of what the glob finds: some of it is not for training.
    assert f"has no {missing}.tsv" in refusal(tmp_path / "*.tsv")


def test_the_refusal_lists_the_existing_splits(tmp_path):
    names = [
        "train-1-of-2.tsv",
        "train-2-of-2.tsv",
        "dev.jsonl.gz",
        "test/a.tsv",
        "LICENSE",
        "a.md",
    ]
    with pytest.raises(MissingSplitError) as refused:
        find(tmp_path, *names)
    assert (refused.value.split, refused.value.known) == ("validation", ("dev", "test", "train"))


def test_a_directory_without_named_splits_is_refused(tmp_path):
    assert "has no train.tsv" in refusal(tmp_path, "a.tsv", "b.tsv")
    assert find(tmp_path / "*.tsv") == [["a.tsv", "b.tsv"], []]


def test_unsplit_files_are_refused_where_not_allowed(tmp_path):
    assert find(tmp_path / "tr*", "train.tsv") == [["train.tsv"], []]
    assert "has no validation.tsv" in refusal(tmp_path / "tr*", allow_unsplit=False)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.tsv", "train.tsv.gz"], "has train.tsv and train.tsv.gz; keep one of them"),
        (["train.jsonl", "train.tsv"], "has train.jsonl and train.tsv; keep one of them"),
        (["train-1.tsv", "train-1.tsv.gz"], "has train-1.tsv and train-1.tsv.gz; keep one"),
        (["train/a.tsv", "train/a.jsonl"], "train has a.jsonl and a.tsv; keep one of them"),
        (["train.tsv", "train-1.tsv"], "the split 'train' is there as shards and as a file"),
        (["train.tsv", "train/a.tsv"], "the split 'train' is there as a directory and as a file"),
        (["train-1.tsv", "train/a.tsv"], "is there as a directory and as shards; keep one of"),
    ],
)
def test_a_split_in_two_layouts_is_refused(names, said, tmp_path):
    assert said in refusal(tmp_path, *names, "validation.tsv")
    with pytest.raises(ConfigError, match="keep one of them"):
        find_splits(f"{tmp_path}/**", NAMES, (".tsv", ".jsonl"), allow_unsplit=True)


def test_a_missing_shard_is_refused(tmp_path):
    names = [f"train-0000{n}-of-00003.tsv" for n in range(3)]
    message = refusal(tmp_path, names[0], names[2], "validation.tsv")
    assert "train-00000-of-00003.tsv is one of 3 shards, but 2 are there; fetch" in message
    assert find(tmp_path, names[1])[0] == names
    # Those of another series do not make up for it; but a glob may want some of them alone.
    assert "is one of 1 shards, but 4 are there" in refusal(tmp_path, "train-0-of-1.tsv")
    assert find(tmp_path / "train-0000[01]-*") == [names[:2], []]


def test_a_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is empty; set it to a directory with files"):
        find_splits("", NAMES, [".tsv"], allow_unsplit=True)
    assert "matches no file; check it" in refusal(tmp_path / "gone.tsv")
    assert "has no file that ends in .tsv or .jsonl" in refusal(tmp_path / "a.csv", "a.csv")
    assert "has no file that ends in .en" in refusal(tmp_path / "*.csv", endings=[".en"])
