import numpy as np

from input_pipeline.objectives.forecast import forecast
from tests.input_pipeline.objectives.rows_by_hand import check, rng


def test_forecast_by_hand():
    signal, future = np.array([[1], [0]], np.float32), np.array([2, 0], np.float32)
    row = {"signal": signal, "future": future, "is_known": np.array([True, False])}
    check(forecast(row, rng()), signals=signal, targets=future, weights=[1, 0])
