import numpy as np

from input_pipeline.sources import signal_statistics
from input_pipeline.sources.signal_statistics import mean_and_std


def test_mean_and_deviation_of_each_channel():
    values = np.random.default_rng(0).normal([3, -50], [0.1, 20], (7, 5, 2)).astype(np.float32)
    mean, std = mean_and_std([{"signal": each} for each in values])
    np.testing.assert_allclose(mean, values.mean(axis=(0, 1)), rtol=1e-5)
    np.testing.assert_allclose(std, values.std(axis=(0, 1)), rtol=1e-4)


def test_a_constant_channel_has_a_deviation_of_one():
    assert mean_and_std([{"signal": np.full((3, 1), 7e6, np.float32)}]) == ((7e6,), (1.0,))


def test_evenly_spaced_examples_stand_for_many(monkeypatch):
    monkeypatch.setattr(signal_statistics, "MOST_EXAMPLES", 3)
    examples = [{"signal": np.full((2, 1), n, np.float32)} for n in range(101)]
    assert mean_and_std(examples)[0] == (50.0,)
