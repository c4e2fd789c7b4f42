"""Finds the files of each split by their names.

    train.tsv                                  the whole split
    train-00000-of-00002.tsv, train.part1.tsv  shards: the split's name, one of - . _, optionally
                                               `part` or `shard`, and a number
    train/a.tsv, train/b/c.tsv                 everything below a directory of the split's name

All may be gzipped, with .gz after the ending. In a directory, other names are ignored. A glob takes
all files that it matches. If these name no split, or all name the same split, they have no splits,
and a share of their examples is held out. The same holds for a single file.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiment.schema import ConfigError
from input_pipeline.sources.base import MissingSplitError
from input_pipeline.sources.files.reading import find_files, is_hidden

# The part of a shard's name that follows the name of the split.
_SHARD = r"[-._](?:(?:part|shard)[-._]?)?\d+(?:[-_]of[-_]\d+)?"
_ONE_OF_MANY = re.compile(r"(.*?)\d+[-_]of[-_](\d+)")

# Path without ending -> file. Files in two languages, or gzip and plain, differ only in the ending.
Files = Mapping[Path, Path]


def find_splits(
    path: str, splits: tuple[str, str], endings: Sequence[str], *, allow_unsplit: bool
) -> tuple[Files, Files]:
    """The files of the training and the evaluation split, sorted.

    With `allow_unsplit`, files without splits are all returned as training files. Raises
    ConfigError if a split is missing, ambiguous or incomplete.
    """
    if not path:
        raise ConfigError(
            f"data.path is empty; set it to a directory with files like {splits[0]}{endings[0]}, "
            "or to a glob"
        )
    place = Path(path).expanduser()
    top, candidates = _below(place, splits) if place.is_dir() else _matching(path)
    files = _without_endings(candidates, endings)
    if not files and not place.is_dir():
        raise ConfigError(
            f"data.path={path} has no file that ends in {' or '.join(endings)}, gzipped or not; "
            "name them so, or choose others"
        )
    namings = {stem: _naming(stem.relative_to(top).parts, splits) for stem in files}
    _refuse_two_ways(files, namings)
    if allow_unsplit and not place.is_dir() and len({n.split for n in namings.values()}) == 1:
        return _each_once(files), {}
    of_split = [
        _each_once({stem: files[stem] for stem, naming in namings.items() if naming.split == name})
        for name in splits
    ]
    for name, found in zip(splits, of_split, strict=True):
        if not found:
            there = place.iterdir() if place.is_dir() else candidates
            _refuse_missing(path, name, endings, top, list(there))
        if place.is_dir():  # a glob may select some of the shards
            _refuse_incomplete(found)
    return tuple(of_split)


def is_shard(name: str, split: str) -> bool:
    """Whether `name`, without its ending, names a shard of the split."""
    return re.fullmatch(re.escape(split) + _SHARD, name) is not None


def names_of_splits(top: Path, there: Iterable[Path], endings: Sequence[str] = ()) -> list[str]:
    """The splits that the names of these files and folders below `top` suggest.

    Files have one of the endings; without `endings`, a name ends at the first dot.
    """
    names = set()
    for path in there:
        first = path.relative_to(top).parts[0]
        stem = first.removesuffix(".gz")
        if (top / first).is_dir():
            names.add(first)
        elif not endings:
            names.add(stem.partition(".")[0])
        else:
            names |= {stem.removesuffix(each) for each in endings if stem.endswith(each)}
    return sorted({re.sub(f"{_SHARD}$", "", name) for name in names if not name.startswith(".")})


def _below(directory: Path, splits: Iterable[str]) -> tuple[Path, list[Path]]:
    """The directory, and the files in it and below its folders that are named after splits."""
    found = [directory.glob("*"), *((directory / split).rglob("*") for split in splits)]
    files = {file for each in found for file in each if file.is_file()}
    return directory, sorted(f for f in files if not is_hidden(f.relative_to(directory)))


def _matching(path: str) -> tuple[Path, list[Path]]:
    """The files of a glob or a path, and the directory above its first wildcard."""
    parents = Path(path).expanduser().parts[:-1]
    constant = itertools.takewhile(lambda part: not set(part) & set("*?["), parents)
    return Path(*constant), find_files(path)


def _without_endings(files: Iterable[Path], endings: Sequence[str]) -> dict[Path, list[Path]]:
    """The files with one of the endings, by their paths without it."""
    found: dict[Path, list[Path]] = {}
    for file in files:
        name = file.name.removesuffix(".gz")
        stem = next((name.removesuffix(each) for each in endings if name.endswith(each)), "")
        if stem:
            found.setdefault(file.with_name(stem), []).append(file)
    return found


def _each_once(files: Mapping[Path, Sequence[Path]]) -> Files:
    """The files; raises ConfigError if two of them differ only in the ending."""
    for first, *others in files.values():
        if others:
            raise ConfigError(
                f"{first.parent} has {first.name} and {others[0].name}; keep one of them"
            )
    return {stem: file for stem, (file,) in files.items()}


class SplitNaming(NamedTuple):
    """How a path names a split."""

    split: str | None = None
    directory: tuple[str, ...] = ()  # the directory that contains the split
    way: str = ""  # "a directory", "a file" or "shards", for messages


def _naming(parts: tuple[str, ...], splits: Sequence[str]) -> SplitNaming:
    """How a path names a split; the default if it names none."""
    *parents, name = parts
    for depth, parent in enumerate(parents):
        if parent in splits:
            return SplitNaming(parent, parts[:depth], "a directory")
    if name in splits:
        return SplitNaming(name, parts[:-1], "a file")
    shard_of = next((split for split in splits if is_shard(name, split)), None)
    return SplitNaming(shard_of, parts[:-1], "shards") if shard_of else SplitNaming()


def _refuse_two_ways(
    files: Mapping[Path, Sequence[Path]], namings: Mapping[Path, SplitNaming]
) -> None:
    first: dict[tuple, Path] = {}
    for stem, naming in namings.items():
        other = first.setdefault((naming.split, naming.directory), stem)
        if namings[other].way != naming.way:
            raise ConfigError(
                f"{files[other][0]} and {files[stem][0]}: the split {naming.split!r} is there as "
                f"{namings[other].way} and as {naming.way}; keep one of them"
            )


def _refuse_missing(
    path: str, split: str, endings: Sequence[str], top: Path, there: Sequence[Path]
) -> None:
    wanted = " or ".join(f"{split}{ending}" for ending in endings)
    named = sorted(str(each.relative_to(top)) for each in there)[:10]
    raise MissingSplitError(
        f"{path} has no {wanted}, no shards like {split}-00000-of-00002{endings[0]} and no "
        f"{split}/ with such files; it has: {', '.join(named) or 'nothing'}. "
        "Set data.train_split and data.eval_split to the names that are there",
        split,
        names_of_splits(top, there, endings),
    )


def _refuse_incomplete(files: Files) -> None:
    """Raises ConfigError if shards are missing, which would go unnoticed."""
    series: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for stem, file in files.items():
        if found := _ONE_OF_MANY.fullmatch(stem.name):
            series.setdefault((stem.parent, found[1]), []).append((int(found[2]), file))
    for shards in series.values():
        for total, file in shards:
            if total != len(shards):
                raise ConfigError(
                    f"{file} is one of {total} shards, but {len(shards)} are there; fetch what is "
                    "missing and remove what does not belong there"
                )
