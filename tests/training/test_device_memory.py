"""Jobs beyond the memory of the devices are refused, with the largest value that may fit."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiment.schema import ConfigError
from model.kv_cache import empty_cache
from tests.tiny import tiny_config
from training import device_memory
from training.config import MeshConfig
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
