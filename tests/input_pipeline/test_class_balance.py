"""Class weights and oversampling, against counts by hand and scikit-learn's balanced weights."""

from collections import Counter

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.class_balance import oversampled
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config, masking

COUNTS = {"eel": 3, "cat": 14, "dog": 7}
LABELS = sorted(COUNTS)


@pytest.fixture
def loaded(tmp_path):
    lines = [f"{label}\t{label} {n}" for label, count in COUNTS.items() for n in range(count)]
    written(tmp_path / "train.tsv", "\n".join(lines))
    written(tmp_path / "validation.tsv", "cat\tcat 99\neel\teel 99\n")

    def load(**keys):
        where = dict(path=str(tmp_path), cache_dir=str(tmp_path / "cache"))
        sizes = dict(batch_size=6, length=10, prefetch=0)
        data = data_config(**{"source": "labelled_text_files", **where, **sizes, **keys})
        return pipeline.load(data, objective="classify_text", masking=masking(), seed=0)

    return load


def epoch(data, rows):
    """Labels and weights of the first `rows` training rows."""
    batches = [data.train_batch(n) for n in range(rows // 6)]
    return [np.concatenate([batch[name] for batch in batches]) for name in ("labels", "weights")]


def test_balanced_weights_are_those_of_scikit_learn(loaded):
    from sklearn.utils.class_weight import compute_class_weight

    labels, weights = epoch(loaded(class_balance="weights"), 24)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(weights, expected[labels], rtol=1e-6)
    assert Counter(LABELS[label] for label in labels) == COUNTS
    assert weights.dtype == np.float32


def test_factors_multiply_the_weights(loaded):
    labels, weights = epoch(loaded(class_weights=(("dog", 2.0),)), 24)
    np.testing.assert_array_equal(weights, np.where(labels == LABELS.index("dog"), 2, 1))
    both = loaded(class_balance="weights", class_weights=(("dog", 2.0),))
    labels, weights = epoch(both, 24)
    totals = [weights[labels == c].sum() for c in range(3)]
    np.testing.assert_allclose(totals, [8, 16, 8], rtol=1e-6)


@pytest.mark.parametrize("keys", [{}, {"buckets": (9,)}, {"bucket_count": 2}])
def test_oversampling_makes_classes_equally_frequent(loaded, keys):
    data = loaded(class_balance="oversample", **keys)
    assert data.description["train_rows"] == 42
    ids = Counter()
    labels = Counter()
    for n in range(60):
        batch = data.train_batch(n)
        real = batch["weights"] > 0
        labels.update(batch["labels"][real].tolist())
        ids.update(data.train_ids(n))
        if ids.total() == 42:
            break
    assert labels == {0: 14, 1: 14, 2: 14}
    assert len(ids) == 24
    times = sorted(ids.values())
    assert times == [1] * 14 + [2] * 7 + [4, 5, 5]


def test_evaluation_is_not_weighted(loaded):
    batch = loaded(class_balance="weights").eval_batches("validation", 2)[0]
    np.testing.assert_array_equal(batch["weights"], [1, 1])


def test_a_class_that_does_not_occur_is_left_out():
    np.testing.assert_array_equal(oversampled(np.array([2, 0, 2]), 3), [0, 1, 1, 2])


def test_an_unknown_class_is_refused(loaded):
    with pytest.raises(ConfigError, match=r"names the class 'dgo'.*Did you mean 'dog'"):
        loaded(class_weights=(("dgo", 2.0),))
