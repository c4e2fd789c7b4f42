"""Publication figures: the same file every time, tokens as text, masks apart from small weights."""

import builtins
import dataclasses
import importlib.util
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from experiment.schema import ConfigError
from tests.visualization import example_views
from visualization import figures

needs_matplotlib = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"),
    reason="matplotlib is missing: pip install -e '.[plots]'",
)
NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(path) -> list[str]:
    return [element.text for element in ElementTree.parse(path).iter(f"{NAMESPACE}text")]


@needs_matplotlib
def test_figures_are_the_same_every_time(tmp_path):
    view = example_views.decoder_view()
    heads = [("decoder", 0, 1), ("decoder", 3, 5)]
    first = figures.write(view, tmp_path / "one", "svg", heads)
    second = figures.write(view, tmp_path / "two", "svg", heads)
    assert [path.name for path in first] == ["decoder_layer0_head1.svg", "decoder_layer3_head5.svg"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


@needs_matplotlib
def test_tokens_with_markup_are_drawn_as_text(tmp_path):
    tokens = (
        "<script>",
        "$x$",
        "a&b",
        "مرحبا",
        "こんにちは",
        " a",
        "\n",
        "\x00",
        "\ud800",
        "x" * 40,
    )
    attention = example_views.attention("encoder", tokens)
    view = example_views.ModelView("any", (), (attention,))
    (path,) = figures.write(view, tmp_path, "svg", [("encoder", 0, 0)])
    for token in tokens[:5]:
        assert texts(path).count(token) == 2, token
    assert {"␣a", "⏎", "‹0000›", "‹D800›", "x" * 15 + "…"} <= set(texts(path))


@needs_matplotlib
def test_masked_cells_are_hatched_and_others_are_not(tmp_path):
    full = example_views.ModelView("f", (), (example_views.attention("decoder", tuple("abcd")),))
    causal = example_views.attention("decoder", tuple("abcd"), causal=True)
    masked = example_views.ModelView("m", (), (causal,))
    patterns = []
    for name, view in (("full", full), ("masked", masked)):
        (path,) = figures.write(view, tmp_path / name, "svg", [("decoder", 0, 0)])
        patterns.append(sum(1 for _ in ElementTree.parse(path).iter(f"{NAMESPACE}pattern")))
    assert patterns[0] == 0
    assert patterns[1] > 0


@needs_matplotlib
def test_without_heads_each_layer_and_rollout_are_drawn(tmp_path):
    paths = figures.write(example_views.image_view(), tmp_path, "png")
    names = [path.name for path in paths]
    assert names == [*(f"encoder_layer{i}_mean.png" for i in range(3)), "encoder_rollout_image.png"]
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("L"))
        assert min(pixels.shape) > 200
        assert pixels.std() > 5


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (("cross", 0, 0), "there is decoder"),
        (("decoder", 9, 0), "there are 0, 1, 2, 3"),
        (("decoder", 0, 6), "heads are 0 to 5"),
    ],
)
def test_heads_that_are_not_there_are_refused(tmp_path, head, message):
    with pytest.raises(ConfigError, match=message):
        figures.write(example_views.decoder_view(), tmp_path / "none", "svg", [head])
    assert not (tmp_path / "none").exists()


def test_a_view_without_attention_is_refused(tmp_path):
    view = dataclasses.replace(example_views.decoder_view(), maps=())
    with pytest.raises(ConfigError, match="no attention"):
        figures.write(view, tmp_path)


def test_a_format_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="svg, png"):
        figures.write(example_views.decoder_view(), tmp_path, "pdf")


def test_a_missing_matplotlib_is_named_with_the_remedy(tmp_path, monkeypatch):
    plain_import = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[plots\]'"):
        figures.write(example_views.decoder_view(), tmp_path)
