"""Writes the tokenizer in the metadata of a GGUF file as tokenizer.json and tokenizer_config.json.

Byte-level BPE (tokenizer.ggml.model=gpt2) and SentencePiece's BPE (llama) give the ids of the
tokenizer that the file was made from. Which special tokens are added to a text is by llama.cpp's
rules.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from experiment.schema import ConfigError
from input_pipeline.tokenizers import sentencepiece
from input_pipeline.tokenizers.added_tokens import CONFIG_FILE_NAME
from input_pipeline.tokenizers.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    VocabularyPiece,
)
from input_pipeline.tokenizers.special_tokens import Template, with_template
from input_pipeline.tokenizers.subword import FILE_NAME

PREFIX, CHAT, CHAT_NAMED = "tokenizer.ggml.", "tokenizer.chat_template", "tokenizer.chat_templates"
UNUSED = 5
PADDING_NAME = re.compile(r"\[PAD\d+\]")  # names of ids that the tokenizer does not have
INSTEAD = "give the tokenizer of the repository that it was made from: --tokenizer=FILE"
# Keys of tokenizer.ggml that are read here or in pretrained/gguf_model.py, or that have no effect
# on the ids of a text: ids for filling in the middle, SentencePiece's rules, which have none in
# BPE, and the number of token types.
KNOWN = {
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token",
    "add_sep_token", "add_space_prefix", "bos_token_id", "eos_token_id", "eot_token_id",
    "eom_token_id", "unknown_token_id", "seperator_token_id", "padding_token_id", "cls_token_id",
    "mask_token_id", "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id",
    "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "prefix_token_id",
    "suffix_token_id", "middle_token_id", "token_type_count",
}  # fmt: skip
NEUTRAL = {"remove_extra_whitespaces": False}  # keys of tokenizer.ggml that may have this value
ROLES = dict(bos="bos", eos="eos", unk="unknown", pad="padding")

# How texts are split before byte-level BPE. The patterns are those of the published tokenizers.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_pattern(pattern: str) -> list:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def _like_gpt2(*before, add_prefix_space: bool = False) -> list:
    return [*before, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)]


_DIGITS = pre_tokenizers.Digits(individual_digits=True)
# By tokenizer.ggml.pre.
SPLITS = {
    "gpt-2": _like_gpt2(),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _like_gpt2(_DIGITS)),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3"), _by_pattern(_WORDS % "{1,3}")),
    "qwen2": _by_pattern(_WORDS % ""),
}
LLAMA3 = ("llama-bpe", "llama-v3", "llama3")
NORMALIZERS = {"qwen2": normalizers.NFC()}


def write(metadata: Mapping[str, Any], directory: Path, path: Path) -> None:
    """Writes the two files; raises ConfigError, which names `path`, for an unknown tokenizer."""
    try:
        content, config = _read(metadata)
    except ConfigError as error:
        raise ConfigError([f"{path}: {each}" for each in error.problems]) from error
    except Exception as error:  # the library's errors have no class of their own
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: its tokenizer cannot be read ({reason}); {INSTEAD}") from error
    (directory / FILE_NAME).write_text(content, encoding="utf-8")
    (directory / CONFIG_FILE_NAME).write_text(json.dumps(config), encoding="utf-8")


def _read(metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The contents of tokenizer.json and tokenizer_config.json."""
    known = {key.removeprefix(PREFIX): v for key, v in metadata.items() if key.startswith(PREFIX)}
    unknown = sorted(
        key for key, value in known.items() if key not in KNOWN and NEUTRAL.get(key) != value
    )
    if unknown:
        raise ConfigError(f"{PREFIX}{unknown[0]} is not known, and may change ids; {INSTEAD}")
    kind = known.get("model")
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f"{PREFIX}model={kind!r} is not read, only gpt2 and llama (SentencePiece BPE); "
            f"{INSTEAD}"
        )
    pieces = _pieces(known)
    tokenizer = _byte_level(known, pieces) if kind == "gpt2" else _sentencepiece(known, pieces)
    ids = {role: known.get(f"{name}_token_id") for role, name in ROLES.items()}
    for role, id in ids.items():
        if id is not None and not (isinstance(id, int) and 0 <= id < len(pieces)):
            raise ConfigError(
                f"{PREFIX}{ROLES[role]}_token_id={id!r} is no id of {len(pieces):,}; {INSTEAD}"
            )
    names = {f"{role}_token": pieces[id].text for role, id in ids.items() if id is not None}
    config = dict(tokenizer_class="PreTrainedTokenizerFast", **names)
    if chat := _chat_template(metadata):
        config["chat_template"] = chat
    # llama.cpp's defaults, if the file does not say.
    adds_bos = known.get("add_bos_token", kind == "llama" or known.get("pre") in LLAMA3)
    start = (ids["bos"],) if adds_bos and ids["bos"] is not None else ()
    end = (ids["eos"],) if known.get("add_eos_token") and ids["eos"] is not None else ()
    pair_types = ((0,) * len(start), (0,) * len(end) + (1,) * len(start), (1,) * len(end))
    template = Template(start, end, (start, end + start, end), pair_types)
    return with_template(tokenizer.to_str(), template), config


