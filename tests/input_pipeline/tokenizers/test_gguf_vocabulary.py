"""Tokenizers in GGUF files give the ids of the tokenizers that they were made from."""

import copy
import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from experiment.schema import ConfigError
from input_pipeline.tokenizers import gguf_vocabulary, sentencepiece
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import as_published
from tests.gguf_files import byte_level_metadata
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS, read_ids, read_strings
from tests.pretrained.transformers_models import oracle

STRINGS = read_strings()
PREFIX = "tokenizer.ggml."


def opened(metadata, directory):
    """The tokenizer that an import makes of the metadata."""
    gguf_vocabulary.write(metadata, directory, Path("model.gguf"))
    path = directory / "tokenizer.json"
    return as_published(open_tokenizer(path), path, "llama")


def gpt2_metadata():
    layout = json.loads(open_tokenizer(PATHS["gpt2"]).content)
    roles = dict.fromkeys(("bos", "eos", "unknown"), 700)
    ids = {f"{PREFIX}{role}_token_id": id for role, id in roles.items()}
    return byte_level_metadata(layout, "gpt-2") | ids


def llama_metadata(adds_bos=None, adds_space=None):
    """As llama.cpp's converter writes the pieces of a SentencePiece model."""
    pieces = sentencepiece._parse(PATHS["llama"].read_bytes()).pieces
    metadata = {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": [piece.text for piece in pieces],
        f"{PREFIX}scores": [piece.score for piece in pieces],
        f"{PREFIX}token_type": [piece.kind for piece in pieces],
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
        f"{PREFIX}unknown_token_id": 0,
        f"{PREFIX}add_bos_token": adds_bos,
        f"{PREFIX}add_space_prefix": adds_space,
    }
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize(
    "name, metadata", [("gpt2", gpt2_metadata()), ("llama", llama_metadata(adds_bos=False))]
)
def test_ids_are_the_stored_ones_of_transformers(name, metadata, tmp_path):
    tokenizer = opened(metadata, tmp_path)
    for string, ids, wanted in zip(
        STRINGS, tokenizer.encode_batch(STRINGS), read_ids(name), strict=True
    ):
        assert ids.tolist() == wanted, repr(string)
    original = open_tokenizer(PATHS[name])
    assert tokenizer.pieces == original.pieces
    for string, ids in zip(STRINGS[:200], read_ids(name), strict=False):
        assert tokenizer.decode(ids) == original.decode(ids), repr(string)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (original.bos_id, original.eos_id)


def test_special_tokens_are_added_as_llama_cpp_adds_them(tmp_path):
    def affixes(metadata, **changes):
        metadata = metadata | {f"{PREFIX}{key}": value for key, value in changes.items()}
        template = opened(metadata, tmp_path).template
        return template.prefix, template.suffix

    assert affixes(llama_metadata()) == ((1,), ())
    assert affixes(llama_metadata(adds_bos=False)) == ((), ())
    assert affixes(llama_metadata(), add_eos_token=True) == ((1,), (2,))
    assert affixes(gpt2_metadata()) == ((), ())
    assert affixes(gpt2_metadata(), add_bos_token=True) == ((700,), ())
    assert affixes(gpt2_metadata(), pre="llama-bpe") == ((700,), ())
    assert affixes(gpt2_metadata(), pre="llama-bpe", add_bos_token=False) == ((), ())


def test_a_space_before_a_text_is_added_or_not(tmp_path):
    space = open_tokenizer(PATHS["llama"]).encode("a")[0]
    with_space, without = (
        opened(llama_metadata(False, adds), tmp_path).encode("a").tolist() for adds in (True, False)
    )
    assert with_space[0] == space and without != with_space
    plain, prefixed = (
        opened(gpt2_metadata() | {f"{PREFIX}add_space_prefix": adds}, tmp_path)
        for adds in (False, True)
    )
    assert prefixed.encode("a cat").tolist() == plain.encode(" a cat").tolist()


def test_control_tokens_are_found_in_a_text_and_fillers_are_not(tmp_path):
    metadata = gpt2_metadata()
    metadata[f"{PREFIX}tokens"] += ["<|im_end|>", "<think>", "[PAD703]", "[PAD704]"]
    metadata[f"{PREFIX}token_type"] += [3, 4, 5, 5]
    tokenizer = opened(metadata, tmp_path)
    ids = tokenizer.encode("a<|im_end|>b<think>[PAD703]").tolist()
    assert 701 in ids and 702 in ids and 703 not in ids
    assert tokenizer.vocab_size == 703
    assert tokenizer.decode(ids) == "ab<think>[PAD703]", "only control tokens are special"


