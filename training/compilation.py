"""Compiler options, and the directory of compiled programs."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from experiment.schema import ConfigError
from model.sharding import platform
from storage.object_store import as_os_errors, is_remote, remote_path

DEFAULT_DIRECTORY = "~/.cache/backbone/programs"


def keep_programs(directory: str) -> None:
    """Turns on jax's persistent compilation cache in `directory`.

    "" means JAX_COMPILATION_CACHE_DIR, or DEFAULT_DIRECTORY if that is not set; "off" means none.
    """
    if not jax.config.jax_enable_compilation_cache:  # JAX_ENABLE_COMPILATION_CACHE=false
        return
    known = jax.config.jax_compilation_cache_dir
    chosen = None if directory == "off" else directory or known or _default_directory()
    if chosen == known:
        return
    if directory and chosen:
        try:
            _make(chosen)
        except OSError as error:
            raise ConfigError(
                f"compilation_cache={directory} cannot be created ({error.strerror}); choose "
                "another directory, or off"
            ) from error
    if chosen and not is_remote(chosen):
        chosen = str(Path(chosen).expanduser())
    jax.config.update("jax_compilation_cache_dir", chosen)
    compilation_cache.reset_cache()  # it may be open with the former directory


def _make(directory: str) -> None:
    """Makes a directory; of one in a bucket, checks that it can be written. Raises OSError."""
    if not is_remote(directory):
        Path(directory).expanduser().mkdir(parents=True, exist_ok=True)
        return
    with as_os_errors():
        (remote_path(directory) / ".writable").write_text("")


def _default_directory() -> str | None:
    """Returns None if the home directory is not writable: the default must not fail."""
    try:
        Path(DEFAULT_DIRECTORY).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return DEFAULT_DIRECTORY


def shapes_line(batch: Mapping[str, np.ndarray], rows: int, bucket: tuple[int, int] | None) -> str:
    """Returns the shapes that a step compiles for, and the bucket if there are several."""
    names = [name for name in ("encoder_inputs", "inputs", "images", "signals") if name in batch]
    shapes = [" x ".join(map(str, (rows, *batch[name].shape[1:]))) for name in names]
    shown = ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
    if bucket and bucket[1] > 1:
        shown += " (bucket {} of {})".format(*bucket)
    return shown


def compiler_options() -> dict[str, bool | str] | None:
    """Options for XLA's CPU backend; None (XLA's defaults) for other backends.

    Both were measured on the shapes of benchmarks/train_step.py. XLA's concurrency scheduler
    starts several matmuls at once, each of which already uses every core. The YNN library
    of fused kernels is fast at reductions, but slower than Eigen at matmuls, especially at the
    batched ones of attention, so it is used for reductions only.
    """
    if platform() != "cpu":
        return None
    return {
        "xla_cpu_enable_concurrency_optimized_scheduler": False,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }
