"""A lease in object storage: one writer per run, where files cannot be locked.

The lease is an object that says who holds it and when it expires. Its holder renews it in the
background. A run that was killed no longer does, so the lease expires by itself.
"""

import contextlib
import datetime
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from storage.object_store import as_os_errors, filesystem

NAME = ".lease.json"
SECONDS = 60.0  # how long a lease lasts without renewal
RENEW_SECONDS = 15.0
POLL_SECONDS = 2.0  # while waiting for the end of a lease
SETTLE_SECONDS = 1.0  # after taking over an expired lease, which two runs may do at once


class LeaseLostError(OSError):
    """Another run took the lease over, after this one could not renew it in time."""


class Lease:
    """Holds the lease of a run's directory. Entering the context refuses one that is in use.

    If the holder is on another machine, it waits until the lease is renewed or expires.
    """

    def __init__(self, url: str, warn: Callable[[str], None] = lambda text: None):
        self._url, self._warn = url.rstrip("/"), warn
        self._files = filesystem(url)
        self._id = secrets.token_hex(8)
        self._ended, self._lost = threading.Event(), False
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> "Lease":
        with as_os_errors():
            found = self._read()
            if found and _is_held(found):
                if _is_here(found):
                    raise ConfigError(_in_use(self._url, found))
                found = self._wait(found)
            if found:
                self._write()
                time.sleep(SETTLE_SECONDS)
            else:
                self._create()
            found = self._read()
        if found.get("id") != self._id:
            raise ConfigError(_in_use(self._url, found))
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        self._thread.join()
        try:
            with as_os_errors():
                if self._read().get("id") == self._id:
                    self._files.rm_file(f"{self._url}/{NAME}")
        except OSError:
            pass  # it expires

    def _wait(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Waits for the end of a lease, which its holder may not renew; returns the object.

        A job whose machine was taken away starts on another one before its lease has expired.
        """
        seconds = found["expires"] - time.time()
        self._warn(
            f"{self._url} is leased to another run ({found.get('holder', 'unknown')}); if that "
            f"run is dead, this one starts in {seconds:.0f} s"
        )
        while _is_held(found):
            time.sleep(POLL_SECONDS)
            now = self._read()
            if now and now.get("expires") != found["expires"]:
                raise ConfigError(_in_use(self._url, now))
            found = now
        return found

    def confirm(self) -> None:
        """Raises LeaseLostError if another run holds the lease now."""
        with as_os_errors():
            found = self._read()
        if self._lost or found.get("id") != self._id:
            raise LeaseLostError(5, f"another run has taken over {self._url}")

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                with as_os_errors():
                    if self._read().get("id") != self._id:
                        self._lost = True
                        return
                    self._write()
            except OSError:
                continue  # the network may come back before the lease expires

    def _read(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self._files.cat_file(f"{self._url}/{NAME}"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _content(self) -> bytes:
        holder = f"process {os.getpid()} on {platform.node()}"
        record = {"id": self._id, "holder": holder, "expires": time.time() + SECONDS}
        return json.dumps({**record, "pid": os.getpid(), "machine": _machine()}).encode()

    def _write(self) -> None:
        self._files.pipe_file(f"{self._url}/{NAME}", self._content())

    def _create(self) -> None:
        # Another run may be faster; reading the lease shows which.
        with contextlib.suppress(FileExistsError):
            self._files.pipe_file(f"{self._url}/{NAME}", self._content(), mode="create")


def _machine() -> str:
    """Identifies the processes that this one can see: a boot of a kernel, and a pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_held(found: Mapping[str, Any]) -> bool:
    """Whether a lease is in use: not if it expired, or if its process is known to be dead."""
    if found.get("expires", 0) < time.time():
        return False
    return not _is_here(found) or Path("/proc", str(found.get("pid"))).exists()


def _is_here(found: Mapping[str, Any]) -> bool:
    """Whether the holder of a lease is, or was, a process that this one can see."""
    return bool(_machine()) and found.get("machine") == _machine()


def _in_use(url: str, found: Mapping[str, Any]) -> str:
    expires = float(found.get("expires", 0))
    at = datetime.datetime.fromtimestamp(expires, datetime.UTC).strftime("%H:%M:%S UTC")
    return (
        f"{url} is in use by another run ({found.get('holder', 'unknown')}); if that run is dead, "
        f"its lease expires at {at}, in {max(expires - time.time(), 0):.0f} s; wait for that, or "
        "choose another --workdir"
    )
