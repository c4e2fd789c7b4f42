"""One job on several processes: how they find each other, and that they mean the same."""

import os
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from schema import ConfigError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join() -> None:
    """Connects with the other processes of the job, if there are any. Before jax does anything.

    They are told of each other by the three variables above, or jax finds them out by itself: under
    SLURM, and on the hosts of a TPU slice (Cloud TPU VMs, GKE).
    """
    if given := _from_environment():
        jax.distributed.initialize(**given)
    elif _is_slurm_step() or _is_tpu_host():
        jax.distributed.initialize()


def _from_environment() -> dict | None:
    if not os.environ.get(ADDRESS):
        return None
    numbers = {}
    for name in (COUNT, INDEX):
        value = os.environ.get(name, "")
        if not value.isdecimal():
            raise ConfigError(
                f"{ADDRESS} is set, so {name} must be a number, not {value!r}; set {ADDRESS} to "
                f"host:port of the first process, {COUNT} to how many there are, and {INDEX} to "
                "0, 1, ... in each"
            )
        numbers[name] = int(value)
    if numbers[INDEX] >= numbers[COUNT]:
        raise ConfigError(f"{INDEX}={numbers[INDEX]} must be below {COUNT}={numbers[COUNT]}")
    return dict(
        coordinator_address=os.environ[ADDRESS],
        num_processes=numbers[COUNT],
        process_id=numbers[INDEX],
    )


def _is_slurm_step() -> bool:
    """Started by srun, as one of several tasks; a lone task in a job needs nobody."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    return "SLURM_PROCID" in os.environ and tasks.isdecimal() and int(tasks) > 1


def _is_tpu_host() -> bool:
    """Whether TPU chips are here; jax asks the slice how many hosts it has."""
    if jax.config.jax_platforms not in (None, "", "tpu"):
        return False
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def is_primary() -> bool:
    """The process that writes what the job has once."""
    return jax.process_index() == 0


def refuse_disagreement(what: Mapping[str, str]) -> None:
    """Processes that read other data or have another config would train on something else."""
    if jax.process_count() == 1:
        return
    for name, value in what.items():
        padded = np.zeros(64, np.uint8)
        encoded = np.frombuffer(value.encode()[:64], np.uint8)
        padded[: len(encoded)] = encoded
        theirs = process_allgather(padded)
        different = [n for n, each in enumerate(theirs) if (each != theirs[0]).any()]
        if different:
            raise ConfigError(
                f"{name} differs between process 0 and process {', '.join(map(str, different))}; "
                "give all of them the same command and the same files"
            )
