"""`data.train_examples`: nested samples, the same for all seeds, that leave evaluation alone."""

import pickle

import numpy as np
import pytest

import train
from configs import langid
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources import registry
from input_pipeline.sources.base import BadRecordError, LazyList
from input_pipeline.sources.train_sample import SampledExamples
from tests.corpora import labelled_shards
from tests.input_pipeline.corpora import COUNT, KINDS, LANGUAGES, write_corpus
from tests.runs import saved, tiny
from tests.tiny import data_config, masking


@pytest.fixture(scope="module", name="corpus")
def corpus_of_every_kind(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def where(corpus, folder):
    return dict(path=str(corpus / folder), cache_dir=str(corpus / "cache"))


def splits_of(count, **keys):
    (component,) = registry.components(data_config(train_examples=count, **keys))
    return component.splits


def texts(examples):
    """Each example as a string; all differ in these corpora."""
    found = [
        repr(sorted((k, np.asarray(v).tolist()) for k, v in each.items())) for each in examples
    ]
    assert len(set(found)) == len(found)
    return found


SOURCES = {
    "pairs": ("translation_files", LANGUAGES),
    "documents": ("text_files", {}),
    "labelled": ("labelled_text_files", {}),
}


@pytest.mark.parametrize("folder", SOURCES)
def test_samples_are_nested_and_leave_evaluation_alone(folder, corpus):
    source, more = SOURCES[folder]
    keys = dict(source=source, **where(corpus, folder), **more)
    everything = splits_of(0, **keys)
    train = texts(everything.train)
    assert len(train) == COUNT
    smaller, digests = set(), {everything.digest}
    for count in (1, 10, 30, COUNT):
        splits = splits_of(count, **keys)
        sample = texts(splits.train)
        assert len(sample) == len(splits.train) == count
        assert smaller < set(sample) <= set(train)
        assert sample == [each for each in train if each in sample], "in the order of the data"
        assert {name: texts(each) for name, each in splits.evals.items()} == {
            name: texts(each) for name, each in everything.evals.items()
        }
        assert (splits.kind, splits.labels) == (everything.kind, everything.labels)
        assert texts(splits_of(count, **keys).train) == sample
        smaller = set(sample)
        digests.add(splits.digest)
    assert len(digests) == 5, "the fingerprint differs"


def test_the_sample_is_random_and_not_the_beginning(corpus):
    keys = dict(source="labelled_text_files", **where(corpus, "labelled"))
    everything, sample = texts(splits_of(0, **keys).train), texts(splits_of(20, **keys).train)
    places = [everything.index(each) for each in sample]
    assert min(places) < COUNT / 4
    assert max(places) > 3 * COUNT / 4


def test_what_is_held_out_of_the_same_files_stays_so(tmp_path):
    keys = labelled_shards(tmp_path)
    everything, few = splits_of(0, **keys), splits_of(10, **keys)
    held = texts(everything.evals["validation"])
    assert texts(few.evals["validation"]) == held
    assert not set(texts(few.train)) & set(held)


def test_embedded_sources_have_samples():
    for name in ("names", "digits", "pydoc", "dates"):  # lists, and pairs that are made on demand
        splits = splits_of(7, source=name)
        assert len(texts(splits.train)) == 7
        assert dict(splits.description)["train_examples_of"] > 7


def load(seed=0, **keys):
    sizes = dict(batch_size=5, length=48, encoder_length=48, prefetch=0)
    return pipeline.load(
        data_config(**{**sizes, **keys}), objective="classify_text", masking=masking(), seed=seed
    )


def test_every_seed_sees_the_same_examples_in_an_order_of_its_own(corpus):
    def epochs(seed):
        keys = dict(source="labelled_text_files", **where(corpus, "labelled"), train_examples=20)
        data = load(seed, **keys)
        rows = [data.train_batch(n)["inputs"] for n in range(8)]
        return [np.concatenate(part) for part in (rows[:4], rows[4:])]

    def as_set(rows):
        return {row.tobytes() for row in rows}

    first, second = epochs(0)
    other, _ = epochs(1)
    assert len(as_set(first)) == 20
    assert as_set(first) == as_set(second) == as_set(other)
    assert not np.array_equal(first, other)


def test_a_trained_tokenizer_sees_the_sample_only(corpus):
    keys = dict(
        source="labelled_text_files", **where(corpus, "labelled"), tokenizer="word",
        tokenizer_size=500,
    )  # fmt: skip
    few, everything = (load(train_examples=count, **keys) for count in (10, 0))
    assert few.tokenizer.vocab_size < everything.tokenizer.vocab_size
    assert few.digest != everything.digest
    assert few.eval_names == everything.eval_names


def test_a_text_ends_where_its_next_piece_is_left_out():
    pieces = [{"text": str(n), "ends": n in (3, 5)} for n in range(6)]
    sample = SampledExamples(pieces, np.array([4, 0, 1, 3]))
    assert [(each["text"], each["ends"]) for each in sample] == [
        ("0", False), ("1", True), ("3", True), ("4", True),
    ]  # fmt: skip


def test_a_sample_is_read_when_asked_for_and_can_be_sent_to_workers():
    def read(n):
        if n == 2:
            raise BadRecordError("a bad record")
        return {"text": str(n)}

    sample = SampledExamples(LazyList(read, range(5)), np.array([4, 2]))
    assert sample[-1] == {"text": "4"}
    with pytest.raises(BadRecordError):
        sample[0]
    with pytest.raises(IndexError):
        sample[2]
    sent = pickle.loads(pickle.dumps(SampledExamples([{"text": "a"}] * 3, np.array([1, 0]))))
    assert len(list(sent)) == 2


def refusal(**keys):
    with pytest.raises(ConfigError) as refused:
        registry.components(data_config(**keys))
    return str(refused.value)


def test_samples_that_cannot_be_taken_are_refused(corpus):
    labelled = dict(source="labelled_text_files", **where(corpus, "labelled"))
    message = refusal(train_examples=COUNT + 1, **labelled)
    assert message.startswith(
        f"data.train_examples={COUNT + 1} exceeds the {COUNT} examples of the split 'train'"
    )
    source, _, _ = KINDS["tasks"]
    message = refusal(train_examples=5, source=source, **where(corpus, "tasks"))
    assert "takes a sample of one source or task, but the data has 3: t0, t1, t2" in message
    mixture = (("pydoc", 1.0), (f"text_files:{corpus}/documents", 1.0))
    keys = dict(cache_dir=str(corpus / "cache"), mixture=mixture)
    assert "but the data has 2: pydoc, text_files" in refusal(train_examples=5, **keys)
    assert len(registry.components(data_config(**keys))) == 2


@pytest.mark.usefixtures("compile_once")
def test_a_run_on_a_sample_resumes_to_the_bit_but_not_on_another(tmp_path):
    def config(steps, count=30):
        data = dict(length=24, train_examples=count)
        task = dict(auxiliary_masked_lm=0.0)
        return tiny(langid, steps, data=data, task=task, eval=dict(every=0, samples=0))

    train.train_and_evaluate(config(4), tmp_path / "all")
    train.train_and_evaluate(config(2), tmp_path / "parts")
    with pytest.raises(ConfigError, match=r"data.train_examples: 30 -> 40"):
        train.train_and_evaluate(config(4, 40), tmp_path / "parts")
    train.train_and_evaluate(config(4), tmp_path / "parts")
    expected, found = saved(tmp_path / "all", 4), saved(tmp_path / "parts", 4)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
