"""A mesh of devices computes what one device computes, and each holds no more than its share.

The number of devices is fixed when jax starts, so eight of them need a process of their own: this
file run as a script, which prints what it measured as JSON. The tests only judge it.
"""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from schema import ConfigError
from tests.devices import measured_on
from tests.tiny import QUICKLY
from tests.training.examples import make_batch, make_job
from training.config import MeshConfig
from training.mesh import check_batch, make_mesh, parameter_shardings, put_batch
from training.step import NOTHING_FIXED

DEVICES = 8
MESHES = {
    "data 8": dict(data=8),
    "fsdp 8": dict(fsdp=-1),
    "tensor 8": dict(tensor=8),
    "sequence 8": dict(sequence=8),
    "data 2 x fsdp 2 x tensor 2": dict(data=2, fsdp=2, tensor=2),
    "fsdp 2 x sequence 2 x tensor 2": dict(fsdp=-1, sequence=2, tensor=2),
    "fsdp 4 x tensor 2": dict(fsdp=4, tensor=2),
}
ON_ALL = [mesh for mesh in MESHES if mesh != "fsdp 4 x tensor 2"]
# Eight divides whatever it should split. No activation is as large as a matrix.
EVEN = dict(vocab_size=56, width=16, heads=8, head_size=6, feed_forward=40)
DROPPED = dict(dropout_embedding=0.1, dropout_residual=0.1, dropout_feed_forward=0.1)
# Each with something else that a mesh must not change: objective, model, optimizer.
FAMILIES = {
    "encoder-decoder with dropout": ("seq2seq", dict(**DROPPED), {}),
    "decoder of packed rows, heads sharing keys": (
        "causal_lm",
        dict(position="rope", kv_heads=4, remat="dots"),
        {},
    ),
    "encoder with remat and two micro-batches": (
        "masked_lm",
        dict(remat="full"),
        dict(accumulate=2),
    ),
    "ViT with dropout of attention": (
        "classify_images",
        dict(dropout_attention=0.1, image_size=8, class_token=False, pooling="mean", **DROPPED),
        {},
    ),
}
# Plain descent whose momentum is the sum of gradients, to be compared as they are.
DESCENT = dict(name="sgd", beta1=0.5, learning_rate=0.1)
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
        given = job.start(), put_batch(batch, mesh), job.fixed()
        job = dataclasses.replace(job, step=job.step.lower(*given).compile(QUICKLY))
        state, losses = job.run(*given[:2], steps=2, fixed=given[2])
    for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(job.abstract), strict=True):
        assert leaf.sharding == wanted.sharding, "a step leaves everything in its place"
    return [np.asarray(loss) for loss in losses], jax.device_get(state.params)


def apart(found, expected):
    """The greatest distance, relative to the largest value of each array.

    Of one that is small beside others it is relative to a hundredth of theirs: a bias of keys
    changes no softmax, and its gradient is but rounding errors.
    """
    size = lambda x: float(np.abs(x).max())  # noqa: E731
    least = 1e-2 * max(map(size, jax.tree.leaves(expected)))
    far = jax.tree.map(lambda a, b: size(a - b) / max(size(b), least), found, expected)
    return max(jax.tree.leaves(far))


def deviation(alone, objective, sizes, optimizer, **model):
    """How far the mesh is from one device."""
    expected_losses, expected = alone
    losses, params = two_steps(objective, make_mesh(mesh_config(sizes)), optimizer, **model)
    return {"loss": apart(losses, expected_losses), "params": apart(params, expected)}


def batch_for(objective, length=16):
    """Columns that eight divides; and in a decoder's rows, two texts."""
    rows = 16
    batch = make_batch(objective, rows=rows, length=length)
    if objective == "classify_images":
        batch["images"] = np.random.default_rng(0).normal(size=(rows, 8, 8, 2)).astype(np.float32)
    for name in batch:
        if name.startswith("encoder_"):
            batch[name] = np.pad(batch[name], ((0, 0), (0, -batch[name].shape[1] % 8)))
    if objective == "causal_lm":
        columns, ends = np.arange(length), np.arange(rows)[:, None] % (length - 4) + 2
        is_second = columns >= ends
        held = columns < length - 2
        batch["segment_ids"] = ((1 + is_second) * held).astype(np.int32)
        batch["positions"] = ((columns - ends * is_second) * held).astype(np.int32)
    return batch


