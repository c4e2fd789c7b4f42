"""For the whole suite: no silent dtype promotion, and a cache of its own."""

import jax
import pytest

from input_pipeline import cache

jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory):
    """No test leaves anything in the cache of who runs it, or finds anything there."""
    cache.DEFAULT_DIRECTORY = str(tmp_path_factory.mktemp("cache"))
