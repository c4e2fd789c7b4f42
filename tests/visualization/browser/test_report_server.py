"""A served report in a real browser: it takes over what a run writes, and asks nobody else."""

import threading

import pytest

from checkpointing.recorded_run import read_run
from tests.recorded_runs import EVENTS, METRICS, write_run
from visualization import report_page
from visualization.report_server import ReportServer

pytestmark = pytest.mark.browser
pytest.importorskip("plotly")


def test_a_served_page_follows_its_run(browser, tmp_path):
    write_run(tmp_path, metrics=METRICS[:2], events=EVENTS[:3])

    def make_page(version):
        return report_page.report_page([read_run(tmp_path)], refresh=0.2, version=version)

    server = ReportServer([tmp_path], make_page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    context = browser.new_context()
    try:
        page, errors, requests = context.new_page(), [], []
        page.on("console", lambda m: m.type == "error" and errors.append(m.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.url)
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        page.click("#log-y")
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        points = "document.querySelector('[data-metric=\"train/loss\"]').data.at(-1).x.length"
        assert page.evaluate(points) == 2
        assert page.locator('[data-metric="eval/dates/loss"]').count() == 0

        write_run(tmp_path)  # the run has gone on
        page.wait_for_selector('[data-metric="eval/dates/loss"] .main-svg', timeout=60_000)
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        assert "finished" in page.text_content("#summary")
        kind = "document.querySelector('[data-metric=\"train/loss\"]').layout.yaxis.type"
        assert page.evaluate(kind) == "log"  # what was chosen stays
        assert errors == []
        assert {url for url in requests if not url.startswith(("data:", "blob:"))} == {server.url}
    finally:
        context.close()
        server.shutdown()
        thread.join()
        server.server_close()
