"""Text files as documents: a file, a directory or a glob; each file is a document.

Long documents are read and tokenized in pieces. A piece begins at the start of a line if possible,
where byte-level tokenizers split anyway.

If the path is a directory with files named after the splits (train.txt and validation.txt, shards
such as train-00000-of-00002.txt, or directories), only those are used. Otherwise the last
data.eval_share of all bytes is held out.
"""

import dataclasses
import functools
import hashlib
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.object_copy import COPIES
from input_pipeline.sources.base import (
    SHARE_AT_END,
    BadRecordError,
    Example,
    MissingSplitError,
    Source,
    Splits,
    content_digest,
)
from input_pipeline.sources.files.reading import BYTE_ORDER_MARK, find_files, read_bytes, read_text
from input_pipeline.sources.files.splits import is_shard, names_of_splits
from input_pipeline.token_cache import cache_directory

PIECE = 2**15  # bytes of a piece, before it is extended to the next good place to cut
SEARCH = 2**15  # further bytes in which that place is searched
_LINE, _WORD, _CHARACTER = map(re.compile, (rb"\n(?=\S)", rb" (?=\S)", rb"(?=[^\x80-\xbf])"))


def load(data: DataConfig) -> Splits:
    """The text files at data.path; raises ConfigError if they cannot be used."""
    files = find_files(data.path)
    cache = cache_directory(data).resolve()
    cached = [path for path in files if path.resolve().is_relative_to(cache)]
    if not all(path.resolve().is_relative_to(cache / COPIES) for path in cached):
        raise ConfigError(f"data.cache_dir={cache} lies in data.path={data.path}; choose another")
    train_files, eval_files = _of_splits(files, data.path, (data.train_split, data.eval_split))
    if train_files and eval_files:
        files = train_files + eval_files
        train_pieces, eval_pieces = _pieces(train_files), _pieces(eval_files)
    elif train_files or eval_files:
        # Using all files could train on test data.
        there = ", ".join(sorted({path.name for path in files})[:10])
        missing = data.eval_split if train_files else data.train_split
        raise MissingSplitError(
            f"{data.path} has only one of data.train_split={data.train_split!r} and "
            f"data.eval_split={data.eval_split!r}; it has: {there}. Name both, or set data.path to "
            "the file whose end is to be held out",
            missing,
            names_of_splits(Path(data.path).expanduser(), files),
        )
    else:
        train_pieces, eval_pieces = _divided(_pieces(files), data.eval_share)
    digests = [hashlib.sha256(read_bytes(path)).hexdigest() for path in files]
    description = {
        "files": len(files),
        "train_bytes": sum(piece.size for piece in train_pieces),
        "held_out_bytes": sum(piece.size for piece in eval_pieces),
    }
    digest = content_digest([*digests, str(description)])
    if not train_files:
        description[SHARE_AT_END] = data.eval_share
    return Splits(
        "documents",
        TextPieces(train_pieces),
        {data.eval_split: TextPieces(eval_pieces)},
        (),
        description,
        digest,
    )


SOURCE = Source("text_files", load, "documents", "path", for_imports=True)


def _of_splits(files: Sequence[Path], path: str, splits: Sequence[str]) -> list[list[Path]]:
    """The files of each split, if the path is a directory that has them."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        return [[] for _ in splits]
    named = [(file, _split_of(file.relative_to(directory).parts[0], splits)) for file in files]
    return [[file for file, split in named if split == wanted] for wanted in splits]


def _split_of(name: str, splits: Sequence[str]) -> str | None:
    """The split that a file or directory is named after: up to the first dot, or as a shard."""
    exact = [split for split in splits if f"{name}.".startswith(f"{split}.")]
    shard = [split for split in splits if is_shard(name.partition(".")[0], split)]
    return max(exact or shard, key=len, default=None)


@dataclasses.dataclass(frozen=True)
class TextPiece:
    """A byte range of a file."""

    path: Path
    start: int
    stop: int
    ends: bool  # whether it is the last piece of its document

    @property
    def size(self) -> int:
        return self.stop - self.start


def _pieces(files: Sequence[Path]) -> list[TextPiece]:
    """Cuts files into pieces."""
    pieces = []
    for path in files:
        content = read_text(path)
        start = len(BYTE_ORDER_MARK) if content[:3] == BYTE_ORDER_MARK else 0
        while start < len(content):
            stop = _cut(content, start + PIECE)
            pieces.append(TextPiece(path, start, stop, ends=stop == len(content)))
            start = stop
    return pieces


def _cut(content: bytes | mmap.mmap, after: int) -> int:
    """The first place after `after` to cut: a line start, a word start, or the end."""
    end = after + SEARCH
    found = _LINE.search(content, after, end) or _WORD.search(content, after, end)
    if not found and end < len(content):
        found = _CHARACTER.search(content, after)
    return found.start() if found else len(content)


def _divided(pieces: Sequence[TextPiece], share: float) -> tuple[list[TextPiece], list[TextPiece]]:
    """Splits the pieces: the last `share` of all bytes is the second part."""
    wanted = round(sum(piece.size for piece in pieces) * (1 - share))
    train, rest = [], list(pieces)
    while rest and wanted >= rest[0].size:
        wanted -= rest[0].size
        train.append(rest.pop(0))
    if rest and wanted:
        piece = rest[0]
        cut = min(piece.stop, _cut(read_bytes(piece.path), piece.start + wanted))
        train.append(dataclasses.replace(piece, stop=cut))
        rest[0] = dataclasses.replace(piece, start=cut)
    if train:
        train[-1] = dataclasses.replace(train[-1], ends=True)
    return train, [piece for piece in rest if piece.size]


class TextPieces(Sequence):
    """Pieces of text files, read and decoded on access."""

    def __init__(self, pieces: Sequence[TextPiece]):
        self._pieces = pieces
        # Pieces are read in order, so a file is decompressed once, and few are in memory.
        self._content = functools.lru_cache(maxsize=4)(read_bytes)

    def __len__(self):
        return len(self._pieces)

    def __getitem__(self, index: int) -> Example:
        piece = self._pieces[index]
        content = self._content(piece.path)
        try:
            text = content[piece.start : piece.stop].decode()
        except UnicodeDecodeError as error:
            line = content[: piece.start + error.start].count(b"\n") + 1
            raise BadRecordError(
                f"{piece.path}:{line}: not valid UTF-8 ({error.reason})"
            ) from error
        return {"text": text, "ends": piece.ends}

    def __reduce__(self):
        return TextPieces, (self._pieces,)
