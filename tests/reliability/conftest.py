import jax
import pytest

from tests.reliability.commands import write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


@pytest.fixture
def compiled_once(tmp_path_factory):
    """Runs that compile the same program do so once."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture
def figure(record_property):
    """Tells what was reached, for a row of the table that `python -m tests.reliability` prints."""

    def tell(row: int, text: str) -> None:
        record_property("row", row)
        record_property("figure", text)

    return tell
