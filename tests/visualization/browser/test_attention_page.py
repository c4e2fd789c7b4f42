"""The attention page in a real browser: it opens offline, and pointer, keyboard and touch work."""

import dataclasses

import numpy as np
import pytest

from tests.visualization import chromium, example_views
from visualization import attention_page, packed_arrays

pytestmark = pytest.mark.browser

VIEWS = {
    "classifier": example_views.classifier_view,
    "decoder": example_views.decoder_view,
    "translation": example_views.translation_view,
    "image": example_views.image_view,
}
TABS = {
    "classifier": ["heads", "tokens", "summaries", "rollout", "norms"],
    "decoder": ["heads", "tokens", "summaries", "rollout", "lens", "scores", "norms"],
    "translation": ["heads", "tokens", "summaries"],
    "image": ["heads", "tokens", "summaries", "rollout", "image"],
}
NARROW = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture
def saved(tmp_path):
    """Writes the page of a view into a file."""
    return lambda view: attention_page.page(view).save(tmp_path / "page.html")


def tile(page, layer: int, head: int):
    return page.locator(f'.tile[aria-label^="Layer {layer} · head {head}"]')


def wait_for_head(page, layer: int, head: int):
    """Waits by a locator: the page's policy forbids the evaluation that wait_for_function needs."""
    page.locator(".one-head").get_by_text(f"Layer {layer} · head {head}", exact=True).wait_for()


def hover(page, row: int, column: int, panel: str = "heads"):
    """Moves the pointer to the middle of a cell of a heat map."""
    canvas = page.locator(f'[data-view="{panel}"] .heat-cells canvas')
    canvas.scroll_into_view_if_needed()
    size = page.evaluate("c => [c.clientWidth, c.clientHeight]", arg=canvas.element_handle())
    rows = page.locator(f'[data-view="{panel}"] .heat-rows span').count()
    columns = page.locator(f'[data-view="{panel}"] .heat-columns span').count()
    place = {"x": (column + 0.5) * size[0] / columns, "y": (row + 0.5) * size[1] / rows}
    canvas.hover(position=place)


def assert_shows(text: str, weight: float):
    """The number is exact to what the page promises for 16 bits and half of its last digit."""
    decimals = len(text.partition(".")[2])
    assert decimals >= 5
    bound = float(packed_arrays.error_bound(np.float64(weight), 16)) + 0.5 * 10**-decimals
    assert abs(float(text) - weight) <= bound * 1.001


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_opens_without_an_error_or_a_request(browser, saved, name):
    with chromium.opened(browser, saved(VIEWS[name]())) as shown:
        page = shown.page
        tabs = page.locator(".tabs [role=tab]")
        names = [tab.get_attribute("data-value") for tab in tabs.all()]
        assert names == TABS[name]
        for view in names:
            page.locator(f'.tabs [data-value="{view}"]').click()
            assert page.locator(f'[data-view="{view}"]').is_visible()
            assert page.locator("[role=tabpanel]:visible").count() == 1
        for stack in page.locator(".segments [role=tab]").all():
            stack.click()
            assert stack.get_attribute("aria-selected") == "true"
        page.wait_for_timeout(200)
        assert shown.errors == []
        assert shown.requests == []


def test_a_head_is_picked_by_click(browser, saved):
    with chromium.opened(browser, saved(example_views.decoder_view())) as shown:
        tile(shown.page, 2, 3).click()
        wait_for_head(shown.page, 2, 3)
        assert tile(shown.page, 2, 3).get_attribute("aria-selected") == "true"
        assert shown.page.locator('.tile[aria-selected="true"]').count() == 1


def test_a_head_is_picked_by_keyboard(browser, saved):
    with chromium.opened(browser, saved(example_views.decoder_view())) as shown:
        page = shown.page
        for _ in range(30):  # Tab reaches the grid
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('tile')"):
                break
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
            page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused.startswith("Layer 1 · head 1")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.press("Enter")
        wait_for_head(page, 1, 1)
        page.keyboard.press("Tab")  # the grid is one stop
        assert page.evaluate("document.activeElement.closest('.one-head') !== null")


