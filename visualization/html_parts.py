"""Small parts of HTML pages: escaped text and tables."""

import html
from collections.abc import Iterable, Sequence
from typing import Any


def escaped(text: Any) -> str:
    return html.escape(str(text), quote=True)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), key: str = ""
) -> str:
    """A table in a card that scrolls by itself. Cells are HTML; `numbers` are columns of numbers.

    The first cell of each row is its heading, with the class `key`.
    """

    def cell(tag: str, place: int, content: str) -> str:
        kinds = (["number"] if place in numbers else []) + ([key] if key and tag == "th" else [])
        attribute = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{attribute}>{content}</{tag}>"

    top = "".join(cell("th", place, name).replace(f" {key}", "") for place, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td" if i else "th", i, c) for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="card scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def dot(run: int) -> str:
    return f'<span class="dot" data-run="{run}"></span>'
