"""The device mesh, and the placement of arrays on it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from experiment.schema import ConfigError
from model.sharding import MESH_AXES, mesh_axes, partition_spec
from training.config import MeshConfig, OptimizerConfig

HOST = "pinned_host"  # jax's name for host memory that a device reads and writes directly


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh of a config over all devices. An axis of -1 takes those that are left."""
    devices = jax.devices() if devices is None else devices
    count, sizes = len(devices), dataclasses.asdict(config)
    given = math.prod(size for size in sizes.values() if size != -1)
    if count % given or (-1 not in sizes.values() and given != count):
        asked = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
        raise ConfigError(
            f"{asked} does not fit {count} devices: the sizes must multiply to {count}; "
            "one of them may be -1 for the rest"
        )
    shape = [sizes[axis] if sizes[axis] != -1 else count // given for axis in MESH_AXES]
    # Explicit axes, jax's default, would need a sharding for the output of every operation.
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of batches: by rows."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def check_batch(key: str, rows: int, mesh: Mesh, accumulate: int = 1) -> None:
    """Refuses a batch size that the mesh cannot divide evenly."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"] * accumulate
    if rows % shares:
        micro = f" and {accumulate} micro-batches" if accumulate > 1 else ""
        raise ConfigError(
            f"{key}={rows} cannot be split over mesh.data={mesh.shape['data']} x "
            f"mesh.fsdp={mesh.shape['fsdp']}{micro}; choose a multiple of {shares}"
        )


def check_offload(config: OptimizerConfig, mesh: Mesh) -> None:
    """Refuses optimizer.offload where devices have no separate host memory."""
    device = mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    if config.offload and (device.platform == "cpu" or HOST not in kinds):
        reason = (
            "a CPU's memory is the host's already"
            if device.platform == "cpu"
            else f"{device.device_kind} cannot read the host's memory"
        )
        raise ConfigError(f"optimizer.offload=True saves nothing here: {reason}; set it to False")


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns global arrays on the mesh, made from each process's rows."""
    return {name: put_local(array, batch_sharding(mesh)) for name, array in batch.items()}


def put_local(
    array: np.ndarray, sharding: NamedSharding, shape: tuple[int, ...] | None = None
) -> jax.Array:
    """Returns a global array from each process's part. jax infers its shape if that is None."""
    # An explicit transfer, but with several processes jax takes it for an implicit one.
    with jax.transfer_guard_host_to_device("allow"):
        return jax.make_array_from_process_local_data(sharding, array, shape)


def fetch(arrays):
    """Returns a tree of global arrays as NumPy arrays, in full on every process."""
    return process_allgather(arrays, tiled=True)


def rows_of_batch(batch_size: int, mesh: Mesh) -> np.ndarray:
    """Returns, for each row of a global array, its row number in the batch.

    Rows are in the order of the mesh's devices, which need not be the order of processes.
    """
    shares = np.arange(batch_size, dtype=np.int32).reshape(jax.process_count(), -1)
    return fetch(put_batch({"row": shares[jax.process_index()]}, mesh)["row"])


def parameter_shardings(boxed_params, mesh: Mesh):
    """Returns the sharding of every parameter, from the axis names it was declared with."""

    def sharding(boxed):
        if not isinstance(boxed, nn.LogicallyPartitioned):
            raise ValueError(f"a parameter of shape {boxed.shape} declares no axis names")
        entries = zip(boxed.value.shape, mesh_axes(boxed.names), strict=True)
        # An axis that the mesh does not divide is replicated.
        spec = [axes or None if _divides(mesh, axes, size) else None for size, axes in entries]
        return NamedSharding(mesh, PartitionSpec(*spec))

    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(sharding, boxed_params, is_leaf=is_box)


def _divides(mesh: Mesh, axes: tuple[str, ...], size: int) -> bool:
    return size % math.prod(mesh.shape[axis] for axis in axes) == 0


def offloaded(shapes, shardings):
    """Returns the same shardings in host memory, except for scalars (counters)."""
    return jax.tree.map(
        lambda leaf, at: at.with_memory_kind(HOST) if leaf.ndim else at, shapes, shardings
    )


def on_devices(tree, shardings):
    """Moves arrays to device memory, inside jit."""
    return jax.tree.map(
        lambda leaf, at: jax.device_put(leaf, at.with_memory_kind("device")), tree, shardings
    )


def optimizer_shardings(optimizer, opt_state, params, params_shardings, mesh: Mesh):
    """Returns an optimizer state's shardings: moments like their parameter, others replicated."""
    replicated = NamedSharding(mesh, PartitionSpec())

    def is_masked(leaf):  # Muon and Adam each mask the parameters of the other
        return isinstance(leaf, optax.MaskedNode)

    def sharding(leaf, param, param_sharding):
        if is_masked(leaf):
            return leaf
        # Adafactor's factors have other shapes than their parameter.
        return param_sharding if leaf.shape == param.shape else replicated

    return optax.tree.map_params(
        optimizer,
        sharding,
        opt_state,
        params,
        params_shardings,
        transform_non_params=lambda _: replicated,
        is_leaf=is_masked,
    )
