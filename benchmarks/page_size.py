"""Size of the attention page, and the time until a browser shows it.

    pip install -e '.[browser]' && apt-get install chromium
    python benchmarks/page_size.py

Weights are softmax of random scores, the hardest to compress. Opening is the time from the start of
the navigation until the first tiles are drawn; scrolling, from the last row's appearance until it
is drawn. Prints a table in Markdown; times are the best of a few rounds.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from absl import app, flags

from tests.visualization import chromium
from visualization import attention_page
from visualization.model_view import AttentionMap, ModelView
from visualization.page_data import weight_bits

SIZES = flags.DEFINE_list("sizes", ["12x12x64", "24x16x256"], "Layers x heads x tokens.")
CAUSAL = flags.DEFINE_bool("causal", False, "Whether a token sees only those before it.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "How often each page is opened.")


def random_view(layers: int, heads: int, length: int) -> ModelView:
    """One stack with random weights."""
    rng = np.random.default_rng(0)
    visible = np.ones((length, length), bool)
    if CAUSAL.value:
        visible = np.tril(visible)
    weights = np.empty((layers, heads, length, length), np.float32)
    for layer in weights:  # layer by layer, to use less memory
        powers = np.where(visible, np.exp(2 * rng.normal(size=layer.shape)), 0)
        layer[:] = powers / powers.sum(-1, keepdims=True)
    tokens = tuple(f"w{place}" for place in range(length))
    stack = AttentionMap(
        name="encoder",
        layers=tuple(range(layers)),
        kinds=("dot",) * layers,
        queries=tokens,
        keys=tokens,
        weights_lhts=weights,
        visible_lts=np.repeat(visible[None], layers, 0),
    )
    return ModelView(f"{layers} layers, {heads} heads, {length} tokens", (), (stack,))


def seconds_to_open(browser, path: Path) -> tuple[float, float]:
    """Seconds until the first tile is drawn, and until the last one after a jump to the end."""
    with chromium.opened(browser, None) as shown:
        page = shown.page
        start = time.perf_counter()
        page.goto(path.as_uri())
        page.locator(".tile.drawn").first.wait_for()
        page.locator(".one-head .heat-columns span").first.wait_for()
        opened = time.perf_counter() - start
        start = time.perf_counter()
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.locator(".grid-row:last-child .tile.drawn:last-child").wait_for()
        return opened, time.perf_counter() - start


def main(_) -> None:
    print(
        "| layers x heads x tokens | bits | written (s) | MB | opened (s) | scrolled to end (s) |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory, chromium.launched() as browser:
        for size in SIZES.value:
            view = random_view(*map(int, size.split("x")))
            start = time.perf_counter()
            path = attention_page.page(view).save(Path(directory) / f"{size}.html")
            written = time.perf_counter() - start
            bits = weight_bits(view)
            rounds = [seconds_to_open(browser, path) for _ in range(ROUNDS.value)]
            opened, scrolled = (min(times) for times in zip(*rounds, strict=True))
            megabytes = path.stat().st_size / 1e6
            print(
                f"| {size} | {bits} | {written:.1f} | {megabytes:.2f} | {opened:.2f} "
                f"| {scrolled:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
