"""Forecasts of a series: quantiles of the values that follow a window."""

import numpy as np

from input_pipeline.objectives.objective import LossTerm, Objective, TaskInputs, TaskSpec
from input_pipeline.rows import Fields, Row
from input_pipeline.token_table import FeatureSpec


def forecast(row: Row, rng: np.random.Generator) -> Fields:
    """The window and the values after it; those that were missing have weight 0."""
    del rng
    return {
        "signals": row["signal"],
        "targets": row["future"],
        "weights": np.asarray(row["is_known"], np.float32),
    }


class Forecast(Objective):
    name = "forecast"
    description = "the next values of a series, as quantiles"
    families = ("encoder",)
    kinds = ("series",)
    head = "forecaster"
    terms = (LossTerm("values", "targets", output="quantiles"),)
    keys = ("quantiles",)

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        return TaskSpec(forecast, FeatureSpec(()), ())
