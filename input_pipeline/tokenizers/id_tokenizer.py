"""A tokenizer whose texts are ids, "17 4 250", for models that come without their tokenizer.

It adds no special ids: the model reads exactly the ids in the text.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.tokenizers.special_tokens import SpecialTokens, Template
from input_pipeline.tokenizers.subword import BANNED, FILE_NAME, FORCED_EOS, ROLES, TEXT_START

NO_END = -1  # the eos id if a model has none


class TokenizerWithoutVocabulary(SpecialTokens):
    """Base of tokenizers without a vocabulary. `_layout` describes them and is saved as JSON."""

    mask_name = None
    unknown_id = None
    space_is_a_token = True

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def unspelt(self, text: str) -> str:
        """Always "": no part of a text lacks ids."""
        del text
        return ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._layout(), sort_keys=True).encode()).hexdigest()

    def save(self, directory: str | Path) -> None:
        content = {**self._layout(), "digest": self.digest}
        Path(directory, FILE_NAME).write_text(json.dumps(content, indent=2) + "\n")


class IdTokenizer(TokenizerWithoutVocabulary):
    """Ids as text. `roles` are the special ids that are known."""

    kind = "ids"
    template = Template()
    sentinel_count = 0
    sentinel_ids = np.zeros(0, np.int32)

    def __init__(
        self,
        roles: Mapping[str, int | None],
        vocab_size: int,
        text_ids: np.ndarray | None = None,
        more_eos_ids: Iterable[int] = (),
        *,
        forced_eos: bool = False,
        banned_ids: Iterable[int] = (),
    ):
        self.roles = {role: roles.get(role) for role in ROLES}
        self.pad_id, self.bos_id, self.eos_id = (self.roles[r] for r in ("pad", "bos", "eos"))
        self.mask_id, self.cls_id, self.sep_id = (self.roles[r] for r in ("mask", "cls", "sep"))
        self.more_eos_ids, self.forced_eos = tuple(more_eos_ids), forced_eos
        self.banned_ids = tuple(banned_ids)
        # Without eos, every answer has the maximal length, so padding is never used.
        if self.eos_id is None:
            self.eos_id = NO_END
        if self.pad_id is None:
            self.pad_id = max(self.eos_id, 0)
        self.text_start_ids = (roles[TEXT_START],) if roles.get(TEXT_START) is not None else ()
        self.vocab_size = vocab_size
        self.text_ids = np.arange(vocab_size, dtype=np.int32) if text_ids is None else text_ids

    @classmethod
    def like(cls, tokenizer: Any, vocab_size: int) -> "IdTokenizer":
        """An id tokenizer with the special ids of another tokenizer."""
        roles = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
        roles[TEXT_START] = next(iter(tokenizer.text_start_ids), None)
        return cls(
            roles, vocab_size, tokenizer.text_ids, tokenizer.more_eos_ids,
            forced_eos=tokenizer.forced_eos, banned_ids=tokenizer.banned_ids,
        )  # fmt: skip

    def encode(self, text: str) -> np.ndarray:
        numbers = text.split()
        wrong = [n for n in numbers if not (n.isdecimal() and n.isascii())]
        wrong = wrong or [n for n in numbers if len(n) > 9 or int(n) >= self.vocab_size]
        if wrong:
            raise ConfigError(
                f"{wrong[0]!r} is not an id; ids are numbers from 0 to {self.vocab_size - 1} with "
                "spaces between them"
            )
        return np.array(numbers, np.int32)

    def byte_sizes(self, text: str) -> np.ndarray:
        """Zeros: ids do not stand for bytes of text."""
        return np.zeros(len(text.split()), np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The ids up to the first one that ends a text, as text."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(np.isin(ids, (self.eos_id, *self.more_eos_ids)))
        return " ".join(map(str, ids[: ends[0]] if len(ends) else ids))

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), bool)

    @property
    def pieces(self) -> list[str | None]:
        return [str(id) for id in range(self.vocab_size)]

    @classmethod
    def from_layout(cls, saved: Mapping[str, Any], path: Path) -> "IdTokenizer":
        """The tokenizer that `save` wrote; raises ConfigError if the file has changed."""
        roles = {role: saved.get(f"{role}_id") for role in (*ROLES, TEXT_START)}
        size = saved.get("vocab_size")
        tokenizer = None
        if isinstance(size, int) and 0 < size < 2**31:
            more, forced = saved.get("more_eos_ids", ()), saved.get(FORCED_EOS) is True
            banned = saved.get(BANNED, ())
            tokenizer = cls(roles, size, None, more, forced_eos=forced, banned_ids=banned)
        if tokenizer is None or tokenizer.digest != saved.get("digest"):
            raise ConfigError(f"{path} has changed since it was saved; restore it")
        return tokenizer

    def _layout(self) -> dict[str, Any]:
        start = next(iter(self.text_start_ids), None)
        roles = {**self.roles, TEXT_START: start}
        layout = {
            "kind": self.kind,
            **{f"{role}_id": id for role, id in roles.items()},
            "more_eos_ids": list(self.more_eos_ids),
            "vocab_size": self.vocab_size,
        }
        # Without these keys, the digest is the one from before they existed.
        newer = {FORCED_EOS: self.forced_eos, BANNED: list(self.banned_ids)}
        return layout | {key: value for key, value in newer.items() if value}
