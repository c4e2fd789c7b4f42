"""Rates, by a clock that only moves when told."""

import types

import jax
import numpy as np
import pytest

from training import throughput
from training.throughput import Throughput, amount_in


class Clock:
    now = 100.0

    def __call__(self):
        return self.now

    def tick(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_rates_since_the_last_report(clock):
    meter = Throughput("tokens", clock)
    for tokens in (300, 500):
        clock.tick(2)
        meter.count(tokens, 6e12)
    assert meter.report() == {
        "perf/tokens_per_second": 200,
        "perf/steps_per_second": 0.5,
        "perf/tflops_per_device": 3 / jax.device_count(),
        "perf/data_wait_fraction": 0,
    }
    clock.tick(1)
    meter.count(40, 1)
    rates = meter.report()
    assert (rates["perf/tokens_per_second"], rates["perf/steps_per_second"]) == (40, 1)


def test_images_are_not_called_tokens(clock):
    meter = Throughput("images", clock)
    clock.tick(2)
    meter.count(128, 1)
    rates = meter.report()
    assert rates["perf/images_per_second"] == 64
    assert "perf/tokens_per_second" not in rates


def test_waiting_for_data_counts_and_is_reported(clock):
    meter = Throughput("tokens", clock)
    for _ in range(2):
        with meter.waiting_for_data():
            clock.tick(1)
        clock.tick(3)
        meter.count(10, 1)
    rates = meter.report()
    assert rates["perf/data_wait_fraction"] == 0.25
    assert rates["perf/tokens_per_second"] == 2.5
    clock.tick(1)
    meter.count(10, 1)
    assert meter.report()["perf/data_wait_fraction"] == 0, "it starts anew"


def test_a_step_that_is_merely_queued_has_no_rate(clock):
    """After a compilation the first step is reported while the second has only begun."""
    throughput = Throughput("tokens", clock)
    throughput.caught_up()
    throughput.count(100, 1)
    assert throughput.report(is_queued=True) == {}
    clock.now += 2
    throughput.count(100, 1)
    assert throughput.report(is_queued=True)["perf/tokens_per_second"] == 50
    # One that is finished has a rate, whatever came before it.
    throughput.caught_up()
    throughput.count(100, 1)
    clock.now += 4
    assert throughput.report()["perf/tokens_per_second"] == 25


def test_a_pause_does_not_count(clock):
    meter = Throughput("tokens", clock)
    clock.tick(2)
    with meter.paused():
        clock.tick(1000)
    clock.tick(2)
    meter.count(8, 1)
    assert meter.report()["perf/tokens_per_second"] == 2


def test_without_a_step_there_is_no_rate_and_without_time_no_error(clock):
    meter = Throughput("tokens", clock)
    assert meter.report() == {}
    meter.count(1, 1)
    assert meter.report()["perf/data_wait_fraction"] == 0


def test_utilisation_is_told_where_the_peak_is_known(clock, monkeypatch):
    meter = Throughput("tokens", clock)
    clock.tick(1)
    meter.count(1, 100e12)
    assert "perf/mfu" not in meter.report(), "no maker promises anything for this machine"

    devices = [types.SimpleNamespace(device_kind="TPU v4")] * 2
    jax_with_tpus = types.SimpleNamespace(devices=lambda: devices, device_count=lambda: 2)
    monkeypatch.setattr(throughput, "jax", jax_with_tpus)
    clock.tick(1)
    meter.count(1, 100e12)
    rates = meter.report()
    assert rates["perf/tflops_per_device"] == 50
    assert rates["perf/mfu"] == pytest.approx(50 / 275)


def test_padding_is_not_counted():
    inputs = np.array([[5, 6, 7, 0], [8, 0, 0, 0]])
    assert amount_in({"inputs": inputs, "targets": inputs}) == 4, "the padding id is 0"
    # Where there are segments they decide: 0 may be a token, and padding any id.
    segments = np.array([[1, 1, 2, 2], [1, 1, 0, 0]])
    batch = {"inputs": inputs, "segment_ids": segments}
    assert amount_in(batch) == 6
    source = {"encoder_inputs": np.full((2, 5), 9), "encoder_segment_ids": np.eye(2, 5, dtype=int)}
    assert amount_in(batch | source) == 6 + 2
    assert amount_in({"images": np.zeros((3, 8, 8, 1)), "labels": np.zeros(3)}) == 3
