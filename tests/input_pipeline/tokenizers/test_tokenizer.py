import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.tokenizers.tokenizer import ByteTokenizer, ids_in, load_tokenizer


@pytest.fixture
def tokenizer():
    return ByteTokenizer()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "tab\tand\nnewline\r\n",
        "\0",
        "naïve façade",
        "понедельник",
        "月曜日",
        "ሰኞ",
        "👩‍👩‍👧",
        "e\u0301",
    ],
)
def test_decoding_returns_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_character_survives(tokenizer):
    surrogates = range(0xD800, 0xE000)  # no characters, and not in UTF-8
    text = "".join(chr(c) for c in range(0x110000) if c not in surrogates)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_by_hand(tokenizer):
    assert tokenizer.encode("\0Aÿ").tolist() == [6, 71, 201, 197]
    assert tokenizer.vocab_size == 6 + 256 + 100
    assert tokenizer.sentinel_ids[[0, 1, -1]].tolist() == [361, 360, 262]


def test_no_two_ids_are_the_same(tokenizer):
    t = tokenizer
    special = [t.pad_id, t.bos_id, t.eos_id, t.mask_id, t.cls_id, t.sep_id]
    ids = [*special, *t.text_ids, *t.sentinel_ids.tolist()]
    assert sorted(ids) == list(range(t.vocab_size))


def test_special_ids_are_dropped_and_broken_text_is_shown(tokenizer):
    ids = [
        tokenizer.bos_id,
        *tokenizer.encode("né")[:2],
        tokenizer.sentinel_ids[0],
        tokenizer.eos_id,
    ]
    assert tokenizer.decode(ids) == "n�"


def test_an_id_covers_a_byte(tokenizer):
    assert tokenizer.byte_sizes("né").tolist() == [1, 1, 1]
    assert tokenizer.byte_sizes("").tolist() == []


def test_words_start_after_whitespace(tokenizer):
    ids = np.array([tokenizer.cls_id, *tokenizer.encode("no  é\nx"), tokenizer.sep_id])
    starts = [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    assert tokenizer.word_starts(ids).astype(int).tolist() == starts
    assert tokenizer.word_starts(ids[:0]).tolist() == []


def test_many_texts_at_once_give_the_same_ids(tokenizer):
    texts = ["one", "", "žluťoučký"]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["vocab_size"] == 362
    assert load_tokenizer(tmp_path).digest == tokenizer.digest


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"kind": "byte", "digest": "0"}'])
def test_an_invalid_tokenizer_file_is_refused_by_its_path(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_ids_of_another_vocabulary_are_found_by_piece_and_then_by_role(tokenizer):
    assert ids_in(tokenizer, tokenizer).tolist() == list(range(tokenizer.vocab_size))
    roles = dict(bos_id=2, eos_id=2, mask_id=None, cls_id=None, sep_id=None)
    pieces = ["[PAD]", "b", "</s>", "ab", "<0x0A>", "<extra_id_1>", None]
    other = SimpleNamespace(pieces=pieces, pad_id=0, **roles)
    b, newline = tokenizer.encode("b\n")
    sentinel = tokenizer.sentinel_ids[1]
    expected = [tokenizer.pad_id, b, tokenizer.bos_id, -1, newline, sentinel, -1]
    assert ids_in(tokenizer, other).tolist() == expected
    back = ids_in(other, tokenizer)
    assert (back[b], back[tokenizer.eos_id], back[tokenizer.mask_id]) == (1, 2, -1)
