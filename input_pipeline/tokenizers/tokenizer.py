"""The byte tokenizer, which needs no vocabulary and loses nothing; also loads saved tokenizers.

0 pad  1 bos  2 eos  3 mask  4 cls  5 sep | 256 bytes | 100 sentinels, the first one last
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiment.schema import ConfigError
from experiment.untrusted_files import parse_json, require_regular
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer, TokenizerWithoutVocabulary
from input_pipeline.tokenizers.subword import FILE_NAME, ROLES, ROLES_FILE_NAME, SubwordTokenizer


class ByteTokenizer(TokenizerWithoutVocabulary):
    """One id per byte of UTF-8, and special ids."""

    pad_id, bos_id, eos_id, mask_id, cls_id, sep_id = range(6)
    first_byte_id = 6
    sentinel_count = 100
    vocab_size = first_byte_id + 256 + sentinel_count

    def __init__(self):
        # The ids of text, which masked_lm draws random replacements from.
        self.text_ids = np.arange(256, dtype=np.int32) + self.first_byte_id
        # Numbered from the end of the vocabulary, as in T5.
        self.sentinel_ids = np.arange(self.vocab_size - 1, self.text_ids[-1], -1, dtype=np.int32)
        self._is_text = np.isin(np.arange(self.vocab_size), self.text_ids)
        # Special ids separate words, as white space does.
        self._ends_word = ~self._is_text
        self._ends_word[self.encode(" \t\n\v\f\r")] = True

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, without special ids: objectives add those."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + self.first_byte_id

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a text, and the first character and the end of each: (n,), (n, 2)."""
        sizes = [len(character.encode()) for character in text]
        first = np.repeat(np.arange(len(text)), sizes)
        return self.encode(text), np.stack([first, first + 1], axis=1)

    def is_control(self, ids: np.ndarray) -> np.ndarray:
        """Whether ids are special."""
        return ~self._is_text[ids]

    def with_more_ends(self, ids: Iterable[int]) -> "ByteTokenizer":
        """Itself: an answer ends with eos and nothing else."""
        del ids
        return self

    def byte_sizes(self, text: str) -> np.ndarray:
        """How many bytes of the text each of its ids covers."""
        return np.ones(len(text.encode()), np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, without special ids; invalid UTF-8 becomes the character �."""
        ids = np.asarray(ids)
        text = ids[np.isin(ids, self.text_ids)]
        return (text - self.first_byte_id).astype(np.uint8).tobytes().decode(errors="replace")

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """True at the first id and after whitespace; special ids are words of their own."""
        ids = np.asarray(ids)
        after_end = np.concatenate([[True], self._ends_word[ids[:-1]]])[: len(ids)]
        return after_end | ~self._is_text[ids]

    @property
    def pieces(self) -> list[str | None]:
        """The piece of each id, as other vocabularies write it; None for special ids."""
        pieces = [None] * self.vocab_size
        for byte, id in enumerate(self.text_ids):
            pieces[id] = chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"
        for number, id in enumerate(self.sentinel_ids):
            pieces[id] = f"<extra_id_{number}>"
        return pieces

    def _layout(self) -> dict:
        return {
            "kind": "byte",
            **{f"{role}_id": getattr(self, f"{role}_id") for role in ROLES},
            "first_byte_id": self.first_byte_id,
            "sentinel_count": self.sentinel_count,
            "vocab_size": self.vocab_size,
        }


Tokenizer = ByteTokenizer | SubwordTokenizer | IdTokenizer


def ids_in(theirs: Tokenizer, ours: Tokenizer) -> np.ndarray:
    """For each id of `ours`, the id in `theirs` of the same piece or else the same role, or -1."""
    id_of = {piece: id for id, piece in enumerate(theirs.pieces) if piece is not None}
    ids = np.array([id_of.get(piece, -1) for piece in ours.pieces], np.int32)
    for role in ROLES:
        our_id, their_id = getattr(ours, f"{role}_id"), getattr(theirs, f"{role}_id")
        if our_id is not None and their_id is not None and ids[our_id] < 0:
            ids[our_id] = their_id
    return ids


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer that `save` wrote; raises ConfigError if it would give other ids today."""
    if Path(directory, ROLES_FILE_NAME).exists():
        return SubwordTokenizer.load(directory)
    path = Path(directory, FILE_NAME)
    try:
        saved = parse_json(require_regular(path).read_text(encoding="utf-8"))
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer = ByteTokenizer()
    if isinstance(saved, dict) and saved.get("kind") == IdTokenizer.kind:
        return IdTokenizer.from_layout(saved, path)
    if isinstance(saved, dict) and "model" in saved:
        raise ConfigError(f"{path} needs {ROLES_FILE_NAME} beside it; restore that file")
    if not isinstance(saved, dict) or saved.get("digest") != tokenizer.digest:
        raise ConfigError(f"{path} is another tokenizer than this version's byte tokenizer")
    return tokenizer
