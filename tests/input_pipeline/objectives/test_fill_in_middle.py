import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.objectives.causal_lm import causal_lm
from input_pipeline.objectives.fill_in_middle import fill_in_middle, infilling_prompt
from tests.input_pipeline.objectives.rows_by_hand import BOS, EOS, A, B, C, D, T, check, ids, rng
from tests.input_pipeline.test_task_spec import choose

PRE, SUF, MID = T.sentinel_ids[:3].tolist()
TEXT = np.concatenate([ids("first"), [EOS], ids("the second one"), [EOS], ids("cut o")])


class Scripted:
    """A generator whose draws are given: the document's place, two cuts; then uniform numbers."""

    def __init__(self, place, cuts, *uniform):
        self._integers, self._uniform = [place, np.array(cuts)], list(uniform)

    def integers(self, high, size=None):
        return self._integers.pop(0)

    def random(self):
        return self._uniform.pop(0)


def made(text, generator, *, rate=1.0, spm_rate=0.5, training=True):
    row = {"text": text} | ({"is_training": True} if training else {})
    return fill_in_middle(row, generator, tokenizer=T, rate=rate, spm_rate=spm_rate)


def all_ids(fields):
    """All ids of a row, without the bos that is only read."""
    assert fields["inputs"][0] == BOS
    np.testing.assert_array_equal(fields["inputs"][1:], fields["targets"][:-1])
    return fields["targets"]


def test_both_orders_by_hand():
    """The middle of "abcd" is "bc"; the cuts come in any order."""
    check(
        made(ids("abcd"), Scripted(0, [3, 1], 0.0, 0.9)),
        inputs=[BOS, PRE, A, SUF, D, MID, B, C],
        targets=[PRE, A, SUF, D, MID, B, C, EOS],
        weights=[0, 1, 0, 1, 0, 1, 1, 1],
    )
    check(
        made(ids("abcd"), Scripted(0, [1, 3], 0.0, 0.1)),
        inputs=[BOS, PRE, SUF, D, MID, A, B, C],
        targets=[PRE, SUF, D, MID, A, B, C, EOS],
        weights=[0, 0, 1, 0, 1, 1, 1, 1],
    )


def test_only_the_document_at_the_chosen_place_is_rearranged():
    text = np.concatenate([ids("a"), [EOS], ids("bcd"), [EOS], ids("a")])
    fields = made(text, Scripted(3, [1, 2], 0.0, 0.9))
    assert all_ids(fields).tolist() == [A, EOS, PRE, B, SUF, D, MID, C, EOS, A]
    # The eos of a document belongs to it, and a document may be empty.
    fields = made(text, Scripted(5, [1, 2], 0.0, 0.9))
    assert all_ids(fields).tolist() == [A, EOS, PRE, B, SUF, D, MID, C, EOS, A]
    fields = made(np.array([EOS, A]), Scripted(0, [0, 0], 0.0, 0.9))
    assert all_ids(fields).tolist() == [PRE, SUF, MID, EOS, A]


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_a_row_has_every_token_once_and_says_how_to_undo_it(spm_rate):
    documents, orders, middles = set(), set(), set()
    for seed in range(200):
        fields = made(TEXT, rng(seed), spm_rate=spm_rate)
        tokens = all_ids(fields)
        is_sentinel = np.isin(tokens, (PRE, SUF, MID))
        assert is_sentinel.sum() == 3
        np.testing.assert_array_equal(fields["weights"], ~is_sentinel)
        # Undo it by the sentinels alone, and compare with the text.
        start, suf, mid = (int(np.flatnonzero(tokens == each)[0]) for each in (PRE, SUF, MID))
        end = mid + int(np.flatnonzero(tokens[mid:] == EOS)[0])
        if spm_rate:
            suffix, joined = tokens[suf + 1 : mid], tokens[mid + 1 : end]
        else:
            suffix = tokens[suf + 1 : mid]
            joined = np.concatenate([tokens[start + 1 : suf], tokens[mid + 1 : end]])
            middles.add(end - mid - 1)
        parts = tokens[:start], joined, suffix, tokens[end:]
        restored = np.concatenate(parts)
        if len(restored) > len(TEXT):  # the last document has no eos in the row
            assert restored[-1] == EOS and start == 21
            restored = restored[:-1]
        np.testing.assert_array_equal(restored, TEXT)
        documents.add(start)
        orders.add(bool(suf < mid))
    assert documents == {0, 6, 21} and orders == {True}
    assert spm_rate or {0, 1, 7} <= middles


def test_the_rates_are_shares_of_rows():
    rows = [made(TEXT, rng(seed), rate=0.3, spm_rate=0.8)["targets"] for seed in range(2000)]
    rearranged = [row for row in rows if PRE in row]
    suffix_first = [row for row in rearranged if row[row.tolist().index(PRE) + 1] == SUF]
    assert 0.27 < len(rearranged) / 2000 < 0.33
    # An empty prefix looks alike in both orders: a few rows of the other order.
    assert 0.75 < len(suffix_first) / len(rearranged) < 0.88


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (1.0, False)])
def test_other_rows_are_those_of_causal_lm(rate, training):
    expected = causal_lm({"text": TEXT}, rng(), tokenizer=T)
    check(made(TEXT, rng(), rate=rate, training=training), **expected)


def test_a_row_depends_on_its_text_and_seed_alone():
    text = TEXT.copy()
    text.flags.writeable = False
    first, second, other = (made(text, rng(seed)) for seed in (5, 5, 6))
    check(first, **second)
    assert not np.array_equal(first["targets"], other["targets"])


@pytest.mark.parametrize("suffix_first", [False, True])
def test_a_prompt_is_the_beginning_of_a_training_row(suffix_first):
    asked = infilling_prompt(ids("a"), ids("d"), T, suffix_first=suffix_first)
    row = all_ids(made(ids("abcd"), Scripted(0, [1, 3], 0.0, 0.5), spm_rate=float(suffix_first)))
    np.testing.assert_array_equal(row, np.concatenate([asked, [B, C, EOS]]))


def test_rows_have_room_for_what_is_added():
    spec = choose("fill_in_middle", "documents")
    (sequence,) = spec.sequences
    text = np.full(sequence.room, A)
    trained = spec.augment({"text": text}, rng())
    sizes = {len(spec.fields(trained, rng(seed))["inputs"]) for seed in range(20)}
    assert sizes == {64, 60}  # rearranged, or not
    plain = choose("fill_in_middle", "documents", fim_rate=0.0).sequences[0]
    assert plain == choose("causal_lm", "documents").sequences[0]
    with pytest.raises(ConfigError, match=r"data\.length=5 .* at least 6"):
        choose("fill_in_middle", "documents", length=5)
    assert choose("fill_in_middle", "documents", length=6).sequences[0].room == 2


def test_a_vocabulary_with_few_sentinels_is_refused():
    tokenizer = type(T)()
    tokenizer.sentinel_count = 2
    with pytest.raises(ConfigError, match=r"needs 3 sentinels, but .* has 2; choose"):
        choose("fill_in_middle", "documents", tokenizer=tokenizer)
