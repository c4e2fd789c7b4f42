"""Small parts of HTML pages: escaped text and tables."""

import html
from collections.abc import Iterable, Sequence
from typing import Any


def escaped(text: Any) -> str:
    """A text for HTML, also for the value of an attribute."""
    return html.escape(str(text), quote=True)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), key: str = ""
) -> str:
    """A table in a card that scrolls by itself. Cells are HTML; `numbers` are columns of numbers.

    The first cell of each row is its heading, with the class `key`.
    """

    def cell(tag: str, place: int, content: str, kind: str = "") -> str:
        kind = "number" if place in numbers else kind
        return f'<{tag} class="{kind}">{content}</{tag}>' if kind else f"<{tag}>{content}</{tag}>"

    top = "".join(cell("th", place, name) for place, name in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(cell("td", i, c) if i else cell("th", i, c, key) for i, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="card scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def dot(run: int) -> str:
    """A dot in the colour of a run, which the page's script gives it."""
    return f'<span class="dot" data-run="{run}"></span>'
