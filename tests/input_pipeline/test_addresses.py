"""Batch n is a function of the config, the seed and n: on files, packed, sorted and mixed."""

import collections
import dataclasses

import numpy as np
import pytest

from input_pipeline import pipeline
from input_pipeline.sources.base import Splits
from tests.input_pipeline.corpora import COUNT, load, numbers, write_corpus
from tests.input_pipeline.sources.files.test_reading import written
from tests.input_pipeline.stand_in import stand_in
from tests.tiny import data_config, masking

PACKED, SORTED = dict(packing=True), dict(buckets=(16, 24))
MIXED = dict(mixture=(("t0", 1.0), ("t2", 3.0)))
WAYS = [
    ("pairs", {}),
    ("pairs", PACKED),
    ("pairs", SORTED),
    ("pairs", PACKED | dict(over_long="drop")),
    ("prefixes", PACKED),
    ("documents", {}),
    ("documents", PACKED),
    ("masked", PACKED),
    ("labelled", {}),
    ("labelled", SORTED),
    ("tasks", {}),
    ("tasks", PACKED),
    ("tasks", MIXED),
    ("tasks", MIXED | PACKED),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def shared(corpus, kind, n, count, **keys):
    """Batch n as that many processes build it together."""
    parts = [
        load(corpus, kind, process_index=i, process_count=count, **keys).train_batch(n)
        for i in range(count)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def assert_equal(batch, other):
    assert set(batch) == set(other)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


@pytest.mark.parametrize(("kind", "keys"), WAYS)
def test_batches_do_not_depend_on_the_resume_step_or_process_count(corpus, kind, keys):
    one_process = load(corpus, kind, **keys)
    rng = np.random.default_rng(len(repr(keys)))
    for _ in range(5):
        n, count = int(rng.integers(200)), int(rng.choice([1, 2, 4, 8]))
        assert_equal(one_process.train_batch(n), shared(corpus, kind, n, count, **keys))
    resumed = load(corpus, kind, **keys).train_iterator(77, 80)
    for n, batch in enumerate(resumed, start=77):
        assert_equal(batch, one_process.train_batch(n))
    other = load(corpus, kind, seed=1, **keys)
    assert (
        other.train_batch(77)["inputs"].tolist() != one_process.train_batch(77)["inputs"].tolist()
    )


@pytest.mark.parametrize(("kind", "keys"), WAYS)
def test_a_batch_far_away_reads_no_rows_but_its_own(corpus, kind, keys):
    data, read = load(corpus, kind, **keys), []
    data._streams = [
        dataclasses.replace(stream, rows=Watched(stream.rows, read)) for stream in data._streams
    ]
    batch = data.train_batch(10**9)
    assert len(read) == len(batch["inputs"]) == 8
    assert_equal(batch, shared(corpus, kind, 10**9, 4, **keys))


class Watched:
    """Rows that keep count of those that are read, and give no more of them than a batch has."""

    def __init__(self, rows, read):
        self._rows, self._read = rows, read

    def parts(self, index):
        self._read.append(index)
        assert len(self._read) <= 8
        return self._rows.parts(index)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        *(("pairs", keys) for keys in ({}, PACKED, SORTED)),
        *(("tasks", keys) for keys in ({}, PACKED, SORTED)),
        *(("labelled", keys) for keys in ({}, SORTED)),
    ],
)
def test_every_example_occurs_once_per_epoch(corpus, kind, keys):
    sizes = [1, 8] if keys is SORTED else [1]  # elsewhere batches may reach into the next epoch
    field = "inputs" if kind == "labelled" else "encoder_inputs"
    for size in sizes:
        data = load(corpus, kind, batch_size=size, **keys)
        rows = data.description["train_rows"]
        assert rows < COUNT / 1.5 if keys is PACKED else rows == COUNT
        batches = batches_in_epoch(data, size, keys)
        for epoch in range(2):
            indices = []
            for n in range(epoch * batches, (epoch + 1) * batches):
                batch = data.train_batch(n)
                weights = batch["weights"].reshape(size, -1).any(axis=1)
                real = {name: values[weights] for name, values in batch.items()}
                indices += numbers(data, real, field)
            assert sorted(indices) == list(range(COUNT))


def batches_in_epoch(data, size, keys):
    """Where sorted, each bucket's last batch may be short."""
    if keys is not SORTED:
        return data.description["train_rows"]
    return sum(-(-len(stream.rows) // size) for stream in data._streams)


@pytest.mark.parametrize("keys", [{}, PACKED])
def test_running_text_occurs_once_per_epoch(corpus, keys):
    data = load(corpus, "documents", batch_size=1, **keys)
    token_counts = collections.Counter()
    for n in range(data.description["train_rows"]):
        batch = data.train_batch(n)
        token_counts.update(batch["targets"][batch["weights"] > 0].tolist())
    expected = collections.Counter({data.tokenizer.eos_id: COUNT})
    for file in (corpus / "documents/train").iterdir():
        expected.update(data.tokenizer.encode(file.read_text()).tolist())
    assert token_counts == expected


def test_sources_are_mixed_in_exact_proportion(monkeypatch, tmp_path):
    """A file three quarters, an embedded source one quarter of the rows; each in its own epochs."""
    counts = {"file": 40, "inside": 11}  # windows of 8 ids
    text = "".join(f"file{n:03}\n" for n in range(counts["file"]))
    written(tmp_path / "train.txt", text[:-1])  # eos takes the place of the last line's end
    written(tmp_path / "validation.txt", "held out")
    documents = [{"text": "".join(f"inside{n:02}" for n in range(counts["inside"]))[:-1]}]
    inside = Splits("documents", documents, {"held_out": documents}, (), {}, "", "memory")
    stand_in(monkeypatch, "pydoc", inside)

    mixture = ((f"text_files:{tmp_path}", 3.0), ("pydoc", 1.0))
    sizes = dict(batch_size=4, length=8, prefetch=0, cache_dir=str(tmp_path / "cache"))
    data = pipeline.load(
        data_config(mixture=mixture, **sizes), objective="causal_lm", masking=masking(), seed=0
    )
    name = data.eval_names[0].removeprefix("validation_")
    assert data.eval_names == (f"validation_{name}", "held_out_pydoc")

    rows = [row for n in range(220) for row in data.train_batch(n)["targets"]]
    row_texts = [data.tokenizer.decode(row) for row in rows]
    of = {"file": [], "inside": []}
    for row in row_texts:
        of["file" if row.startswith("file") else "inside"].append(row)
    is_file = np.cumsum([row.startswith("file") for row in row_texts])
    for size in (4, 7, 100):  # any window of rows holds its share to within one
        windows = is_file[size:] - is_file[:-size]
        assert np.abs(windows - 0.75 * size).max() <= 1
    for source, count in counts.items():
        whole_epochs = of[source][: len(of[source]) // count * count]
        epochs = np.array(whole_epochs).reshape(-1, count)
        assert len(epochs) > 10
        assert all(len(set(epoch)) == count for epoch in epochs)
