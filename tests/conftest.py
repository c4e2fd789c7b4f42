"""For the whole suite: no silent dtype promotion, a cache of its own, and quick compilation."""

import gc
import os

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from input_pipeline import token_cache
from training import compilation, step

jax.config.update("jax_numpy_dtype_promotion", "strict")

# Half of the suite's time is compilation. Without XLA's newer code generator and optimizations it
# takes half as long. A program is compiled in one part, not in 32 that threads share: each part
# costs something of its own, and the suite keeps every core busy anyway. jax reads this when it
# compiles for the first time, as do the processes that tests start.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICKLY}".strip()


def pytest_collection_finish():
    """Looks for garbage less often, and never among what importing and collecting have made.

    Tracing makes so many objects that the garbage collector takes a seventh of a test's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory):
    """Tests neither read nor write the user's cache."""
    token_cache.DEFAULT_DIRECTORY = str(tmp_path_factory.mktemp("cache"))
    compilation.DEFAULT_DIRECTORY = str(tmp_path_factory.mktemp("compiled"))
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # of processes that tests start


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_module():
    """Frees compiled programs after each module.

    Each program takes memory maps, of which Linux allows a process 65,530: a worker that keeps the
    programs of the whole suite ends with a segmentation fault.
    """
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def default_compilation():
    """Compiles training steps as a real run does.

    For modules that compare different programs to the last bits: without XLA's optimizations they
    round differently.
    """
    defaults = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    options = {**compilation.compiler_options(), **defaults}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "compiler_options", lambda: options)
        yield


@pytest.fixture(scope="module")
def compile_once(tmp_path_factory):
    """Runs of one experiment share their programs, so only the first has to compile them."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    compilation_cache.reset_cache()
