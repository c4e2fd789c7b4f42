"""Refuses jobs that cannot fit into memory, before anything is compiled or allocated.

The figures are lower bounds, so a job that fits is never refused. plan.py says what a job needs.
"""

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from experiment.schema import ConfigError
from model.attention import KINDS
from model.attention.interface import AttentionKind
from model.config import TransformerConfig
from model.kv_cache import empty_cache
from model.mixers import ATTENTION
from training.exits import OutOfMemoryError
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


def prompt_bytes(model: TransformerConfig, tokens: int, slots: int) -> int:
    """The least memory that one row of `tokens` tokens needs in a forward pass.

    `slots` are those of the cache that a decoder fills; 0: there is no cache. Attention to a cache
    computes all scores at once, in float32, as does a kind that reads explicit masks.
    """
    held = tokens * model.width * (2 if model.dtype == "bfloat16" else 4)
    if model.mixer != ATTENTION:
        return held
    layers = model.decoder_layers if slots else model.encoder_layers
    kinds = [KINDS[model.layer_kind(number).attention] for number in range(layers)]
    if slots:
        has_scores = any(type(kind).decode is AttentionKind.decode for kind in kinds)
    else:
        has_scores = any(kind.reads_explicit_mask for kind in kinds)
    return held + has_scores * model.heads * tokens * (slots or tokens) * 4


def prompt_problem(
    model: TransformerConfig, name: str, tokens: int, more: int, rows: int, mesh: Mesh
) -> str:
    """Returns what is wrong with a prompt if the devices cannot hold a batch of `rows`; or "".

    `more` is the number of tokens that a decoder writes after it; 0: it writes none.
    """
    available = bytes_per_device(mesh.local_devices) * mesh.size

    def needed(tokens: int) -> int:
        return rows * prompt_bytes(model, tokens, tokens + more if more else 0)

    if needed(tokens) <= available:
        return ""
    largest, too_many = 0, tokens
    while too_many - largest > 1:
        middle = (largest + too_many) // 2
        largest, too_many = (middle, too_many) if needed(middle) <= available else (largest, middle)
    return (
        f"{name} has {tokens:,} tokens with the special ones, for which a batch of {rows:,} needs "
        f"at least {needed(tokens) / GIB:,.0f} GiB, and the devices have {available / GIB:,.0f}: "
        f"at most {largest:,} tokens can fit"
    )


@contextlib.contextmanager
def out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Within this context, a device that runs out of memory raises OutOfMemoryError, in a line."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{what} ran out of memory ({_asked_for(error)}); {remedy}"
        ) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the machine, could not allocate memory for a computation."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def _asked_for(error: Exception) -> str:
    """The size in a message of XLA such as `Out of memory allocating 123 bytes`, in words."""
    line = str(error).splitlines()[0]
    found = re.search(r"allocat\w* (\d+)(?: ?bytes| ?B\b)?", line)
    if found is None:
        return line[:200]
    return f"it asked for {int(found[1]) / GIB:,.2f} GiB more"
