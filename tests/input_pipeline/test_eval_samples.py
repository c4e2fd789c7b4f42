"""eval.batches=N takes a fixed, fair sample of an eval set, independent of its order."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from input_pipeline import pipeline
from input_pipeline.sources.base import Splits
from tests.input_pipeline.stand_in import stand_in
from tests.tiny import data_config, masking

CLASS_SIZES = (500, 300, 150, 50)  # the held-out set is sorted by class
LABELS = np.repeat(np.arange(len(CLASS_SIZES)), CLASS_SIZES)
ROWS = len(LABELS)


@pytest.fixture(autouse=True)
def sorted_by_class(monkeypatch):
    examples = [
        {"image": np.full((2, 2, 1), row, np.float32), "label": int(label)}
        for row, label in enumerate(LABELS)
    ]
    splits = Splits("images", examples, {"held_out": examples}, tuple("abcd"), {}, "sorted")
    stand_in(monkeypatch, "digits", splits)


def load(source="digits", objective="classify_images", *, seed=0, index=0, count=1, **keys):
    return pipeline.load(
        data_config(source=source, batch_size=8, **keys),
        objective=objective,
        masking=masking(),
        seed=seed,
        process_index=index,
        process_count=count,
    )


def rows_of(data, batch_size, batches):
    """The numbers of the rows, which the images of this set show."""
    made = data.eval_batches("held_out", batch_size, batches)
    weights = np.concatenate([batch["weights"] for batch in made])
    images = np.concatenate([batch["images"] for batch in made])
    return images[weights > 0][:, 0, 0, 0].astype(int)


@pytest.mark.parametrize("batches", [2, 8, 16])
def test_a_sample_has_each_class_in_its_share(batches):
    rows = rows_of(load(), 32, batches)
    assert len(rows) == len(set(rows)) == 32 * batches
    counts = np.bincount(LABELS[rows], minlength=len(CLASS_SIZES))
    for size, count in zip(CLASS_SIZES, counts, strict=True):
        chance = hypergeom(ROWS, size, len(rows))
        assert chance.ppf(1e-4) <= count <= chance.isf(1e-4)


def test_a_sample_is_the_same_in_every_run_and_on_any_number_of_processes():
    rows = rows_of(load(), 32, 4)
    np.testing.assert_array_equal(rows, rows_of(load(seed=7), 32, 4))
    for count in (2, 4):
        shares = [
            rows_of(load(index=index, count=count), 32, 4).reshape(4, -1) for index in range(count)
        ]
        np.testing.assert_array_equal(rows, np.concatenate(shares, axis=1).reshape(-1))
    # A batch size is only a way to cut the same rows.
    np.testing.assert_array_equal(rows, rows_of(load(), 16, 8))
    np.testing.assert_array_equal(rows[:32], rows_of(load(), 32, 1))


def test_all_batches_have_every_row_once():
    for batches in (0, 32, 99):
        assert sorted(rows_of(load(), 32, batches)) == list(range(ROWS))


def test_examples_to_be_shown_are_the_first_of_the_sample():
    data = load()
    shown = [int(example["image"][0, 0, 0]) for example in data.eval_examples("held_out", 12)]
    assert shown == rows_of(data, 4, 3).tolist()
    assert len({LABELS[row] for row in shown}) > 1
    assert data.eval_examples("held_out", 0) == []


@pytest.mark.parametrize("packing", [False, True])
def test_bytes_are_those_of_the_sampled_windows(monkeypatch, packing):
    """Of ASCII text, what a byte-level tokenizer's targets spell."""
    documents = [{"text": f"{n} says: {'the cat sat; ' * (n % 7)}"} for n in range(40)]
    documents[3]["ends"] = False
    splits = Splits("documents", documents, {"held_out": documents}, (), {}, "text", "memory")
    stand_in(monkeypatch, "pydoc", splits)
    keys = dict(tokenizer="bpe", tokenizer_size=400, length=8, packing=packing)
    data = load("pydoc", "causal_lm", **keys)
    for batches in (1, 3, 0):
        spelt = "".join(
            data.tokenizer.decode(row[weights > 0])
            for batch in data.eval_batches("held_out", 4, batches)
            for row, weights in zip(batch["targets"], batch["weights"], strict=True)
        )
        assert data.eval_bytes("held_out", 4, batches) == len(spelt) > 0
