"""Ids written as numbers, for models that are asked without their tokenizer: "17 4 250" <-> ids.

No special ids are added: what stands in the line is what the model reads.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from input_pipeline.special_tokens import SpecialTokens, Template
from input_pipeline.subword import FILE_NAME, ROLES, TEXT_START
from schema import ConfigError

NO_END = -1  # stands for eos where a model has none


class IdTokenizer(SpecialTokens):
    """`roles` are the ids that end, pad and begin texts; the last begins an answer."""

    kind = "ids"
    mask_name = unknown_name = None
    space_is_a_token = True
    template = Template()
    sentinel_count = 0
    sentinel_ids = np.zeros(0, np.int32)

    def __init__(
        self, roles: Mapping[str, int | None], vocab_size: int, text_ids: np.ndarray | None = None
    ):
        given = {role: roles.get(role) for role in ROLES}
        # Without an end, an answer is as long as it may be; padding is never looked at.
        given["eos"] = NO_END if given["eos"] is None else given["eos"]
        given["pad"] = max(given["eos"], 0) if given["pad"] is None else given["pad"]
        self._roles = given
        self.pad_id, self.bos_id, self.eos_id = (self._roles[r] for r in ("pad", "bos", "eos"))
        self.mask_id, self.cls_id, self.sep_id = (self._roles[r] for r in ("mask", "cls", "sep"))
        self.text_start_ids = (roles[TEXT_START],) if roles.get(TEXT_START) is not None else ()
        self.vocab_size = vocab_size
        self.text_ids = np.arange(vocab_size, dtype=np.int32) if text_ids is None else text_ids

    @classmethod
    def like(cls, tokenizer: Any, vocab_size: int) -> "IdTokenizer":
        """For a model that has another tokenizer, with the same roles."""
        roles = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
        roles[TEXT_START] = next(iter(tokenizer.text_start_ids), None)
        return cls(roles, vocab_size, tokenizer.text_ids)

    def encode(self, text: str) -> np.ndarray:
        numbers = text.split()
        wrong = [n for n in numbers if not (n.isdecimal() and n.isascii())]
        wrong = wrong or [n for n in numbers if len(n) > 9 or int(n) >= self.vocab_size]
        if wrong:
            raise ConfigError(
                f"{wrong[0]!r} is no id; ids are numbers from 0 to {self.vocab_size - 1} with "
                "spaces between them"
            )
        return np.array(numbers, np.int32)

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def byte_sizes(self, text: str) -> np.ndarray:
        """Ids stand for no bytes."""
        return np.zeros(len(text.split()), np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """Without those that end or pad a text."""
        return " ".join(str(id) for id in np.asarray(ids) if id not in (self.eos_id, self.pad_id))

    def unspelt(self, text: str) -> str:
        del text
        return ""

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), bool)

    @property
    def pieces(self) -> list[str | None]:
        return [str(id) for id in range(self.vocab_size)]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._layout(), sort_keys=True).encode()).hexdigest()

    def save(self, directory: str | Path) -> None:
        content = {**self._layout(), "digest": self.digest}
        Path(directory, FILE_NAME).write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def from_layout(cls, saved: Mapping[str, Any], path: Path) -> "IdTokenizer":
        """What `save` wrote; refused if it has changed since."""
        roles = {role: saved.get(f"{role}_id") for role in (*ROLES, TEXT_START)}
        size = saved.get("vocab_size")
        tokenizer = cls(roles, size) if isinstance(size, int) and 0 < size < 2**31 else None
        if tokenizer is None or tokenizer.digest != saved.get("digest"):
            raise ConfigError(f"{path} has changed since it was saved; restore it")
        return tokenizer

    def _layout(self) -> dict[str, Any]:
        start = next(iter(self.text_start_ids), None)
        roles = {**self._roles, TEXT_START: start}
        return {
            "kind": self.kind,
            **{f"{role}_id": id for role, id in roles.items()},
            "vocab_size": self.vocab_size,
        }