def test_hover_shows_the_weight_of_the_model(browser, saved):
    view = example_views.decoder_view()
    weights = view.maps[0].weights_lhts[1, 2]
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        tile(page, 1, 2).click()
        wait_for_head(page, 1, 2)
        for row, column in ((5, 4), (9, 0), (12, 12), (15, 7)):
            hover(page, row, column)
            text = page.locator(".tooltip.shown .value").inner_text()
            assert_shows(text, weights[row, column])
            assert page.locator(".one-head .readout .value").inner_text() == text
        hover(page, 3, 8)  # in the future of a causal model
        assert page.locator(".tooltip.shown .value").inner_text() == "masked"
        row_sums = page.locator(".one-head .heat-sums span").all_inner_texts()
        assert row_sums == ["1.00"] * len(weights)


def test_arrow_keys_read_cells_and_escape_closes_the_readout(browser, saved):
    view = example_views.decoder_view()
    weights = view.maps[0].weights_lhts[0, 0]
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        page.locator(".one-head .heat-columns span").first.wait_for()
        page.locator(".one-head .heat-cells").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        text = page.locator(".one-head .readout .value").inner_text()
        assert_shows(text, weights[2, 1])
        page.keyboard.press("Escape")
        assert page.locator(".tooltip.shown").count() == 0
        assert page.locator(".one-head .readout .value").count() == 0


def test_touch_shows_the_value_of_a_cell(browser, saved):
    view = example_views.decoder_view()
    with chromium.opened(browser, saved(view), has_touch=True, **NARROW) as shown:
        page = shown.page
        cells = page.locator(".one-head .heat-cells canvas")
        page.locator(".one-head .heat-columns span").first.wait_for()
        cells.tap(position={"x": 3, "y": 3})
        assert float(page.locator(".one-head .readout .value").inner_text()) == 1
        tile(page, 3, 1).tap()
        wait_for_head(page, 3, 1)


@pytest.mark.parametrize("axis", ["query", "key"])
def test_lines_of_a_token_are_as_wide_as_its_weights(browser, saved, axis):
    view = example_views.translation_view()
    cross = view.maps[2]
    weights = cross.weights_lhts[0].mean(0)
    expected = weights[2] if axis == "query" else weights[:, 2]
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        page.locator('.segments [data-value="2"]').click()
        page.locator('.tabs [data-value="tokens"]').click()
        page.locator('[data-view="tokens"] .panel-title select').select_option("layer")
        lists = {"query": ".queries", "key": ".keys"}
        page.locator(f"{lists[axis]} .token-row").nth(2).click()
        other = lists["key" if axis == "query" else "query"]
        pressed = page.locator(f'{lists[axis]} .token-row[aria-pressed="true"] .place')
        pressed.filter(has_text="2").wait_for()
        texts = page.locator(f"{other} .weight").all_inner_texts()
        np.testing.assert_allclose([float(text) for text in texts], expected, atol=6e-4)
        lines = page.locator(".token-lines path").evaluate_all(
            "all => all.map(p => [p.dataset.weight, p.getAttribute('stroke-width')].map(Number))"
        )
        shown_weights, widths = np.array(sorted(lines)).T
        drawn = np.sort(expected[expected >= expected.max() / 200])
        np.testing.assert_allclose(shown_weights, drawn, atol=5e-5)
        assert np.all(np.diff(widths) >= 0)