def gradients_of(family, mesh, **changes):
    """The losses of two steps, a sum of their gradients, and what the compiler made of a step.

    Where rows are split, keys travel, unless weights of attention are dropped: the ring drops
    others than one device does (see tests/model/kernels/test_ring.py).
    """
    objective, model, optimizer = FAMILIES[family]
    if mesh.shape["sequence"] > 1 and "dropout_attention" not in model:
        model = model | dict(attention="flash")
    batch = batch_for(objective)
    with jax.set_mesh(mesh):
        job = make_job(
            objective, batch, mesh=mesh, model=EVEN | model,
            optimizer=DESCENT | optimizer | changes,
        )  # fmt: skip
        batch, state = put_batch(batch, mesh), job.start()
        step = job.step.lower(state, batch, NOTHING_FIXED).compile(QUICKLY)
        losses = []
        for _ in range(2):
            state, metrics = step(state, batch, NOTHING_FIXED)
            losses.append(np.asarray(metrics["train/loss"]))
    seen = {
        "share": bytes_on_first_device(state.params) / bytes_of(state.params),
        "gathered": sorted(gathered(step.as_text())),
        "collectives": sorted(set(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", step.as_text()))),
        "matrices": sorted(set(map(tuple, whole_matrices(state.params, mesh)))),
    }
    return losses, jax.device_get(optax.tree.get(state.opt_state, "trace")), seen


COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def gathered(text):
    """The shapes of numbers that are gathered; vectors, which are small, and integers are not."""
    for shape in re.findall(r"= f32\[([\d,]*)\]\S* all-gather\(", text):
        sizes = [int(size) for size in shape.split(",") if size != "1"]
        if len(sizes) > 1:
            yield tuple(sizes)


def whole_matrices(params, mesh):
    """Of every parameter, one layer's matrix as a device may have it: whole but for `tensor`.

    Of what is not split, all layers: devices hold it anyway, and may put it together from parts.
    """
    for path, leaf in jax.tree.leaves_with_path(params):
        names = [entry.key for entry in path]
        shape, spec = leaf.shape, (*leaf.sharding.spec, *[None] * leaf.ndim)[: leaf.ndim]
        sizes = [
            size // (mesh.shape["tensor"] if "tensor" in (axes or ()) else 1)
            for size, axes in zip(shape, spec, strict=True)
        ]
        if leaf.sharding.is_fully_replicated:
            yield tuple(size for size in sizes if size > 1)
        if "blocks" in names:
            sizes = sizes[1:]
        for cut in range(1, len(sizes)):
            # A matrix, in one of its two orders.
            matrix = math.prod(sizes[:cut]), math.prod(sizes[cut:])
            yield from (matrix, matrix[::-1])


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
    found = {"deviation": {}, "held": {}, "seen": {}}
    for family in FAMILIES:
        # One batch here, whatever is done on a mesh.
        losses, gradients, _ = gradients_of(family, one_device, accumulate=1)
        for mesh in ON_ALL:
            ours, slopes, seen = gradients_of(family, make_mesh(mesh_config(MESHES[mesh])))
            name = f"{family} on {mesh}"
            found["seen"][name] = seen
            found["deviation"][name] = {
                "loss": apart(ours, losses), "gradients": apart(slopes, gradients)
            }  # fmt: skip
    alone = two_steps("classify_images", one_device, ADAMW)
    found["deviation"]["a ViT of ten tokens"] = deviation(
        alone, "classify_images", MESHES["sequence 8"], ADAMW
    )
    for name, optimizer in OTHER_OPTIMIZERS.items():
        alone = two_steps("causal_lm", one_device, optimizer, **NO_BIAS)
        found["deviation"][f"decoder with {name}"] = deviation(
            alone, "causal_lm", ON_THREE_AXES, optimizer, **NO_BIAS
        )
    alone = two_steps("causal_lm", one_device, ADAMW, ADAPTERS)
    found["deviation"]["decoder with adapters"] = deviation(
        alone, "causal_lm", ON_THREE_AXES, ADAMW, finetune=ADAPTERS
    )
    alone = two_steps("causal_lm", one_device, ADAMW, matmul="int8")
    found["deviation"]["decoder in int8"] = deviation(
        alone, "causal_lm", ON_THREE_AXES, ADAMW, matmul="int8"
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


def test_eight_devices():
    """One test, lest processes that share out the tests each measure everything."""
    found, log = measured_on(DEVICES, "tests.training.test_mesh")
    # So it warns where it finds no way from one sharding to another but by all of an array.
    assert "Involuntary full rematerialization" not in log
    check_that_a_mesh_computes_what_one_device_computes(found["deviation"])
    for name, seen in found["seen"].items():
        check_what_is_communicated(name, seen)
        check_share(name, seen["share"])
    for mesh in PARTS:
        check_parts(mesh, found["held"][f"adamw on {mesh}"])
    for optimizer in ("adamw", "muon", "adafactor"):
        check_shares(found["held"][f"{optimizer} on fsdp 8"])
    # The axis of -1 takes the rest.
    assert found["shapes"]["fsdp 8"] == [1, 8, 1, 1]
    assert found["shapes"]["fsdp 2 x sequence 2 x tensor 2"] == [1, 2, 2, 2]


def check_that_a_mesh_computes_what_one_device_computes(deviation):
    assert len(deviation) == len(FAMILIES) * len(ON_ALL) + 3 + len(OTHER_OPTIMIZERS)
    far = {name: apart for name, apart in deviation.items() if max(apart.values()) > 1e-5}
    assert far == {}


def check_what_is_communicated(name, seen):
    """Gradients are summed everywhere; what else there is, each axis has its reason for."""
    expected = {"all-reduce"}
    if "fsdp" in name:
        expected.add("all-gather")  # of matrices, before they are used
    if "sequence" in name:
        # Keys travel, or plain attention gathers them.
        expected.add("all-gather" if "ViT" in name else "collective-permute")
    # On several axes, parts of a matrix may change places on their way to where they are used.
    allowed = expected | ({"collective-permute"} if "2 x" in name else set())
    if "sharing keys on tensor 8" in name:
        allowed.add("all-gather")  # of four heads of keys, which eight devices do not split
    assert expected <= set(seen["collectives"]) <= allowed, name
    if "sequence" in name and "ViT" in name:
        return
    matrices, others = map(tuple, seen["matrices"]), map(tuple, seen["gathered"])
    assert set(others) <= set(matrices), f"{name}: more is gathered than a layer's matrices"


def check_share(name, share):
    """What of the parameters a device has; vectors are whole on every one."""
    if "2 x" in name:
        assert 1 / 4 < share < 1 / 2.5, name
    elif "fsdp" in name:
        assert 1 / 8 < share < 1 / 4, name
    elif "tensor" in name:  # so are tables of positions and token types
        assert 1 / 8 < share < 1 / 3, name
    else:
        assert share == 1, name


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
