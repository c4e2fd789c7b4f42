"""A parallel corpus: <split>.<language>[.gz]. Line n of one file translates line n of the other.

Splits may be in shards, each in both languages; see splits.py.
"""

from collections.abc import Sequence
from pathlib import Path

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    Example,
    MissingSplitError,
    Source,
    Splits,
    content_digest,
)
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import open_shards
from input_pipeline.sources.files.splits import Files, find_splits


def load(data: DataConfig) -> Splits:
    """The sentence pairs at data.path; raises ConfigError if they cannot be used."""
    for key in ("source_language", "target_language"):
        if not getattr(data, key):
            raise ConfigError(f"data.{key} is empty; set it to a file's ending, such as en")
    endings = f".{data.source_language}", f".{data.target_language}"
    names = data.train_split, data.eval_split
    if Path(data.path).expanduser().is_file():
        raise ConfigError(
            f"data.path={data.path} is one file, but there must be one for each language; set it "
            f"to a directory with files like {names[0]}{endings[0]} and {names[0]}{endings[1]}"
        )
    sources, targets = (
        _find_language(data, names, key, ending)
        for key, ending in zip(("source_language", "target_language"), endings, strict=True)
    )
    (train, digests), (evaluation, more) = (
        open_shards(ParallelLines, _paired(source, target, endings))
        for source, target in zip(sources, targets, strict=True)
    )
    return Splits(
        "pairs",
        train,
        {data.eval_split: evaluation},
        (),
        {"train_pairs": len(train), "held_out_pairs": len(evaluation)},
        content_digest(digests + more),
    )


SOURCE = Source("translation_files", load, "pairs", "path", for_imports=True)


def _find_language(
    data: DataConfig, names: tuple[str, str], key: str, ending: str
) -> tuple[Files, Files]:
    """The files of both splits in one language; says so if only the language is not there."""
    try:
        return find_splits(data.path, names, [ending], allow_unsplit=False)
    except MissingSplitError as error:
        directory = Path(data.path).expanduser()
        stems = [path.name.removesuffix(".gz") for path in directory.glob(f"{error.split}*.*")]
        there = sorted({stem.rpartition(".")[2] for stem in stems})
        if there and ending.removeprefix(".") not in there:
            raise ConfigError(
                f"{data.path} has no {error.split}{ending}: data.{key}={ending[1:]} names the "
                f"ending of the files; set it to one that is there: {', '.join(there)}"
            ) from error
        raise


def _paired(source: Files, target: Files, endings: tuple[str, str]) -> list[tuple[Path, Path]]:
    """The files of each shard in both languages; raises ConfigError if one is missing."""
    for there, other, ending in ((source, target, endings[1]), (target, source, endings[0])):
        for stem in sorted(there.keys() - other.keys()):
            raise ConfigError(
                f"{there[stem]} has no {stem.name}{ending} beside it with its translation; add it"
            )
    return [(source[stem], target[stem]) for stem in source]


class ParallelLines(Sequence):
    """The pairs of one shard, by line number."""

    def __init__(self, source: Lines, target: Lines):
        self._files = source, target
        if len(source) != len(target):
            raise ConfigError(
                f"{source.path} has {len(source)} lines and {target.path} {len(target)}: "
                "they do not match line by line; correct one of them"
            )

    def __len__(self):
        return len(self._files[0])

    def __getitem__(self, line: int) -> Example:
        texts = [lines[line].strip() for lines in self._files]
        for lines, text in zip(self._files, texts, strict=True):
            if not text:
                raise lines.bad(line, "an empty line")
        return dict(zip(("source", "target"), texts, strict=True))
