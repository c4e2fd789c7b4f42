import pytest

from input_pipeline.objectives.classify_text import classify_text
from tests.input_pipeline.objectives.rows_by_hand import (
    CLS,
    MASK,
    SEP,
    A,
    B,
    C,
    E,
    T,
    at,
    check,
    ids,
    rng,
)
from tests.input_pipeline.scripted import Scripted


def test_classify_text_by_hand():
    check(
        classify_text({"text": ids("ab"), "label": 7}, rng(), tokenizer=T, noise_rate=0.15),
        inputs=[CLS, A, B, SEP],
        labels=7,
        weights=1,
    )


@pytest.mark.parametrize(
    ("masked", "first", "weights"), [(True, MASK, [0, 1, 0, 0]), (False, A, [0, 0, 0, 0])]
)
def test_classify_text_masks_chosen_rows_by_hand(masked, first, weights):
    row = {"text": ids("ab"), "label": 7, "masked": masked}
    script = Scripted([1, 2], [0.0], [at(E)])
    check(
        classify_text(row, script, tokenizer=T, noise_rate=0.15),
        inputs=[CLS, first, B, SEP],
        targets=[CLS, A, B, SEP],
        token_weights=weights,
        labels=7,
        weights=1,
    )


def test_classify_a_pair_of_texts_by_hand():
    row = {"text": ids("ab"), "text_pair": ids("c"), "label": 0}
    check(
        classify_text(row, rng(), tokenizer=T, noise_rate=0.15),
        inputs=[CLS, A, B, SEP, C, SEP],
        token_types=[0, 0, 0, 0, 1, 1],
        labels=0,
        weights=1,
    )
