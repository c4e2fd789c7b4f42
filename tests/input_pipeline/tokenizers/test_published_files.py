"""Published formats: the ids are those that transformers gives, stored once, and recomputed by
the oracle test.
"""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.tokenizers import sentencepiece
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.tokenizer import load_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import (
    PATHS,
    read_ids,
    read_strings,
    transformers_ids,
    transformers_tokenizer,
)

NAMES = list(PATHS)
STRINGS = read_strings()


@pytest.fixture(scope="module")
def opened():
    return {name: open_tokenizer(path) for name, path in PATHS.items()}


def roles(tokenizer):
    return [getattr(tokenizer, f"{r}_id") for r in ("pad", "bos", "eos", "mask", "cls", "sep")]


def test_the_strings_are_many_and_varied():
    assert len(STRINGS) == 1000 and len(set(STRINGS)) > 990
    scripts = "Aяաა α א ا हবதతമಕગਪසไລខမአ中カ한Ꭰ𞤀".replace(" ", "")
    text = "".join(STRINGS)
    for character in scripts:
        block = {chr(code) for code in range(ord(character) & ~63, (ord(character) | 63) + 1)}
        assert block & set(text), character


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(opened, name):
    expected = read_ids(name)
    encoded = opened[name].encode_batch(STRINGS)
    for string, ids, one, wanted in zip(
        STRINGS, encoded, map(opened[name].encode, STRINGS), expected, strict=True
    ):
        assert ids.tolist() == one.tolist() == wanted, repr(string)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_transformers_still_gives_the_stored_ids(opened, name):
    assert transformers_ids(name, STRINGS) == read_ids(name)
    theirs = transformers_tokenizer(name)
    assert len(theirs) == opened[name].vocab_size
    for string, ids in zip(STRINGS, read_ids(name), strict=True):
        decoded = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert opened[name].decode(ids) == decoded, repr(string)


def test_special_ids_by_hand(opened):
    assert roles(opened["bert_cased"]) == [0, 3, 4, 5, 3, 4]
    assert roles(opened["gpt2"]) == [700, 700, 700, None, None, None]
    assert roles(opened["t5"]) == [0, 0, 1, None, None, None]
    assert roles(opened["llama"]) == [2, 1, 2, None, None, None]
    assert roles(opened["library"]) == [3, 1, 2, 4, None, None]
    # T5 numbers its sentinels from the end, after the 1,800 pieces.
    assert opened["t5"].sentinel_ids.tolist() == list(range(1899, 1799, -1))
    assert opened["t5"].vocab_size == 1900
    assert all(opened[name].sentinel_count == 0 for name in NAMES if name != "t5")


@pytest.mark.parametrize("name", NAMES)
def test_text_ids_are_neither_special_nor_unknown(opened, name):
    tokenizer = opened[name]
    text = set(tokenizer.text_ids.tolist())
    assert not text & {*roles(tokenizer), *tokenizer.sentinel_ids.tolist()}
    never_text = {"bert_cased": 6 - 1, "bert_uncased": 6 - 1, "gpt2": 1, "library": 5}
    never_text |= {"t5": 3 + 100, "llama": 3}
    assert len(text) == tokenizer.vocab_size - never_text[name]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_bytes_lose_nothing(opened, name):
    # Names of special ids in the text become those ids, which decoding drops. Llama's writes ▁ for
    # a space, and puts one in front of a text unless there is one.
    lost = {"gpt2": r"<\|endoftext\|>", "llama": "^ |▁|<(s|/s|unk)>"}[name]
    lossless = [string for string in STRINGS if not re.search(lost, string)]
    assert len(lossless) > 950
    for string in lossless:
        assert opened[name].decode(opened[name].encode(string)) == string


@pytest.mark.parametrize("name", NAMES)
def test_ids_cover_every_byte_of_a_text(opened, name):
    for string in STRINGS:
        sizes, ids = opened[name].byte_sizes(string), opened[name].encode(string)
        assert len(sizes) == len(ids) and (sizes >= 0).all(), repr(string)
        assert sizes.sum() == (len(string.encode()) if len(ids) else 0), repr(string)


def test_bytes_of_dropped_whitespace_count_to_the_next_word(opened):
    text = "  Friday\n\tFRIDAY Größe "
    pieces = opened["bert_uncased"].byte_sizes(text)
    ids = opened["bert_uncased"].encode(text)
    starts = np.flatnonzero(opened["bert_uncased"].word_starts(ids))
    words = np.add.reduceat(pieces, starts)
    assert words.tolist() == [len(part.encode()) for part in ("  Friday", "\n\tFRIDAY", " Größe ")]


def test_unspelt_text_is_the_text_with_unknown_ids(opened):
    for name in NAMES:
        vocab = json.loads(opened[name].content)["model"]["vocab"]
        pieces = list(vocab) if isinstance(vocab, dict) else [piece for piece, _ in vocab]
        unknown = {pieces.index(piece) for piece in ("[UNK]", "<unk>") if piece in pieces}
        unspelt = [string for string in STRINGS if opened[name].unspelt(string)]
        encoded = zip(STRINGS, map(opened[name].encode, STRINGS), strict=True)
        assert unspelt == [string for string, ids in encoded if unknown & set(ids.tolist())]
        assert bool(unspelt) == (name != "gpt2")
    assert opened["bert_cased"].unspelt("Friday \U0001f469! ж") == "\U0001f469"
    assert opened["bert_cased"].unspelt("Friday " + "a" * 101) == "a" * 101
    assert opened["t5"].unspelt("Friday \U0001f469!") == "\U0001f469"
    assert opened["gpt2"].unspelt("Friday \U0001f469!") == ""


