"""Examples that do not fit: how many, how long, what was done with them, which key to raise."""

import dataclasses
from collections.abc import Mapping
from typing import Any

ACTIONS = {"truncate": "truncated to", "split": "split into rows of", "drop": "dropped, above"}
NAMES = {
    ("text",): "texts",
    ("source",): "sources",
    ("target",): "targets",
    ("source", "target"): "pairs of source and target",
    ("text", "text_pair"): "pairs of texts",
}


@dataclasses.dataclass(frozen=True)
class TooLong:
    """Of one side of the examples of one split."""

    split: str
    what: str  # is too long
    key: str  # of the config, that would have to be raised
    length: int  # its value
    action: str  # truncate | split | drop
    count: int
    total: int
    longest: int  # tokens, with special ones
    costs_answers: bool  # targets of an evaluation have lost their end

    def __add__(self, other: "TooLong") -> "TooLong":
        """The same of two parts of a mixture."""
        return dataclasses.replace(
            self,
            count=self.count + other.count,
            total=self.total + other.total,
            longest=max(self.longest, other.longest),
        )

    def __str__(self) -> str:
        line = (
            f"too long: {self.count:,} of {self.total:,} {self.what} of {self.split} were "
            f"{ACTIONS[self.action]} {self.key}={self.length} tokens; the longest has "
            f"{self.longest:,}: raise {self.key} to keep all"
        )
        if self.costs_answers:
            line += (
                "; a truncated target counts as wrong in exact_match, and bleu, chrf and rouge "
                "compare with the whole one"
            )
        return line


def lines(description: Mapping[str, Any]) -> list[str]:
    """For the log, out of what Data.description has."""
    return [str(TooLong(**each)) for each in description["over_long"]]
