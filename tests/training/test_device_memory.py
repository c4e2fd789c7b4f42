"""Jobs beyond the memory of the devices are refused, with the largest value that may fit."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiment.schema import ConfigError
from model.attention.dot_attention import cached_attention, dot_attention
from model.kv_cache import empty_cache
from tests.tiny import tiny_config
from training import device_memory
from training.config import MeshConfig
from training.exits import OutOfMemoryError
from training.mesh import HOST, make_mesh


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig(data=1, fsdp=-1, sequence=1, tensor=1))


@pytest.fixture
def memory(monkeypatch):
    def set_to(size):
        monkeypatch.setattr(device_memory, "bytes_per_device", lambda devices: size)

    return set_to


def test_the_memory_of_this_machine_is_read():
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    per_device = device_memory.bytes_per_device(jax.local_devices())
    assert per_device * len(jax.local_devices()) == total


def test_a_state_may_fill_the_memory_and_not_more(mesh, memory):
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = {
        "kernel": jax.ShapeDtypeStruct((10, 7), jnp.float32, sharding=everywhere),
        "bias": jax.ShapeDtypeStruct((7,), jnp.bfloat16, sharding=everywhere),
    }
    memory(70 * 4 + 7 * 2)
    device_memory.refuse_state(state, mesh)
    memory(70 * 4 + 7 * 2 - 1)
    with pytest.raises(ConfigError, match=r"need 0\.0 GiB on each device"):
        device_memory.refuse_state(state, mesh)


def test_state_that_is_offloaded_does_not_count(mesh, memory):
    memory(0)
    on_host = NamedSharding(mesh, PartitionSpec(), memory_kind=HOST)
    device_memory.refuse_state(jax.ShapeDtypeStruct((9,), jnp.float32, sharding=on_host), mesh)


def test_the_largest_batch_is_named(mesh, memory):
    model = tiny_config(family="decoder", decoder_layers=3, width=8, dtype="float32")
    memory(1000 * 3 * 16 * 8 * 4)  # the inputs of three blocks for 1,000 rows of 16 tokens
    device_memory.refuse_batch(model, 1000, 16, mesh, accumulate=1)
    device_memory.refuse_batch(model, 2000, 16, mesh, accumulate=2)
    with pytest.raises(ConfigError, match=r"data\.batch_size=1001 .* lower it to 1000 "):
        device_memory.refuse_batch(model, 1001, 16, mesh, accumulate=1)


def test_the_most_outputs_of_a_cache_fit(mesh, memory):
    model = tiny_config(family="decoder")
    one = jax.tree.leaves(empty_cache(model, 1, 20))
    memory(12 * sum(leaf.nbytes for leaf in one))
    device_memory.refuse_cache(model, 3, 4, 20, mesh)
    with pytest.raises(ConfigError) as refused:
        device_memory.refuse_cache(model, 13, 1, 20, mesh)
    assert re.search(r"13 outputs of 20 tokens .* at most 12 such outputs", str(refused.value))


def largest_array(function, *arguments):
    """The largest array of a program before it is optimised, in bytes."""
    text = jax.jit(function).lower(*arguments).as_text()
    found = re.findall(r"tensor<((?:\d+x)+)f32>", text)
    return max(math.prod(map(int, shape.split("x")[:-1])) for shape in found) * 4


@pytest.mark.parametrize("slots", [0, 407])
def test_scores_are_counted_as_the_program_has_them(slots):
    """The largest array of a long prompt has the scores of all heads."""
    family = "decoder" if slots else "encoder"
    model = tiny_config(family=family, attention="dot", max_length=512)
    rows, tokens = 3, 400
    q, k = (jnp.zeros((rows, n, model.heads, 4)) for n in (tokens, slots or tokens))
    mask = jnp.ones((1, 1, tokens, slots or tokens), bool)
    if slots:
        k_bgks, v_bgsk = jnp.moveaxis(k, 1, 3), jnp.moveaxis(k, 1, 2)
        largest = largest_array(
            lambda q, k, v: cached_attention(q, k, v, mask_b1ts=mask), q, k_bgks, v_bgsk
        )
    else:
        largest = largest_array(lambda q, k: dot_attention(q, k, k, mask_b1ts=mask), q, k)
    inputs = tokens * model.width * (2 if model.dtype == "bfloat16" else 4)
    assert rows * (device_memory.prompt_bytes(model, tokens, slots) - inputs) == largest


def test_the_longest_prompt_that_fits_is_named(mesh, memory):
    model = tiny_config(family="decoder", attention="dot")
    memory(5 * device_memory.prompt_bytes(model, 300, 310))
    assert device_memory.prompt_problem(model, "line 7", 300, 10, 5, mesh) == ""
    problem = device_memory.prompt_problem(model, "line 7", 301, 10, 5, mesh)
    assert problem.startswith("line 7 has 301 tokens with the special ones, for which a batch of 5")
    assert problem.endswith("at most 300 tokens can fit")


def test_kinds_without_scores_need_memory_for_tokens_only():
    flash, dot = (tiny_config(family="encoder", attention=name) for name in ("flash", "dot"))
    assert device_memory.prompt_bytes(flash, 1000, 0) < device_memory.prompt_bytes(dot, 1000, 0)
    linear, decoder = (tiny_config(family="decoder", attention=n) for n in ("linear", "dot"))
    assert device_memory.prompt_bytes(linear, 1000, 1000) * 100 < device_memory.prompt_bytes(
        decoder, 1000, 1000
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 3221225472 bytes.", "3.00 GiB more"),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nUsed 9G", "space hbm"),
    ],
)
def test_running_out_of_memory_is_a_line(text, said):
    with (
        pytest.raises(OutOfMemoryError) as ended,
        device_memory.out_of_memory("a step", "lower data.batch_size"),
    ):
        raise jax.errors.JaxRuntimeError(text)
    assert said in str(ended.value)
    assert len(str(ended.value).splitlines()) == 1
    assert ended.value.exit_code == 69


def test_other_errors_pass():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^INTERNAL: a fault$"):  # noqa: SIM117
        with device_memory.out_of_memory("a step", "do"):
            raise jax.errors.JaxRuntimeError("INTERNAL: a fault")
