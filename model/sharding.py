"""Logical axis names of parameters and activations, and the table that maps them to a mesh."""

import functools
import math

import jax
from jax import Array
from jax.sharding import PartitionSpec

MESH_AXES = ("data", "fsdp", "sequence", "tensor")

# Logical axis -> the mesh axes it is split over; () means every device holds all of it.
RULES: dict[str, tuple[str, ...]] = {
    # activations
    "batch": ("data", "fsdp"),
    "length": ("sequence",),
    "hidden": (),
    # Columns of the residual stream, between sublayers. With its tokens split instead (Megatron's
    # sequence parallelism), the TPU compiler sends more: see docs/performance.md.
    "residual": ("tensor",),
    # parameters
    "width": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_size": (),
    "feed_forward": ("tensor",),
    # The input of a sublayer is the same on all devices of `tensor`, so each device can apply its
    # own experts to all of its tokens, and one sum over `tensor`, which a dense feed-forward layer
    # needs as well, adds up their outputs.
    "expert": ("tensor",),
    "expert_feed_forward": (),  # columns of one expert
    "router": (),  # scores of experts
    "mixed": (),  # columns of a token mixer, whose steps need all of them
    "vocab": ("tensor",),
    "positions": (),
    "buckets": (),
    "patch": (),
    "pooled": (),
    "classes": (),
    "layers": (),
}


def mesh_axes(names: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """Returns the mesh axes of logical axes; raises if two of them share a mesh axis."""
    entries = [RULES[name] if name else () for name in names]
    used = [axis for entry in entries for axis in entry]
    if len(used) != len(set(used)):
        raise ValueError(f"the axes {names} would share a mesh axis: {entries}")
    return entries


def partition_spec(names: tuple[str | None, ...]) -> PartitionSpec:
    """Returns the PartitionSpec of logical axes."""
    return PartitionSpec(*(axes or None for axes in mesh_axes(names)))


def platform() -> str:
    """Returns the platform that the traced code is compiled for: cpu, gpu or tpu.

    This is the platform of the mesh, which may be on another machine (plan.py). Without a mesh, it
    is jax's default.
    """
    return mesh_platform() or jax.default_backend()


def mesh_platform() -> str | None:
    """Returns the platform of the mesh; None without a mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else device.platform


def is_sharded() -> bool:
    """Whether the traced code runs on a mesh of more than one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


def dividing_axes(name: str, size: int) -> tuple[str, ...]:
    """Returns the mesh axes of a logical axis; () if they do not divide its size."""
    axes = RULES[name]
    return () if size % devices_along(axes) else axes


def devices_along(axes: tuple[str, ...]) -> int:
    """Returns the number of parts into which mesh axes split an array."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in axes)


def constrain(x: Array, *names: str | None) -> Array:
    """Constrains the sharding of an activation by its logical axes; does nothing without a mesh.

    An axis that the mesh does not divide, such as a ViT's 197 tokens, is not sharded.
    """
    if not is_sharded():
        return x
    spec = [
        axes if axes and size % devices_along(axes) == 0 else None
        for size, axes in zip(x.shape, mesh_axes(names), strict=True)
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def split_residual(x_btd: Array) -> Array:
    """Constrains the residual stream, or what is added to it, (B, T, D), to its own sharding.

    The devices of `tensor` share its columns: each saves, normalises and adds only its part. The
    output of a sublayer is a sum over these devices, of which each then needs only a part, too.
    """
    return _reshard(x_btd, SPLIT, GATHERED) if _splits(x_btd) else constrain(x_btd, *GATHERED)


def gather_residual(x_btd: Array) -> Array:
    """The reverse of `split_residual`, for the input of a sublayer, which needs all columns."""
    return _reshard(x_btd, GATHERED, SPLIT) if _splits(x_btd) else x_btd


SPLIT, GATHERED = ("batch", "length", "residual"), ("batch", "length", "hidden")


def _splits(x_btd: Array) -> bool:
    # A single token, as in decoding, has so little to share that more collectives cost more.
    if not is_sharded() or x_btd.shape[1] == 1:
        return False
    # With one row on each device of data 2 x fsdp 2 x tensor 2, XLA (of jax 0.10.2) confused rows:
    # tests/training/test_mesh.py has such a case, an expert model in micro-batches. So nothing is
    # split where two more axes are used.
    if sum(devices_along((axis,)) > 1 for axis in MESH_AXES if axis != "tensor") > 1:
        return False
    return devices_along(dividing_axes("residual", x_btd.shape[2])) > 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _reshard(x: Array, to: tuple[str, ...], back: tuple[str, ...]) -> Array:
    """Constrains x to `to`, and its gradient to `back`.

    The gradient of a plain constraint is the same constraint. For an array that is gathered, it
    would be the whole sum on every device, and not a part of it on each.
    """
    return constrain(x, *to)


def _reshard_forward(x, to, back):
    return constrain(x, *to), None


def _reshard_backward(to, back, _, gradient):
    return (constrain(gradient, *back),)


_reshard.defvjp(_reshard_forward, _reshard_backward)