def _pieces(known: Mapping[str, Any]) -> list[VocabularyPiece]:
    texts = known.get("tokens") or []
    kinds = known.get("token_type") or [NORMAL] * len(texts)
    scores = known.get("scores") or [0.0] * len(texts)
    if not texts or len(set(texts)) != len(texts):
        raise ConfigError(f"{PREFIX}tokens are missing, or two are equal; {INSTEAD}")
    return [VocabularyPiece(*each) for each in zip(texts, scores, kinds, strict=True)]


def _byte_level(known: Mapping[str, Any], pieces: list[VocabularyPiece]) -> Tokenizer:
    """GPT-2's kind of BPE; a special token is found before a text is split."""
    name = known.get("pre")
    if name not in SPLITS:
        raise ConfigError(f"{PREFIX}pre={name!r} is not read, only {', '.join(SPLITS)}; {INSTEAD}")
    vocab = {piece.text: id for id, piece in enumerate(pieces) if not _is_padding(piece)}
    merges = [tuple(merge.split(" ")) for merge in known.get("merges") or ()]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=name in LLAMA3))
    if name in NORMALIZERS:
        tokenizer.normalizer = NORMALIZERS[name]
    steps = SPLITS[name]
    if known.get("add_space_prefix"):
        if name != "gpt-2":
            raise ConfigError(f"{PREFIX}add_space_prefix=True is read for pre=gpt-2; {INSTEAD}")
        steps = _like_gpt2(add_prefix_space=True)
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, pieces)
    return tokenizer


def _sentencepiece(known: Mapping[str, Any], pieces: list[VocabularyPiece]) -> Tokenizer:
    """Llama's kind of BPE, whose merges follow from the scores."""
    scores = [piece.score for piece in pieces if piece.kind == NORMAL]
    if not known.get("scores") or scores != sorted(scores, reverse=True):
        raise ConfigError(
            f"{PREFIX}scores are missing, or do not fall from piece to piece; {INSTEAD}"
        )
    while pieces and _is_padding(pieces[-1]):
        pieces = pieces[:-1]
    unknown = [id for id, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    unk_id = known.get("unknown_token_id", unknown[0] if unknown else 0)
    adds_space = bool(known.get("add_space_prefix", True))
    return sentencepiece.from_pieces(pieces, unk_id, adds_prefix_space=adds_space)


def _is_padding(piece: VocabularyPiece) -> bool:
    return piece.kind == UNUSED and PADDING_NAME.fullmatch(piece.text) is not None


def _add_tokens(tokenizer: Tokenizer, pieces: list[VocabularyPiece]) -> None:
    """Control tokens and tokens that were added by hand, in the order of their ids."""
    for piece in pieces:
        if piece.kind in (CONTROL, USER_DEFINED, UNKNOWN):
            is_special = piece.kind != USER_DEFINED
            token = AddedToken(piece.text, special=is_special, normalized=False)
            add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
            add([token])


def _chat_template(metadata: Mapping[str, Any]) -> Any:
    """The chat template, or several by name as tokenizer_config.json has them."""
    default, names = metadata.get(CHAT), metadata.get(CHAT_NAMED) or []
    named = {name: metadata.get(f"{CHAT}.{name}") for name in names}
    named = {name: template for name, template in named.items() if template}
    if not named:
        return default
    if default:
        named = {"default": default} | named
    return [dict(name=name, template=template) for name, template in named.items()]
