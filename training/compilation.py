"""How a job's programs are compiled, and where they are kept."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiment.schema import ConfigError
from model.sharding import platform

DEFAULT_DIRECTORY = "~/.cache/backbone/programs"


def keep_programs(directory: str) -> None:
    """Programs that took long to compile are kept there, and found again by the next process.

    "" is the directory that jax was told of (JAX_COMPILATION_CACHE_DIR), or the default one if it
    was not; with "off" nothing is kept.
    """
    if not jax.config.jax_enable_compilation_cache:  # JAX_ENABLE_COMPILATION_CACHE=false
        return
    known = jax.config.jax_compilation_cache_dir
    chosen = None if directory == "off" else directory or known or _default_directory()
    if chosen == known:
        return
    if directory and chosen:
        try:
            Path(chosen).expanduser().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"compilation_cache={directory} cannot be made ({error.strerror}); choose another "
                "directory, or off"
            ) from error
    jax.config.update("jax_compilation_cache_dir", chosen and str(Path(chosen).expanduser()))
    compilation_cache.reset_cache()  # it may have been opened with what was chosen before


def _default_directory() -> str | None:
    """None where there is no home to write to: nobody asked for it to be there."""
    try:
        Path(DEFAULT_DIRECTORY).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return DEFAULT_DIRECTORY


def compiler_options() -> dict[str, bool | str] | None:
    """What XLA's CPU backend needs to be told; other backends are left to their own choices.

    Both settings were measured on the shapes of benchmarks/train_step.py. XLA's scheduler for
    concurrency starts several matrix products at once, each of which already uses every core.
    Its library of fused kernels (YNN) is quick at reductions, but slower than Eigen at matrix
    products, above all at the batched ones of attention: so YNN gets the reductions alone.
    """
    if platform() != "cpu":
        return None
    return {
        "xla_cpu_enable_concurrency_optimized_scheduler": False,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }
