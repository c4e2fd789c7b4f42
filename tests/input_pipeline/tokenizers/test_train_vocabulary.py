import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from experiment.schema import ConfigError
from input_pipeline.sources.base import Splits
from input_pipeline.token_cache import TokenCache
from input_pipeline.tokenizers.tokenizer import load_tokenizer
from input_pipeline.tokenizers.train_vocabulary import spelling_problem, train_tokenizer
from tests.input_pipeline.tokenizers.varied_strings import AWKWARD, names
from tests.tiny import data_config

ROOT = Path(__file__).resolve().parents[3]
KINDS = ["bpe", "unigram", "wordpiece", "word"]
WITH_UNKNOWN = ["wordpiece", "word"]
LOSSLESS = ["bpe", "unigram"]
SIZE = 900
TEXTS = [name for locale in ["en", "de", "el", "hi"] for name in names(locale)]
# The more often a word occurs, the surer it is to have an id.
WORDS = [*TEXTS, *TEXTS, *["Friday and Montag, Englisch Δευτέρα Freitag und"] * 20]


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(kind, WORDS if kind == "word" else TEXTS, SIZE) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request, trained):
    return trained[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_those_of_the_byte_tokenizer(trained, kind):
    t = trained[kind]
    special = [t.pad_id, t.bos_id, t.eos_id, t.mask_id, t.cls_id, t.sep_id]
    assert special == [0, 1, 2, 3, 4, 5]
    assert t.sentinel_ids.tolist() == list(range(SIZE - 1, SIZE - 101, -1))
    unknown = [6] if kind in WITH_UNKNOWN else []
    assert sorted([*special, *unknown, *t.text_ids, *t.sentinel_ids]) == list(range(t.vocab_size))
    assert t.vocab_size == SIZE and t.sentinel_count == 100


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", AWKWARD)
def test_decoding_returns_the_text(trained, kind, text):
    ids = trained[kind].encode(text)
    assert ids.dtype == np.int32
    assert trained[kind].decode(ids) == text
    assert trained[kind].byte_sizes(text).sum() == len(text.encode())


@pytest.mark.parametrize("kind", LOSSLESS)
def test_every_character_survives(trained, kind):
    surrogates = range(0xD800, 0xE000)  # no characters, and not in UTF-8
    text = "".join(chr(c) for c in range(0, 0x110000, 7) if c not in surrogates)
    assert trained[kind].decode(trained[kind].encode(text)) == text


def test_wordpiece_returns_words_it_can_spell(trained):
    t = trained["wordpiece"]
    assert t.decode(t.encode("Freitag\t und\n\x07 Δευτέρα  é")) == "Freitag und Δευτέρα é"
    assert t.decode(t.encode("Freitag 月曜日 und")) == "Freitag � � � und"
    assert t.byte_sizes("Freitag 月 und").sum() == len("Freitag 月 und".encode())
    assert not np.isin(t.encode("月"), t.text_ids).any()


def test_word_knows_the_most_frequent_words():
    texts = ["The cat sat.", "the cat, the dog's", "The END"]
    t = train_tokenizer("word", texts, 9999)
    once = ["'", ",", ".", "END", "dog", "s", "sat"]
    assert [t.pieces[id] for id in t.text_ids] == ["The", "cat", "the", *once]
    assert t.decode(t.encode("the The\t cat bird")) == "the The cat �"
    assert t.unspelt("the The bird") == "bird"
    smallest = train_tokenizer("word", texts, 109)
    assert [smallest.pieces[id] for id in smallest.text_ids] == ["The", "cat"]
    with pytest.raises(ConfigError, match=r"data\.tokenizer_size=106 .* at least 107$"):
        train_tokenizer("word", texts, 106)


def test_word_decodes_punctuation_without_spaces():
    text = "It's fine , isn't it ? Yes ."
    t = train_tokenizer("word", [text, text], 9999)
    assert t.decode(t.encode(text)) == "It ' s fine, isn ' t it? Yes."


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_gives_upper_case_the_ids_of_lower(kind):
    t, cased = (train_tokenizer(kind, WORDS, SIZE, lowercase=lower) for lower in (True, False))
    text = "Freitag UND Δευτέρα"
    assert cased.encode(text).tolist() != cased.encode(text.lower()).tolist()
    np.testing.assert_array_equal(t.encode(text), t.encode(text.lower()))
    assert t.decode(t.encode(text)) == text.lower()
    assert t.byte_sizes(text).sum() == len(text.encode())
    # Bytes have no case; nothing that is learnt has a capital letter.
    longer = [t.pieces[id] for id in t.text_ids if len(t.pieces[id]) > 1]
    assert not any(set("ABCDEFGHIJKLMNOPQRSTUVWXYZ") & set(piece) for piece in longer)
    assert t.digest != cased.digest


@pytest.mark.parametrize("kind", KINDS)
def test_accents_stay_and_the_normalizer_is_in_the_file(kind, tmp_path):
    words = ["café", "Café", "CAFÉ", "cafe"]
    t = train_tokenizer(kind, words, 999, lowercase=True)
    t.save(tmp_path)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [plain.encode(word, add_special_tokens=False).ids for word in words]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert t.decode(t.encode("CAFÉ")) == "café"


@pytest.mark.parametrize(
    "text", ["⟨pad⟩", "⟨sentinel 0⟩", "[MASK]", "<|endoftext|>", "⟨mask⟩⟨bos⟩", "<s> ⟨eos⟩ </s>"]
)
def test_no_text_is_a_special_id(tokenizer, text):
    ids = tokenizer.encode(text)
    special = [*range(6), *tokenizer.sentinel_ids]
    assert len(ids) > 1 and not np.isin(ids, special).any()


def test_special_ids_and_those_beyond_the_vocabulary_are_dropped(tokenizer):
    text = "Friday and Montag"
    ids = [1, *tokenizer.encode(text), *tokenizer.sentinel_ids[:2], 5, tokenizer.vocab_size + 3]
    assert tokenizer.decode(np.array(ids)) == text


def test_common_words_take_few_ids(tokenizer):
    assert len(tokenizer.encode("Englisch (Vereinigte Staaten)")) < 20


def test_a_vocabulary_of_single_bytes_is_warned_about(trained, caplog, tmp_path):
    for kind in ("bpe", "unigram", "wordpiece"):
        assert spelling_problem(kind, trained[kind], SIZE, TEXTS) is None
    assert spelling_problem("word", trained["word"], SIZE, ["Friday and Montag"] * 2) is None
    # Nothing but the bytes fits in: a token is a byte.
    size = 256 + 106
    alphabet = train_tokenizer("unigram", TEXTS, size)
    words, ids = sum(len(text.split()) for text in TEXTS), sum(len(t.encode()) for t in TEXTS)
    assert spelling_problem("unigram", alphabet, size, TEXTS) == (
        "data.tokenizer=unigram cuts text into little more than characters: "
        f"{ids / words:.1f} tokens per word, 1.0 bytes per token; raise data.tokenizer_size (now "
        "362) or set data.tokenizer=bpe"
    )
    # More than the text yields would not help.
    problem = spelling_problem("bpe", alphabet, size + 1, TEXTS)
    assert problem.endswith("; set data.tokenizer=byte, which needs no vocabulary")
    # 50 of 60 words occur once.
    rare = [f"word{number}" for number in range(50)] + ["same same"] * 5
    words = train_tokenizer("word", rare, SIZE)
    assert spelling_problem("word", words, SIZE, rare) == (
        "data.tokenizer=word reads 0% of the tokens in a sample of the text as unknown and 83% are "
        "words that occur once in it: new text will be worse; set data.tokenizer=wordpiece, bpe or "
        "byte"
    )
    # The warning appears for new and for cached tokenizers.
    examples = [{"text": text, "label": 0} for text in TEXTS]
    splits = Splits("labelled", examples, {}, ("a",), {}, "digest")
    keys = dict(tokenizer="unigram", tokenizer_size=size, cache_dir=str(tmp_path))
    for _ in range(2):
        caplog.clear()
        TokenCache(data_config(**keys)).tokenizer([splits])
        assert "cuts text into little more than characters" in caplog.text


def test_many_texts_at_once_give_the_same_ids(tokenizer):
    texts = [*AWKWARD, *TEXTS[:200]]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))


def test_words_start_where_a_space_was(tokenizer):
    words = ["Friday", "Montag", "Englisch", "Δευτέρα"]
    ids = np.array([tokenizer.cls_id, *tokenizer.encode(" ".join(words)), tokenizer.sep_id])
    starts = np.flatnonzero(tokenizer.word_starts(ids))
    assert starts[0] == 0 and starts[-1] == len(ids) - 1
    pieces = [tokenizer.decode(part).strip() for part in np.split(ids, starts[1:])]
    assert [piece for piece in pieces if piece] == words
    assert tokenizer.word_starts(ids[:0]).tolist() == []


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.digest == tokenizer.digest
    assert loaded.sentinel_ids.tolist() == tokenizer.sentinel_ids.tolist()
    for text in AWKWARD:
        np.testing.assert_array_equal(loaded.encode(text), tokenizer.encode(text))


def test_the_digest_depends_on_kind_and_size(trained):
    assert len({t.digest for t in trained.values()}) == len(KINDS)
    assert train_tokenizer("bpe", TEXTS, SIZE - 1).digest != trained["bpe"].digest


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_roles.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_changed_or_damaged_file_is_refused_in_one_line(trained, tmp_path, name, damage):
    trained["bpe"].save(tmp_path)
    path = tmp_path / name
    match damage:
        case "changed" if name == "tokenizer.json":
            path.write_text(path.read_text().replace('"Ġ",', '"ġ",', 1))
        case "changed":
            path.write_text(json.dumps({**json.loads(path.read_text()), "eos": 3}))
        case "cut":
            path.write_text(path.read_text()[:-20])
        case "gone":
            path.unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*restore") as refusal:
        load_tokenizer(tmp_path)
    assert len(str(refusal.value).splitlines()) == 1


