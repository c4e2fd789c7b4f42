"""Jobs on several processes: how processes connect, and checks that they agree."""

import contextlib
import json
import os
import platform
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from experiment.command_line import BAD_INPUT
from experiment.schema import ConfigError

# How long other processes may take to see a new file: network file systems have caches.
SHARED_SECONDS = 20.0
RESOLVE_SECONDS = 30.0  # how long the host of the first process may be unknown
GATHERED_BYTES = 8192  # maximum length of a text in `gather_texts`

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join(heartbeat_seconds: int = 100, join_seconds: int = 300) -> None:
    """Connects to the other processes of the job, if any. Must run before jax is used.

    A process that sends no heartbeat for `heartbeat_seconds` counts as dead, and the others end.
    Processes that have not all connected within `join_seconds` are refused.

    The three variables above say where the processes are. Without them, jax finds the processes
    under SLURM and on the hosts of a TPU slice (Cloud TPU VMs, GKE).
    """
    given = _from_environment()
    if given is None and not (_is_slurm_step() or _is_tpu_host()):
        return
    # Before the first step is done, SIGTERM ends the process; see training/job_ends.py.
    jax.config.update("jax_enable_preemption_service", False)
    with _time_limit(given, join_seconds):
        try:
            jax.distributed.initialize(
                **given or {},
                initialization_timeout=join_seconds + 60,  # jax aborts then; we are earlier
                heartbeat_timeout_seconds=heartbeat_seconds,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"this process cannot join its job: {reason}") from error


@contextlib.contextmanager
def _time_limit(given: Mapping[str, Any] | None, seconds: int) -> Iterator[None]:
    """Ends the process if this context takes longer, or at once on Ctrl-C.

    jax waits without running Python's handlers, and aborts when its own time is up.
    """
    where = "its job"
    if given:
        where = f"process 0 at {ADDRESS}={given['coordinator_address']}"
        if given["process_id"] == 0:
            where = f"the other {given['num_processes'] - 1} processes of {COUNT}"

    def give_up() -> None:
        print(
            f"no connection to {where} within {seconds} s (failure.join_seconds); check that "
            f"{ADDRESS} is host:port of process 0, that the port is free there and can be reached, "
            f"and that all processes were started",
            file=sys.stderr,
            flush=True,
        )
        os._exit(BAD_INPUT)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if previous is not None:
            signal.signal(signal.SIGINT, previous)


def _from_environment() -> dict | None:
    if not os.environ.get(ADDRESS):
        return None
    numbers = {}
    for name in (COUNT, INDEX):
        value = os.environ.get(name, "")
        if not value.isdecimal():
            raise ConfigError(
                f"{ADDRESS} is set, so {name} must be a number, not {value!r}; set {ADDRESS} to "
                f"host:port of the first process, {COUNT} to the number of processes, and {INDEX} "
                "to 0, 1, ... in each of them"
            )
        numbers[name] = int(value)
    if numbers[INDEX] >= numbers[COUNT]:
        raise ConfigError(f"{INDEX}={numbers[INDEX]} must be below {COUNT}={numbers[COUNT]}")
    _refuse_address(os.environ[ADDRESS])
    return dict(
        coordinator_address=os.environ[ADDRESS],
        num_processes=numbers[COUNT],
        process_id=numbers[INDEX],
    )


def _refuse_address(address: str) -> None:
    """Refuses an address that is not host:port, or whose host has no address."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16
    if not (host and is_port) or (address.count(":") > 1 and not host.startswith("[")):
        raise ConfigError(
            f"{ADDRESS}={address} must be host:port of the first process, such as host0:12345 or "
            "[::1]:12345"
        )
    end = time.monotonic() + RESOLVE_SECONDS
    while True:  # names of pods appear some seconds after the pods
        try:
            socket.getaddrinfo(host.strip("[]"), int(port))
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() > end:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"{ADDRESS}={address}: the host was not found within {RESOLVE_SECONDS:g} s "
                    f"({reason}); check the name, or give its IP address"
                ) from error
        time.sleep(min(1, RESOLVE_SECONDS))


def _is_slurm_step() -> bool:
    """Whether srun started this process as one of several tasks."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    return "SLURM_PROCID" in os.environ and tasks.isdecimal() and int(tasks) > 1


