"""Classification of sounds."""

import numpy as np

from input_pipeline.objectives.objective import LABELS, Objective, TaskInputs, TaskSpec
from input_pipeline.rows import Fields, Row
from input_pipeline.token_table import FeatureSpec


def classify_sounds(row: Row, rng: np.random.Generator) -> Fields:
    """The spectrogram of a sound, and its class. The model normalises it."""
    del rng
    return {
        "signals": row["signal"],
        "labels": np.asarray(row["label"], np.int32),
        "weights": np.asarray(1, np.float32),
    }


class ClassifySounds(Objective):
    name = "classify_sounds"
    description = "the class of a sound"
    families = ("encoder",)
    kinds = ("sounds",)
    head = "classifier"
    terms = (LABELS,)

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        return TaskSpec(classify_sounds, FeatureSpec(()), ())
