import numpy as np

from input_pipeline.objectives.classify_sounds import classify_sounds
from tests.input_pipeline.objectives.rows_by_hand import check, rng


def test_classify_sounds_by_hand():
    signal = np.array([[[-80], [0]]], np.float32)
    check(
        classify_sounds({"signal": signal, "label": 3}, rng()), signals=signal, labels=3, weights=1
    )
