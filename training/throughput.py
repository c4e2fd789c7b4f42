"""Speed of a run: tokens, images or examples per second, FLOP/s, time spent waiting for data."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from model.config import TransformerConfig
from training.chips import peak_flops


class Throughput:
    """Counts steps since the last report. Time inside `paused` does not count.

    `unit` is "tokens", "images" or "examples".
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.perf_counter):
        self._unit = unit
        self._clock = clock
        self._is_idle = False
        self._restart()

    def _restart(self) -> None:
        self._begin = self._clock()
        self._steps = self._amount = self._flops = 0
        self._waited = 0.0

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Counts the time inside as waiting for data."""
        begin = self._clock()
        yield
        self._waited += self._clock() - begin

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time inside out of all rates."""
        begin = self._clock()
        yield
        self._begin += self._clock() - begin

    def caught_up(self) -> None:
        """Notes that the device has finished all steps so far, for example after a compilation."""
        self._is_idle = True

    def count(self, amount: int, flops: int) -> None:
        """Adds a step: its tokens or images, and its FLOPs, on all devices together."""
        self._steps += 1
        self._amount += amount
        self._flops += flops

    def report(self, *, is_queued: bool = False) -> dict[str, float]:
        """Returns the rates since the last report, and starts a new period.

        Rates are per device where the name says so. The result is empty if no step was counted. It
        is also empty if the only counted step followed an idle device and a newer step `is_queued`:
        then the counted step may not be finished.
        """
        if not self._steps:
            return {}
        was_idle, self._is_idle = self._is_idle, False
        if was_idle and is_queued and self._steps == 1:
            self._restart()
            return {}
        seconds = max(self._clock() - self._begin, 1e-9)
        flops = self._flops / seconds / jax.device_count()
        rates = {
            f"perf/{self._unit}_per_second": self._amount / seconds,
            "perf/steps_per_second": self._steps / seconds,
            "perf/tflops_per_device": flops / 1e12,
            "perf/data_wait_fraction": self._waited / seconds,
        }
        peak = peak_flops(jax.devices()[0].device_kind)
        if peak is not None:
            rates["perf/mfu"] = flops / peak
        self._restart()
        return rates


def unit_of(model: TransformerConfig) -> str:
    """Returns the unit of a run's speed: tokens, images, or examples of sounds or series."""
    if model.input == "tokens":
        return "tokens"
    return "examples" if model.input_shape else "images"


def amount_in(batch: Mapping[str, np.ndarray]) -> int:
    """Counts this process's tokens of encoder and decoder without padding, or its examples."""
    for name in ("images", "signals"):
        if name in batch:
            return len(batch[name])
    stacks = [name for name in ("", "encoder_") if f"{name}inputs" in batch]
    return sum(
        np.count_nonzero(batch.get(f"{stack}segment_ids", batch[f"{stack}inputs"]))
        for stack in stacks
    )
