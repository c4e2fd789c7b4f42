import numpy as np
import pytest

from input_pipeline.packing import plan


def lengths_of(kind, count=20_000):
    """Like sentences, like paragraphs, and like pieces of long documents with their ends."""
    rng = np.random.default_rng(0)
    match kind:
        case "sentences":
            return np.clip(rng.lognormal(3.1, 0.6, count), 1, 512).astype(int)
        case "paragraphs":
            return np.clip(rng.lognormal(5.0, 0.9, count), 1, 512).astype(int)
        case "documents":
            document_lengths = rng.lognormal(6.5, 1.0, count // 4).astype(int) + 1
            return np.concatenate([[512] * (n // 512) + [n % 512 or 512] for n in document_lengths])


@pytest.mark.parametrize("kind", ["sentences", "paragraphs", "documents"])
def test_rows_of_512_are_filled_to_95_percent(kind):
    lengths = lengths_of(kind)
    packed = plan(lengths[:, None], [512])
    assert sorted(packed.order) == list(range(len(lengths)))  # every example once
    sizes = np.array([lengths[packed.examples(row)].sum() for row in range(len(packed))])
    assert sizes.max() <= 512
    assert sizes.mean() / 512 > 0.95


def test_pairs_fit_on_both_sides():
    rng = np.random.default_rng(1)
    source = lengths_of("sentences")[:5000].clip(1, 256)
    target = (source * rng.normal(1.1, 0.2, len(source))).astype(int).clip(1, 300)
    sizes = np.stack([source, target], axis=1)
    packed = plan(sizes, [256, 300])
    totals = np.array([sizes[packed.examples(row)].sum(axis=0) for row in range(len(packed))])
    assert (totals <= [256, 300]).all()
    assert sorted(packed.order) == list(range(len(sizes)))
    assert (totals.mean(axis=0) / [256, 300]).min() > 0.9


def test_by_hand():
    packed = plan(np.array([[6], [3], [5], [4], [2]]), [10])
    rows = [sorted(packed.examples(row).tolist()) for row in range(len(packed))]
    # 6 + 3, then 5 + 4 because 4 does not fit beside the first two; 2 has to open a third.
    assert rows == [[0, 1], [2, 3], [4]]


def test_an_empty_plan():
    assert len(plan(np.empty((0, 1)), [10])) == 0