def test_chat_templates_come_along(tmp_path):
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    keys = {"tokenizer.chat_template": chat}
    assert opened(gpt2_metadata() | keys, tmp_path).published["chat_template"] == chat
    named = {"tokenizer.chat_templates": ["tool"], "tokenizer.chat_template.tool": "x"}
    found = opened(gpt2_metadata() | keys | named, tmp_path).published["chat_template"]
    assert found == [dict(name="default", template=chat), dict(name="tool", template="x")]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"pre": "default"}, "pre='default' is not read, only gpt-2, smollm"),
        ({"pre": None}, "pre=None is not read"),
        ({"model": "bert"}, "model='bert' is not read, only gpt2 and llama"),
        ({"precompiled_charsmap": [1]}, "precompiled_charsmap is not known"),
        ({"tokens": ["a", "a"]}, "two are equal"),
        ({"tokens": []}, "tokens are missing"),
        ({"token_type": [1]}, "cannot be read"),
        ({"merges": ["no piece"]}, "cannot be read"),
        ({"eos_token_id": 10**6}, "eos_token_id=1000000 is no id of 701"),
        ({"add_space_prefix": True, "pre": "smollm"}, "add_space_prefix=True is read for"),
    ],
)
def test_other_tokenizers_are_refused_with_the_way_around(changes, says, tmp_path):
    metadata = gpt2_metadata() | {f"{PREFIX}{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigError) as refused:
        opened(metadata, tmp_path)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("model.gguf: ") and says in line and "--tokenizer=FILE" in line
    assert not list(tmp_path.iterdir())


def test_pieces_that_are_not_in_the_order_of_their_merges_are_refused(tmp_path):
    metadata = llama_metadata()
    metadata[f"{PREFIX}scores"] = metadata[f"{PREFIX}scores"][::-1]
    with pytest.raises(ConfigError, match="do not fall from piece to piece"):
        opened(metadata, tmp_path)
    del metadata[f"{PREFIX}scores"]
    with pytest.raises(ConfigError, match="scores are missing"):
        opened(metadata, tmp_path)


# Against transformers


def trained(steps, normalizer=None):
    """A byte-level tokenizer that splits texts by these steps, with merges over digits too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"], show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([*STRINGS, *["1234 12345 123 2024"] * 9], trainer)
    return tokenizer


def their_splits(name):
    """How a published tokenizer splits texts, by transformers' own code."""
    _, hf = oracle()
    if name == "llama-bpe":
        from transformers.convert_slow_tokenizer import TikTokenConverter

        pattern = TikTokenConverter(vocab_file="none").pattern
    elif name == "qwen2":
        return copy.deepcopy(hf.Qwen2Tokenizer().backend_tokenizer)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    return tokenizer


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_texts_are_split_as_in_transformers(name, tmp_path):
    theirs = their_splits(name)
    loose = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    learned = trained(loose)  # so that pieces would cross the borders of words
    learned.pre_tokenizer = theirs.pre_tokenizer
    if name == "qwen2":
        assert theirs.normalizer is not None
        learned.normalizer = normalizers.NFC()
    layout = json.loads(learned.to_str())
    layout["model"]["ignore_merges"] = name == "llama-bpe"
    learned = Tokenizer.from_str(json.dumps(layout))
    ids = {f"{PREFIX}bos_token_id": 0, f"{PREFIX}eos_token_id": 1, f"{PREFIX}add_bos_token": False}
    ours = opened(byte_level_metadata(layout, name) | ids, tmp_path)
    for string, found in zip(STRINGS, ours.encode_batch(STRINGS), strict=True):
        assert found.tolist() == learned.encode(string).ids, repr(string)
    assert Tokenizer.from_str(ours.content).normalizer is not None or name != "qwen2"


def test_smollm_splits_digits(tmp_path):
    """As its tokenizer.json does: single digits, then GPT-2's words."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned = trained([words])
    learned.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    layout = json.loads(learned.to_str())
    ids = {f"{PREFIX}bos_token_id": 0, f"{PREFIX}eos_token_id": 1}
    ours = opened(byte_level_metadata(layout, "smollm") | ids, tmp_path)
    for string, found in zip(STRINGS, ours.encode_batch(STRINGS), strict=True):
        assert found.tolist() == learned.encode(string).ids, repr(string)
    plain = opened(byte_level_metadata(layout, "gpt-2") | ids, tmp_path)
    assert len(plain.encode("2024")) < len(ours.encode("2024")) == 4
