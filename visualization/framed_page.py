"""A page as an object: a notebook shows it in a frame, and `save` writes it to a file."""

import dataclasses
import html
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Page:
    """A page that a notebook shows and a browser opens."""

    html: str = dataclasses.field(repr=False)  # megabytes
    title: str = "attention"  # of the frame, for screen readers

    def save(self, path: str | os.PathLike) -> Path:
        """Writes the page into a file and returns its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which cannot reach the notebook around it."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'title="{html.escape(self.title)}" width="100%" height="900" '
            'style="border:0"></iframe>'
        )
