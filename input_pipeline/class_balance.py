"""Unbalanced classes: weights of training examples by class, and oversampling of rare classes."""

from collections.abc import Sequence

import numpy as np

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.config import DataConfig


def oversampled(labels_b: np.ndarray, classes: int) -> np.ndarray:
    """Indices of rows in which every class that occurs is as frequent as the most frequent one.

    The rows of a class are repeated in turn, so two of them differ by at most one repetition.
    """
    most = int(np.bincount(labels_b, minlength=classes).max())
    of_classes = (np.flatnonzero(labels_b == label) for label in range(classes))
    return np.sort(np.concatenate([np.resize(rows, most) for rows in of_classes if len(rows)]))


def class_weights(
    data: DataConfig, labels: Sequence[str], counts_c: np.ndarray
) -> np.ndarray | None:
    """The weight of a training example of each class (C,), or None if all are 1.

    `counts_c` are the training rows of each class. Balanced weights are rows / (classes * count),
    so that every class has the same weight in an epoch and the mean weight is 1.
    """
    weights_c = np.ones(len(labels), np.float32)
    if data.class_balance == "weights":
        occurs_c = counts_c > 0
        weights_c[occurs_c] = counts_c.sum() / (occurs_c.sum() * counts_c[occurs_c])
    for label, factor in data.class_weights:
        if label not in labels:
            raise ConfigError(
                f"data.class_weights names the class {label!r}, which the data does not have."
                f"{did_you_mean(label, labels)}"
            )
        weights_c[list(labels).index(label)] *= factor
    return None if (weights_c == 1).all() else weights_c
