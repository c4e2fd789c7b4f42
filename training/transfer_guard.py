"""Whether jax may copy between host and devices where the code does not say so."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def implicit_transfers(level: str) -> Iterator[None]:
    """Allows or disallows implicit transfers; device_put and device_get always work.

    `level` is "allow" or "disallow". On CPUs, jax does not check transfers from device to host.
    """
    with jax.transfer_guard_host_to_device(level), jax.transfer_guard_device_to_host(level):
        yield
