"""Running text: a file, a directory or a glob of text files, each one a document.

Long documents come in pieces, so that none has to be tokenized in one go. They are cut in front
of a line that starts with a letter or the like: there most tokenizers cut anyway.

If the path is a directory that holds the splits by name (train.txt and validation.txt, or
directories of these names), they are used; otherwise the last data.eval_share of all bytes is
held out.
"""

import dataclasses
import functools
import hashlib
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from input_pipeline.config import DataConfig
from input_pipeline.files.reading import BYTE_ORDER_MARK, find_files, read_bytes
from input_pipeline.source import BadRecordError, Example, Splits, content_digest

PIECE = 2**16  # bytes, more or less
_LINE_START = re.compile(rb"\n(?=[^\s])")


def load(data: DataConfig) -> Splits:
    files = find_files(data.path)
    train_files = _of_split(files, data.path, data.train_split)
    eval_files = _of_split(files, data.path, data.eval_split)
    if train_files and eval_files:
        train, held_out = _pieces(train_files), _pieces(eval_files)
    else:
        train, held_out = _divided(_pieces(files), data.eval_share)
    digests = [hashlib.sha256(read_bytes(path)).hexdigest() for path in files]
    description = {
        "files": len(files),
        "train_bytes": sum(piece.size for piece in train),
        "held_out_bytes": sum(piece.size for piece in held_out),
    }
    return Splits(
        "documents",
        Pieces(train),
        {data.eval_split: Pieces(held_out)},
        (),
        description,
        content_digest([*digests, str(description)]),
    )


def _of_split(files: Sequence[Path], path: str, split: str) -> list[Path]:
    """The files in a directory of the split's name, or named after it up to the first dot."""
    if not Path(path).is_dir():
        return []
    names = [(file, file.relative_to(path).parts) for file in files]
    return [file for file, parts in names if parts[0].split(".")[0] == split]


@dataclasses.dataclass(frozen=True)
class Piece:
    path: Path
    start: int
    stop: int
    ends: bool  # the document

    @property
    def size(self) -> int:
        return self.stop - self.start


def _pieces(files: Sequence[Path]) -> list[Piece]:
    pieces = []
    for path in files:
        content = read_bytes(path)
        start = len(BYTE_ORDER_MARK) if content[:3] == BYTE_ORDER_MARK else 0
        while start < len(content):
            stop = _line_start(content, start + PIECE)
            pieces.append(Piece(path, start, stop, ends=stop == len(content)))
            start = stop
    return pieces


def _line_start(content: bytes | mmap.mmap, after: int) -> int:
    """Where the next line begins that begins with no white space; or where the text ends."""
    found = _LINE_START.search(content, after)
    return found.end() if found else len(content)


def _divided(pieces: Sequence[Piece], share: float) -> tuple[list[Piece], list[Piece]]:
    """The first and the last of all the bytes, cut where a line begins."""
    wanted = round(sum(piece.size for piece in pieces) * (1 - share))
    train, rest = [], list(pieces)
    while rest and wanted >= rest[0].size:
        wanted -= rest[0].size
        train.append(rest.pop(0))
    if rest and wanted:
        piece = rest[0]
        cut = min(piece.stop, _line_start(read_bytes(piece.path), piece.start + wanted))
        train.append(dataclasses.replace(piece, stop=cut, ends=True))
        rest[0] = dataclasses.replace(piece, start=cut)
    return train, [piece for piece in rest if piece.size]


class Pieces(Sequence):
    def __init__(self, pieces: Sequence[Piece]):
        self._pieces = pieces

    def __len__(self):
        return len(self._pieces)

    def __getitem__(self, index: int) -> Example:
        piece = self._pieces[index]
        content = _content(piece.path)
        try:
            text = content[piece.start : piece.stop].decode()
        except UnicodeDecodeError as error:
            line = content[: piece.start + error.start].count(b"\n") + 1
            raise BadRecordError(
                f"{piece.path}:{line}: not valid UTF-8 ({error.reason})"
            ) from error
        return {"text": text, "ends": piece.ends}


# Pieces are asked for in order: the file at hand is unpacked once, and few are held.
_content = functools.lru_cache(maxsize=8)(read_bytes)