def test_heads_are_ranked_by_the_weight_of_a_pair(browser, saved):
    view = example_views.classifier_view()
    query, key = example_views.SENTENCE.index("it"), example_views.SENTENCE.index("animal")
    weights = view.maps[0].weights_lhts[:, :, query, key]
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        page.locator('.tabs [data-value="tokens"]').click()
        page.locator(".queries .token-row").nth(query).click()
        page.locator(".pair-ranking select").select_option(str(key))
        buttons = page.locator(".ranking button")
        buttons.first.wait_for()
        order = np.argsort(-weights, axis=None)[:8]
        expected = [divmod(int(place), weights.shape[1]) for place in order]
        assert buttons.all_inner_texts() == [
            f"{layer} · {head}: {weights[layer, head]:.3f}" for layer, head in expected
        ]
        buttons.nth(1).click()
        layer, head = expected[1]
        sentence = page.locator(
            '[data-view="tokens"] .hint', has_text=f"layer {layer} · head {head}"
        )
        sentence.first.wait_for()
        assert shown.errors == []


def test_the_table_is_sorted_by_any_column(browser, saved):
    with chromium.opened(browser, saved(example_views.classifier_view())) as shown:
        page = shown.page
        page.locator('.tabs [data-value="summaries"]').click()
        button = page.locator('[data-column="previous"]')
        place = page.locator(".summaries thead th").evaluate_all(
            "heads => heads.findIndex(h => h.textContent.startsWith('previous'))"
        )
        cells = page.locator(f".summaries tbody td:nth-child({place + 1})")
        for direction in ("descending", "ascending"):
            button.click()
            header = page.locator('th:has([data-column="previous"])')
            assert header.get_attribute("aria-sort") == direction
            values = [float(text.rstrip(" %")) for text in cells.all_inner_texts()]
            assert len(values) == 24
            assert values == sorted(values, reverse=direction == "descending")
            assert values[0] != values[-1]
        button.press("Enter")  # and by keyboard
        first = page.locator(".summaries tbody tr").first
        assert "previous-token" in first.inner_text()
        first.locator("button").click()
        assert page.locator('[data-view="heads"]').is_visible()
        page.locator(".one-head .badge", has_text="previous-token").wait_for()


def background(page) -> list[int]:
    text = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in text[4:-1].split(",")]


def test_dark_and_light_follow_the_system_and_the_button(browser, saved):
    path = saved(example_views.classifier_view())
    pixel = "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data]"
    colours = {}
    for scheme in ("light", "dark"):
        with chromium.opened(browser, path, color_scheme=scheme) as shown:
            page = shown.page
            page.locator(".tile.drawn").first.wait_for()
            assert (max(background(page)) < 64) == (scheme == "dark")
            colours[scheme] = tile(page, 0, 0).locator("canvas").evaluate(pixel)
            page.locator(".theme").click()
            assert (max(background(page)) < 64) == (scheme == "light")
            for _ in range(100):  # tiles are drawn anew soon after
                if tile(page, 0, 0).locator("canvas").evaluate(pixel) != colours[scheme]:
                    break
                page.wait_for_timeout(50)
            else:
                pytest.fail("the tiles kept their colours")
    assert colours["light"] != colours["dark"]


@pytest.mark.parametrize("name", VIEWS)
def test_a_narrow_window_does_not_scroll_sideways(browser, saved, name):
    with chromium.opened(browser, saved(VIEWS[name]()), **NARROW) as shown:
        page = shown.page
        for view in TABS[name]:
            page.locator(f'.tabs [data-value="{view}"]').click()
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        assert shown.errors == []


HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "{{alert(4)}}",
    '"><svg onload=alert(5)>',
    "\u202e",
    "\ud800",
)


def test_tokens_that_are_markup_do_nothing(browser, saved):
    view = example_views.decoder_view(HOSTILE)
    view = dataclasses.replace(
        view, title=HOSTILE[0], prediction=HOSTILE[2], facts=((HOSTILE[1], HOSTILE[4]),)
    )
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        for name in TABS["decoder"]:
            page.locator(f'.tabs [data-value="{name}"]').click()
        page.locator(".lens-cell").first.dispatch_event("pointerenter")
        assert page.locator("h1").inner_text() == HOSTILE[0]
        page.locator('.tabs [data-value="tokens"]').click()
        full = page.locator(".queries .token-row bdi").first.get_attribute("title")
        assert full == HOSTILE[0]
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2
        assert page.locator("svg[onload]").count() == 0
        assert page.locator(".queries bdi").nth(5).inner_text() == "‹202E›"
        assert (dialogs, shown.errors, shown.requests) == ([], [], [])


