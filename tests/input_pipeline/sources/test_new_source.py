"""A new source is one file and one line in the table: nothing else names a source.

With the table alone changed, the source in counting.py passes the config check with options of its
own, is tokenized, mixed and resumed; its models generate, go out and come in.
"""

import dataclasses
import shutil

import numpy as np
import pytest

import convert
import generate
import train
from checkpointing import run_directory
from configs import langid, pydoc
from experiment import sections
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.base import Source, Splits, content_digest
from input_pipeline.sources.registry import SOURCES, components, source_for_imports
from tests.input_pipeline.objectives.rows_by_hand import BOS, EOS, T
from tests.input_pipeline.sources import counting
from tests.runs import saved, tiny
from tests.tiny import data_config, masking

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setitem(SOURCES, counting.SOURCE.name, counting.SOURCE)


def config(source="counting", options=None, steps=4, **data):
    data = dict(source=source, options=options or {}, length=8) | data
    return tiny(pydoc, steps=steps, data=data)


def refusal(**data):
    with pytest.raises(ConfigError) as refused:
        sections.from_mapping(config(**data))
    return str(refused.value)


def test_the_config_accepts_it_by_name():
    assert sections.from_mapping(config()).data.example_kind == "documents"
    assert "Did you mean 'counting'?" in refusal(source="countin")


def test_options_of_a_new_source_are_checked_by_name():
    assert sections.from_mapping(config()).data.options == {"documents": 8}
    assert "data.options.documents=0 must be at least 1" in refusal(options={"documents": 0})
    assert "data.options.document is not a config key" in refusal(options={"document": 3})
    assert "data.source=pydoc has no options" in refusal(source="pydoc", options={"documents": 3})


def load(objective="causal_lm", **keys):
    data = data_config(**{"source": "counting", "batch_size": 2, "length": 8} | keys)
    return pipeline.load(data, objective=objective, masking=masking(), seed=0)


def test_an_objective_that_cannot_learn_from_it_is_refused():
    with pytest.raises(ConfigError, match=r"data\.source='counting', whose examples are documents"):
        load("seq2seq")


def test_a_batch_by_hand():
    """Two documents of seven characters, and eos behind each: a row of eight columns is one."""
    rows = {(*T.encode(text).tolist(), EOS) for text in ("0 1 2 3", "1 2 3 4")}
    batch = load(tokenizer="byte", options={"documents": 2}).train_batch(0)
    assert set(map(tuple, batch["targets"].tolist())) == rows
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    assert batch["inputs"][:, 0].tolist() == [BOS, BOS]
    assert batch["weights"].all()


def test_a_new_source_can_be_mixed():
    data = data_config(mixture=(("counting", 3.0), ("dates", 1.0)), options={"documents": 3})
    with pytest.raises(ConfigError, match="counting and dates cannot be mixed, their kinds differ"):
        components(data)
    (alone,) = components(data_config(mixture=(("counting", 3.0),), options={"documents": 3}))
    assert (alone.name, alone.weight, len(alone.splits.train)) == ("counting", 3.0, 3)


def test_batch_n_does_not_depend_on_where_a_run_began():
    uninterrupted = list(load(tokenizer="byte").train_iterator(0, 9))
    for start in (1, 4, 8):
        for batch, expected in zip(
            load(tokenizer="byte").train_iterator(start, 9), uninterrupted[start:], strict=True
        ):
            assert batch.keys() == expected.keys()
            for name in batch:
                np.testing.assert_array_equal(batch[name], expected[name])


def test_an_interrupted_run_equals_the_uninterrupted_run(tmp_path):
    uninterrupted, parts = tmp_path / "uninterrupted", tmp_path / "parts"
    scores = train.train_and_evaluate(config(), uninterrupted)
    assert "eval/larger/bits_per_byte" in scores
    train.train_and_evaluate(config(steps=3), parts)
    shutil.rmtree(parts / "checkpoints" / "3")
    assert train.train_and_evaluate(config(), parts) == scores
    expected, found = saved(uninterrupted, 4), saved(parts, 4)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on the toy source; its tokenizer has a published format."""
    workdir = tmp_path_factory.mktemp("counting") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, counting.SOURCE.name, counting.SOURCE)
        train.train_and_evaluate(config(steps=1, tokenizer="bpe", tokenizer_size=362), workdir)
    return workdir


def test_its_models_generate(run):
    (outputs,) = generate.generate(run, ["1 2"], max_new_tokens=4)
    assert isinstance(outputs[0]["text"], str) and 0 <= outputs[0]["tokens"] <= 4


@pytest.mark.parametrize("for_imports", [True, False])
def test_its_models_are_exported_and_imported(for_imports, run, tmp_path, monkeypatch):
    monkeypatch.delitem(SOURCES, "text_files")
    source = dataclasses.replace(counting.SOURCE, for_imports=for_imports)
    monkeypatch.setitem(SOURCES, "counting", source)
    convert.convert(str(run), str(tmp_path / "out"))
    if not for_imports:
        with pytest.raises(ConfigError, match="for_imports=True and kind='documents'"):
            convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
        return
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    assert run_directory.read_config(tmp_path / "again")["data"]["source"] == "counting"


def test_imported_models_name_the_sources_that_say_so():
    kinds = ["pairs", "documents", "labelled", "scored", "tagged", "images"]
    assert [source_for_imports(kind) for kind in kinds] == [
        "translation_files",
        "text_files",
        "labelled_text_files",
        "scored_files",
        "tagged_files",
        "image_files",
    ]


def load_words(data):
    examples = [{"text": text, "label": number} for number, text in enumerate(("ab", "cd"))]
    evals, digest = {"same": examples}, content_digest(["ab", "cd"])
    return Splits("labelled", examples, evals, ("first", "second"), {}, digest, "memory")


@pytest.mark.parametrize("tab_separates_texts", [True, False])
def test_a_source_says_what_a_tab_in_a_line_means(tab_separates_texts, tmp_path, monkeypatch):
    words = Source("words", load_words, "labelled", tab_separates_texts=tab_separates_texts)
    monkeypatch.setitem(SOURCES, "words", words)
    data = dict(source="words", length=8, buckets=())
    train.train_and_evaluate(tiny(langid, steps=1, data=data), tmp_path)
    if tab_separates_texts:
        with pytest.raises(ConfigError, match="has a tab, which separates two texts"):
            generate.generate(tmp_path, ["a\tb"])
    else:
        (outputs,) = generate.generate(tmp_path, ["a\tb"])
        assert {each["label"] for each in outputs} == {"first", "second"}
