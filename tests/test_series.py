"""Series from a CSV file to forecasts: training, evaluate.py, generate.py, plan.py, convert.py."""

import io
import json

import jax
import numpy as np
import pytest
from PIL import Image

import convert
import generate
import plan
import train
from checkpointing import loaded_run
from configs import series
from evaluate import evaluate
from experiment import sections
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.batch_shapes import row_outline
from model.heads import Forecaster
from tests.runs import saved, tiny
from tests.tiny import random_params, tiny_config
from tests.visualization.layers_by_hand import assert_weights_give_the_next_layer
from visualization.model_inputs import read_input
from visualize import capture_view

pytestmark = pytest.mark.usefixtures("compile_once")

STEPS = 120
SCALE = 1e6  # of the series; the model must not care
NOISE = 0.05


def wave(count=400):
    rng = np.random.default_rng(0)
    season = np.sin(2 * np.pi * np.arange(count) / 12)
    return SCALE * (5 + 0.01 * np.arange(count) + season + NOISE * rng.normal(size=count))


def write_csv(path, values):
    lines = [f"{n},{value:.2f}" for n, value in enumerate(values)]
    path.write_text("\n".join(["step,value", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = write_csv(tmp_path_factory.mktemp("data") / "a.csv", wave())
    return tiny(
        series,
        steps=STEPS,
        model=dict(patch_size=6, dropout_residual=0.0),
        data=dict(
            path=str(path), length=24, eval_share=0.2, options=dict(horizon=6), batch_size=32
        ),
        optimizer=dict(learning_rate=5e-3, ema_decay=0.0, weight_decay=0.0),
        checkpoint=dict(every=STEPS // 2),
        eval=dict(every=STEPS, batch_size=32, batches=0, samples=2),
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory, compile_once):
    workdir = tmp_path_factory.mktemp("run") / "run"
    train.train_and_evaluate(config, workdir)
    return workdir


def test_a_season_with_a_trend_is_learnt_in_the_units_of_the_series(run):
    scores = evaluate(run, split="test")
    # Repeating the last value is wrong by about SCALE; one season before, by the trend of 12 steps.
    assert scores["eval/test/mae"] < 0.25 * SCALE
    assert 0 < scores["eval/test/loss"] < scores["eval/test/mae"] / 2
    assert 0.3 < scores["eval/test/coverage"] <= 1
    assert "eval/test/accuracy" not in scores
    lines = (run / "metrics.jsonl").read_text().splitlines()
    logged = {key for line in lines for key in json.loads(line)}
    assert {"train/loss", "train/total_loss", "train/mae", "train/coverage"} <= logged
    assert "train/accuracy" not in logged


def test_a_file_is_continued(run, tmp_path):
    values = wave(460)
    path = write_csv(tmp_path / "b.csv", values[:430])
    (found,) = generate.generate(run, [str(path)])
    assert [each["step"] for each in found] == [1, 2, 3, 4, 5, 6]
    median = np.array([each["quantiles"]["0.5"] for each in found])
    assert abs(median - values[430:436]).mean() < 0.4 * SCALE
    for each in found:
        assert list(each["quantiles"].values()) == sorted(each["quantiles"].values())
    text = generate.as_text(found, keep_breaks=False).splitlines()
    assert text[0] == "step\t0.1\t0.5\t0.9" and len(text) == 7
    # Only the last window counts, and adding a number to all of it adds it to the forecast.
    moved = write_csv(tmp_path / "c.csv", values[406:430] + 3 * SCALE)
    (other,) = generate.generate(run, [str(moved)])
    shifted = np.array([each["quantiles"]["0.5"] for each in other])
    np.testing.assert_allclose(shifted - 3 * SCALE, median, rtol=1e-4)


def test_samples_show_what_came_beside_the_forecast(run):
    text = next((run / "samples").glob("*_validation.txt")).read_text()
    assert text.startswith("after ") and text.count("\n\n") == 1
    assert len(text.split("\n\n")[0].splitlines()) == 7


def test_an_interrupted_run_continues_to_the_bit(run, config, tmp_path):
    workdir = tmp_path / "run"
    train.train_and_evaluate({**config, "steps": STEPS // 2}, workdir)
    train.train_and_evaluate(config, workdir)
    for (name, one), other in zip(
        saved(run, STEPS).items(), saved(workdir, STEPS).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other, err_msg=name)


def opened(config):
    experiment = sections.from_mapping(config)
    return pipeline.load(
        experiment.data, objective=experiment.task.objective, masking=experiment.masking, seed=0
    )


def test_an_outline_has_the_shapes_of_real_batches(config):
    experiment = sections.from_mapping(config)
    outline = row_outline(experiment.data, objective="forecast", masking=experiment.masking)
    batch = opened(config).train_batch(0)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: ((32, *np.shape(x)), np.asarray(x).dtype) for name, x in outline.items()
    }
    job = plan.job_of(experiment)
    assert job.model.input_shape == (24, 1) and job.model.horizon == 6
    assert plan.in_a_step(job) == {"examples": 32}


def test_quantiles_are_in_order_and_in_the_units_of_the_input():
    keys = dict(family="encoder", input="patches", input_shape=(8, 1), patch_size=2, horizon=3)
    plain = Forecaster(tiny_config(**keys), 5)
    scaled = Forecaster(tiny_config(**keys, input_mean=(7.0,), input_std=(100.0,)), 5)
    inputs = np.random.default_rng(0).normal(size=(4, 8, 1)).astype(np.float32)
    params = random_params(plain, inputs)
    found, one = plain.apply({"params": params}, inputs)
    assert found.shape == (4, 3, 5) and one == 1
    assert (np.diff(found, axis=-1) >= 0).all() and np.ptp(found) > 0.1
    larger, hundred = scaled.apply({"params": params}, inputs * 100 + 7)
    np.testing.assert_allclose(larger, np.asarray(found) * 100 + 7, rtol=1e-2, atol=1e-1)
    assert hundred == 100
    flat = jax.tree.leaves(params["quantiles"])
    assert sum(leaf.size for leaf in flat) == (16 + 1) * 15


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("task", dict(quantiles=(0.1, 0.9)), "task.quantiles=(0.1, 0.9) must increase and have"),
        ("task", dict(quantiles=(0.5, 0.1)), "task.quantiles=(0.5, 0.1) must increase and have"),
        ("task", dict(label_smoothing=0.1), "task.label_smoothing=0.1 has no part in task"),
        ("eval", dict(metrics=("ece",)), "eval.metrics: ece does not go with task.objective="),
        ("model", dict(horizon=5), "model.horizon=5 is not that of the data, 6; set it to 0"),
        ("model", dict(patch_size=7), "model.patch_size=7 does not divide model.input_shape="),
    ],
)
def test_a_start_that_cannot_work_is_refused(section, changes, said, config, tmp_path):
    broken = {**config, section: config[section] | changes}
    with pytest.raises(ConfigError) as caught:
        train.train_and_evaluate(broken, tmp_path / "run")
    assert said in str(caught.value)


def test_what_no_model_of_series_can_do_is_refused_by_name(run, tmp_path):
    with pytest.raises(ConfigError, match=r"task\.objective=forecast reads series, which no"):
        convert.convert(str(run), str(tmp_path / "exported"))
    with pytest.raises(ConfigError, match=r"a\.csv' is no file; give the path of one"):
        capture_view(run, str(tmp_path / "a.csv"))
    path = str(write_csv(tmp_path / "b.csv", wave(24)))
    with pytest.raises(ConfigError, match="this model has no such head; choose attention"):
        capture_view(run, path, view="lens")
    recorded = loaded_run.recorded_config(run)
    other = {**recorded, "data": recorded["data"] | {"options": {"horizon": 7}}}
    with pytest.raises(ConfigError, match=r"have 7 values to forecast, but the model forecasts 6"):
        evaluate(run, config=other)


def test_attention_over_a_series(run, tmp_path):
    values = wave(430)
    path = str(write_csv(tmp_path / "b.csv", values))
    view, model = capture_view(run, path), loaded_run.load(run)
    (attention,) = view.maps
    assert attention.queries == ("[CLS]", "0–5", "6–11", "12–17", "18–23")
    assert attention.visible_lts.all()
    np.testing.assert_allclose(attention.weights_lhts.sum(axis=-1), 1, atol=1e-5)
    assert_weights_give_the_next_layer(model, read_input(model, path, None))
    assert view.lens is None and view.scores is None and attention.gradients_lhts is None
    (found,) = generate.generate(run, [path])
    first, last = (found[n]["quantiles"]["0.5"] for n in (0, -1))
    assert view.prediction == f"median {first:.6g} at step 1, {last:.6g} at step 6"


def test_the_picture_of_a_series_is_its_line(run, tmp_path):
    values = wave(24)
    view = capture_view(run, str(write_csv(tmp_path / "b.csv", values)))
    pixels = np.asarray(Image.open(io.BytesIO(view.image_png)))
    assert view.patch_grid == (1, 4) and pixels.shape[1] % 24 == 0
    width = pixels.shape[1] // 24
    drawn = [pixels[:, n * width + width // 2].argmin() for n in range(24)]
    line = np.interp(values, (values.min(), values.max()), (max(drawn), min(drawn)))
    assert np.abs(np.subtract(drawn, line)).max() < 0.1 * len(pixels)