def test_each_token_has_its_own_direction_of_writing(browser, saved):
    tokens = ("مرحبا", "بالعالم", "こんにちは", "世界", "a b", "\n", "", "x" * 50)
    with chromium.opened(browser, saved(example_views.decoder_view(tokens))) as shown:
        page = shown.page
        page.locator('.tabs [data-value="tokens"]').click()
        items = page.locator(".queries .token-row bdi")
        texts = items.all_inner_texts()
        assert texts[:7] == ["مرحبا", "بالعالم", "こんにちは", "世界", "a␣b", "⏎", "∅"]
        assert texts[7] == "x" * 17 + "…"
        assert items.nth(7).get_attribute("title") == "x" * 50
        directions = items.evaluate_all("all => all.map(e => getComputedStyle(e).direction)")
        assert directions[:4] == ["rtl", "rtl", "ltr", "ltr"]
        assert shown.errors == []


def test_a_view_without_attention_shows_the_rest(browser, saved):
    view = dataclasses.replace(example_views.decoder_view(), maps=())
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        tabs = [tab.get_attribute("data-value") for tab in page.locator(".tabs button").all()]
        assert tabs == ["lens", "scores", "norms"]
        for name in tabs:
            page.locator(f'.tabs [data-value="{name}"]').click()
            assert page.locator(f'[data-view="{name}"]').is_visible()
        chosen = page.locator('[data-view="norms"] .readout bdi')
        assert chosen.inner_text() == view.lens.positions[0]
        assert shown.errors == []


def test_candidates_and_ranks_are_shown_on_hover_and_focus(browser, saved):
    view = example_views.decoder_view()
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        page.locator('.tabs [data-value="scores"]').click()
        page.locator(".score").nth(3).hover()
        text = page.locator(".tooltip.shown").inner_text()
        assert f"rank {view.scores.ranks[3]}" in text
        assert f"{view.scores.log_probabilities[3]:.3f} nats" in text
        page.locator('.tabs [data-value="lens"]').click()
        page.locator(".lens-cell").first.focus()
        page.keyboard.press("ArrowRight")
        text = page.locator(".tooltip.shown").inner_text()
        assert "layer 3, after animal" in text
        for probability in view.lens.layers[-1].probabilities[1]:
            assert f"{100 * probability:.1f}%" in text
        page.keyboard.press("Escape")
        assert page.locator(".tooltip.shown").count() == 0
        assert shown.errors == []


def test_a_large_page_opens_and_scrolls(browser, saved):
    view = example_views.long_view(24, 16, 256)
    with chromium.opened(browser, saved(view)) as shown:
        page = shown.page
        page.locator(".tile.drawn").first.wait_for()
        assert page.locator(".tile").count() == 24 * 16
        drawn = page.locator(".tile.drawn").count()
        last = tile(page, 23, 15)
        assert "drawn" not in last.get_attribute("class")  # not scrolled to yet
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.locator(".grid-row:last-child .tile.drawn:last-child").wait_for()
        assert page.locator(".tile.drawn").count() > drawn
        last.click()
        wait_for_head(page, 23, 15)
        assert shown.errors == []


def test_the_frame_of_a_notebook_shows_the_page(browser, tmp_path):
    content = attention_page.page(example_views.classifier_view())._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{content}", encoding="utf-8")
    with chromium.opened(browser, path) as shown:
        frame = shown.page.frame_locator("iframe")
        frame.locator(".tile.drawn").first.wait_for()
        assert frame.locator(".tile").count() == 24
        assert shown.errors == []
