"""Refuses jobs that cannot fit into memory, before anything is compiled or allocated.

The figures are lower bounds, so a job that fits is never refused. plan.py says what a job needs.
"""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from experiment.schema import ConfigError
from model.config import TransformerConfig
from model.kv_cache import empty_cache
from training.mesh import HOST

GIB = 2**30


def bytes_per_device(devices: Sequence[jax.Device]) -> float:
    """The memory of each device; simulated ones share the machine's. Infinite if unknown."""
    if devices[0].platform == "cpu":
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return machine / len(jax.local_devices())
    return (devices[0].memory_stats() or {}).get("bytes_limit", math.inf)


def refuse_state(state: Any, mesh: Mesh) -> None:
    """Refuses a training state, a tree of shapes with shardings, that no device can hold."""

    def share(leaf) -> int:
        if leaf.sharding.memory_kind == HOST:  # optimizer.offload
            return 0
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    needed, available = (
        sum(map(share, jax.tree.leaves(state))),
        bytes_per_device(mesh.local_devices),
    )
    if needed > available:
        raise ConfigError(
            f"the parameters and the optimizer's state need {needed / GIB:,.1f} GiB on each "
            f"device, which has {available / GIB:,.1f}; choose smaller sizes in model.*, or more "
            "devices with mesh.fsdp (plan.py says what a job needs)"
        )


def refuse_batch(
    model: TransformerConfig, rows: int, length: int, mesh: Mesh, accumulate: int
) -> None:
    """Refuses a batch if the inputs of all blocks alone exceed the memory of all devices.

    Training keeps these inputs for the backward pass. `length` is the least number of tokens that
    a row may be padded to.
    """
    if model.input == "patches":
        length = model.patch_tokens
    layers = model.has_encoder * model.encoder_layers + model.has_decoder * model.decoder_layers
    per_row = layers * length * model.width * (2 if model.dtype == "bfloat16" else 4)
    available = bytes_per_device(mesh.local_devices) * mesh.size
    if rows * per_row > available * accumulate:
        raise ConfigError(
            f"data.batch_size={rows} cannot fit: activations of at least "
            f"{rows * per_row / accumulate / GIB:,.0f} GiB on devices with "
            f"{available / GIB:,.0f}; lower it to {available * accumulate / per_row:.0f} at the "
            "very most, or raise optimizer.accumulate (plan.py --search_batch finds what fits)"
        )


def refuse_cache(
    model: TransformerConfig, rows_per_prompt: int, batch_size: int, tokens: int, mesh: Mesh
) -> None:
    """Refuses to generate with a cache of keys and values that the devices cannot hold."""
    if not model.has_decoder:
        return
    one = jax.eval_shape(functools.partial(empty_cache, model, 1, tokens))
    per_row = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    needed = per_row * rows_per_prompt * batch_size
    available = bytes_per_device(mesh.local_devices) * mesh.size
    if needed > available:
        raise ConfigError(
            f"the cache of {rows_per_prompt * batch_size:,} outputs of {tokens:,} tokens needs at "
            f"least {needed / GIB:,.0f} GiB, and the devices have {available / GIB:,.0f}: at most "
            f"{available / per_row:,.0f} such outputs can fit; lower --batch_size, --num_outputs, "
            "--beam_size or --max_new_tokens"
        )
