"""Devices as a mesh, and arrays on it."""

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

HOST = "pinned_host"  # jax's name for memory of the host that a device reads and writes by itself


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a config over all devices, the axis of size -1 taking what the others leave."""
    devices = jax.devices() if devices is None else devices
    count, sizes = len(devices), dataclasses.asdict(config)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if count % fixed or (-1 not in sizes.values() and fixed != count):
        asked = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
        raise ConfigError(
            f"{asked} does not fit {count} devices: the sizes must multiply to {count}; "
            "one of them may be -1 for the rest"
        )
    shape = [sizes[axis] if sizes[axis] != -1 else count // fixed for axis in MESH_AXES]
    # Explicit axes, jax's default, would ask every operation for its output's sharding.
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, partition_spec(("batch",)))


def check_batch(key: str, rows: int, mesh: Mesh, accumulate: int = 1) -> None:
    """Refuses a batch that the mesh cannot share out evenly."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"] * accumulate
    if rows % shares:
        micro = f" and {accumulate} micro-batches" if accumulate > 1 else ""
        raise ConfigError(
            f"{key}={rows} cannot be split over mesh.data={mesh.shape['data']} x "
            f"mesh.fsdp={mesh.shape['fsdp']}{micro}; choose a multiple of {shares}"
        )


def check_offload(config: OptimizerConfig, mesh: Mesh) -> None:
    """Refuses to keep the optimizer's state where these devices have no such place."""
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
    """This process's rows as its part of a global array."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }


def fetch(arrays):
    """A tree of arrays that may be spread over processes, whole on every one of them."""
    return process_allgather(arrays, tiled=True)


def rows_of_batch(batch_size: int, mesh: Mesh) -> np.ndarray:
    """Which row of a batch each row of its global arrays is.

    Processes put their shares where their devices are, which need not be in the processes' order.
    """
    shares = np.arange(batch_size, dtype=np.int32).reshape(jax.process_count(), -1)
    return fetch(put_batch({"row": shares[jax.process_index()]}, mesh)["row"])


def parameter_shardings(boxed_params, mesh: Mesh):
    """Where every parameter lives, from the axis names it was declared with."""

    def sharding(boxed):
        if not isinstance(boxed, nn.LogicallyPartitioned):
            raise ValueError(f"a parameter of shape {boxed.shape} declares no axis names")
        entries = zip(boxed.value.shape, mesh_axes(boxed.names), strict=True)
        # An axis that the mesh does not divide stays whole on every device.
        spec = [axes or None if _divides(mesh, axes, size) else None for size, axes in entries]
        return NamedSharding(mesh, PartitionSpec(*spec))

    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(sharding, boxed_params, is_leaf=is_box)


def _divides(mesh: Mesh, axes: tuple[str, ...], size: int) -> bool:
    return size % math.prod(mesh.shape[axis] for axis in axes) == 0


def offloaded(shapes, shardings):
    """The same places in the host's memory; numbers that are counted with stay on the devices."""
    return jax.tree.map(
        lambda leaf, at: at.with_memory_kind(HOST) if leaf.ndim else at, shapes, shardings
    )


def on_devices(tree, shardings):
    """Arrays of a traced program, brought to their devices from wherever their shardings are."""
    return jax.tree.map(
        lambda leaf, at: jax.device_put(leaf, at.with_memory_kind("device")), tree, shardings
    )


def optimizer_shardings(optimizer, opt_state, params, params_shardings, mesh: Mesh):
    """Moments live where their parameter lives; everything else is on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def is_another_ones(leaf):  # Muon and Adam each see a hole where the other has a parameter
        return isinstance(leaf, optax.MaskedNode)

    def sharding(leaf, param, param_sharding):
        if is_another_ones(leaf):
            return leaf
        # Adafactor's factors have other shapes than the parameter they belong to.
        return param_sharding if leaf.shape == param.shape else everywhere

    return optax.tree.map_params(
        optimizer,
        sharding,
        opt_state,
        params,
        params_shardings,
        transform_non_params=lambda _: everywhere,
        is_leaf=is_another_ones,
    )