def test_words_start_at_the_mark(opened):
    text = "Friday Montag Freitag"
    for name in NAMES:
        ids = opened[name].encode(text)
        starts = np.flatnonzero(opened[name].word_starts(ids))
        words = [opened[name].decode(part).strip().lower() for part in np.split(ids, starts[1:])]
        assert [word for word in words if word] == text.lower().split(), name


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded(opened, tmp_path, name):
    opened[name].save(tmp_path)
    for loaded in (load_tokenizer(tmp_path), open_tokenizer(tmp_path)):
        assert loaded.digest == opened[name].digest
        assert roles(loaded) == roles(opened[name])
        assert loaded.encode(STRINGS[8]).tolist() == opened[name].encode(STRINGS[8]).tolist()


def test_text_start_ids_are_saved_and_change_no_other_digest(opened, tmp_path):
    plain = opened["library"]
    six = dict(zip(("pad", "bos", "eos", "mask", "cls", "sep"), roles(plain), strict=True))
    everything = json.dumps([plain.content, six, []])
    assert plain.digest == hashlib.sha256(everything.encode()).hexdigest()
    assert plain.text_start_ids == ()
    plain.with_roles({"text_start": 1}).save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.text_start_ids == (1,)
    assert loaded.digest != plain.digest
    assert loaded.with_roles({"pad": 0}).text_start_ids == (1,)


def test_tokenizer_config_decides_lower_casing(opened, tmp_path):
    shutil.copy(PATHS["bert_cased"], tmp_path)
    text = "Friday MONTAG Ünited"
    assert open_tokenizer(tmp_path / "vocab.txt").encode(text).tolist() == (
        opened["bert_cased"].encode(text).tolist()
    )
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    lowered = open_tokenizer(tmp_path / "vocab.txt").encode(text).tolist()
    assert lowered == opened["bert_cased"].encode("friday montag united").tolist()


def test_tokenizer_config_names_the_special_tokens(tmp_path):
    shutil.copy(PATHS["library"], tmp_path)
    config = {"cls_token": "<s>", "sep_token": {"content": "</s>"}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert roles(open_tokenizer(tmp_path)) == [3, 1, 2, 4, 1, 2]


def test_gpt2_by_its_other_names(opened, tmp_path):
    shutil.copy(PATHS["gpt2"], tmp_path / "vocab.json")
    shutil.copy(PATHS["gpt2"].with_name("vocab.bpe"), tmp_path / "merges.txt")
    assert open_tokenizer(tmp_path / "vocab.json").digest == opened["gpt2"].digest


def copied(name, directory):
    shutil.copytree(PATHS[name].parent, directory, dirs_exist_ok=True)
    return directory / PATHS[name].name


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_short_is_refused_by_its_path(tmp_path, name):
    path = copied(name, tmp_path)
    content = path.read_bytes()
    cut = content.index(b"[UNK]") if path.name == "vocab.txt" else len(content) // 2
    path.write_bytes(content[:cut])
    with pytest.raises(ConfigError, match=re.escape(str(path))) as refusal:
        open_tokenizer(path)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "is no file; name one of: tokenizer.json"),
        ("vocab.md", "", "has an unknown name; give one of: tokenizer.json"),
        ("tokenizer.json", "[]", "no model section"),
        ("tokenizer.json", '{"kind": "byte"}', "no model section"),
        ("tokenizer.json", '{"model": 3}', "cannot be read"),
        ("encoder.json", "{}", "needs vocab.bpe beside it"),
        ("vocab.json", "{}", "needs merges.txt beside it"),
        ("vocab.txt", "a\nb\n", r"no \[UNK\]"),
        ("some.model", "not a protocol buffer", "some.model cannot be read"),
        ("empty.model", "", "lists no pieces"),
    ],
)
def test_refusals_name_the_file_and_the_fix_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        open_tokenizer(path)
    assert name in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_no_model_cut_anywhere_raises_anything_but_value_error():
    content = PATHS["llama"].read_bytes()
    for end in range(0, len(content), 97):
        try:
            sentencepiece.read(content[:end])
        except ValueError:
            continue
        except Exception as error:
            raise AssertionError(f"cut at {end}") from error


def test_a_broken_tokenizer_config_is_named(tmp_path):
    path = copied("bert_cased", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"vocab\.txt .*tokenizer_config\.json beside it is no"):
        open_tokenizer(path)


def test_a_sentencepiece_word_model_is_refused(tmp_path):
    # Field 2 (the trainer's), of 2 bytes: its field 3 (the model type) is 3, words.
    path = tmp_path / "words.model"
    path.write_bytes(b"\x0a\x03\x0a\x01a" + b"\x12\x02\x18\x03")
    with pytest.raises(ConfigError, match="neither unigram nor bpe"):
        open_tokenizer(path)
