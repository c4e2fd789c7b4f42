"""Text <-> ids. Bytes need no vocabulary and no training, and lose nothing.

0 pad  1 bos  2 eos  3 mask  4 cls  5 sep | 256 bytes | 100 sentinels, the first one last
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from schema import ConfigError

FILE_NAME = "tokenizer.json"


class ByteTokenizer:
    pad_id, bos_id, eos_id, mask_id, cls_id, sep_id = range(6)
    first_byte_id = 6
    # The ids that text is made of: what masked_lm puts in place of a token, at random.
    text_ids = np.arange(first_byte_id, first_byte_id + 256, dtype=np.int32)
    sentinel_count = 100
    vocab_size = 262 + sentinel_count

    def __init__(self):
        # Numbered from the end of the vocabulary, as in T5.
        self.sentinel_ids = np.arange(self.vocab_size - 1, 262 - 1, -1, dtype=np.int32)
        # How many bytes of text an id stands for: turns loss per token into bits per byte.
        self.token_bytes = np.zeros(self.vocab_size, np.int32)
        self.token_bytes[self.text_ids] = 1

    def encode(self, text: str) -> np.ndarray:
        """No special ids are added: that is for the objective to decide."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + self.first_byte_id

    def decode(self, ids: np.ndarray) -> str:
        """Special ids are dropped; bytes that are no valid UTF-8 show as the character �."""
        ids = np.asarray(ids)
        text = ids[(ids >= 6) & (ids < 262)]
        return (text - self.first_byte_id).astype(np.uint8).tobytes().decode(errors="replace")

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._layout(), sort_keys=True).encode()).hexdigest()

    def save(self, directory: str | Path) -> None:
        content = {**self._layout(), "digest": self.digest}
        Path(directory, FILE_NAME).write_text(json.dumps(content, indent=2) + "\n")

    def _layout(self) -> dict:
        special = ("pad_id", "bos_id", "eos_id", "mask_id", "cls_id", "sep_id")
        return {
            "kind": "byte",
            **{name: getattr(self, name) for name in special},
            "first_byte_id": self.first_byte_id,
            "sentinel_count": self.sentinel_count,
            "vocab_size": self.vocab_size,
        }


def load_tokenizer(directory: str | Path) -> ByteTokenizer:
    """The tokenizer that `save` left there, or a refusal if it would give other ids today."""
    path = Path(directory, FILE_NAME)
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer = ByteTokenizer()
    if not isinstance(saved, dict) or saved.get("digest") != tokenizer.digest:
        raise ConfigError(f"{path} is another tokenizer than this version's byte tokenizer")
    return tokenizer


Tokenizer = ByteTokenizer


def _eb(self, texts):
    return [self.encode(t) for t in texts]


def _ws(self, ids):
    space = np.isin(ids, [38, 15, 16, 19])
    return np.concatenate([[True], space[:-1]])


ByteTokenizer.encode_batch = _eb
ByteTokenizer.word_starts = _ws
