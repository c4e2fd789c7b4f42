import numpy as np
import pytest

from input_pipeline.objectives.span_corruption import span_corruption, span_counts
from tests.input_pipeline.objectives.rows_by_hand import (
    BOS,
    EOS,
    FIRST,
    SECOND,
    A,
    B,
    C,
    D,
    E,
    T,
    check,
    ids,
    rng,
)
from tests.input_pipeline.scripted import Scripted


def test_span_corruption_by_hand():
    # Six seen as 1 + 5, four masked as 3 + 1: a [bcd] eabcd [e]
    script = Scripted([0, 1, 2, 3, 4], [2, 0, 1])
    row = {"text": ids("abcdeabcde")}
    check(
        span_corruption(row, script, tokenizer=T, noise_rate=0.4, mean_span=2.0),
        encoder_inputs=[A, FIRST, E, A, B, C, D, SECOND, EOS],
        inputs=[BOS, FIRST, B, C, D, SECOND, E],
        targets=[FIRST, B, C, D, SECOND, E, EOS],
        weights=[1, 1, 1, 1, 1, 1, 1],
    )


def restored(fields):
    """The original text: each sentinel on the encoder's side replaced by what the decoder says."""
    masked, sentinel = {}, None
    for token in fields["targets"][:-1]:
        if token in T.sentinel_ids:
            sentinel = token
            masked[sentinel] = []
        else:
            masked[sentinel].append(token)
    visible = fields["encoder_inputs"][:-1]
    return [t for token in visible for t in masked.pop(token, [token])], masked


def test_span_counts_by_hand():
    """Tokens times rate, and those by the mean length, each to the nearest whole number."""
    assert span_counts(100, 0.15, 4.0) == (15, 4)
    assert span_counts(10, 0.15, 3.0) == (2, 1)  # 1.5 goes to the even number
    assert span_counts(70, 0.15, 2.0) == (10, 5)  # 10.5 as well
    assert span_counts(2, 0.15, 3.0) == (1, 1)  # at least one


@pytest.mark.parametrize("size", [2, 3, 7, 40, 300])
def test_span_corruption_loses_nothing_and_masks_its_share(size):
    noise, spans = span_counts(size, 0.15, 3.0)
    lengths = []
    for seed in range(50):
        text = rng(seed).choice(T.text_ids, size)
        fields = span_corruption(
            {"text": text},
            rng(seed),
            tokenizer=T,
            noise_rate=0.15,
            mean_span=3.0,
        )
        tokens, left_over = restored(fields)
        assert tokens == text.tolist() and not left_over
        target = fields["targets"][:-1]
        starts = np.flatnonzero(np.isin(target, T.sentinel_ids))
        assert target[starts].tolist() == T.sentinel_ids[:spans].tolist()
        lengths += np.diff([*starts, len(target)]).tolist()
        assert len(target) - len(starts) == noise
    if size == 300:
        assert noise == 45 and spans == 15
        assert min(lengths) == 2 and max(lengths) > 8  # a sentinel and 1 token; far above the mean


def test_a_single_token_is_not_masked():
    fields = span_corruption(
        {"text": ids("a")},
        rng(),
        tokenizer=T,
        noise_rate=0.15,
        mean_span=3.0,
    )
    assert fields["encoder_inputs"].tolist() == [A, EOS]
