"""Tokens as text, for every kind of vocabulary."""

import string

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.subword import SubwordTokenizer
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
from visualization.token_texts import (
    byte_of_character,
    in_a_sentence,
    special_names,
    token_texts,
)

TEXT = "The animals crossed the street because the animals were not too tired. Für €5? 漢字."
TEXTS = [TEXT, string.printable] * 4


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_byte_level_tokens_put_together_are_the_text(kind):
    tokenizer = train_tokenizer(kind, TEXTS, 450)
    texts = token_texts(tokenizer.encode(TEXT), tokenizer)
    assert len(texts) > 10
    assert not any(letter in "".join(texts) for letter in "ĠĊâ")
    assert any(text.startswith(" ") for text in texts)
    # Characters that the vocabulary cuts in pieces are written in bytes.
    spelt = "".join(texts)
    for character in "ü€漢字":
        spelt = spelt.replace("".join(f"<0x{b:02X}>" for b in character.encode()), character)
    assert spelt == TEXT


def test_part_of_a_character_is_its_bytes():
    tokenizer = train_tokenizer("bpe", ["plain words alone"] * 4, 400)
    assert token_texts(tokenizer.encode("a€"), tokenizer)[-3:] == ("<0xE2>", "<0x82>", "<0xAC>")
    tokenizer = ByteTokenizer()
    assert token_texts(tokenizer.encode("a €"), tokenizer) == (
        "a", " ", "<0xE2>", "<0x82>", "<0xAC>",
    )  # fmt: skip


def test_wordpiece_says_that_a_word_goes_on():
    tokenizer = train_tokenizer("wordpiece", ["walking walked talking talked walk talk"] * 4, 200)
    texts = token_texts(tokenizer.encode("walkt"), tokenizer)
    assert "".join(text.removeprefix("##") for text in texts) == "walkt"
    assert len(texts) > 1 and all(text.startswith("##") for text in texts[1:])


def test_words():
    tokenizer = train_tokenizer("word", ["a word here"] * 3, 200)
    assert token_texts(tokenizer.encode("here word stranger"), tokenizer) == ("here", "word", "�")


def test_special_tokens_have_names():
    tokenizer = ByteTokenizer()
    ids = [0, 1, 2, 3, 4, 5, tokenizer.sentinel_ids[0], tokenizer.sentinel_ids[7]]
    names = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]", "<extra_id_0>", "<extra_id_7>")
    assert token_texts(ids, tokenizer) == names
    assert set(names) <= set(special_names(tokenizer).values())
    tokenizer = train_tokenizer("bpe", TEXTS, 450)
    assert token_texts([0, 1, 5], tokenizer) == ("⟨pad⟩", "⟨bos⟩", "⟨sep⟩")
    assert not set(special_names(tokenizer)) & set(tokenizer.text_ids.tolist())


def test_ids_without_a_tokenizer_are_numbers():
    assert token_texts([3, 17], IdTokenizer({}, 30)) == ("3", "17")


def test_ids_beyond_the_vocabulary_are_told():
    tokenizer = train_tokenizer("bpe", TEXTS, 450)
    assert token_texts([tokenizer.vocab_size + 3], tokenizer) == (f"<{tokenizer.vocab_size + 3}>",)


def test_the_table_of_bytes_is_that_of_the_library():
    table = byte_of_character()
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(table.values()) == list(range(256))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for byte in range(1, 0x80):
        ((piece, _),) = level.pre_tokenize_str(chr(byte))
        assert table[piece] == byte
    ((piece, _),) = level.pre_tokenize_str("漢ü\u00a0")
    assert bytes(table[c] for c in piece) == "漢ü\u00a0".encode()


def test_sentencepiece():
    pieces = ["<s>", "</s>", "<unk>", "▁the", "▁", "cat", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>"]
    model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2, byte_fallback=True)
    library = Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    roles = dict(pad=1, bos=0, eos=1, mask=None, cls=None, sep=None)
    tokenizer = SubwordTokenizer(library.to_str(), roles)
    ids = tokenizer.encode("the cat€\n")
    assert token_texts([0, *ids, 1], tokenizer) == (
        "<s>", " the", " ", "cat", "<0xE2>", "<0x82>", "<0xAC>", "\n", "</s>",
    )  # fmt: skip


def test_a_predicted_token_can_be_seen_in_a_sentence():
    assert in_a_sentence(" word") == "word"
    assert [in_a_sentence(text) for text in (" ", "\n", "\n  ", "")] == ["␣", "⏎", "⏎␣␣", ""]
