"""These tests compile many small programs and run each a few times: compile them cheaply."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def _quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
