"""The page as text: what it holds, how large it is, and that no token can become markup."""

import base64
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.visualization import example_views
from visualization import attention_page, packed_arrays, page_data

HOSTILE = (
    "<script>alert(1)</script>",
    "</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "]]>",
    "&lt;b&gt;",
    '" onmouseover="alert(1)',
    "\u2028\u2029",
    "\u202e",
    "\ud800",
    "\x00",
    "مرحبا",
    "こんにちは",
)


class Elements(HTMLParser):
    """Collects the elements of a page and the text of each script."""

    def __init__(self, content: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def hostile_view():
    return dataclasses.replace(
        example_views.classifier_view(HOSTILE),
        title=HOSTILE[0],
        prediction=HOSTILE[3],
        facts=((HOSTILE[1], HOSTILE[0]),),
    )


def data_of(content: str) -> dict:
    return json.loads(Elements(content).scripts[0])


def test_hostile_tokens_add_no_element_and_come_back_whole():
    plain = Elements(attention_page.render(example_views.classifier_view(tuple("abcdefghijklm"))))
    content = attention_page.render(hostile_view())
    parsed = Elements(content)
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    assert parsed.scripts[1].strip() == plain.scripts[1].strip()
    raw = re.search(r'id="data">(.*?)</script>', content, re.S)[1]
    assert not set(raw) & set("<>&\u2028\u2029")
    data = json.loads(raw)
    assert tuple(data["maps"][0]["queries"]) == HOSTILE
    assert data["title"] == HOSTILE[0]


def test_the_policy_allows_our_script_and_style_alone():
    content = attention_page.render(hostile_view())
    (policy,) = (
        attributes["content"]
        for tag, attributes in Elements(content).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(None, 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, pattern in (
        ("script-src", r"<script>(.*?)</script>"),
        ("style-src", r"<style>(.*?)</style>"),
    ):
        (inside,) = re.findall(pattern, content, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_our_own_files_name_no_address_and_parse_no_markup():
    for path in attention_page.DIRECTORY.iterdir():
        text = path.read_text()
        assert "</script" not in text and "</style" not in text
        addresses = set(re.findall(r"\w+://[^\s\"']*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path.name}: {word}"
    names = {path.stem for path in attention_page.DIRECTORY.glob("*.js")}
    assert names == set(attention_page.SCRIPTS)


def test_the_page_has_every_weight_and_mask():
    view = example_views.translation_view()
    for attention, packed in zip(
        view.maps, data_of(attention_page.render(view))["maps"], strict=True
    ):
        shape = attention.weights_lhts.shape
        read = packed_arrays.unpack(packed["weights"], shape)
        bound = packed_arrays.error_bound(attention.weights_lhts, 16)
        assert np.all(np.abs(read - attention.weights_lhts) <= bound + 1e-9)
        assert packed["visible"] == packed_arrays.pack_bits(attention.visible_lts)


@pytest.mark.parametrize("gradients", [False, True])
def test_twelve_layers_of_twelve_heads_and_64_tokens_stay_below_2_mb(gradients):
    # Random weights without a mask are the worst case: they hardly compress.
    rng = np.random.default_rng(0)
    view = example_views.long_view(12, 12, 64)
    weights = rng.dirichlet(np.ones(64), (12, 12, 64)).astype(np.float32)
    attention = dataclasses.replace(
        view.maps[0],
        weights_lhts=weights,
        visible_lts=np.ones((12, 64, 64), bool),
        gradients_lhts=rng.normal(size=weights.shape).astype(np.float32) if gradients else None,
    )
    content = attention_page.render(dataclasses.replace(view, maps=(attention,)))
    assert len(content.encode()) < 2_000_000
    assert data_of(content)["precision"]["bits"] == (8 if gradients else 16)


def test_larger_pages_have_8_bits():
    assert page_data.weight_bits(example_views.long_view(4, 16, 256)) == 8


def test_infinite_values_become_null():
    view = example_views.decoder_view()
    scores = view.scores
    scores.log_probabilities[2] = -np.inf
    view = dataclasses.replace(view, scores=scores)
    data = data_of(attention_page.render(view))
    assert data["scores"]["logProbabilities"][2] is None


def test_the_page_of_a_notebook_is_in_a_frame_of_its_own(tmp_path):
    page = attention_page.page(hostile_view())
    ((tag, attributes),) = Elements(page._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == page.html
    assert html.escape(page.html) in page._repr_html_()
    path = page.save(tmp_path / "pages" / "one.html")
    assert path.read_text(encoding="utf-8") == page.html


@pytest.mark.parametrize(
    "view", [example_views.image_view, example_views.decoder_view, example_views.translation_view]
)
def test_the_same_view_gives_the_same_page(view):
    assert attention_page.render(view()) == attention_page.render(view())
