"""One example of each objective written out by hand, then the statistics of the random ones."""

import numpy as np
import pytest

from input_pipeline import objectives
from input_pipeline.tokenizer import ByteTokenizer

T = ByteTokenizer()
PAD, BOS, EOS, MASK, CLS, SEP = 0, 1, 2, 3, 4, 5
A, B, C, D, E = T.encode("abcde").tolist()
FIRST, SECOND = T.sentinel_ids[:2].tolist()


class Scripted:
    """Stands in for a random generator: answers in the order written down."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def _next(self, *args):
        del args
        return np.array(self._answers.pop(0))

    random = integers = permutation = _next


def rng(seed=0):
    return np.random.default_rng(seed)


def ids(text):
    return T.encode(text)


def check(fields, **expected):
    assert set(fields) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(fields[name], values, err_msg=name)
        kind = np.float32 if name in ("weights", "images") else np.int32
        assert fields[name].dtype == kind, name


def test_causal_lm_by_hand():
    check(
        objectives.causal_lm({"text": ids("abc")}, rng(), tokenizer=T, length=5),
        inputs=[BOS, A, B, PAD, PAD],
        targets=[A, B, C, PAD, PAD],
        weights=[1, 1, 1, 0, 0],
    )


def test_prefix_lm_by_hand():
    check(
        objectives.prefix_lm({"text": ids("abcd")}, Scripted(2), tokenizer=T, length=5),
        inputs=[BOS, A, B, C, PAD],
        targets=[A, B, C, D, PAD],
        weights=[0, 0, 1, 1, 0],
        prefix=[1, 1, 1, 0, 0],
    )


def test_prefix_lm_of_a_pair_by_hand():
    row = {"source": ids("ab"), "target": ids("c")}
    check(
        objectives.prefix_lm_pair(row, rng(), tokenizer=T, length=6),
        inputs=[BOS, A, B, SEP, C, PAD],
        targets=[A, B, SEP, C, EOS, PAD],
        weights=[0, 0, 0, 1, 1, 0],
        prefix=[1, 1, 1, 1, 0, 0],
    )


def test_seq2seq_by_hand():
    row = {"source": ids("ab"), "target": ids("cde")}
    check(
        objectives.seq2seq(row, rng(), tokenizer=T, length=5, encoder_length=4),
        encoder_inputs=[A, B, EOS, PAD],
        encoder_segment_ids=[1, 1, 1, 0],
        inputs=[BOS, C, D, E, PAD],
        targets=[C, D, E, EOS, PAD],
        weights=[1, 1, 1, 1, 0],
        segment_ids=[1, 1, 1, 1, 0],
    )


def test_masked_lm_by_hand():
    # Positions 4, 1, 3 are chosen: one is hidden, one replaced (by "e"), one stays.
    script = Scripted([4, 1, 3, 2], [0.1, 0.85, 0.95], list(b"aea"))
    row = {"text": ids("abcd")}
    check(
        objectives.masked_lm(row, script, tokenizer=T, length=7, noise_rate=0.75),
        inputs=[CLS, E, B, C, MASK, SEP, PAD],
        targets=[CLS, A, B, C, D, SEP, PAD],
        weights=[0, 1, 0, 1, 1, 0, 0],
        segment_ids=[1, 1, 1, 1, 1, 1, 0],
    )


@pytest.mark.parametrize(("draw", "second", "follows"), [(0.4, [C, D], 1), (0.6, [E, E], 0)])
def test_next_sentence_by_hand(draw, second, follows):
    script = Scripted(draw, [5], [0.0], list(b"a"))
    row = {"text": ids("abcd"), "other": ids("aaee")}
    fields = objectives.masked_lm_with_next_sentence
    check(
        fields(row, script, tokenizer=T, length=8, noise_rate=0.25),
        inputs=[CLS, A, B, SEP, second[0], MASK, SEP, PAD],
        targets=[CLS, A, B, SEP, *second, SEP, PAD],
        weights=[0, 0, 0, 0, 0, 1, 0, 0],
        segment_ids=[1, 1, 1, 1, 1, 1, 1, 0],
        token_types=[0, 0, 0, 0, 1, 1, 1, 0],
        next_sentence=follows,
    )


def test_span_corruption_by_hand():
    # Six seen as 1 + 5, four hidden as 3 + 1: a [bcd] eabcd [e]
    script = Scripted([0, 1, 2, 3, 4], [2, 0, 1])
    row = {"text": ids("abcdeabcde")}
    check(
        objectives.span_corruption(
            row, script, tokenizer=T, length=8, encoder_length=10, noise_rate=0.4, mean_span=2.0
        ),
        encoder_inputs=[A, FIRST, E, A, B, C, D, SECOND, EOS, PAD],
        encoder_segment_ids=[1] * 9 + [0],
        inputs=[BOS, FIRST, B, C, D, SECOND, E, PAD],
        targets=[FIRST, B, C, D, SECOND, E, EOS, PAD],
        weights=[1, 1, 1, 1, 1, 1, 1, 0],
        segment_ids=[1, 1, 1, 1, 1, 1, 1, 0],
    )


def test_classify_text_by_hand():
    check(
        objectives.classify_text({"text": ids("ab"), "label": 7}, rng(), tokenizer=T, length=6),
        inputs=[CLS, A, B, SEP, PAD, PAD],
        segment_ids=[1, 1, 1, 1, 0, 0],
        labels=7,
        weights=1,
    )


def test_classify_images_by_hand():
    image = np.full((2, 2, 1), 0.5, np.float32)
    fields = objectives.classify_images({"image": image, "label": 3}, rng())
    check(fields, images=image, labels=3, weights=1)


def test_prefix_lm_splits_anywhere_but_at_the_ends():
    row = {"text": ids("abcde")}
    splits = {
        int(objectives.prefix_lm(row, rng(s), tokenizer=T, length=5)["weights"].sum())
        for s in range(100)
    }
    assert splits == {1, 2, 3, 4}


def masked_rows(fields_of=objectives.masked_lm, extra=None, count=300):
    text = rng(5).choice(T.text_ids, 200)
    row = {"text": text, **(extra or {})}
    rows = [fields_of(row, rng(s), tokenizer=T, length=210, noise_rate=0.15) for s in range(count)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_masked_lm_hides_its_share_and_leaves_everything_else_alone():
    batch = masked_rows()
    chosen = batch["weights"] > 0
    assert (chosen.sum(1) == 30).all()
    assert not chosen[:, [0, *range(201, 210)]].any()  # never cls, sep or padding
    assert (batch["inputs"] == batch["targets"])[~chosen].all()
    inputs, targets = batch["inputs"][chosen], batch["targets"][chosen]
    assert abs(np.mean(inputs == MASK) - 0.8) < 0.02
    assert abs(np.mean(inputs == targets) - 0.1) < 0.02
    changed = inputs[(inputs != MASK) & (inputs != targets)]
    assert np.isin(changed, T.text_ids).all() and len(np.unique(changed)) > 200
    # Every position is chosen now and then.
    assert (chosen[:, 1:201].mean(0) > 0.05).all()


def test_next_sentence_is_balanced_and_its_halves_are_where_it_says():
    other = np.full(200, A, np.int32)
    batch = masked_rows(objectives.masked_lm_with_next_sentence, {"other": other})
    follows = batch["next_sentence"] == 1
    assert 0.4 < follows.mean() < 0.6
    second = batch["targets"][:, 102:202]
    assert (second[~follows] == A).all() and not (second[follows] == A).all(1).any()
    assert (batch["targets"][:, [101, 202]] == SEP).all()
    assert not batch["weights"][:, [0, 101, 202]].any()


def restored(fields):
    """The original text: each sentinel on the encoder's side replaced by what the decoder says."""
    hidden, sentinel = {}, None
    for token in fields["targets"][: int(fields["weights"].sum()) - 1]:
        if token in T.sentinel_ids:
            sentinel = token
            hidden[sentinel] = []
        else:
            hidden[sentinel].append(token)
    seen = fields["encoder_inputs"][: fields["encoder_segment_ids"].sum() - 1]
    return [t for token in seen for t in hidden.pop(token, [token])], hidden


