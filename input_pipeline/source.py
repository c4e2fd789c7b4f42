"""What a source hands over: examples by index, already split, each in exactly one split."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Example = Mapping[str, Any]

# What the examples hold:
#   pairs      source, target            (text)
#   documents  name, text                (running text, any length)
#   labelled   text, label               (short text, an index into `labels`)
#   images     image [H, W, C], label    (float32 in [0, 1])
Kind = Literal["pairs", "documents", "labelled", "images"]


@dataclasses.dataclass(frozen=True)
class Splits:
    kind: Kind
    train: Sequence[Example]
    evals: Mapping[str, Sequence[Example]]
    labels: tuple[str, ...]
    description: Mapping[str, Any]  # facts for the run's records: versions, counts, ...
    digest: str  # of the content: equal digests, equal examples


def hash_fraction(text: str | bytes) -> float:
    """A number in [0, 1) that depends on nothing but the text: splits are cut along it."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(data).digest()[:6]) / 2**48


def content_digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))  # so that parts cannot run into each other
        digest.update(data)
    return digest.hexdigest()
