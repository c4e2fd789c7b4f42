"""One example of each objective written out by hand, then the statistics of the random ones."""

import itertools

import numpy as np
import pytest

from input_pipeline import objectives
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.scripted import Scripted

T = ByteTokenizer()
BOS, EOS, MASK, CLS, SEP = 1, 2, 3, 4, 5
A, B, C, D, E = T.encode("abcde").tolist()
FIRST, SECOND = T.sentinel_ids[:2].tolist()


def rng(seed=0):
    return np.random.default_rng(seed)


def ids(text):
    return T.encode(text)


def at(token):
    """Where a token stands among those that may replace another."""
    return T.text_ids.tolist().index(token)


def check(fields, **expected):
    assert set(fields) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(fields[name], values, err_msg=name)


def test_causal_lm_by_hand():
    check(
        objectives.causal_lm({"text": ids("abc")}, rng(), tokenizer=T),
        inputs=[BOS, A, B],
        targets=[A, B, C],
        weights=[1, 1, 1],
    )


def test_prefix_lm_by_hand():
    check(
        objectives.prefix_lm({"text": ids("abcd")}, Scripted(2), tokenizer=T),
        inputs=[BOS, A, B, C],
        targets=[A, B, C, D],
        weights=[0, 0, 1, 1],
        prefix=[1, 1, 1, 0],
    )


def test_prefix_lm_of_a_pair_by_hand():
    row = {"source": ids("ab"), "target": ids("c")}
    check(
        objectives.prefix_lm_pair(row, rng(), tokenizer=T),
        inputs=[BOS, A, B, SEP, C],
        targets=[A, B, SEP, C, EOS],
        weights=[0, 0, 0, 1, 1],
        prefix=[1, 1, 1, 1, 0],
    )


def test_seq2seq_by_hand():
    row = {"source": ids("ab"), "target": ids("cde")}
    check(
        objectives.seq2seq(row, rng(), tokenizer=T),
        encoder_inputs=[A, B, EOS],
        inputs=[BOS, C, D, E],
        targets=[C, D, E, EOS],
        weights=[1, 1, 1, 1],
    )


class BartTokenizer(ByteTokenizer):
    text_start_ids = (CLS,)


def test_rows_of_bart_begin_with_its_start_on_both_sides():
    row = {"source": ids("ab"), "target": ids("cde")}
    check(
        objectives.seq2seq(row, rng(), tokenizer=BartTokenizer()),
        encoder_inputs=[CLS, A, B, EOS],
        inputs=[BOS, CLS, C, D, E],
        targets=[CLS, C, D, E, EOS],
        weights=[1, 1, 1, 1, 1],
    )


def test_masked_lm_by_hand():
    # Positions 4, 1, 3 are chosen: one is masked, one replaced (by "e"), one stays.
    script = Scripted([4, 1, 3, 2], [0.1, 0.85, 0.95], [at(A), at(E), at(A)])
    row = {"text": ids("abcd")}
    check(
        objectives.masked_lm(row, script, tokenizer=T, noise_rate=0.75, whole_words=False),
        inputs=[CLS, E, B, C, MASK, SEP],
        targets=[CLS, A, B, C, D, SEP],
        weights=[0, 1, 0, 1, 1, 0],
    )


@pytest.mark.parametrize(
    ("draws", "second", "follows"), [((0.4, 2), [D], 1), ((0.6, 2, 1), [E, E], 0)]
)
def test_next_sentence_by_hand(draws, second, follows):
    # The cut comes behind two sentences; of the other row the second sentence is taken.
    masked = [3 + len(second) + 1], [0.0], [at(A)]
    row = {
        "sentences": [ids("a"), ids("bc"), ids("d")],
        "other": {"sentences": [ids("aa"), ids("ee")]},
    }
    fields = objectives.masked_lm_with_next_sentence
    options = dict(tokenizer=T, noise_rate=0.2, whole_words=False, room=10)
    masked_second = [*second[:-1], MASK]
    check(
        fields(row, Scripted(*draws, *masked), **options),
        inputs=[CLS, A, B, C, SEP, *masked_second, SEP],
        targets=[CLS, A, B, C, SEP, *second, SEP],
        weights=[0, 0, 0, 0, 0, *([0] * (len(second) - 1)), 1, 0],
        token_types=[0, 0, 0, 0, 0, *([1] * len(second)), 1],
        next_sentence=follows,
    )


