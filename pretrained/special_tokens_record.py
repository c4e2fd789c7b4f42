"""The special tokens of a published model as its files name them, for a later export.

Training needs a role for every special token, so an import fills gaps: GPT-2's eos pads, BERT's
[CLS] is bos. An export must not write these as the model's own. An import therefore records what
the files say, and a run that starts from it with the same tokenizer takes the record over. Runs
without a record are exported with the filled roles.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from input_pipeline.tokenizers.added_tokens import (
    LISTED,
    LISTED_OR_NAMED,
    read_beside,
    token_text,
    tokens_without_role,
)
from pretrained import model_files, published

FILE_NAME = "published_special_tokens.json"  # in the workdir
ROLES = ("unk", "bos", "eos", "pad", "cls", "sep", "mask")
IDS = (*(f"{role}_token_id" for role in ROLES), "decoder_start_token_id")
LENGTH = "model_max_length"
PADDING_SIDE = "padding_side"
# Keys of tokenizer_config.json that go out as they came in, with the values that they may have.
SETTINGS = {
    PADDING_SIDE: ("left", "right"),
    "truncation_side": ("left", "right"),
    "clean_up_tokenization_spaces": (False, True),
}

_ENDS = dict(unk="<unk>", eos="</s>", pad="<pad>")
_BERT = dict(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA = _ENDS | dict(bos="<s>", cls="<s>", sep="</s>", mask="<mask>")
# The special tokens of transformers' tokenizer classes, if the files do not name them.
DEFAULTS = {
    "gpt2": dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
    "llama": dict(unk="<unk>", bos="<s>", eos="</s>"),
    "albert": _BERT | dict(unk="<unk>", pad="<pad>", bos="[CLS]", eos="[SEP]"),
    "electra": _BERT, "mpnet": _ROBERTA | dict(unk="[UNK]"),
    "bert": _BERT, "distilbert": _BERT, "roberta": _ROBERTA, "bart": _ROBERTA,
    **dict.fromkeys(("xlm-roberta", "xlmroberta", "camembert"), _ROBERTA),
    "esm": dict(unk="<unk>", eos="<eos>", pad="<pad>", cls="<cls>", mask="<mask>"),
    **dict.fromkeys(("mbart50", "nllb"), _ROBERTA),
    "m2m100": _ENDS | dict(bos="<s>", sep="</s>"),
    "t5": _ENDS, "mt5": _ENDS, "umt5": _ENDS, "marian": _ENDS,
}  # fmt: skip
PAD_LEFT = ("llama", "codellama", "gemma")  # their classes do, if the files do not say
WITH_SENTINELS = (
    "t5",
    "mt5",
    "umt5",
)  # their classes have <extra_id_0> etc., if the files do not say


@dataclasses.dataclass(frozen=True)
class SpecialTokensRecord:
    """What a published model's files say of its special tokens.

    ids: by key of config.json; keys that it lacks are missing. tokens: by role; None if the
    tokenizer was not read from published files. max_length: model_max_length, or None.
    more_tokens: special tokens without a role. named_tokens: those with a name that only this model
    has, such as image_token. settings: other keys of tokenizer_config.json. Older records lack the
    last three.
    """

    model_type: str
    ids: Mapping[str, Any]
    tokens: Mapping[str, str] | None = None
    max_length: int | float | None = None
    more_tokens: Sequence[str] = ()
    named_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """Keys of an exported tokenizer_config.json, besides the class and the input names."""
        config = {f"{role}_token": token for role, token in (self.tokens or {}).items()}
        if self.more_tokens:
            config[LISTED] = list(self.more_tokens)
        if self.named_tokens:
            config[LISTED_OR_NAMED] = dict(self.named_tokens)
        if self.max_length is not None:
            config[LENGTH] = self.max_length
        return config | dict(self.settings)

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
    content: str,
    ignore_keys: Collection[str] = (),
) -> None:
    """Writes the record of an import.

    tokenizer_file: None if the tokenizer was not read from published files. pieces: its vocabulary;
    a special token that it lacks is left out. content: it as a tokenizer.json.
    """
    config = model_files.read_json(found.directory, model_files.CONFIG)
    ids = {key: config[key] for key in IDS if key in config and key not in ignore_keys}
    record = dict(model_type=found.architecture.model_type, ids=ids)
    if tokenizer_file is not None:
        record |= _tokenizer_record(found, tokenizer_file, set(pieces), json.loads(content))
    model_files.write_json(workdir / FILE_NAME, record)


def save(workdir: Path, record: SpecialTokensRecord | None) -> None:
    """Writes a record that another run has; None removes what an unfinished run may have left."""
    if record is None:
        (workdir / FILE_NAME).unlink(missing_ok=True)
    else:
        model_files.write_json(workdir / FILE_NAME, dataclasses.asdict(record))


def load(workdir: Path) -> SpecialTokensRecord | None:
    """The record of an imported run; None if the run has none."""
    if not (workdir / FILE_NAME).is_file():
        return None
    return SpecialTokensRecord(**model_files.read_json(workdir, FILE_NAME))


def _tokenizer_record(
    found: published.Published, file: Path, pieces: Collection[str | None], layout: Mapping
) -> dict[str, Any]:
    """The part of the record that comes from the tokenizer's files."""
    config, older = read_beside(file)
    named = str(config.get("tokenizer_class") or found.tokenizer_class)
    name = (named or found.architecture.model_type).lower()
    name = name.removesuffix("fast").removesuffix("tokenizer")

    tokens = dict(DEFAULTS.get(name, {}))
    for source in (config, older):
        for role in ROLES:
            if f"{role}_token" in source:
                tokens[role] = token_text(source[f"{role}_token"])
    more, by_name = tokens_without_role(config, older)
    if more is None:
        count = config.get("extra_ids", 100) if name in WITH_SENTINELS else 0
        count = min(count, len(pieces)) if isinstance(count, int) else 0
        sentinels = [f"<extra_id_{number}>" for number in range(count)]
        others = {*sentinels, tokens.get("unk")}
        pieces_of_file = len(layout["model"]["vocab"])
        added = layout.get("added_tokens", ())
        added = [token["content"] for token in added if token["id"] < pieces_of_file]
        # A SentencePiece model lists further symbols.
        listed = added if file.suffix == ".model" else ()
        more = [token for token in listed if token not in others] + sentinels
    length = config.get(LENGTH)
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    settings = {key: config.get(key) for key in SETTINGS}
    if settings[PADDING_SIDE] is None and name in PAD_LEFT:
        # For byte-level pieces, transformers takes another class. An export keeps `padding`.
        stages = json.dumps([layout.get("pre_tokenizer"), layout.get("decoder")])
        is_other = "ByteLevel" in stages or layout.get("padding")
        settings[PADDING_SIDE] = None if is_other else "left"
    return dict(
        tokens={role: token for role, token in tokens.items() if token and token in pieces},
        max_length=length if is_number else None,
        more_tokens=[token for token in more if token in pieces],
        named_tokens={key: token for key, token in by_name.items() if token in pieces},
        settings={key: value for key, value in settings.items() if value in SETTINGS[key]},
    )
