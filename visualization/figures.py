"""Publication figures of chosen heads as SVG or PNG, drawn by matplotlib.

The same view gives the same SVG file, byte for byte, with one version of matplotlib. Its text stays
text, so the viewer chooses the fonts; a PNG needs installed fonts that have the characters.
"""

import io
import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from visualization import colour_ramps
from visualization.model_view import AttentionMap, ModelView
from visualization.token_texts import PICTURES

FORMATS = ("svg", "png")
LONGEST_TOKEN = 16
LARGEST_LABELLED = 96  # tokens; beyond that, labels cannot be read
CELL = 0.23  # inches
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attention",  # ids inside the file are the same every time
    "text.parse_math": False,  # a token may be a dollar sign
    "axes.unicode_minus": False,
}


def write(
    view: ModelView,
    directory: str | Path,
    format: str = "svg",
    heads: Iterable[tuple[str, int, int]] | None = None,
) -> list[Path]:
    """Writes one figure for each chosen head, and returns the paths.

    Args:
      view: what is drawn.
      directory: where files go; it is made if need be.
      format: "svg" or "png".
      heads: (map, layer, head), such as ("encoder", 3, 0), with the layer's number in the model.
        None draws the mean over heads of each layer, and rollout where there is one.
    """
    if format not in FORMATS:
        raise ConfigError(f"no figures of format {format!r}; choose from {', '.join(FORMATS)}")
    if not view.maps:
        raise ConfigError(
            "there is no attention here to draw; figures need --view=attention, and a model that "
            "attends"
        )
    chosen = None if heads is None else [_find(view, *head) for head in heads]
    matplotlib = _matplotlib()
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    tokens = {token for a in view.maps for token in (*a.queries, *a.keys)}
    with matplotlib.rc_context({**SETTINGS, "font.family": _families(tokens)}):
        for name, figure in _figures(view, chosen):
            paths.append(directory / f"{name}.{format}")
            metadata = {"Date": None} if format == "svg" else {"Software": None}
            with warnings.catch_warnings():  # _families has said which characters are missing
                warnings.filterwarnings("ignore", "Glyph .* missing from")
                figure.savefig(paths[-1], dpi=200, bbox_inches="tight", metadata=metadata)
    return paths


def visible_token(token: str) -> str:
    """A token with visible white space and no control characters, shortened if it is long."""
    text = "".join(PICTURES.get(c) or _shown(c) for c in token) or "∅"
    return text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 1] + "…"


def _shown(character: str) -> str:
    """Characters without a shape as their code point: XML has no place for some of them."""
    if unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}:
        return f"‹{ord(character):04X}›"
    return character


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("matplotlib is missing; run: pip install -e '.[plots]'") from None
    return matplotlib


def _find(view: ModelView, name: str, layer: int, head: int) -> tuple[AttentionMap, int, int]:
    """The map and the place of a layer in it, or an error that says what there is."""
    names = [attention.name for attention in view.maps]
    if name not in names:
        raise ConfigError(f"no attention named {name!r} here; there is {', '.join(names)}")
    attention = view.maps[names.index(name)]
    if layer not in attention.layers:
        shown = ", ".join(map(str, attention.layers))
        raise ConfigError(f"layer {layer} of {name} is not shown; there are {shown}")
    count = attention.weights_lhts.shape[1]
    if not 0 <= head < count:
        raise ConfigError(f"no head {head} in {name}; heads are 0 to {count - 1}")
    return attention, attention.layers.index(layer), head


def _figures(
    view: ModelView, chosen: list[tuple[AttentionMap, int, int]] | None
) -> Iterator[tuple[str, Any]]:
    """Names and figures, one after the other."""
    if chosen is not None:
        for attention, place, head in chosen:
            number = attention.layers[place]
            weights, visible = attention.weights_lhts[place, head], attention.visible_lts[place]
            title = f"{attention.name}, layer {number}, head {head}"
            figure = heat_map(attention, weights, visible, title)
            yield f"{attention.name}_layer{number}_head{head}", figure
        return
    for attention in view.maps:
        for place, number in enumerate(attention.layers):
            weights = attention.weights_lhts[place].mean(0)
            title = f"{attention.name}, layer {number}, mean of heads"
            figure = heat_map(attention, weights, attention.visible_lts[place], title)
            yield f"{attention.name}_layer{number}_mean", figure
        if attention.rollout_ts is None:
            continue
        if view.image_png is not None and view.patch_grid is not None:
            yield f"{attention.name}_rollout_image", image_overlay(view, attention)
        else:
            everything = np.ones_like(attention.rollout_ts, bool)
            title = f"{attention.name}, rollout"
            figure = heat_map(attention, attention.rollout_ts, everything, title)
            yield f"{attention.name}_rollout", figure


