"""Tokenizer files on which the `tokenizers` library ends the process, hangs or panics."""

import base64
import json
import struct

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from experiment.schema import ConfigError
from input_pipeline.tokenizers import file_checks
from input_pipeline.tokenizers.published_files import open_tokenizer


def saved(directory, **parts):
    """A tokenizer.json of three pieces, with other parts."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0))
    content = json.loads(tokenizer.to_str()) | parts
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def charsmap(table: bytes) -> dict:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


@pytest.mark.parametrize(
    "table",
    [
        b"\xff\xff\xff\x7f\0\0",  # the library would allocate 8.5 GB, and end the process
        b"\0\0\0\0abc\0",
        struct.pack("<I", 7) + bytes(7),
        b"\x01\x02",
    ],
)
def test_tables_of_characters_with_a_wrong_length_are_refused(table, tmp_path):
    path = saved(tmp_path, normalizer=charsmap(table))
    with pytest.raises(ConfigError, match=r"tokenizer\.json .*precompiled_charsmap"):
        open_tokenizer(path)
    nested = {"type": "Sequence", "normalizers": [{"type": "NFC"}, charsmap(table)]}
    with pytest.raises(ConfigError, match=r"tokenizer\.json .*precompiled_charsmap"):
        open_tokenizer(saved(tmp_path, normalizer=nested))


def test_a_table_that_is_wrong_inside_is_refused_or_harmless(tmp_path):
    # A trie whose units lead beyond the replacements: the library panics when it encodes.
    units = struct.pack("<I", 4 * 256) + struct.pack("<256I", *([0xFFFFFFFF] * 256))
    for table in (units, units + b"abc\0"):
        try:
            tokenizer = open_tokenizer(saved(tmp_path, normalizer=charsmap(table)))
        except ConfigError as error:
            assert "tokenizer.json" in str(error)
        else:
            tokenizer.encode("abé中")


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(?:a*)*b", r"(\w+\s?)+$", "((ab)+c)*", r"(x{2,})+", r"([a-z]+|\d)*!"]
)
def test_expressions_of_exponential_time_are_refused(pattern, tmp_path):
    assert file_checks.repeats_a_repeat(pattern)
    split = pre_tokenizers.Split(Regex("b"), "isolated").__getstate__()
    stage = json.loads(split) | {"pattern": {"Regex": pattern}}
    path = saved(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": [stage]})
    with pytest.raises(ConfigError, match=r"repeats a group that has a repeat"):
        open_tokenizer(path)


# GPT-2's, Llama 3's, o200k's, Qwen 2's and DeepSeek's expressions, and the digits of BLOOM and
# Cohere.
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"(?i:'s|'t|'re|'ll|'d)|{LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?",
    rf"(?i:'s|'t)|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"(?=(\d{3})+(?!\d))",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"(a{3})+ (b?)* (c)* \(d+\)+ [(e+)]+",
]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_expressions_are_read(pattern):
    Tokenizer(models.BPE()).pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert not file_checks.repeats_a_repeat(pattern)


def test_a_tokenizer_with_a_good_table_is_read(tmp_path):
    path = saved(tmp_path, normalizer=json.loads(normalizers.NFKC().__getstate__()))
    assert open_tokenizer(path).encode("ab").tolist() == [1, 2]


def test_ids_that_would_fill_the_memory_are_refused(tmp_path):
    huge = {"a": 0, "b": 1, "<unk>": 3 * 10**8}
    path = saved(tmp_path, model={"type": "WordLevel", "vocab": huge, "unk_token": "<unk>"})
    with pytest.raises(ConfigError, match=r"tokenizer\.json .*the id of '<unk>' is 300000000"):
        open_tokenizer(path)
    token = dict(id=2**40, content="<x>", special=True)
    with pytest.raises(ConfigError, match=r"tokenizer\.json .*the id of '<x>' is 1099511627776"):
        open_tokenizer(saved(tmp_path, added_tokens=[token]))
    (tmp_path / "vocab.json").write_text(json.dumps(huge))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ConfigError, match=r"vocab\.json .*the id of '<unk>' is 300000000"):
        open_tokenizer(tmp_path / "vocab.json")


def replace(string: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": string}, "content": content}


def sequence(*rules: dict) -> dict:
    return {"type": "Sequence", "normalizers": list(rules)}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize(
    "parts",
    [
        dict(normalizer=replace("a", "a" * 1001)),
        dict(normalizer=sequence(*[replace("a", "aa")] * 10)),  # 2^10
        dict(normalizer=sequence(replace("a", "b" * 40), sequence(replace("b", "c" * 40)))),
        dict(normalizer=sequence({"type": "Prepend", "prepend": "a" * 40}, replace("a", "b" * 40))),
        dict(normalizer=charsmap(struct.pack("<I", 4) + bytes(4) + b"x" * 1001 + b"\0")),
        dict(normalizer=sequence(*[{**replace("", "a"), "pattern": {"Regex": ""}}] * 10)),
        dict(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 10}),
        dict(decoder={"type": "Sequence", "decoders": [replace("a", "aa")] * 10}),
    ],
)
def test_rules_that_expand_a_text_without_end_are_refused(parts, tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json .*more than 1000 times as long"):
        open_tokenizer(saved(tmp_path, **parts))


def test_the_table_of_a_sentencepiece_file_has_the_bound_too():
    units = struct.pack("<I", 4) + bytes(4)
    file_checks.require_charsmap(units + b"x" * 1000 + b"\0")
    with pytest.raises(ValueError, match="more than 1000 times as long"):
        file_checks.require_charsmap(units + b"x" * 1001 + b"\0")


def test_rules_of_published_tokenizers_are_within_the_bound(tmp_path):
    # Llama's spaces, T5's double spaces, ALBERT's quotation marks, ChatGLM's names of blanks.
    blanks = [replace(" " * n, f"<|blank_{n}|>") for n in range(80, 1, -1)]
    spaces = {**replace("", "▁"), "pattern": {"Regex": " {2,}"}}
    stages = [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), replace("``", '"'), *blanks]
    path = saved(tmp_path, normalizer=sequence(*stages, {"type": "NFKC"}, spaces))
    assert open_tokenizer(path).encode("ab").tolist()[-2:] == [1, 2]
