from input_pipeline.objectives.prefix_lm import prefix_lm, prefix_lm_pair
from tests.input_pipeline.objectives.rows_by_hand import (
    BOS,
    EOS,
    SEP,
    A,
    B,
    C,
    D,
    T,
    check,
    ids,
    rng,
)
from tests.input_pipeline.scripted import Scripted


def test_prefix_lm_by_hand():
    check(
        prefix_lm({"text": ids("abcd")}, Scripted(2), tokenizer=T),
        inputs=[BOS, A, B, C],
        targets=[A, B, C, D],
        weights=[0, 0, 1, 1],
        prefix=[1, 1, 1, 0],
    )


def test_prefix_lm_of_a_pair_by_hand():
    row = {"source": ids("ab"), "target": ids("c")}
    check(
        prefix_lm_pair(row, rng(), tokenizer=T),
        inputs=[BOS, A, B, SEP, C],
        targets=[A, B, SEP, C, EOS],
        weights=[0, 0, 0, 1, 1],
        prefix=[1, 1, 1, 1, 0],
    )


def test_prefix_lm_splits_anywhere_but_at_the_ends():
    row = {"text": ids("abcde")}
    splits = {int(prefix_lm(row, rng(s), tokenizer=T)["weights"].sum()) for s in range(100)}
    assert splits == {1, 2, 3, 4}
