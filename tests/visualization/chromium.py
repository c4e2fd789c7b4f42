"""A headless browser for tests of pages: Debian's chromium, driven by playwright.

A test takes the fixture `browser` (conftest.py beside this file) and opens a file with `opened`,
which records console errors and network requests. Install both parts with

    pip install -e '.[browser]'
    apt-get install chromium
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HANG = 120_000  # milliseconds: only a page that hangs takes so long, on any machine
# No background requests; runs as root in a container without a GPU.
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclasses.dataclass
class OpenedPage:
    """A page in the browser, and what it complained about or asked for since it was opened."""

    page: Any  # playwright.sync_api.Page
    errors: list[str] = dataclasses.field(default_factory=list)  # console errors and exceptions
    requests: list[str] = dataclasses.field(default_factory=list)  # without the file itself


def executable() -> str | None:
    """The path of an installed browser: $CHROMIUM, or the first of NAMES on the path."""
    given = os.environ.get("CHROMIUM")
    if given:
        return given
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Starts the browser with an empty profile; skips the test where there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install -e '.[browser]'"
    )
    path = executable()
    if path is None:
        pytest.skip("no browser: apt-get install chromium, or set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Any, path: Path | None, **options: Any) -> Iterator[OpenedPage]:
    """Opens a file in a fresh context, or an empty page if there is no path.

    `options` are those of playwright's `new_context`. Wait with locators: a page whose policy
    forbids evaluation has no `wait_for_function`.
    """
    context = browser.new_context(**options)
    try:
        result = OpenedPage(context.new_page())
        result.page.set_default_timeout(HANG)
        page, address = result.page, path and path.resolve().as_uri()
        page.on("console", lambda m: m.type == "error" and result.errors.append(m.text))
        page.on("pageerror", lambda error: result.errors.append(str(error)))
        # data: and blob: addresses are inside the page, so nothing leaves it through them.
        page.on(
            "request",
            lambda r: (
                r.url.partition("#")[0] != address
                and not r.url.startswith(("data:", "blob:"))
                and result.requests.append(r.url)
            ),
        )
        if address:
            page.goto(address)
        yield result
    finally:
        context.close()
