"""Cells: their commands, configs, and what differs from what is recorded."""

import dataclasses
import json

import pytest

from experiment.schema import ConfigError
from sweeps.cells import (
    flag_text,
    make_cells,
    recorded_differences,
    refuse_other_configs,
    validate,
)
from sweeps.study import Study

STUDY = Study(
    name="s",
    config="configs/digits.py",
    variants={"a": {}, "b": {"model.heads": 2, "steps": 900}},
    overrides={"steps": 700, "data.image_mean": (0.5,)},
    seeds=(0, 3),
)


def test_a_cell_is_a_command_of_train(tmp_path):
    cells = make_cells(STUDY, {"log_every": 5})
    assert [cell.name for cell in cells] == ["a-seed0", "a-seed3", "b-seed0", "b-seed3"]
    assert cells[3].arguments(tmp_path) == [
        "--config=configs/digits.py",
        f"--workdir={tmp_path}/cells/b-seed3",
        "--config.steps=900",
        "--config.data.image_mean=(0.5,)",
        "--config.log_every=5",
        "--config.model.heads=2",
        "--config.seed=3",
    ]
    experiment = cells[3].experiment()
    assert (experiment.run.steps, experiment.run.seed, experiment.model.heads) == (900, 3, 2)
    assert experiment.data.image_mean == (0.5,) and experiment.run.log_every == 5


def test_without_seeds_the_config_has_the_seed():
    study = dataclasses.replace(STUDY, seeds=())
    assert [cell.seed for cell in make_cells(study, {})] == [0, 0]
    assert [cell.seed for cell in make_cells(study, {"seed": 5})] == [5, 5]


def test_a_variant_may_have_another_config():
    study = dataclasses.replace(
        STUDY, variants={"a": {}, "b": {"config": "configs/digits.py:vit_ti16"}}, overrides={}
    )
    cells = make_cells(study, {})
    assert cells[-1].config == "configs/digits.py:vit_ti16"
    assert "config" not in cells[-1].overrides


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("rope", "rope"),
        (3, "3"),
        (1e-4, "0.0001"),
        (True, "True"),
        ((8, 16), "(8, 16)"),
        ([], "()"),
    ],
)
def test_values_are_written_as_on_a_command_line(value, text):
    assert flag_text(value) == text


def test_a_value_that_no_flag_can_have_is_refused():
    with pytest.raises(ConfigError, match="None cannot be a config value"):
        flag_text(None)


def test_a_problem_of_all_cells_is_told_once_and_one_of_a_variant_with_its_name():
    study = dataclasses.replace(STUDY, variants={"a": {}, "b": {"model.heads": 3}})
    with pytest.raises(ConfigError) as error:
        validate(make_cells(study, {}))
    (problem,) = error.value.problems
    assert problem.startswith("b: model.heads=3 does not divide model.width=64")
    with pytest.raises(ConfigError) as error:
        validate(make_cells(STUDY, {"model.postion": "rope"}))
    assert error.value.problems == ["model.postion is not a config key. Did you mean 'position'?"]


def record(cell, sweep, **changes):
    """Writes the config of a cell as train.py does."""
    as_dict = dataclasses.asdict(cell.experiment())
    values = {**as_dict.pop("run"), **as_dict, "data_digest": "d", "tokenizer_digest": ""}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values[section][name] = value
        else:
            values[section] = value
    workdir = cell.workdir(sweep)
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(values))
    return workdir


def test_cells_of_text_may_be_older_than_a_default_for_images(tmp_path):
    cells = make_cells(STUDY, {})
    workdir = record(cells[0], tmp_path, data__image_upright=False)
    images = validate(cells)[cells[0].name]
    changes = ["data.image_upright: False -> True"]
    assert recorded_differences(workdir, images) == changes
    text = dataclasses.replace(images, model=dataclasses.replace(images.model, input="tokens"))
    assert recorded_differences(workdir, text, ["model"]) == []


def test_a_recorded_config_is_compared_with_the_one_that_is_asked_for(tmp_path):
    cells = make_cells(STUDY, {})
    experiments = validate(cells)
    # What changes neither the run nor its scores may differ.
    record(cells[0], tmp_path, log_every=99, checkpoint__keep=7, data__workers=3)
    refuse_other_configs(tmp_path, cells, experiments)
    # train.py would accept another learning rate on resume; the cell would be another experiment.
    workdir = record(cells[1], tmp_path, optimizer__learning_rate=0.5)
    assert recorded_differences(workdir, experiments[cells[1].name]) == [
        "optimizer.learning_rate: 0.5 -> 0.002"
    ]
    with pytest.raises(
        ConfigError, match=r"a-seed3 holds a run with another config .*0.5 -> 0.002"
    ):
        refuse_other_configs(tmp_path, cells, experiments)
    refuse_other_configs(tmp_path, cells, experiments, ["optimizer.learning_rate"])
