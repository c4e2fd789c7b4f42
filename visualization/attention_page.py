"""One self-contained HTML file that shows a ModelView in any browser, offline.

The scripts and the style of the page are plain files in page/. Tokens and prompts come from
anywhere, so they are data only: all of them are in one JSON element, the scripts set them as text,
and the page's policy lets nothing run or load but the scripts and the style that are hashed here.
"""

import base64
import hashlib
import html
from pathlib import Path

from visualization.framed_page import Page
from visualization.model_view import ModelView
from visualization.page_data import as_script_text, page_data

DIRECTORY = Path(__file__).parent / "page"
# In this order, because they become one script.
SCRIPTS = (
    "elements",
    "token_text",
    "packed_arrays",
    "colours",
    "state",
    "controls",
    "heat_map",
    "head_grid",
    "head_view",
    "pair_ranking",
    "token_view",
    "summary_table",
    "rollout_view",
    "image_view",
    "lens_view",
    "score_view",
    "norm_view",
    "main",
)
TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws its figures with JavaScript, which is switched off here.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(view: ModelView) -> Page:
    """Draws the view as a page object, for notebooks and for saving."""
    return Page(render(view))


def render(view: ModelView) -> str:
    """Returns the view as the text of one HTML file."""
    style = (DIRECTORY / "page.css").read_text(encoding="utf-8")
    parts = [(DIRECTORY / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = f"Attention: {view.title}".encode("utf-8", "replace").decode("utf-8")
    return TEMPLATE.format(
        policy=policy,
        title=html.escape(title),
        style=style,
        data=as_script_text(page_data(view)),
        script=script,
    )


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
