"""Samples and details of image folders name the files."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import evaluate
import train
from configs import classify_images
from tests.runs import tiny

pytestmark = pytest.mark.usefixtures("compile_once")


def test_samples_and_details_name_the_files(tmp_path):
    rng = np.random.default_rng(0)
    names = {}
    for split, count in (("train", 8), ("test", 3)):
        for number in range(count):
            label = ("cat", "dog")[number % 2]
            path = tmp_path / "data" / split / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(path)
            names[f"{split}/{label}/{number}.png"] = label
    data = dict(path=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"))
    config = tiny(classify_images, steps=1, data=data, eval=dict(samples=3))
    train.train_and_evaluate(config, str(tmp_path / "run"))
    (samples,) = (tmp_path / "run" / "samples").glob("*_test.txt")
    lines = samples.read_text().splitlines()
    in_test = {name: label for name, label in names.items() if name.startswith("test/")}
    found = [re.fullmatch(r"(\S+) -> (cat|dog) \((cat|dog)\)", line) for line in lines]
    assert {match[1]: match[3] for match in found} == in_test and len(found) == 3

    evaluate.evaluate(tmp_path / "run", details=True)
    (file,) = (tmp_path / "run" / "evaluations").glob("*test*.json")
    worst = json.loads(file.read_text())["classes"]["worst"]
    assert {row["text"]: row["label"] for row in worst} == in_test
