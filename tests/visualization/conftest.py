"""Fixtures for the tests of pages."""

import pytest

from tests.visualization import chromium


@pytest.fixture(scope="package")
def browser():
    """One headless browser for all tests of pages; they are skipped where there is none."""
    with chromium.launched() as started:
        yield started