def test_whole_words_are_masked_or_left_by_hand():
    # Words of 2, 3 and 1 letters with the space before each; drawn in the order 2, 0, 1.
    text = ids("ab cde a")
    script = Scripted([2, 0, 1], [0.0] * 4, [at(A)] * 4)
    fields = objectives.masked_lm(
        {"text": text}, script, tokenizer=T, noise_rate=0.5, whole_words=True
    )
    masked = np.flatnonzero(fields["weights"])
    words = np.cumsum(T.word_starts(text)) - 1
    assert set(words[masked - 1]) == {2, 0}
    assert (fields["inputs"][masked] == MASK).all()
    assert len(masked) == np.isin(words, [0, 2]).sum() <= 4


def test_span_corruption_by_hand():
    # Six seen as 1 + 5, four masked as 3 + 1: a [bcd] eabcd [e]
    script = Scripted([0, 1, 2, 3, 4], [2, 0, 1])
    row = {"text": ids("abcdeabcde")}
    check(
        objectives.span_corruption(row, script, tokenizer=T, noise_rate=0.4, mean_span=2.0),
        encoder_inputs=[A, FIRST, E, A, B, C, D, SECOND, EOS],
        inputs=[BOS, FIRST, B, C, D, SECOND, E],
        targets=[FIRST, B, C, D, SECOND, E, EOS],
        weights=[1, 1, 1, 1, 1, 1, 1],
    )


def test_classify_text_by_hand():
    check(
        objectives.classify_text(
            {"text": ids("ab"), "label": 7}, rng(), tokenizer=T, noise_rate=0.15
        ),
        inputs=[CLS, A, B, SEP],
        labels=7,
        weights=1,
    )


@pytest.mark.parametrize(
    ("masked", "first", "weights"), [(True, MASK, [0, 1, 0, 0]), (False, A, [0, 0, 0, 0])]
)
def test_classify_text_masks_tokens_where_it_is_told_by_hand(masked, first, weights):
    row = {"text": ids("ab"), "label": 7, "masked": masked}
    script = Scripted([1, 2], [0.0], [at(E)])
    check(
        objectives.classify_text(row, script, tokenizer=T, noise_rate=0.15),
        inputs=[CLS, first, B, SEP],
        targets=[CLS, A, B, SEP],
        token_weights=weights,
        labels=7,
        weights=1,
    )


def test_classify_a_pair_of_texts_by_hand():
    row = {"text": ids("ab"), "text_pair": ids("c"), "label": 0}
    check(
        objectives.classify_text(row, rng(), tokenizer=T, noise_rate=0.15),
        inputs=[CLS, A, B, SEP, C, SEP],
        token_types=[0, 0, 0, 0, 1, 1],
        labels=0,
        weights=1,
    )


def test_classify_images_by_hand():
    image = np.full((2, 2, 1), 0.5, np.float32)
    fields = objectives.classify_images({"image": image, "label": 3}, rng())
    check(fields, images=image, labels=3, weights=1)


def test_classify_images_normalises_bytes_and_takes_two_labels():
    image = np.array([[[0, 255]]], np.uint8)
    row = {"image": image, "label": [3, 1], "label_weights": [0.75, 0.25]}
    fields = objectives.classify_images(row, rng(), mean=(0.5, 0.25), std=(0.5, 0.25))
    check(fields, images=[[[-1, 3]]], labels=[3, 1], weights=[0.75, 0.25])


def test_prefix_lm_splits_anywhere_but_at_the_ends():
    row = {"text": ids("abcde")}
    splits = {
        int(objectives.prefix_lm(row, rng(s), tokenizer=T)["weights"].sum()) for s in range(100)
    }
    assert splits == {1, 2, 3, 4}