PROGRAM = """
import sys
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
texts = [text for text in sys.stdin.read().split("|") if text]
for kind in ("bpe", "unigram", "wordpiece", "word"):
    train_tokenizer(kind, texts, 700).save(sys.argv[1] + kind)
"""


def test_another_process_with_other_threads_writes_the_same_bytes(tmp_path):
    digests = set()
    for number, (hash_seed, threads) in enumerate([("1", "1"), ("2", "3"), ("3", "2")]):
        for kind in KINDS:
            (tmp_path / f"{number}{kind}").mkdir()
        variables = {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / str(number))],
            input="|".join(TEXTS[:900]),
            env={**os.environ, **variables},
            cwd=ROOT,
            text=True,
            check=True,
        )
        files = [
            path for kind in KINDS for path in sorted((tmp_path / f"{number}{kind}").iterdir())
        ]
        assert len(files) == 2 * len(KINDS)
        digests.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files))
    assert len(digests) == 1


@pytest.mark.parametrize("kind", LOSSLESS)
def test_the_smallest_vocabulary_is_the_bytes(kind):
    smallest = train_tokenizer(kind, TEXTS, 362)
    assert smallest.vocab_size == 362
    assert len(smallest.encode("é!")) == 3
    with pytest.raises(ConfigError, match=r"data\.tokenizer_size=361 .* at least 362"):
        train_tokenizer(kind, TEXTS, 361)


def test_wordpiece_needs_its_alphabet():
    with pytest.raises(ConfigError, match=r"data\.tokenizer_size=100 .* at least 111$"):
        train_tokenizer("wordpiece", ["ab ba"], 100)
    assert train_tokenizer("wordpiece", ["ab ba"], 111).vocab_size == 111


def test_small_corpora_give_small_vocabularies():
    for kind in KINDS:
        assert train_tokenizer(kind, ["ab ab ab"], 9999).vocab_size < 400
        with pytest.raises(ConfigError, match="no text"):
            train_tokenizer(kind, ["", ""], 9999)


def test_no_progress_bar_off_the_terminal(capfd):
    train_tokenizer("bpe", TEXTS[:50], 400)
    assert capfd.readouterr() == ("", "")
