"""The picture of an image or a spectrogram on the attention page, in a real browser."""

import dataclasses

import pytest

from tests.visualization import chromium, example_views
from visualization import attention_page

pytestmark = pytest.mark.browser


def saved(view, directory):
    return attention_page.page(view).save(directory / "page.html")


def test_a_patch_of_the_image_is_picked(browser, tmp_path):
    view = example_views.image_view()
    with chromium.opened(browser, saved(view, tmp_path)) as shown:
        page = shown.page
        page.locator('.tabs [data-value="image"]').click()
        image = page.locator(".image-map")
        readout = page.locator('[data-view="image"] .readout')
        box = image.bounding_box()
        image.click(position={"x": box["width"] * 5.5 / 8, "y": box["height"] * 2.5 / 6})
        query = 1 + 2 * 8 + 5
        best = divmod(int(view.maps[0].weights_lhts[0, 0, query, 1:].argmax()), 8)
        readout.filter(has_text="from patch in row 2, column 5").wait_for()
        assert f"most on row {best[0]}, column {best[1]}" in readout.inner_text()
        image.press("ArrowRight")
        readout.filter(has_text="from patch in row 2, column 6").wait_for()
        assert shown.errors == []


def test_a_cell_of_a_spectrogram_is_picked(browser, tmp_path):
    """The picture has time across and pitch upwards; the model reads time by time."""
    rows, columns = 6, 8
    names = [f"{time} s {pitch} Hz" for time in range(columns) for pitch in range(rows)]
    cells = [
        (rows - 1 - pitch) * columns + time for time in range(columns) for pitch in range(rows)
    ]
    view = example_views.image_view()
    (stack,) = view.maps
    stack = dataclasses.replace(stack, queries=("[CLS]", *names), keys=("[CLS]", *names))
    changes = dict(maps=(stack,), image_name="spectrogram", patch_cells=tuple(cells))
    with chromium.opened(browser, saved(dataclasses.replace(view, **changes), tmp_path)) as shown:
        page = shown.page
        page.get_by_role("tab", name="Spectrogram", exact=True).click()
        image = page.locator(".image-map")
        readout = page.locator('[data-view="image"] .readout')
        box = image.bounding_box()
        image.click(position={"x": box["width"] * 5.5 / 8, "y": box["height"] * 1.5 / 6})
        query = 1 + names.index("5 s 4 Hz")
        best = names[int(stack.weights_lhts[0, 0, query, 1:].argmax())]
        readout.filter(has_text="from patch at 5 s 4 Hz").wait_for()
        assert f"most on {best} " in readout.inner_text()
        image.press("ArrowDown")
        readout.filter(has_text="from patch at 5 s 3 Hz").wait_for()
        image.press("ArrowRight")
        readout.filter(has_text="from patch at 6 s 3 Hz").wait_for()
        assert shown.errors == []
