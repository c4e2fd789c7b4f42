"""Classification of images."""

from functools import partial

import numpy as np

from input_pipeline.augmentation import choose_augmentation, unit_range
from input_pipeline.objectives.objective import LABELS, Objective, TaskInputs, TaskSpec
from input_pipeline.rows import Fields, Row
from input_pipeline.token_table import FeatureSpec


def classify_images(
    row: Row, rng: np.random.Generator, *, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> Fields:
    """Normalizes an image. Mixup rows have two labels, each with a weight; other rows have one."""
    del rng
    image = unit_range(row["image"])
    if mean:
        image = image - np.asarray(mean, np.float32)
    if std:
        image = image / np.asarray(std, np.float32)
    return {
        "images": image,
        "labels": np.asarray(row["label"], np.int32),
        "weights": np.asarray(row.get("label_weights", 1), np.float32),
    }


class ClassifyImages(Objective):
    name = "classify_images"
    description = "the class of an image"
    families = ("encoder",)
    kinds = ("images",)
    head = "classifier"
    terms = (LABELS,)

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        data = given.data
        fields = partial(classify_images, mean=data.image_mean, std=data.image_std)
        return TaskSpec(fields, FeatureSpec(()), (), augment=choose_augmentation(data))
