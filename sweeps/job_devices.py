"""How the jobs of a machine share its cores and GPUs."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment.schema import ConfigError

GPUS = "CUDA_VISIBLE_DEVICES"
# Variables that would make a cell a part of a job of several processes. Each cell is one process.
OF_OTHER_JOBS = (
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class JobDevices:
    """What one job may use."""

    cpus: frozenset[int] | None = None  # None: all
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def split_devices(
    jobs: int, environment: Mapping[str, str], cpus: Sequence[int], devices: Path = Path("/dev")
) -> list[JobDevices]:
    """The cores and GPUs of each job; refuses more jobs than there are.

    A single job may use everything. GPUs are those of CUDA_VISIBLE_DEVICES, or all. `devices` is
    the directory where drivers show theirs.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs} must be at least 1")
    if jobs == 1:
        return [JobDevices()]
    platforms = environment.get("JAX_PLATFORMS", "")
    gpus = gpu_names(environment, devices)
    if gpus:
        if jobs > len(gpus):
            raise ConfigError(
                f"--jobs={jobs} needs a GPU for each job, and there are {len(gpus)}; choose at "
                f"most {len(gpus)}, or set JAX_PLATFORMS=cpu"
            )
        shares = [{GPUS: ",".join(share)} for share in _shares(gpus, jobs)]
    elif platforms in ("", "tpu") and _has_tpu(devices):
        raise ConfigError(
            f"--jobs={jobs}: a TPU host runs one job at a time; leave --jobs out, and start the "
            "same command on several hosts that share the workdir"
        )
    else:
        shares = [{} for _ in range(jobs)]
    if jobs > len(cpus):
        raise ConfigError(
            f"--jobs={jobs} needs a core for each job, and this process may use {len(cpus)}; "
            f"choose at most {len(cpus)}"
        )
    cores = _shares(sorted(cpus), jobs)
    return [
        JobDevices(frozenset(own), variables) for own, variables in zip(cores, shares, strict=True)
    ]


def _shares(items: Sequence, count: int) -> list[list]:
    """Consecutive parts whose sizes differ by at most one."""
    bounds = [number * len(items) // count for number in range(count + 1)]
    return [list(items[a:b]) for a, b in itertools.pairwise(bounds)]


def gpu_names(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that a run would use, as CUDA_VISIBLE_DEVICES names them."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu", "rocm"} & set(platforms.split(",")):
        return []
    if GPUS in environment:
        names = [name.strip() for name in environment[GPUS].split(",")]
        return [name for name in names if name and name != "-1"]
    numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*"))
    return sorted((each for each in numbers if each.isdecimal()), key=int)


def _has_tpu(devices: Path) -> bool:
    return any(devices.glob("accel[0-9]*")) or any((devices / "vfio").glob("[0-9]*"))


def environment_of(devices: JobDevices, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job."""
    remaining = {name: value for name, value in environment.items() if name not in OF_OTHER_JOBS}
    return {**remaining, **devices.environment}


def own_cpus() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(process: int, devices: JobDevices) -> None:
    """Gives a process its cores. Call it before the process has threads; they inherit the cores.

    Where the system cannot do that, as on macOS, jobs share all cores.
    """
    if devices.cpus is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(process, devices.cpus)
