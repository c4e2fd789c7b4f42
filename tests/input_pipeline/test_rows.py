import pickle

import numpy as np
import pytest

from input_pipeline.packing import Plan
from input_pipeline.preparation import tokenized
from input_pipeline.rows import (
    ExampleRows,
    GroupedRows,
    SentenceRows,
    SequenceSpec,
    WindowRows,
    fit,
)
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import ByteTokenizer

T = ByteTokenizer()


def table(examples, features):
    return tokenized(examples, range(len(examples)), T, features)


def documents(*texts):
    return table([{"text": text} for text in texts], FeatureSpec(("text",), closed=True))


def texts(*values):
    return table([{"text": text} for text in values], FeatureSpec(("text",)))


def shown(rows, field="text"):
    return [[T.decode(part[field]) for part in rows.parts(i)] for i in range(len(rows))]


def test_windows_hold_every_id_once_with_eos_after_each_document():
    rows = WindowRows(documents("abcd", "", "éf"), 4)
    windows = [rows.parts(i)[0]["text"] for i in range(len(rows))]
    assert [len(window) for window in windows] == [4, 4, 2]
    expected = [*T.encode("abcd"), T.eos_id, T.eos_id, *T.encode("éf"), T.eos_id]
    assert np.concatenate(windows).tolist() == expected


def test_a_document_in_pieces_is_closed_once():
    pieces = [{"text": "ab", "ends": False}, {"text": "cd", "ends": True}]
    stream = table(pieces, FeatureSpec(("text",), closed=True)).stream("text")
    assert stream.tolist() == [*T.encode("abcd"), T.eos_id]


def test_no_documents_give_no_windows():
    assert len(WindowRows(documents(), 4)) == 0


SEQUENCE = (SequenceSpec(("text",), 6, 2),)


@pytest.mark.parametrize(
    ("over_long", "expected"),
    [
        ("truncate", ["abc", "abcd", "a"]),
        ("drop", ["abc", "a"]),
        ("split", ["abc", "abcd", "efgh", "i", "a"]),
    ],
)
def test_too_long_examples_are_truncated_dropped_or_split(over_long, expected):
    rows = ExampleRows(texts("abc", "abcdefghi", "a"), SEQUENCE, over_long)
    assert shown(rows) == [[text] for text in expected]
    assert rows.too_long == 1
    assert rows.sizes().tolist() == [[len(text) + 2] for text in expected]


def test_labels_stay_with_their_texts():
    examples = [{"text": "abcdefg", "label": 3}, {"text": "b", "label": 5}]
    rows = ExampleRows(table(examples, FeatureSpec(("text",), ("label",))), SEQUENCE, "drop")
    (row,) = rows.parts(0)
    assert (T.decode(row["text"]), row["label"], row["origin"]) == ("b", 5, 1)


@pytest.mark.parametrize(
    ("first", "second", "room", "left"),
    [
        (3, 4, 10, (3, 4)),
        (3, 9, 10, (3, 7)),
        (9, 3, 10, (7, 3)),
        (9, 9, 10, (5, 5)),
        (9, 9, 11, (6, 5)),
        (6, 9, 11, (6, 5)),
        (9, 5, 11, (6, 5)),
    ],
)
def test_the_longer_text_of_a_pair_is_truncated_first(first, second, room, left):
    pair = [np.arange(first), np.arange(second)]
    assert tuple(map(len, fit(pair, room))) == left
    if room % 2 == 0:  # of an odd room the first gets one more
        assert tuple(map(len, fit(pair[::-1], room))) == left[::-1]


def test_texts_of_a_tokenizer_that_truncates_on_the_left_keep_their_ends():
    (text,) = fit([np.arange(9)], 4, keep_end=True)
    assert text.tolist() == [5, 6, 7, 8]
    assert [text.tolist() for text in fit([np.arange(9), np.arange(3)], 5, keep_end=True)] == [
        [6, 7, 8], [1, 2],
    ]  # fmt: skip
    assert [text.tolist() for text in fit([np.arange(2), np.arange(0)], 5, keep_end=True)] == [
        [0, 1], [],
    ]  # fmt: skip


def test_source_and_target_are_truncated_separately():
    pairs = table([{"source": "abcd", "target": "efgh"}], FeatureSpec(("source", "target")))
    rows = ExampleRows(
        pairs, (SequenceSpec(("source",), 3, 1), SequenceSpec(("target",), 4, 1)), "truncate"
    )
    assert shown(rows, "source") == [["ab"]] and shown(rows, "target") == [["efg"]]
    assert rows.sizes().tolist() == [[3, 4]]


def test_groups_share_a_row():
    rows = ExampleRows(texts("a", "b", "c"), SEQUENCE, "truncate")
    grouped = GroupedRows(rows, Plan(np.array([2, 0, 1]), np.array([0, 2, 3])))
    assert shown(grouped) == [["c", "a"], ["b"]]


def sentence_rows(room, *texts):
    features = FeatureSpec(("text",), ("first",), sentences=True)
    rows = SentenceRows(table([{"text": text} for text in texts], features), room)
    return [
        [T.decode(sentence) for sentence in rows.parts(i)[0]["sentences"]] for i in range(len(rows))
    ]


def test_sentences_stay_with_their_neighbours_and_in_their_document():
    text = 'One. Two! "Three?" Four\nfive.'
    found = ["One.", "Two!", '"Three?"', "Four", "five."]
    assert sentence_rows(100, text) == [found]
    # Two fill the room, and a third that is left over joins them.
    assert sentence_rows(7, text) == [found[:2], found[2:]]
    # Documents do not mix, and a sentence by itself has no neighbour.
    assert sentence_rows(100, "A. B.", "Alone.", "C。D。") == [["A.", "B."], ["C。", "D。"]]


def test_rows_can_be_pickled():
    rows = ExampleRows(texts("abc", "defghijk"), SEQUENCE, "truncate")
    assert shown(pickle.loads(pickle.dumps(rows))) == shown(rows)
