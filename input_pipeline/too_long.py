"""Reports on examples that do not fit: how many, how long, what was done, which key to raise."""

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
    ("chat",): "conversations",
    ("chosen_chat", "rejected_chat"): "pairs of conversations",
}


@dataclasses.dataclass(frozen=True)
class TooLong:
    """Counts the examples of a split that are too long for the encoder or the decoder."""

    split: str
    what: str  # a value of NAMES
    key: str  # the config key to raise
    length: int  # its value
    action: str  # truncate | split | drop
    count: int
    total: int
    longest: int  # tokens, special ones included
    costs_answers: bool  # evaluation targets were truncated

    def __add__(self, other: "TooLong") -> "TooLong":
        """Combines the reports of two sources of a mixture."""
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
                "compare with the full target"
            )
        return line


def lines(description: Mapping[str, Any]) -> list[str]:
    """Log lines, from Data.description."""
    return [str(TooLong(**each)) for each in description["over_long"]]
