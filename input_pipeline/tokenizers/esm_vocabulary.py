"""ESM's vocab.txt: every line is a token, which is found in a text without spaces around it."""

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from input_pipeline.tokenizers.added_tokens import add_special, named_tokens

NAMES = dict(unk="<unk>", cls="<cls>", pad="<pad>", mask="<mask>", eos="<eos>")
SPECIAL_IN_REGEX = frozenset(r"\.^$|?*+()[]{}-&~#")


def is_esm(config: Mapping[str, Any], model_type: str) -> bool:
    """Whether the tokenizer's config, or else the model's type, names ESM's tokenizer."""
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    return name == "EsmTokenizer" or (not name and model_type == "esm")


def read(text: str, config: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, int]]:
    """The tokenizer of a vocabulary, and its ids by role; `config` is tokenizer_config.json.

    A residue is a token, wherever it is. What is left between tokens and spaces is unknown.
    """
    pieces = [line.strip() for line in text.splitlines()]
    names = NAMES | named_tokens(config)
    if names["unk"] not in pieces:
        raise ValueError(f"it has no {names['unk']}, so it is not a vocabulary of ESM")
    tokenizer = Tokenizer(
        models.WordLevel({piece: id for id, piece in enumerate(pieces)}, names["unk"])
    )
    # transformers takes the longest token at each place.
    longest_first = sorted(filter(None, set(pieces)), key=lambda piece: (-len(piece), piece))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(map(_escaped, longest_first))), "isolated"),
            pre_tokenizers.WhitespaceSplit(),
        ]
    )
    add_special(tokenizer, [name for name in names.values() if name in pieces])
    ids = {role: tokenizer.token_to_id(name) for role, name in names.items() if role != "unk"}
    return tokenizer, {role: id for role, id in ids.items() if id is not None}


def _escaped(piece: str) -> str:
    return "".join(f"\\{letter}" if letter in SPECIAL_IN_REGEX else letter for letter in piece)
