"""Jobs on a mesh of eight devices, and on one: python -m tests.training.on_meshes MEASURE

The number of devices is fixed when jax starts, so eight need a process of their own, which prints
its measurements as JSON. test_mesh.py checks them.
"""

import dataclasses
import json
import math
import re
import sys

import jax
import numpy as np
import optax

from model.mixers import MIXERS
from tests.tiny import QUICKLY
from tests.training.examples import make_batch, make_job
from training.config import MeshConfig
from training.mesh import make_mesh, put_batch
from training.train_state import NO_FROZEN_INPUTS

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
HELD_ON = ["fsdp 8", "fsdp 4 x tensor 2", "data 8"]
# Eight divides whatever it should split. No activation is as large as a matrix.
EVEN = dict(vocab_size=56, width=16, heads=8, head_size=6, feed_forward=40)
DROPPED = dict(dropout_embedding=0.1, dropout_residual=0.1, dropout_feed_forward=0.1)
# Each with something else that a mesh must not change: objective, model, optimizer.
FAMILIES = {
    "encoder-decoder with dropout": ("seq2seq", dict(**DROPPED), {}),
    "decoder of packed rows, heads sharing keys": (
        "causal_lm",
        dict(
            position="rope",
            kv_heads=4,
            remat="dots",
            qk_norm="full",
            norm_placement="sandwich",
            score_cap=2.0,
            attention_sinks=True,
            rope_fraction=0.7,
            logit_cap=5.0,
        ),
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
PRUNED = dict(method="magnitude", share=0.6, scope="global", end_step=2, every=1)
ABLATED = dict(residual=False, share_qk=True, feed_forward_kind="linear", bias=False)
ON_THREE_AXES = MESHES["data 2 x fsdp 2 x tensor 2"]
SIZES = dict(vocab_size=18, width=16, heads=4, feed_forward=24)
# Split kernels, and rows split along tokens, which a recurrence and a window must put together.
MIXED_ON = ["fsdp 8", "data 2 x fsdp 2 x tensor 2", "fsdp 2 x sequence 2 x tensor 2"]

# Losses of routers that are large enough to be seen. Three experts are whole on every device.
ROUTED = dict(
    bias=False, experts=8, activation="swiglu", load_balance_loss=0.5, router_z_loss=0.1
)  # fmt: skip
EXPERTS = {
    "tensor 8": dict(ROUTED, shared_experts=1),
    "fsdp 2 x sequence 2 x tensor 2": dict(ROUTED, router_scores="sigmoid", remat="dots"),
    "data 2 x fsdp 2 x tensor 2": dict(ROUTED, expert_capacity=0.8),
    "sequence 8": dict(ROUTED, expert_capacity=0.8),
    "fsdp 4 x tensor 2": dict(
        ROUTED, experts=3, bias=True, activation="swiglu_clamped", router_bias=True
    ),
}


def mesh_config(sizes):
    return MeshConfig(**dict(data=1, fsdp=1, sequence=1, tensor=1) | sizes)


def two_steps(objective, mesh, optimizer, finetune=None, prune=None, **model):
    """The losses of two steps and the parameters after them."""
    batch, model = make_batch(objective), dict(vocab_size=18) | model
    with jax.set_mesh(mesh):
        job = make_job(
            objective, batch, mesh=mesh, model=model, optimizer=optimizer, finetune=finetune,
            prune=prune,
        )  # fmt: skip
        given = job.start(), put_batch(batch, mesh), job.frozen_inputs()
        job = dataclasses.replace(job, step=job.step.lower(*given).compile(QUICKLY))
        state, losses = job.run(*given[:2], steps=2, frozen_inputs=given[2])
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
    return float(np.max(jax.tree.leaves(far)))  # NaN if anything is, which `max` may not see


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
    others than one device does (see tests/model/attention/test_ring.py).
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
        step = job.step.lower(state, batch, NO_FROZEN_INPUTS).compile(QUICKLY)
        losses = []
        for _ in range(2):
            state, metrics = step(state, batch, NO_FROZEN_INPUTS)
            losses.append(np.asarray(metrics["train/loss"]))
    observed = {
        "share": bytes_on_first_device(state.params) / bytes_of(state.params),
        "gathered": sorted(gathered(step.as_text())),
        "collectives": sorted(set(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", step.as_text()))),
        "matrices": sorted(set(map(tuple, whole_matrices(state.params, mesh)))),
    }
    return losses, jax.device_get(optax.tree.get(state.opt_state, "trace")), observed


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


def measure(what):
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    one_device = make_mesh(mesh_config({}), jax.devices()[:1])
    return measure_family(what, one_device) if what in FAMILIES else MEASUREMENTS[what](one_device)


def measure_family(family, one_device):
    # One batch here, whatever is done on a mesh.
    losses, gradients, _ = gradients_of(family, one_device, accumulate=1)
    found = {}
    for mesh in ON_ALL:
        ours, mesh_gradients, observed = gradients_of(family, make_mesh(mesh_config(MESHES[mesh])))
        far = {"loss": apart(ours, losses), "gradients": apart(mesh_gradients, gradients)}
        found[mesh] = dict(observed, deviation=far)
    return found


def measure_other_jobs(one_device):
    alone = two_steps("classify_images", one_device, ADAMW)
    found = {
        "a ViT of ten tokens": deviation(alone, "classify_images", MESHES["sequence 8"], ADAMW)
    }
    for name, optimizer in OTHER_OPTIMIZERS.items():
        alone = two_steps("causal_lm", one_device, optimizer, **NO_BIAS)
        found[name] = deviation(alone, "causal_lm", ON_THREE_AXES, optimizer, **NO_BIAS)
    alone = two_steps("causal_lm", one_device, ADAMW, ADAPTERS)
    found["adapters"] = deviation(alone, "causal_lm", ON_THREE_AXES, ADAMW, finetune=ADAPTERS)
    alone = two_steps("causal_lm", one_device, ADAMW, matmul="int8")
    found["int8"] = deviation(alone, "causal_lm", ON_THREE_AXES, ADAMW, matmul="int8")
    alone = two_steps("causal_lm", one_device, ADAMW, prune=PRUNED, **ABLATED)
    found["pruned"] = deviation(alone, "causal_lm", ON_THREE_AXES, ADAMW, prune=PRUNED, **ABLATED)
    return found


def measure_what_is_held(_):
    found = {f"adamw on {mesh}": held_by_a_device("adamw", MESHES[mesh]) for mesh in HELD_ON}
    found["muon on fsdp 8"] = held_by_a_device("muon", MESHES["fsdp 8"])
    # Adafactor factors matrices from 128 x 128 on.
    found["adafactor on fsdp 8"] = held_by_a_device(
        "adafactor", MESHES["fsdp 8"], width=128, feed_forward=128
    )
    found["shapes"] = {
        mesh: list(make_mesh(mesh_config(s)).shape.values()) for mesh, s in MESHES.items()
    }
    return found


def measure_mixers(one_device):
    """Recurrence over rows that are split, and kernels that are."""
    found = {}
    for name in MIXERS:
        model = dict(mixer=name, bridge="context_vector", position="none")
        alone = two_steps("seq2seq", one_device, ADAMW, **model)
        for mesh in MIXED_ON:
            found[f"{name} on {mesh}"] = deviation(alone, "seq2seq", MESHES[mesh], ADAMW, **model)
    return found


def measure_experts(one_device):
    """Experts on the devices of `tensor`, in two micro-batches if there are rows enough."""
    found = {}
    for mesh, model in EXPERTS.items():
        alone = two_steps("causal_lm", one_device, ADAMW, **model)
        parts = ADAMW | dict(accumulate=1 if "fsdp 4" in mesh else 2)
        found[mesh] = deviation(alone, "causal_lm", MESHES[mesh], parts, **model)
    held = held_by_a_device("adamw", MESHES["fsdp 4 x tensor 2"], **ROUTED)
    found["parts"] = {
        name: shape for name, shape in held["parts"].items() if "/feed_forward/" in name
    }
    return found


MEASUREMENTS = {
    "other jobs": measure_other_jobs,
    "what is held": measure_what_is_held,
    "mixers": measure_mixers,
    "experts": measure_experts,
}


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps(measure(sys.argv[1])))
