import itertools

import numpy as np
import pytest

from input_pipeline.objectives.masked_lm import masked_lm, masked_lm_with_next_sentence
from tests.input_pipeline.objectives.rows_by_hand import (
    CLS,
    MASK,
    SEP,
    A,
    B,
    C,
    D,
    E,
    T,
    at,
    check,
    ids,
    rng,
)
from tests.input_pipeline.scripted import Scripted


def test_masked_lm_by_hand():
    # Positions 4, 1, 3 are chosen: one is masked, one replaced (by "e"), one stays.
    script = Scripted([4, 1, 3, 2], [0.1, 0.85, 0.95], [at(A), at(E), at(A)])
    row = {"text": ids("abcd")}
    check(
        masked_lm(row, script, tokenizer=T, noise_rate=0.75, whole_words=False),
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
    fields = masked_lm_with_next_sentence
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


def test_whole_word_masking_by_hand():
    # Words of 2, 3 and 1 letters with the space before each; drawn in the order 2, 0, 1.
    text = ids("ab cde a")
    script = Scripted([2, 0, 1], [0.0] * 4, [at(A)] * 4)
    fields = masked_lm({"text": text}, script, tokenizer=T, noise_rate=0.5, whole_words=True)
    masked = np.flatnonzero(fields["weights"])
    words = np.cumsum(T.word_starts(text)) - 1
    assert set(words[masked - 1]) == {2, 0}
    assert (fields["inputs"][masked] == MASK).all()
    assert len(masked) == np.isin(words, [0, 2]).sum() <= 4


def masked_rows(count=300):
    text = rng(5).choice(T.text_ids, 200)
    row = {"text": text}
    options = dict(tokenizer=T, noise_rate=0.15, whole_words=False)
    rows = [masked_lm(row, rng(s), **options) for s in range(count)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_masked_lm_masks_its_share_and_changes_nothing_else():
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
    rows = [masked_lm_with_next_sentence(row, rng(seed), **options) for seed in range(400)]
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


@pytest.mark.parametrize(("size", "count"), [(6, 1), (10, 2), (17, 3), (30, 4)])
def test_as_many_tokens_are_masked_as_the_rate_says(size, count):
    """0.15 of 6, 10, 17 and 30 are 0.9, 1.5, 2.55 and 4.5."""
    row = {"text": rng().choice(T.text_ids, size)}
    options = dict(tokenizer=T, noise_rate=0.15, whole_words=False)
    assert masked_lm(row, rng(), **options)["weights"].sum() == count
