"""The tables of docs/attention.md and docs/mixers.md: what supports which feature."""

from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARKS = ("<!-- matrix: begin -->", "<!-- matrix: end -->")


def markdown_table(features: Mapping[str, str], refused: Mapping[str, Mapping[str, str]]) -> str:
    """The cells in Markdown; a number refers to the reason below.

    `features`: descriptions by name. `refused`: for each row, the reason of each refused feature.
    """
    reasons: list[str] = []
    lines = ["| | " + " | ".join(features) + " |", "|---" * (len(features) + 1) + "|"]
    for name, own in refused.items():
        marks = []
        for feature in features:
            reason = own.get(feature)
            if reason and reason not in reasons:
                reasons.append(reason)
            marks.append(f"refused ({reasons.index(reason) + 1})" if reason else "yes")
        lines.append(f"| `{name}` | " + " | ".join(marks) + " |")
    lines += ["", *(f"{n}. {reason}" for n, reason in enumerate(reasons, start=1))]
    columns = [f"- {feature}: {what}" for feature, what in features.items()]
    return "\n".join([*lines, "", *columns])


def with_table(text: str, table: str) -> str:
    """The text of a page with this table between the marks."""
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}"
