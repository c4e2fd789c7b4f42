"""A small published model to change."""

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from tests.pretrained.make_fixtures import FIXTURES


@pytest.fixture
def changed(tmp_path):
    """A copy of a small model with other keys in its config, and maybe other weights."""

    def make(name, change_weights=None, **changes):
        directory = tmp_path / "model"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(FIXTURES / name, directory, ignore=shutil.ignore_patterns("gradients"))
        config, weights = directory / "config.json", directory / "model.safetensors"
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        if change_weights is not None:
            save_file(change_weights(load_file(weights)), weights)
        return directory

    return make
