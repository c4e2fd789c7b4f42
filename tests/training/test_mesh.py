"""A mesh of devices computes what one device computes, and each holds no more than its share.

The number of devices is fixed when jax starts, so eight of them need a process of their own: this
file run as a script, which prints what it measured as JSON. The tests only judge it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from schema import ConfigError
from tests.training.examples import make_batch, make_job
from training.config import MeshConfig
from training.mesh import check_batch, make_mesh, parameter_shardings, put_batch

DEVICES = 8
MESHES = {
    "data 8": dict(data=8),
    "fsdp 8": dict(fsdp=-1),
    "fsdp 4 x tensor 2": dict(fsdp=4, tensor=2),
    "data 2 x fsdp 2 x tensor 2": dict(data=2, fsdp=2, tensor=2),
    "data 4 x sequence 2": dict(data=-1, sequence=2),
}
MODELS = {"encoder-decoder": "seq2seq", "decoder": "causal_lm", "ViT": "classify_images"}
# Large enough epsilon that a gradient of nothing but rounding errors stays nothing.
ADAMW = dict(name="adamw", epsilon=1e-3, learning_rate=1e-2, weight_decay=0.1)
OTHER_OPTIMIZERS = {
    "muon": dict(name="muon", epsilon=1e-3, learning_rate=1e-2),
    "adafactor": dict(name="adafactor", learning_rate=1e-2),
}
# A bias of keys changes no softmax: its gradient is rounding errors, which Adafactor makes large.
NO_BIAS = dict(bias=False)
# Of kernels that are split by rows, by columns and by both.
ADAPTERS = dict(lora_rank=2, lora_targets=".*/kernel")
ON_THREE_AXES = MESHES["data 2 x fsdp 2 x tensor 2"]
SIZES = dict(vocab_size=18, width=16, heads=4, feed_forward=24)

# Parameters that every device holds a part of, and the shape of that part.
PARTS = {
    "fsdp 8": {
        "backbone/token_embedding/embedding": [18, 2],
        "backbone/decoder/blocks/self_attention/query/kernel": [2, 2, 4, 4],
        "backbone/decoder/blocks/self_attention/out/kernel": [2, 4, 4, 2],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 2, 24],
        "backbone/decoder/blocks/feed_forward/in/bias": [2, 24],
        "backbone/decoder/final_norm/scale": [16],
    },
    "fsdp 4 x tensor 2": {
        "backbone/token_embedding/embedding": [9, 4],
        "backbone/decoder/blocks/self_attention/query/kernel": [2, 4, 2, 4],
        "backbone/decoder/blocks/self_attention/out/kernel": [2, 2, 4, 4],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 4, 12],
        "backbone/decoder/blocks/feed_forward/in/bias": [2, 12],
        "backbone/decoder/final_norm/scale": [16],
    },
    "data 8": {
        "backbone/token_embedding/embedding": [18, 16],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 16, 24],
    },
}


def mesh_config(sizes):
    return MeshConfig(**dict(data=1, fsdp=1, sequence=1, tensor=1) | sizes)


# What follows up to `measure` runs in the process with eight devices.


def two_steps(objective, mesh, optimizer, finetune=None, **model):
    """The losses of two steps and the parameters after them."""
    batch, model = make_batch(objective), dict(vocab_size=18) | model
    with jax.set_mesh(mesh):
        job = make_job(
            objective, batch, mesh=mesh, model=model, optimizer=optimizer, finetune=finetune
        )
        state, losses = job.run(job.start(), put_batch(batch, mesh), steps=2, fixed=job.fixed())
    for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(job.abstract), strict=True):
        assert leaf.sharding == wanted.sharding, "a step leaves everything in its place"
    return losses, jax.device_get(state.params)


def deviation(alone, objective, sizes, optimizer, **model):
    """How far the mesh is from one device, relative to the largest value of each array."""
    expected_losses, expected = alone
    losses, params = two_steps(objective, make_mesh(mesh_config(sizes)), optimizer, **model)
    apart = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max() / np.abs(b).max()), params, expected
    )
    return {
        "loss": max(abs(a / b - 1) for a, b in zip(losses, expected_losses, strict=True)),
        "params": max(jax.tree.leaves(apart)),
    }


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def bytes_on_first_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def held_by_a_device(optimizer, sizes, **model):
    """What the real initialisation leaves on a device, in bytes and as shapes."""
    mesh = make_mesh(mesh_config(sizes))
    with jax.set_mesh(mesh):
        job = make_job(
            "causal_lm", make_batch("causal_lm"), mesh=mesh, model=SIZES | model,
            optimizer=dict(name=optimizer, ema_decay=0.9),
        )  # fmt: skip
        state = job.init(jax.random.key(0))
    return {
        **{
            name: {"all": bytes_of(tree), "device": bytes_on_first_device(tree)}
            for name, tree in (
                ("params", state.params),
                ("opt_state", state.opt_state),
                ("ema", state.ema),
            )
        },
        "parts": {
            jax.tree_util.keystr(path, simple=True, separator="/"): list(
                leaf.addressable_shards[0].data.shape
            )
            for path, leaf in jax.tree.leaves_with_path(state.params)
        },
    }


def measure():
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    one_device = make_mesh(mesh_config({}), jax.devices()[:1])
    found = {"deviation": {}, "held": {}}
    for name, objective in MODELS.items():
        alone = two_steps(objective, one_device, ADAMW)
        for mesh, sizes in MESHES.items():
            apart = deviation(alone, objective, sizes, ADAMW)
            found["deviation"][f"{name} on {mesh}"] = apart
    alone = two_steps("causal_lm", one_device, ADAMW)
    found["deviation"]["decoder with two micro-batches"] = deviation(
        alone, "causal_lm", ON_THREE_AXES, ADAMW | dict(accumulate=2)
    )
    for name, optimizer in OTHER_OPTIMIZERS.items():
        alone = two_steps("causal_lm", one_device, optimizer, **NO_BIAS)
        apart = deviation(alone, "causal_lm", ON_THREE_AXES, optimizer, **NO_BIAS)
        found["deviation"][f"decoder with {name}"] = apart
    alone = two_steps("causal_lm", one_device, ADAMW, ADAPTERS)
    found["deviation"]["decoder with adapters"] = deviation(
        alone, "causal_lm", ON_THREE_AXES, ADAMW, finetune=ADAPTERS
    )
    for mesh in PARTS:
        found["held"][f"adamw on {mesh}"] = held_by_a_device("adamw", MESHES[mesh])
    found["held"]["muon on fsdp 8"] = held_by_a_device("muon", MESHES["fsdp 8"])
    # Adafactor factors matrices from 128 x 128 on.
    found["held"]["adafactor on fsdp 8"] = held_by_a_device(
        "adafactor", MESHES["fsdp 8"], width=128, feed_forward=128
    )
    found["shapes"] = {
        mesh: list(make_mesh(mesh_config(s)).shape.values()) for mesh, s in MESHES.items()
    }
    return found


def run_with_eight_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.training.test_mesh"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_eight_devices():
    """One test, lest processes that share out the tests each measure everything."""
    found = run_with_eight_devices()
    check_that_a_mesh_computes_what_one_device_computes(found["deviation"])
    for mesh in PARTS:
        check_parts(mesh, found["held"][f"adamw on {mesh}"])
    for optimizer in ("adamw", "muon", "adafactor"):
        check_shares(found["held"][f"{optimizer} on fsdp 8"])
    # The axis of -1 takes the rest.
    assert found["shapes"]["fsdp 8"] == [1, 8, 1, 1]
    assert found["shapes"]["data 4 x sequence 2"] == [4, 1, 2, 1]


def check_that_a_mesh_computes_what_one_device_computes(deviation):
    assert len(deviation) == len(MODELS) * len(MESHES) + 2 + len(OTHER_OPTIMIZERS)
    far = {name: apart for name, apart in deviation.items() if max(apart.values()) > 1e-5}
    assert far == {}


def check_parts(mesh, held):
    assert {name: held["parts"][name] for name in PARTS[mesh]} == PARTS[mesh]
    # AdamW has two moments for each parameter, and counts its steps on every device.
    counts = 16
    assert 0 <= held["opt_state"]["device"] - 2 * held["params"]["device"] <= counts


def check_shares(held):
    # An eighth of every matrix and of its moments; vectors and factors are on every device.
    assert 1 / 8 < held["params"]["device"] / held["params"]["all"] < 1 / 4
    assert 1 / 8 < held["opt_state"]["device"] / held["opt_state"]["all"] < 1 / 4
    assert held["ema"] == held["params"]


@pytest.mark.parametrize(
    "sizes",
    [
        dict(data=3),
        dict(data=2, fsdp=2),  # too few
        dict(data=8, tensor=2),  # too many
        dict(data=-1, tensor=3),
        dict(data=-1, fsdp=16),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(ConfigError, match="does not fit 8 devices: the sizes must multiply to 8"):
        make_mesh(mesh_config(sizes), jax.devices("cpu")[:1] * 8)


def test_a_batch_that_cannot_be_shared_out_is_refused():
    mesh = SimpleNamespace(shape=dict(data=2, fsdp=4, sequence=1, tensor=1))
    check_batch("data.batch_size", 16, mesh, accumulate=2)
    with pytest.raises(ConfigError, match=r"^eval\.batch_size=12 .* choose a multiple of 8$"):
        check_batch("eval.batch_size", 12, mesh)
    with pytest.raises(ConfigError, match="and 2 micro-batches; choose a multiple of 16"):
        check_batch("data.batch_size", 24, mesh, accumulate=2)


def test_a_parameter_without_axis_names_is_a_mistake():
    mesh = make_mesh(mesh_config(dict(data=-1)))
    with pytest.raises(ValueError, match="declares no axis names"):
        parameter_shardings({"kernel": jnp.zeros((2, 3))}, mesh)


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps(measure()))
