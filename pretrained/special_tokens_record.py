"""The special tokens of a published model as its files name them, for a later export.

Training needs a role for every special token, so an import fills gaps: GPT-2's eos pads, BERT's
[CLS] is bos. An export must not write these as the model's own. An import therefore records what
the files say; runs without a record are exported with the filled roles.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pretrained import files, published
from pretrained.sentence import TOKENIZER

FILE_NAME = "published_special_tokens.json"  # in the workdir
MAP_FILE_NAME = "special_tokens_map.json"  # of older published tokenizers
ROLES = ("unk", "bos", "eos", "pad", "cls", "sep", "mask")
IDS = (*(f"{role}_token_id" for role in ROLES), "decoder_start_token_id")
LENGTH = "model_max_length"

_ENDS = dict(unk="<unk>", eos="</s>", pad="<pad>")
_BERT = dict(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA = _ENDS | dict(bos="<s>", cls="<s>", sep="</s>", mask="<mask>")
# The special tokens of transformers' tokenizer classes, if the files do not name them.
DEFAULTS = {
    "gpt2": dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
    "llama": dict(unk="<unk>", bos="<s>", eos="</s>"),
    "bert": _BERT, "distilbert": _BERT, "roberta": _ROBERTA, "bart": _ROBERTA,
    "t5": _ENDS, "mt5": _ENDS, "marian": _ENDS,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SpecialTokensRecord:
    """What a published model's files say of its special tokens.

    ids: by key of config.json; keys that it lacks are missing. tokens: by role; None if the
    tokenizer was not read from published files. max_length: model_max_length, or None.
    """

    model_type: str
    ids: Mapping[str, Any]
    tokens: Mapping[str, str] | None = None
    max_length: int | float | None = None

    def config_with_ids(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """An exported config.json with the ids as they came in."""
        if config["model_type"] != self.model_type:
            return dict(config)  # a missing id would mean another default
        replaced = set(IDS)
        if self.model_type == "roberta":
            replaced.remove("pad_token_id")  # the tensor of positions is written for this id
        ends, own = config.get("eos_token_id"), self.ids.get("eos_token_id")
        if isinstance(ends, list) and not (isinstance(own, list) and set(own) == set(ends)):
            replaced.remove("eos_token_id")  # generation_config.json has named other ends
        others = {key: value for key, value in config.items() if key not in replaced}
        return others | {key: id for key, id in self.ids.items() if key in replaced}


def store(
    workdir: Path,
    found: published.Published,
    tokenizer_file: Path | None,
    pieces: Collection[str | None],
    ignore_keys: Collection[str] = (),
) -> None:
    """Writes the record of an import. `pieces` is the tokenizer's vocabulary.

    tokenizer_file: None if the tokenizer was not read from published files. A special token that
    the vocabulary lacks is left out.
    """
    config = files.read_json(found.directory, files.CONFIG)
    ids = {key: config[key] for key in IDS if key in config and key not in ignore_keys}
    record = dict(model_type=found.architecture.model_type, ids=ids)
    if tokenizer_file is not None:
        beside = _read_beside(tokenizer_file, TOKENIZER)
        tokens = _tokens(found, tokenizer_file, beside)
        record["tokens"] = {role: token for role, token in tokens.items() if token in pieces}
        length = beside.get(LENGTH)
        is_number = isinstance(length, int | float) and not isinstance(length, bool)
        record["max_length"] = length if is_number else None
    files.write_json(workdir / FILE_NAME, record)


def load(workdir: Path) -> SpecialTokensRecord | None:
    """The record of an imported run; None if the run has none."""
    if not (workdir / FILE_NAME).is_file():
        return None
    return SpecialTokensRecord(**files.read_json(workdir, FILE_NAME))


def _tokens(found: published.Published, file: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that transformers would give the tokenizer, by role."""
    named = str(config.get("tokenizer_class") or found.tokenizer_class)
    name = (named or found.architecture.model_type).lower()
    name = name.removesuffix("fast").removesuffix("tokenizer")
    tokens = dict(DEFAULTS.get(name, {}))
    sources = [config]
    if "added_tokens_decoder" not in config:  # as in transformers
        sources.append(_read_beside(file, MAP_FILE_NAME))
    for source in sources:
        for role in ROLES:
            if f"{role}_token" in source:
                token = source[f"{role}_token"]
                tokens[role] = token.get("content") if isinstance(token, dict) else token
    return {role: token for role, token in tokens.items() if isinstance(token, str)}


def _read_beside(file: Path, name: str) -> dict[str, Any]:
    return files.read_json(file.parent, name) if file.with_name(name).is_file() else {}
