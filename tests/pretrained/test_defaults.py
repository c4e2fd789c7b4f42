"""A key that a published config leaves out has transformers' default, for every architecture."""

import json
import shutil

import pytest

from experiment.schema import ConfigError
from pretrained import model_files, published
from tests.pretrained.make_fixtures import FIXTURES

pytestmark = pytest.mark.oracle

NAMES = sorted(path.name for path in FIXTURES.iterdir() if (path / model_files.CONFIG).exists())
# What decides which model it is, or is about the files.
NOT_OF_THE_MODEL = {"architectures", "model_type", "dtype", "torch_dtype", "transformers_version"}


def result_of(directory, config):
    """What is read of a config, or the refusal."""
    (directory / model_files.CONFIG).write_text(json.dumps(config))
    try:
        found = published.read(directory)
    except ConfigError as error:
        return str(error)
    return found.model, found.task, found.labels


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_key_has_transformers_default(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    directory = tmp_path / name
    shutil.copytree(FIXTURES / name, directory)
    config = json.loads((directory / model_files.CONFIG).read_text())
    kind = type(transformers.AutoConfig.for_model(config["model_type"]))
    compared = 0
    for key in sorted(config.keys() - NOT_OF_THE_MODEL):
        without = {k: v for k, v in config.items() if k != key}
        try:
            defaults = kind(**without).to_dict()  # some follow from other keys
        except Exception:  # transformers refuses the config without the key, in many ways
            continue
        if key not in defaults:
            continue
        found = result_of(directory, without)
        if isinstance(found, str) and f"has no {key}" in found:
            continue  # needed here, so that no default can be wrong
        expected = result_of(directory, without | {key: defaults[key]})
        assert found == expected, f"{key}: left out, and {defaults[key]!r}"
        compared += 1
    assert compared >= 3
