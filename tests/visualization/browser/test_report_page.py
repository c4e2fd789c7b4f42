"""The report in a real browser: offline, drawn, and usable."""

import numpy as np
import pytest

from checkpointing.recorded_run import read_run
from tests.recorded_runs import ANSWERS, CLASSES, CONFIG, EVENTS, METRICS, POSITIONS, write_run
from tests.visualization.chromium import opened
from visualization import curves, report_page
from visualization.framed_page import Page

pytestmark = pytest.mark.browser
pytest.importorskip("plotly")

HOSTILE = "</pre></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
LONG = [{"step": n, "train/loss": float(np.sin(n) + 10 / n)} for n in range(1, 101)]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Two runs: one with troubles and details, and one whose every text is hostile."""
    directory = tmp_path_factory.mktemp("report")
    a = write_run(
        directory / "a",
        metrics=[*METRICS, *LONG],
        samples={"00000020_dates.txt": "early", "00000040_dates.txt": "late"},
        details=[CLASSES, ANSWERS, POSITIONS | {"eval_set": "text"}],
    )
    hostile = CLASSES | {"classes": {**CLASSES["classes"], "labels": [HOSTILE, "<b>dog</b>", "c"]}}
    b = write_run(
        directory / "b <b>bold<&amp;",
        config=CONFIG | {"note": HOSTILE},
        samples={"00000040_dates.txt": HOSTILE},
        events=[*EVENTS[:-1], {"event": "end", "step": 40, "reason": HOSTILE}],
        details=[hostile],
    )
    path = directory / "report.html"
    path.write_text(report_page.report_page([read_run(a), read_run(b)]))
    return path


def wait_until_drawn(page):
    page.wait_for_selector("html[data-drawn]", timeout=60_000)


@pytest.fixture
def report(browser, page_file):
    with opened(browser, page_file, viewport={"width": 1280, "height": 900}) as result:
        wait_until_drawn(result.page)
        yield result
        assert result.errors == []
        assert result.requests == []


def click(page, selector):
    page.click(selector)
    wait_until_drawn(page)


def plot(metric):
    return f'[data-metric="{metric}"]'


def traces(page, metric):
    script = "div => div.data.map(t => ({x: t.x, y: t.y, name: t.name, axis: t.yaxis || 'y'}))"
    return [t for t in page.eval_on_selector(plot(metric), script) if t["axis"] == "y"]


def test_every_plot_is_drawn_from_a_file_without_network(report):
    boxes = report.page.locator(".canvas")
    assert boxes.count() >= 8
    assert report.page.locator(".canvas .main-svg").count() >= boxes.count()
    assert report.page.locator(f"{plot('train/loss')} .scatterlayer path.js-line").count() >= 2


def test_hovering_shows_the_value(report):
    report.page.eval_on_selector(
        "#smoothing", "e => { e.value = 0; e.dispatchEvent(new Event('input')); }"
    )
    wait_until_drawn(report.page)
    box = report.page.locator(f"{plot('eval/dates/exact_match')} .nsewdrag").first
    box.scroll_into_view_if_needed()
    size = box.bounding_box()
    report.page.mouse.move(size["x"] + size["width"] - 14, size["y"] + size["height"] / 2)
    label = report.page.locator(f"{plot('eval/dates/exact_match')} .hoverlayer")
    label.locator("text").first.wait_for(timeout=5000)
    assert "0.75" in label.text_content()
    assert "step 40" in label.text_content()


def test_smoothing_is_the_formula(report):
    """The script's moving average is the one that is tested against numbers worked out by hand."""
    page = report.page
    page.eval_on_selector(
        "#smoothing", "e => { e.value = 0.9; e.dispatchEvent(new Event('input')); }"
    )
    wait_until_drawn(page)
    raw, smooth = (
        np.array([np.nan if v is None else v for v in t["y"]])
        for t in traces(page, "train/loss")[:2]
    )
    np.testing.assert_allclose(smooth, curves.smoothed(raw, 0.9), rtol=1e-9)
    for name in ("optim/learning_rate", "eval/dates/exact_match"):
        assert len(traces(page, name)) == 2, "one line a run: neither is smoothed"
    page.eval_on_selector(
        "#smoothing", "e => { e.value = 0; e.dispatchEvent(new Event('input')); }"
    )
    wait_until_drawn(page)
    assert len(traces(page, "train/loss")) == 2  # one line a run


