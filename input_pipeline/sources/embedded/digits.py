"""scikit-learn's 1,797 handwritten digits, 8x8 pixels in 17 shades of grey."""

from importlib.metadata import version

import numpy as np

from input_pipeline.sources.base import Source, Splits, content_digest, split_by_hash

EVAL_SHARE = 0.2


def load() -> Splits:
    """The images and their digits; a hash of the pixels decides the split."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    images = (bunch.images[..., None] / 16).astype(np.float32)
    examples = [
        {"image": image, "label": int(label)}
        for image, label in zip(images, bunch.target, strict=True)
    ]
    train, eval_examples = split_by_hash(examples, lambda e: e["image"].tobytes(), EVAL_SHARE)
    description = {"scikit-learn": version("scikit-learn")}
    digest = content_digest([images.tobytes(), bunch.target.astype(np.int32).tobytes()])
    labels = tuple(str(digit) for digit in bunch.target_names)
    return Splits("images", train, {"held_out": eval_examples}, labels, description, digest)


SOURCE = Source("digits", lambda data: load(), "images")
