"""Makes the pictures of pages in docs/: python -m tests.visualization.screenshot PAGE PICTURE

Opens an HTML file in a headless browser, picks what is named, and writes a PNG with 256 colours.
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from tests.visualization import chromium


def take(browser, path: Path, arguments: argparse.Namespace) -> bytes:
    """The PNG of a page as it is after the choices."""
    size = {"width": arguments.width, "height": arguments.height}
    options = dict(viewport=size, color_scheme=arguments.scheme)
    with chromium.opened(browser, path, **options) as shown:
        page = shown.page
        page.locator(arguments.ready).first.wait_for()
        for tab in arguments.tab:
            page.get_by_role("tab", name=tab, exact=True).click()
        for choice in arguments.choose:
            label, _, value = choice.partition("=")
            page.get_by_label(label, exact=True).first.select_option(value)
        for selector in arguments.click:
            page.locator(selector).first.click()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)  # milliseconds, for what is drawn later
        if shown.errors or shown.requests:
            raise SystemExit(f"{path}: {shown.errors} {shown.requests}")
        return page.screenshot(full_page=arguments.full)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels")
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--full", action="store_true", help="the whole page, not the window")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    ready = "body :not(noscript, script)"
    parser.add_argument("--ready", default=ready, help="what must be there first")
    parser.add_argument("--tab", action="append", default=[], help="the name of a tab to open")
    parser.add_argument("--choose", action="append", default=[], help="such as Layer=3")
    parser.add_argument("--click", action="append", default=[], help="a selector")
    arguments = parser.parse_args()
    with chromium.launched() as browser:
        content = take(browser, arguments.page, arguments)
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture = picture.quantize(256, dither=Image.Dither.NONE)
    picture.save(arguments.picture, optimize=True)
    print(f"{arguments.picture}: {picture.size}, {arguments.picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
