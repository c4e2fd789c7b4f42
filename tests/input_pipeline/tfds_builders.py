"""Small data sets for TFDS to prepare, which it can do without TensorFlow."""

import io

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

SIZES = {"train": 20, "validation": 5}


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=self.FEATURES)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(size) for split, size in SIZES.items()}

    def _generate_examples(self, size):
        for number in range(size):
            yield number, self.record(number)


class TinyPairs(_Builder):
    FEATURES = tfds.features.Translation(languages=("de", "en"))

    def record(self, number):
        return {"de": f"Größe {number}", "en": f"size {number}"}


class TinyReviews(_Builder):
    FEATURES = tfds.features.FeaturesDict(
        {
            "sentence": tfds.features.Text(),
            "reply": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["bad", "good"]),
            "stars": np.int64,
            "rating": np.float64,
        }
    )

    def record(self, number):
        return {
            "sentence": b"\xff" if number == 19 else f"film {number}",
            "reply": f"no, film {number + 1}",
            "label": -1 if number == 18 else number % 2,
            "stars": number,
            "rating": number + 0.5,
        }


class TinyImages(_Builder):
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name="grey", description="one channel"),
        tfds.core.BuilderConfig(name="colour", description="three channels"),
    ]

    @property
    def FEATURES(self):  # noqa: N802
        channels = {"grey": 1, "colour": 3}[self.builder_config.name]
        image = tfds.features.Image(shape=(None, None, channels))
        return tfds.features.FeaturesDict(
            {"image": image, "label": tfds.features.ClassLabel(num_classes=20)}
        )

    def record(self, number):
        # A file, as most data sets have it: an array would be encoded with TensorFlow. It is
        # always grey, as some images of a coloured data set are.
        file = io.BytesIO()
        Image.fromarray(np.full((5, 5), number, np.uint8)).save(file, "PNG")
        return {"image": file.getvalue(), "label": number}
