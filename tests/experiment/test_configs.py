"""Every config file is valid, with every architecture that suits its objective."""

import importlib
import json
from pathlib import Path

import ml_collections
import pytest
import tensorflow_datasets as tfds

from configs import default
from configs.architectures import ARCHITECTURES
from experiment import sections
from experiment.help_text import NO_CONFIGS
from experiment.schema import ConfigError
from input_pipeline.config import FIELD_KEYS
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.sources import tfds_source
from input_pipeline.sources.registry import SOURCES

NAMES = sorted(
    path.stem for path in Path(default.__file__).parent.glob("*.py") if path.stem not in NO_CONFIGS
)


def get_config(name, arg=None):
    return importlib.import_module(f"configs.{name}").get_config(arg)


def suits(name, architecture):
    """Whether the experiment's objective can train such a family on such an input."""
    objective = get_config(name, architecture).task.objective
    model = ARCHITECTURES[architecture]()
    takes_patches = OBJECTIVES[objective].takes_patches
    return (
        model["family"] in OBJECTIVES[objective].families
        and (model["input"] == "patches") == takes_patches
    )


PAIRS = [(name, arch) for name in NAMES if name != "default" for arch in ARCHITECTURES]


def paths(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            yield from paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_the_embedded_experiments_are_all_there():
    assert set(NAMES) >= {"default", "dates", "pydoc", "langid", "langid_mlm", "digits"}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_the_header_has_the_command_and_the_evidence(name):
    header = importlib.import_module(f"configs.{name}").__doc__
    for label in ("Command:  python train.py", "Hardware: ", "Time:     ", "Score:    "):
        assert f"\n{label}" in header
    assert name == "dates" or f"--config=configs/{name}.py" in header


FROM_FILES = [name for name in NAMES if get_config(name).data.source.endswith("_files")]


def test_every_file_source_has_a_config():
    known = [source for source in SOURCES if "_files" in source]
    assert {get_config(name).data.source for name in FROM_FILES} == set(known)


@pytest.mark.parametrize("name", FROM_FILES)
def test_configs_of_file_sources_have_no_default_path(name):
    assert get_config(name).data.path == ""
    assert "--config.data.path=" in importlib.import_module(f"configs.{name}").__doc__


def test_the_objective_on_c4_follows_the_architecture():
    objectives = {arch: get_config("c4", arch).task.objective for arch in ("", "t5_small", "gpt2")}
    assert objectives == {"": "causal_lm", "t5_small": "span_corruption", "gpt2": "causal_lm"}


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_valid_and_locked(name):
    config = get_config(name)
    sections.from_mapping(config.to_dict())
    with pytest.raises(AttributeError, match="widht"):
        config.model.widht = 3


@pytest.mark.parametrize("name", NAMES)
def test_a_config_has_the_keys_of_the_defaults(name):
    found = [path for path in paths(get_config(name)) if not path.startswith("data.options.")]
    assert found == list(paths(default.get_config()))


@pytest.mark.parametrize(("name", "architecture"), [pair for pair in PAIRS if suits(*pair)])
def test_architectures_of_the_right_family_are_valid(name, architecture):
    built = sections.from_mapping(get_config(name, architecture).to_dict())
    for key, value in ARCHITECTURES[architecture]().items():
        assert getattr(built.model, key) == value


@pytest.mark.parametrize(("name", "architecture"), [pair for pair in PAIRS if not suits(*pair)])
def test_an_architecture_of_another_family_is_refused(name, architecture):
    with pytest.raises(ConfigError, match=r"task\.objective=\w+ (needs|does not go with)"):
        sections.from_mapping(get_config(name, architecture).to_dict())


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'gpt3'; known are: .*\bgpt2\b"):
        get_config("dates", "gpt3")


def test_a_run_as_architecture_sets_the_image_preprocessing(tmp_path):
    pixels = dict(
        image_size=224, image_fit="stretch", image_resample="bilinear",
        image_mean=(0.1, 0.2, 0.3), image_std=(0.4, 0.5, 0.6),
    )  # fmt: skip
    model = {**ARCHITECTURES["vit_s16"](), "num_classes": 7}

    def record(data, **changes):
        (tmp_path / "model.json").write_text(json.dumps({"model": model | changes}))
        (tmp_path / "config.json").write_text(json.dumps({"data": data}))

    for name in ("classify_images", "cifar10", "imagenet"):
        record(pixels)
        found = get_config(name, str(tmp_path))
        assert {key: found.data[key] for key in pixels} == pixels
        sections.from_mapping(found.to_dict())
        record({key: value for key, value in pixels.items() if key != "image_fit"})
        assert get_config(name, str(tmp_path)).data.image_fit == "crop"  # an older run
        # Of a run on text there is nothing to take over.
        record(pixels, input="tokens")
        assert get_config(name, str(tmp_path)).data == get_config(name).data


@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-uncased"])
def test_a_name_of_the_hub_is_refused_with_the_way_to_bring_it_in(name):
    with pytest.raises(
        ValueError, match="neither an architecture nor an existing workdir"
    ) as refusal:
        get_config("dates", name)
    address = f"hf://{name}" if "/" in name else f"hf://OWNER/{name}"
    assert f"python convert.py --from={address} --to=WORKDIR, then" in str(refusal.value)
    assert "architectures are: transformer_base, " in str(refusal.value)


def test_every_objective_that_is_configured_has_an_architecture():
    """Without one, the tests above would not cover it."""
    for name in NAMES:
        assert any(suits(name, architecture) for architecture in ARCHITECTURES), name


FROM_TFDS = [name for name in NAMES if get_config(name).data.source == "tfds"]


@pytest.mark.parametrize("name", FROM_TFDS)
def test_a_data_set_of_tfds_has_the_fields_that_the_config_names(name, tmp_path):
    """By the code of TFDS: the splits are known only once a data set is prepared."""
    data = get_config(name).data
    assert data.name.partition("/")[0] in tfds_source.known_builders()
    features = tfds.builder(data.name, data_dir=tmp_path).info.features
    fields = [data[key] for key in FIELD_KEYS[data.kind] if data[key]]
    fields += ["image"] if data.kind == "images" else []
    assert set(fields) <= set(features.keys())
    if data.kind in ("labelled", "images"):
        assert isinstance(features[data.label_field], tfds.features.ClassLabel)


@pytest.mark.parametrize("name", FROM_TFDS)
def test_the_header_says_how_to_prepare_the_data_set(name):
    header = importlib.import_module(f"configs.{name}").__doc__
    assert f"tfds build {get_config(name).data.name} --file_format=array_record" in header