def heat_map(attention: AttentionMap, values_ts: np.ndarray, visible_ts: np.ndarray, title: str):
    """Draws a matrix with tokens on both axes. Masked cells are hatched."""
    from matplotlib.figure import Figure

    rows, columns = values_ts.shape
    cell = CELL * min(1.0, LARGEST_LABELLED / max(rows, columns))
    figure = Figure(figsize=(columns * cell + 1.6, rows * cell + 1.2))
    axes = figure.add_subplot()
    axes.set_facecolor("#eceef1")
    _hatch(axes, visible_ts)
    shown = np.ma.masked_array(values_ts, ~visible_ts)
    largest = max(float(values_ts.max(initial=0.0)), 1e-9)
    drawn = axes.imshow(shown, cmap=_ramp("light"), vmin=0, vmax=largest, interpolation="nearest")
    _label(axes.xaxis, attention.keys, rotation=90)
    _label(axes.yaxis, attention.queries, rotation=0)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlabel("key", fontsize=8)
    axes.set_ylabel("query", fontsize=8)
    axes.set_title(title, fontsize=9)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.04, pad=0.03)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("weight", fontsize=8)
    return figure


def image_overlay(view: ModelView, attention: AttentionMap):
    """Draws the image, and beside it rollout from [CLS], or its mean over patches without one."""
    from matplotlib.figure import Figure
    from PIL import Image

    with Image.open(io.BytesIO(view.image_png), formats=["PNG"]) as image:
        pixels = np.asarray(image.convert("RGB"))
    rows, columns = view.patch_grid
    patches = slice(view.leading_tokens, view.leading_tokens + rows * columns)
    rollout = attention.rollout_ts
    source = rollout[0] if view.leading_tokens else rollout.mean(0)
    shares = np.empty(rows * columns, np.float32)
    shares[view.cell_of_patch] = source[patches]
    shares = shares.reshape(rows, columns)
    high, wide, _ = pixels.shape
    figure = Figure(figsize=(6.4, 2.7 * min(high / wide, 2) + 0.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(pixels)
    # Colours on a grey image: colours of the image itself would be taken for weights.
    right.imshow(pixels.mean(-1), cmap="gray", vmin=0, vmax=255)
    extent = (-0.5, pixels.shape[1] - 0.5, pixels.shape[0] - 0.5, -0.5)
    drawn = right.imshow(shares, cmap=_ramp("dark"), alpha=0.65, extent=extent, vmin=0)
    start = visible_token(attention.queries[0]) if view.leading_tokens else "all patches"
    left.set_title("input", fontsize=9)
    right.set_title(f"rollout from {start}", fontsize=9)
    for axes in (left, right):
        axes.set_axis_off()
    bar = figure.colorbar(drawn, ax=right, fraction=0.05)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("share", fontsize=8)
    return figure


def _ramp(name: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap(colour_ramps.rgb(name))


def _hatch(axes: Any, visible_ts: np.ndarray) -> None:
    """Hatches each run of masked cells in a row."""
    from matplotlib.patches import Rectangle

    for row, line in enumerate(visible_ts):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], ~line, [0]])))
        for start, stop in edges.reshape(-1, 2):
            box = Rectangle((start - 0.5, row - 0.5), stop - start, 1)
            box.set(facecolor="#eceef1", edgecolor="#aab0ba", hatch="//////", linewidth=0)
            axes.add_patch(box)


def _label(axis: Any, tokens: tuple[str, ...], rotation: int) -> None:
    every = -(-len(tokens) // LARGEST_LABELLED)
    places = range(0, len(tokens), every)
    axis.set_ticks(places, [visible_token(tokens[place]) for place in places], rotation=rotation)


def _families(tokens: set[str]) -> list[str]:
    """Installed fonts that have the characters of the tokens; the first ones have most of them."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    missing = {ord(c) for token in tokens for c in visible_token(token)}
    families = ["DejaVu Sans"]  # it comes with matplotlib
    missing -= set(FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap())
    if not missing:
        return families
    fonts = [
        font
        for font in font_manager.fontManager.ttflist
        # "Last Resort" comes with matplotlib and has a box for every character.
        if font.style == "normal" and font.weight in (400, "normal") and "Last" not in font.name
    ]
    for font in sorted(fonts, key=lambda f: ("Noto Sans" not in f.name, f.name, f.fname)):
        covered = missing & set(FT2Font(font.fname).get_charmap())
        if covered:
            families.append(font.name)
            missing -= covered
        if not missing:
            return families
    absent = "".join(sorted(map(chr, missing))[:8])
    logging.warning("no installed font has %s; PNG figures show boxes (Noto fonts help)", absent)
    return families