def _is_tpu_host() -> bool:
    """Whether this host has TPU chips; jax then asks the slice for its other hosts."""
    if jax.config.jax_platforms not in (None, "", "tpu"):
        return False
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def is_primary() -> bool:
    """Whether this is the process that writes files and logs."""
    return jax.process_index() == 0


def write_json(path: Path, value: Any) -> None:
    """Writes a file atomically, on the primary process only."""
    if not is_primary():
        return
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)


def refuse_disagreement(what: Mapping[str, str]) -> None:
    """Refuses values, by name, that differ between processes, such as digests of the config."""
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


def refuse_unshared(workdir: Path, problem: str) -> None:
    """Refuses a workdir that is not the same directory for all processes of the job.

    Processes save a checkpoint together: with separate directories they would wait for each
    other's files forever. `problem` is what this process found wrong with the directory, or "".
    A problem of one process is an error on all.
    """
    if jax.process_count() > 1:
        compare_directories(workdir, problem, jax.process_index(), gather_texts, SHARED_SECONDS)


def compare_directories(
    workdir: Path,
    problem: str,
    index: int,
    gather: Callable[[str], Sequence[str]],
    seconds: float,
) -> None:
    """`refuse_unshared` for process `index`, with `gather` in place of `gather_texts`."""
    name = f".shared-{secrets.token_hex(8)}"
    if index == 0 and not problem:
        try:
            (workdir / name).write_text(name)
        except OSError as error:
            problem = f"{workdir} cannot be written ({error.strerror})"
    # The others learn the name when the file exists: an earlier lookup may be cached.
    name = gather(name)[0]
    try:
        is_shared = not problem and _appears(workdir / name, name, seconds)
        # Cut so that they fit into GATHERED_BYTES even if JSON escapes every character.
        host, path = platform.node()[:64], os.path.abspath(workdir)[-256:]
        mine = {"host": host, "path": path, "seen": is_shared, "problem": problem[:256]}
        answers = [json.loads(text) for text in gather(json.dumps(mine))]
    finally:
        if index == 0:  # all processes have checked by now
            (workdir / name).unlink(missing_ok=True)
    if all(each["seen"] for each in answers):
        return
    if answers[0]["problem"]:
        raise ConfigError(f"process 0 on {answers[0]['host']}: {answers[0]['problem']}")
    failed = [
        f"process {number} on {each['host']}: "
        + (each["problem"] or f"did not find it in {each['path']} within {seconds:g} s")
        for number, each in enumerate(answers)
        if not each["seen"]
    ]
    more = [f"and {len(failed) - 4} other processes"] if len(failed) > 4 else []
    raise ConfigError(
        [
            f"--workdir is not shared: process 0 on {answers[0]['host']} wrote a file to "
            f"{answers[0]['path']}, but not all of the {len(answers)} processes see it:",
            *failed[:4],
            *more,
            "give all of them the same directory on a shared file system, such as NFS or a mounted "
            "bucket; this is process " + str(index),
        ]
    )


def _appears(path: Path, content: str, seconds: float) -> bool:
    """Whether a file with this content appears within `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            if path.read_text() == content:
                return True
            os.listdir(path.parent)  # makes NFS ask the server again
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def gather_texts(text: str) -> list[str]:
    """Returns the texts of all processes in order of index; at most GATHERED_BYTES each."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    padded = np.zeros(GATHERED_BYTES, np.uint8)
    padded[: len(encoded)] = encoded
    return [bytes(row).rstrip(b"\0").decode() for row in process_allgather(padded)]
