import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.sources import registry
from input_pipeline.sources.base import Splits
from tests.input_pipeline.corpora import KINDS, write_corpus
from tests.input_pipeline.sources.files.test_reading import written
from tests.input_pipeline.stand_in import stand_in
from tests.tiny import data_config

DOCUMENTS = [{"text": "some text"}]


def splits(kind="documents", train=DOCUMENTS, evals=None, labels=(), **keys):
    evals = {"held_out": DOCUMENTS} if evals is None else evals
    return Splits(kind, train, evals, labels, {}, "", **keys)


def refusal(**keys):
    with pytest.raises(ConfigError) as refused:
        registry.components(data_config(**keys))
    return str(refused.value)


@pytest.fixture(name="stand_in")
def stand_in_for_several(monkeypatch):
    """Puts splits in the place of embedded sources."""

    def put(**by_name):
        for name, each in by_name.items():
            stand_in(monkeypatch, name, each)

    return put


@pytest.mark.parametrize("empty", ["train", "held_out"])
def test_an_empty_split_is_refused_by_name_and_number(empty, stand_in):
    found = splits(train=[]) if empty == "train" else splits(evals={"held_out": []})
    stand_in(pydoc=found, names=splits())
    assert f"the split {empty!r} has 0 examples" in refusal(source="pydoc")
    mixture = (("names", 1.0), ("pydoc", 1.0))
    assert f"the split {empty!r} of pydoc has 0 examples" in refusal(mixture=mixture)


def test_empty_files_are_refused_before_anything_is_made(tmp_path):
    for name in ("train.en", "train.de", "validation.en", "validation.de"):
        written(tmp_path / name, "" if name.startswith("val") else "a\n")
    where = dict(path=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    languages = dict(source_language="en", target_language="de")
    message = refusal(source="translation_files", **where, **languages)
    assert "the split 'validation' has 0 examples" in message
    empty = str(written(tmp_path / "empty.txt", ""))
    assert "the split 'train' has 0 examples" in refusal(source="text_files", path=empty)
    assert not (tmp_path / "cache").exists()


def test_mixing_incompatible_sources_is_refused(stand_in):
    def image(size):
        return [{"image": np.zeros((size, size, 1), np.uint8), "label": 0}]

    two = (("pydoc", 1.0), ("names", 1.0))
    stand_in(pydoc=splits(), names=splits("labelled", labels=("a",)))
    assert "pydoc and names cannot be mixed, their kinds differ" in refusal(mixture=two)
    stand_in(pydoc=splits("labelled", labels=("a", "b")))
    assert "their labels differ: ('a', 'b') and ('a',)" in refusal(mixture=two)
    stand_in(pydoc=splits("labelled", labels=("a",), text_pairs=True))
    assert "their texts in an example differ: 2 and 1" in refusal(mixture=two)
    stand_in(pydoc=splits("images", image(2)), names=splits("images", image(3)))
    assert "their images differ: (2, 2, 1) and (3, 3, 1)" in refusal(mixture=two)


@pytest.mark.parametrize(
    ("mixture", "said"),
    [
        ((("text_fils:a.txt", 1.0),), "Did you mean 'text_files'?"),
        ((("text_to_text_files:a", 1.0),), "must be a source, or source:path or source:name"),
        ((("text_files", 1.0),), "data.path is empty"),
        ((("text_files:/no/such", 1.0),), "data.path=/no/such matches no file"),
        ((("tfds:lm1b", 1.0),), "'tfds:lm1b': data.kind is empty"),
        ((("pydoc", 1.0), ("pydoc", 2.0)), "2 parts of the data would be called 'pydoc'"),
    ],
)
def test_a_bad_entry_of_a_mixture_is_refused(mixture, said):
    assert said in refusal(mixture=mixture)


def test_parts_of_a_mixture_have_names_and_weights(stand_in, tmp_path):
    stand_in(pydoc=splits())
    path = written(tmp_path / "a-b.txt", "some\ntext\n" * 100)
    found = registry.components(data_config(mixture=((f"text_files:{path}", 3.0), ("pydoc", 1.0))))
    assert [each.weight for each in found] == [3.0, 1.0]
    assert found[0].name.endswith("_a_b_txt") and found[1].name == "pydoc"
    # A part without its own path takes data.path.
    (alone,) = registry.components(data_config(path=str(path), mixture=(("text_files", 1.0),)))
    assert len(alone.splits.train) == len(found[0].splits.train)


EMBEDDED = ["dates", "pydoc", "names", "digits"]


@pytest.mark.parametrize("source", EMBEDDED)
def test_the_kind_of_embedded_examples_is_known_beforehand(source):
    data = data_config(source=source)
    assert data.example_kind == registry.components(data)[0].splits.kind
    mixture = ((source, 1.0),)
    assert data_config(source="dates", mixture=mixture).example_kind == data.example_kind


def test_the_kind_of_examples_in_files_is_known_beforehand(tmp_path):
    write_corpus(tmp_path)
    for folder in ("pairs", "documents", "labelled", "tasks"):
        source, _, keys = KINDS[folder]
        data = data_config(source=source, path=str(tmp_path / folder), **keys)
        assert data.example_kind == registry.components(data)[0].splits.kind
    tasks = data_config(source="text_to_text_files", mixture=(("t0", 1.0),))
    assert tasks.example_kind == "pairs"
    assert data_config(source="tfds", kind="labelled").example_kind == "labelled"


def test_the_table_says_where_each_source_reads():
    by_place = {place: set() for place in ("", "path", "name")}
    for name, source in registry.SOURCES.items():
        assert name == source.name
        assert bool(source.kind) == (source.place != "name")  # else data.kind says it
        by_place[source.place].add(name)
    files = ("text", "translation", "labelled_text", "image", "text_to_text", "item")
    files += ("chat", "preference", "scored", "tagged", "sound", "series", "question")
    assert by_place == {
        "": {*EMBEDDED, "listops", "recall"},
        "path": {f"{name}_files" for name in files},
        "name": {"tfds", "huggingface"},
    }
