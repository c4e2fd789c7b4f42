import numpy as np
import pytest

from input_pipeline.objectives.masked_items import masked_items
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer

T = train_tokenizer("item", ["a b c d e"], 99)
A, B, C, D, E = T.encode("a b c d e").tolist()
FRAME = T.cls_id, T.sep_id


def row_of(text, *, training, ordered=False, seed=0, rate=0.3):
    row = {"text": T.encode(text)} | ({"is_training": True} if training else {})
    rng = np.random.default_rng(seed)
    return masked_items(row, rng, tokenizer=T, noise_rate=rate, ordered=ordered)


def test_the_last_item_by_hand():
    fields = row_of("a b c", training=False)
    assert fields["inputs"].tolist() == [T.cls_id, A, B, T.mask_id, T.sep_id]
    assert fields["predicted"].tolist() == [3]
    assert fields["targets"].tolist() == [C]
    assert fields["weights"].tolist() == [1]


def test_unknown_items_are_left_out_but_stay_targets():
    fields = row_of("a new c", training=False)
    assert fields["inputs"].tolist() == [T.cls_id, A, T.mask_id, T.sep_id]
    fields = row_of("a b new", training=False)
    assert fields["inputs"].tolist() == [T.cls_id, A, B, T.mask_id, T.sep_id]
    assert fields["targets"].tolist() == [T.unknown_id]


def test_training_masks_at_least_one_item_and_never_all():
    counts = np.zeros(6, int)
    places = np.zeros(5, int)
    for seed in range(400):
        fields = row_of("a b c d e", training=True, seed=seed)
        is_masked = fields["inputs"] == T.mask_id
        np.testing.assert_array_equal(np.flatnonzero(is_masked), fields["predicted"])
        full = fields["inputs"].copy()
        full[fields["predicted"]] = fields["targets"]
        np.testing.assert_array_equal(full, [T.cls_id, A, B, C, D, E, T.sep_id])
        counts[is_masked.sum()] += 1
        places += is_masked[1:-1]
    assert counts[0] == counts[5] == 0 and (counts[1:5] > 0).all()
    assert places.min() > 0.7 * places.max()  # all places alike


@pytest.mark.parametrize(("ordered", "least"), [(False, 0.25), (True, 0.55)])
def test_ordered_items_mask_the_last_one_more_often(ordered, least):
    rows = [row_of("a b c d e", training=True, ordered=ordered, seed=seed) for seed in range(200)]
    share = np.mean([5 in row["predicted"] for row in rows])
    assert least < share < least + 0.3
