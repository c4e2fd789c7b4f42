import platform

import pytest

from input_pipeline.sources.embedded import pydoc


@pytest.fixture(scope="module")
def splits():
    return pydoc.load()


def test_no_text_is_in_two_splits(splits):
    eval_texts = {d["text"] for d in splits.evals["held_out"]}
    assert eval_texts and not eval_texts & {d["text"] for d in splits.train}


def test_topics_and_library_are_there_and_tests_are_not(splits):
    documents = {d["name"]: d["text"] for d in (*splits.train, *splits.evals["held_out"])}
    assert "truth value" in documents["topic booleans"].lower()
    assert "class Formatter" in documents["string.py"]
    assert "json/decoder.py" in documents
    assert not any("test" in name.split("/") or "site-packages" in name for name in documents)
    assert "pydoc_data/topics.py" not in documents
    assert all(documents.values())


def test_some_megabytes_to_train_and_a_little_to_evaluate(splits):
    facts = splits.description
    assert facts["python"] == platform.python_version()
    assert facts["train_bytes"] > 5_000_000
    share = facts["held_out_bytes"] / (facts["train_bytes"] + facts["held_out_bytes"])
    assert 0.01 < share < 0.1


def test_the_digest_depends_on_the_content(splits, monkeypatch):
    assert pydoc.load().digest == splits.digest
    monkeypatch.setitem(pydoc.topics, "booleans", "never mind")
    assert pydoc.load().digest != splits.digest
