"""A parallel corpus: <split>.<language>[.gz], where equal lines of two files say the same."""

from collections.abc import Sequence

from input_pipeline.config import DataConfig
from input_pipeline.files.reading import Lines, find_split
from input_pipeline.source import Example, Splits, content_digest
from schema import ConfigError


def load(data: DataConfig) -> Splits:
    for key in ("source_language", "target_language"):
        if not getattr(data, key):
            raise ConfigError(f"data.{key} is empty; set it to a file's ending, such as en")
    train, held_out = (_pairs(data, split) for split in (data.train_split, data.eval_split))
    return Splits(
        "pairs",
        train,
        {data.eval_split: held_out},
        (),
        {"train_pairs": len(train), "held_out_pairs": len(held_out)},
        content_digest(lines.digest for pairs in (train, held_out) for lines in pairs.sides),
    )


def _pairs(data: DataConfig, split: str) -> "Pairs":
    languages = data.source_language, data.target_language
    return Pairs([Lines(find_split(data.path, split, [f".{name}"])) for name in languages])


class Pairs(Sequence):
    def __init__(self, sides: Sequence[Lines]):
        self.sides = sides
        source, target = sides
        if len(source) != len(target):
            raise ConfigError(
                f"{source.path} has {len(source)} lines and {target.path} {len(target)}: "
                "they do not say the same line by line; mend one of them"
            )

    def __len__(self):
        return len(self.sides[0])

    def __getitem__(self, index: int) -> Example:
        texts = [lines[index].strip() for lines in self.sides]
        for lines, text in zip(self.sides, texts, strict=True):
            if not text:
                raise lines.bad(index, "an empty line")
        return dict(zip(("source", "target"), texts, strict=True))
