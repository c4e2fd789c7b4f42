"""Names for the axes of parameters and activations, and the one table that puts them on a mesh."""

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
    # parameters
    "width": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_size": (),
    "feed_forward": ("tensor",),
    "vocab": ("tensor",),
    "positions": (),
    "buckets": (),
    "patch": (),
    "pooled": (),
    "classes": (),
    "layers": (),
}


def mesh_axes(names: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """The mesh axes for logical axis names; refuses to split two axes over one mesh axis."""
    entries = [RULES[name] if name else () for name in names]
    used = [axis for entry in entries for axis in entry]
    if len(used) != len(set(used)):
        raise ValueError(f"the axes {names} would share a mesh axis: {entries}")
    return entries


def partition_spec(names: tuple[str | None, ...]) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in mesh_axes(names)))


def platform() -> str:
    """What the code being traced is compiled for: cpu, gpu or tpu.

    A mesh knows, also one of devices that are not here (plan.py); without one it is jax's own.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def is_sharded() -> bool:
    """Whether the code being traced runs on a mesh of more than one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


def constrain(x: Array, *names: str | None) -> Array:
    """Tells the compiler how an activation is split; says nothing where there is no mesh.

    An axis that the mesh does not divide, such as a ViT's 197 tokens, stays whole.
    """
    if not is_sharded():
        return x
    shape = jax.sharding.get_abstract_mesh().shape
    spec = [
        axes if axes and size % math.prod(shape[axis] for axis in axes) == 0 else None
        for size, axes in zip(x.shape, mesh_axes(names), strict=True)
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))