def masked_rows(count=300):
    text = rng(5).choice(T.text_ids, 200)
    row = {"text": text}
    options = dict(tokenizer=T, noise_rate=0.15, whole_words=False)
    rows = [objectives.masked_lm(row, rng(s), **options) for s in range(count)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_masked_lm_hides_its_share_and_leaves_everything_else_alone():
    batch = masked_rows()
    chosen = batch["weights"] > 0
    assert (chosen.sum(1) == 30).all()
    assert not chosen[:, [0, 201]].any()  # never cls or sep
    assert (batch["inputs"] == batch["targets"])[~chosen].all()
    inputs, targets = batch["inputs"][chosen], batch["targets"][chosen]
    assert abs(np.mean(inputs == MASK) - 0.8) < 0.02
    assert abs(np.mean(inputs == targets) - 0.1) < 0.02
    changed = inputs[(inputs != MASK) & (inputs != targets)]
    assert np.isin(changed, T.text_ids).all() and len(np.unique(changed)) > 200
    # Every position is chosen now and then.
    assert (chosen[:, 1:201].mean(0) > 0.05).all()


def test_next_sentences_are_balanced_and_real():
    """Row and other row have sentences of letters of their own, in alphabetical order."""
    sentences = [ids(letter * 3) for letter in "abcdef"]
    others = [ids(letter * 3) for letter in "uvwxyz"]
    row = {"sentences": sentences, "other": {"sentences": others}}
    options = dict(tokenizer=T, noise_rate=0.15, whole_words=False, room=18)
    rows = [
        objectives.masked_lm_with_next_sentence(row, rng(seed), **options) for seed in range(400)
    ]
    follows = np.array([row["next_sentence"] for row in rows])
    assert 0.42 < follows.mean() < 0.58
    cuts = set()
    for row in rows:
        first, second, _ = _parts(row["targets"])
        assert first in "aaabbbcccdddeeefff"
        if row["next_sentence"]:
            cuts.add(len(first))
            assert first + second == "aaabbbcccdddeeefff"
        else:
            assert set(second) <= set("uvwxyz") and second == "".join(sorted(second))
        assert len(first) + len(second) <= 18
    assert cuts == {3, 6, 9, 12, 15}


def _parts(tokens):
    places = [0, *np.flatnonzero(tokens == SEP)]
    return [T.decode(tokens[a:b]) for a, b in itertools.pairwise([*places, len(tokens)])]


def restored(fields):
    """The original text: each sentinel on the encoder's side replaced by what the decoder says."""
    masked, sentinel = {}, None
    for token in fields["targets"][:-1]:
        if token in T.sentinel_ids:
            sentinel = token
            masked[sentinel] = []
        else:
            masked[sentinel].append(token)
    seen = fields["encoder_inputs"][:-1]
    return [t for token in seen for t in masked.pop(token, [token])], masked


def test_span_counts_by_hand():
    """Tokens times rate, and those by the mean length, each to the nearest whole number."""
    assert objectives.span_counts(100, 0.15, 4.0) == (15, 4)
    assert objectives.span_counts(10, 0.15, 3.0) == (2, 1)  # 1.5 goes to the even number
    assert objectives.span_counts(70, 0.15, 2.0) == (10, 5)  # 10.5 as well
    assert objectives.span_counts(2, 0.15, 3.0) == (1, 1)  # at least one


@pytest.mark.parametrize(("size", "count"), [(6, 1), (10, 2), (17, 3), (30, 4)])
def test_as_many_tokens_are_masked_as_the_rate_says(size, count):
    """0.15 of 6, 10, 17 and 30 are 0.9, 1.5, 2.55 and 4.5."""
    row = {"text": rng().choice(T.text_ids, size)}
    options = dict(tokenizer=T, noise_rate=0.15, whole_words=False)
    assert objectives.masked_lm(row, rng(), **options)["weights"].sum() == count


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
            noise_rate=0.15,
            mean_span=3.0,
        )
        whole, left_over = restored(fields)
        assert whole == text.tolist() and not left_over
        target = fields["targets"][:-1]
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
        noise_rate=0.15,
        mean_span=3.0,
    )
    assert fields["encoder_inputs"].tolist() == [A, EOS]