def test_the_horizontal_axis_can_be_tokens_or_time(report):
    page = report.page
    metric = "eval/dates/loss"
    assert traces(page, metric)[0]["x"] == [20, 40]
    click(page, '[data-axis="tokens"]')
    assert traces(page, metric)[0]["x"] == [2000, 4000]
    click(page, '[data-axis="seconds"]')
    assert traces(page, metric)[0]["x"] == [12, 32]
    assert page.get_attribute('[data-axis="seconds"]', "aria-pressed") == "true"


def test_axes_become_logarithmic(report):
    kind = "div => [div.layout.xaxis.type, div.layout.yaxis.type]"
    assert report.page.eval_on_selector(plot("train/loss"), kind) == ["linear", "linear"]
    click(report.page, "#log-y")
    assert report.page.eval_on_selector(plot("train/loss"), kind) == ["linear", "log"]
    click(report.page, "#log-x")
    assert report.page.eval_on_selector(plot("train/loss"), kind) == ["log", "log"]


def test_a_run_is_hidden_by_its_chip_also_with_the_keyboard(report):
    page = report.page
    assert len(traces(page, "eval/dates/loss")) == 2
    page.focus('.chip[data-run="1"]')
    page.keyboard.press("Enter")
    wait_until_drawn(page)
    assert len(traces(page, "eval/dates/loss")) == 1
    assert page.get_attribute('.chip[data-run="1"]', "aria-pressed") == "false"


def test_zooming_changes_the_range_and_a_double_click_resets_it(report):
    page = report.page
    box = page.locator(f"{plot('train/loss')} .nsewdrag").first
    box.scroll_into_view_if_needed()
    size = box.bounding_box()
    span = "div => div.layout.xaxis.range[1] - div.layout.xaxis.range[0]"
    before = page.eval_on_selector(plot("train/loss"), span)
    middle = size["y"] + size["height"] / 2
    page.mouse.move(size["x"] + 60, middle)
    page.mouse.down()
    page.mouse.move(size["x"] + 160, middle, steps=5)
    page.mouse.up()
    now = f"({span})(document.querySelector('{plot('train/loss')}'))"
    page.wait_for_function(f"{now} < {before} / 2")
    page.mouse.dblclick(size["x"] + 110, middle)
    page.wait_for_function(f"Math.abs({now} - {before}) < 1e-6 * {before}")


def test_troubles_are_marked_on_the_axis(report):
    shapes = "div => div.layout.shapes.map(s => s.x0)"
    marked = report.page.eval_on_selector(plot("eval/dates/loss"), shapes)
    assert {20, 30, 33, 35} <= set(marked)
    assert "rolled back" in report.page.text_content("#marks")


def test_samples_follow_the_slider_and_stay_text(report):
    page = report.page
    samples = page.locator("#samples pre").all_text_contents()
    assert samples == ["late", HOSTILE]
    slider = page.locator("#samples input")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#samples pre").all_text_contents() == ["early", ""]


def test_hostile_texts_do_nothing(report):
    page = report.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main b b").count() == 0
    names = page.locator(".chip").all_text_contents()
    assert names[1] == "b <b>bold<&amp;"
    ticks = (
        page.locator('[data-kind="confusion"]').nth(1).locator(".ytick text").all_text_contents()
    )
    assert "<b>dog</b>" in ticks


def test_dark_follows_the_system_and_the_button(browser, page_file):
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, page_file, color_scheme="dark") as result:
        wait_until_drawn(result.page)
        assert result.page.evaluate(ground) == "rgb(16, 20, 26)"
        click(result.page, "#theme")
        assert result.page.evaluate(ground) == "rgb(246, 247, 249)"
        assert result.errors == []


def test_a_narrow_window_scrolls_in_one_direction_only(browser, page_file):
    with opened(browser, page_file, viewport={"width": 390, "height": 844}) as result:
        wait_until_drawn(result.page)
        assert result.page.evaluate("document.documentElement.scrollWidth") <= 390
        widths = result.page.eval_on_selector_all(".plot", "all => all.map(e => e.offsetWidth)")
        assert min(widths) > 300 and max(widths) <= 390
        assert result.errors == []


def test_the_frame_of_a_notebook_shows_the_report(browser, page_file, tmp_path):
    frame = Page(page_file.read_text(encoding="utf-8"), "report")._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{frame}", encoding="utf-8")
    with opened(browser, path) as shown:
        inside = shown.page.frame_locator("iframe")
        inside.locator("html[data-drawn]").wait_for()
        assert inside.locator(".canvas .main-svg").count() >= 8
        assert shown.errors == [] and shown.requests == []
