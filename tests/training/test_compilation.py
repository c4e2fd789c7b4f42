"""The cache of compiled programs."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiment.schema import ConfigError
from training import compilation
from training.compilation import keep_programs


@pytest.fixture(autouse=True)
def jax_as_it_was(monkeypatch, tmp_path):
    """Every test begins with no cache, and a home of its own."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compilation, "DEFAULT_DIRECTORY", str(tmp_path / "home" / "programs"))
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def cached_programs(directory: Path) -> int:
    return len(list(directory.glob("*-cache"))) if directory.exists() else 0


@pytest.fixture
def compile_something():
    """Compiles a new program; jax caches even those that compile quickly."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield lambda number: jax.jit(lambda x: x * number + 0.5)(1.0)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def test_programs_are_cached_by_default(tmp_path, compile_something):
    keep_programs("")
    compile_something(17.0)
    assert cached_programs(tmp_path / "home" / "programs") > 0


def test_programs_are_cached_where_the_config_says(tmp_path, compile_something):
    keep_programs("")
    keep_programs(str(tmp_path / "there"))
    compile_something(19.0)
    assert cached_programs(tmp_path / "there") > 0
    assert cached_programs(tmp_path / "home" / "programs") == 0


def test_off_caches_nothing(tmp_path, compile_something):
    keep_programs("")
    keep_programs("off")
    compile_something(23.0)
    assert cached_programs(tmp_path / "home" / "programs") == 0


def test_a_cache_directory_set_in_jax_is_the_default(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    keep_programs("")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"compilation_cache=.*file/x cannot be created .*, or off"
    ):
        keep_programs(str(tmp_path / "file" / "x"))


def test_an_unwritable_default_directory_disables_the_cache(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(compilation, "DEFAULT_DIRECTORY", str(tmp_path / "file" / "programs"))
    keep_programs("")
    assert jax.config.jax_compilation_cache_dir is None


def test_another_process_uses_the_cached_programs(tmp_path):
    code = (
        "import jax, jax.monitoring\n"
        "from training.compilation import keep_programs\n"
        "heard = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: heard.append(name))\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
        f"keep_programs({str(tmp_path)!r})\n"
        "jax.jit(lambda x: x * 29.0)(1.0)\n"
        "print(heard.count('/jax/compilation_cache/cache_hits'))\n"
    )
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_PLATFORMS": "cpu"}
    hits = [
        int(
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=Path(__file__).resolve().parents[2],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert hits[0] == 0 and hits[1] > 0