@pytest.mark.parametrize("size", [2, 3, 7, 40, 300])
def test_span_corruption_loses_nothing_and_hides_what_it_should(size):
    noise, spans = objectives.span_counts(size, 0.15, 3.0)
    lengths = []
    for seed in range(50):
        text = rng(seed).choice(T.text_ids, size)
        fields = objectives.span_corruption(
            {"text": text},
            rng(seed),
            tokenizer=T,
            length=80,
            encoder_length=310,
            noise_rate=0.15,
            mean_span=3.0,
        )
        whole, left_over = restored(fields)
        assert whole == text.tolist() and not left_over
        target = fields["targets"][: int(fields["weights"].sum()) - 1]
        starts = np.flatnonzero(np.isin(target, T.sentinel_ids))
        assert target[starts].tolist() == T.sentinel_ids[:spans].tolist()
        lengths += np.diff([*starts, len(target)]).tolist()
        assert len(target) - len(starts) == noise
    if size == 300:
        assert noise == 45 and spans == 15
        assert min(lengths) == 2 and max(lengths) > 8  # a sentinel and 1 token; far above the mean


def test_a_single_token_is_not_hidden():
    fields = objectives.span_corruption(
        {"text": ids("a")},
        rng(),
        tokenizer=T,
        length=4,
        encoder_length=4,
        noise_rate=0.15,
        mean_span=3.0,
    )
    assert fields["encoder_inputs"].tolist() == [A, EOS, PAD, PAD]
