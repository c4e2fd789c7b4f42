import numpy as np

from input_pipeline.objectives.classify_images import classify_images
from tests.input_pipeline.objectives.rows_by_hand import check, rng


def test_classify_images_by_hand():
    image = np.full((2, 2, 1), 0.5, np.float32)
    fields = classify_images({"image": image, "label": 3}, rng())
    check(fields, images=image, labels=3, weights=1)


def test_classify_images_normalises_bytes_and_takes_two_labels():
    image = np.array([[[0, 255]]], np.uint8)
    row = {"image": image, "label": [3, 1], "label_weights": [0.75, 0.25]}
    fields = classify_images(row, rng(), mean=(0.5, 0.25), std=(0.5, 0.25))
    check(fields, images=[[[-1, 3]]], labels=[3, 1], weights=[0.75, 0.25])
