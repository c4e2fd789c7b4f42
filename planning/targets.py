"""Devices to compile for, present or not: v5e:4x4, v5p:4x4x4, a100:8, h100:16, cpu:8."""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from experiment.schema import ConfigError, did_you_mean
from planning.roofline import NODE
from training.chips import Chip, chip, peak_flops

# jax's device kinds by product name. The two cores of a v4 are one jax device.
TPUS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
GPUS = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "a100-80gb": "NVIDIA A100-SXM4-80GB",
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "h100": "NVIDIA H100 80GB HBM3",
    "h100-80gb": "NVIDIA H100 80GB HBM3",
}
SHAPES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}  # axes of the torus


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices of a --device flag."""

    name: str  # of the flag
    kind: str  # jax's device kind
    devices: Sequence[jax.Device]

    @property
    def chip(self) -> Chip | None:
        return chip(self.kind)

    @property
    def threads(self) -> float:
        """Threads of XLA's CPU pool per device; 0 on other platforms and with one core."""
        if self.kind != "cpu":
            return 0
        pool = max(_cores(), len(self.devices))
        return pool / len(self.devices) if pool > 1 else 0

    @property
    def peak_flops(self) -> float | None:
        return peak_flops(self.kind)


def find(name: str) -> Target:
    """Returns the devices of that name. Call it before jax initialises a backend."""
    kind, _, size = name.partition(":")
    known = (*TPUS, *GPUS, "cpu")
    if kind not in known:
        raise ConfigError(
            f"--device={name} is not known.{did_you_mean(kind, known)} Known: "
            f"{', '.join(known)}, with a size after a colon: v5e:4x4, v5p:4x4x4, a100:8"
        )
    # Local accelerators are ignored, so a plan is the same on every machine.
    jax.config.update("jax_platforms", "cpu")
    if kind in TPUS:
        return Target(name, TPUS[kind], _tpus(name, kind, size))
    count = _count(name, size)
    if kind in GPUS:
        return Target(name, GPUS[kind], _gpus(name, GPUS[kind], count))
    return Target(name, "cpu", _cpus(count))


def _count(name: str, size: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", size):
        raise ConfigError(f"--device={name} needs a number of devices after a colon, as in a100:8")
    return int(size)


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpus(count: int) -> Sequence[jax.Device]:
    with contextlib.suppress(RuntimeError):  # already initialised, perhaps with enough devices
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"--device=cpu:{count} comes too late: jax has already started with {len(devices)}; "
            "plan in a new process"
        )
    return devices[:count]


def _tpus(name: str, kind: str, size: str) -> Sequence[jax.Device]:
    axes = SHAPES[kind]
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)" + f"{{{axes - 1}}}", size):
        example = "x".join(["4"] * axes)
        raise ConfigError(
            f"--device={name} needs a topology of {axes} axes after a colon: {kind}:{example}"
        )
    # Without these, libtpu looks for TPU metadata of this machine and logs errors.
    for key, value in dict(
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-8",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
        TPU_MIN_LOG_LEVEL="3",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several plans at once: no chip is used
    ).items():
        os.environ.setdefault(key, value)
    cores = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        found = topologies.get_topology_desc(name, "tpu", **cores)
    except RuntimeError as error:
        if "not installed" in str(error):
            raise _missing(name, "libtpu", "plan-tpu") from None
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device={name} is not a topology that libtpu knows: {reason}"
        ) from None
    assert len(found.devices) == math.prod(map(int, size.split("x")))
    return found.devices


def _gpus(name: str, kind: str, count: int) -> Sequence[jax.Device]:
    if count > NODE and count % NODE:
        raise ConfigError(
            f"--device={name} is not a multiple of {NODE}, the size of a node; choose "
            f"{count // NODE * NODE} or {(count // NODE + 1) * NODE}"
        )
    hosts, local = max(1, count // NODE), min(count, NODE)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides warnings about missing GPUs
    try:
        found = topologies.get_topology_desc(
            name, "cuda", topology=f"1x{hosts}x{local}", target_config=_target_config(kind)
        )
    except (NotImplementedError, RuntimeError) as error:
        if "topology not implemented" in str(error) or "nknown" in str(error):
            raise _missing(name, "the CUDA plugin of jax", "plan-cuda") from None
        raise
    return found.devices


def _missing(name: str, what: str, extra: str) -> ConfigError:
    return ConfigError(
        f"--device={name} needs {what} to compile for it; install it: pip install -e '.[{extra}]'"
    )


def _target_config(kind: str) -> str:
    """Describes a GPU for its compiler, as text of XLA's GpuTargetConfigProto.

    The numbers are from the CUDA C++ programming guide (compute capabilities 8.0 and 9.0) and from
    the data sheets.
    """
    is_hopper = "H100" in kind
    shared_kib = 228 if is_hopper else 164  # per multiprocessor; CUDA reserves 1 KiB per block
    facts = chip(kind)
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_block_optin": (shared_kib - 1) * 2**10,
        "shared_memory_per_core": shared_kib * 2**10,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "core_count": 132 if is_hopper else 108,
        "fpus_per_core": 128 if is_hopper else 64,
        "clock_rate_ghz": 1.98 if is_hopper else 1.41,
        "l2_cache_size": (50 if is_hopper else 40) * 2**20,
        "memory_bandwidth": int(facts.bandwidth),
        "device_memory_size": int(facts.memory),
    }
    lines = "\n".join(f"  {key}: {value}" for key, value in device.items())
    capability = f"cuda_compute_capability {{ major: {9 if is_hopper else 8} }}"
    return (
        f"gpu_device_info {{\n{lines}\n  {capability}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 }\n"
        f'device_description_str: "{kind}"\n'
    )
