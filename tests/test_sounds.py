"""Sounds from files to classes: training, evaluate.py, generate.py, plan.py, convert.py."""

import io
import json

import numpy as np
import pytest
from PIL import Image

import convert
import generate
import plan
import train
from checkpointing import loaded_run
from configs import sounds
from evaluate import evaluate
from experiment import sections
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.batch_shapes import row_outline
from input_pipeline.sources.spectrogram import SpectrogramSpec, read_wav, spectrogram
from tests.input_pipeline.sources.waves import tone, write_wav
from tests.runs import tiny
from tests.visualization.layers_by_hand import assert_weights_give_the_next_layer
from training.model_for_task import forward
from visualization.attention_page import render
from visualization.model_inputs import read_input
from visualize import capture_view

pytestmark = pytest.mark.usefixtures("compile_once")

OPTIONS = dict(seconds=0.16, bands=16, highest_hertz=3800.0)
PITCHES = {"high": 2000, "low": 300, "middle": 900}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config for tones of three pitches, whose exact frequencies differ between splits."""
    directory = tmp_path_factory.mktemp("sounds")
    rng = np.random.default_rng(0)
    for split, count in {"train": 8, "validation": 4, "test": 4}.items():
        for name, hertz in PITCHES.items():
            for n in range(count):
                sound = tone(hertz * rng.uniform(0.8, 1.2), 0.15, volume=rng.uniform(0.1, 0.5))
                write_wav(directory / "data" / split / name / f"{n}.wav", sound)
    return tiny(
        sounds,
        steps=40,
        model=dict(patch_size=8),
        data=dict(
            path=str(directory / "data"), cache_dir=str(directory / "cache"), options=OPTIONS,
            batch_size=12,
        ),
        optimizer=dict(name="adamw", learning_rate=5e-3, beta1=0.9, ema_decay=0.0),
        checkpoint=dict(every=40),
        eval=dict(every=40, batch_size=12, batches=0, samples=2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(config, tmp_path_factory, compile_once):
    workdir = tmp_path_factory.mktemp("run") / "run"
    train.train_and_evaluate(config, workdir)
    return workdir


def test_the_pitch_of_new_tones_is_found(run):
    assert evaluate(run, split="test")["eval/test/accuracy"] == 1
    assert "validation/high/" in next((run / "samples").glob("*_validation.txt")).read_text()
    speeds = {
        key for line in (run / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)
    }
    assert "perf/examples_per_second" in speeds
    assert not speeds & {"perf/images_per_second", "perf/tokens_per_second"}


def test_a_file_gets_the_class_that_the_model_gives_its_spectrogram(run, config, tmp_path):
    path = write_wav(tmp_path / "a.wav", tone(310, 0.15))
    (found,) = generate.generate(run, [str(path)])
    assert found[0]["label"] == "low"
    model = loaded_run.load(run)
    signal = spectrogram(*read_wav(path, ""), SpectrogramSpec(**OPTIONS), "")[None]
    logits = forward(model.model, model.experiment.task, model.params, {"signals": signal})[
        "logits"
    ]
    shares = np.exp(np.asarray(logits[0], np.float64))
    expected = dict(zip(model.labels, shares / shares.sum(), strict=True))
    assert {o["label"]: o["probability"] for o in found} == pytest.approx(expected, rel=1e-3)


def test_the_normalisation_of_the_training_sounds_is_a_part_of_the_run(run, config):
    recorded = json.loads((run / "model.json").read_text())["model"]
    data = opened(config)
    values = np.stack([data.train_batch(n)["signals"] for n in range(2)])  # one epoch
    assert recorded["input_shape"] == [16, 16, 1]
    assert recorded["input_mean"] == [pytest.approx(values.mean(), rel=1e-4)]
    assert recorded["input_std"] == [pytest.approx(values.std(), rel=1e-4)]


def opened(config):
    experiment = sections.from_mapping(config)
    return pipeline.load(
        experiment.data, objective=experiment.task.objective, masking=experiment.masking, seed=0
    )


def test_an_outline_has_the_shapes_of_real_batches(config):
    experiment = sections.from_mapping(config)
    outline = row_outline(experiment.data, objective="classify_sounds", masking=experiment.masking)
    batch = opened(config).train_batch(0)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: ((12, *np.shape(x)), np.asarray(x).dtype) for name, x in outline.items()
    }
    job = plan.job_of(experiment)
    assert job.model.input_shape == (16, 16, 1)
    assert plan.in_a_step(job) == {"examples": 12}


def test_bad_prompts_are_refused(run, tmp_path):
    silent = write_wav(tmp_path / "silent.wav", np.zeros(800))
    (tmp_path / "text.wav").write_text("no sound")
    for path, said in (
        (silent, "silent.wav is silent: all samples of its first 0.16 s are equal"),
        (tmp_path / "text.wav", "text.wav is no WAV file that can be read"),
        (tmp_path / "none.wav", "none.wav' is no file; give the path of one"),
    ):
        with pytest.raises(ConfigError) as caught:
            generate.generate(run, [str(path)])
        assert said in str(caught.value)
        with pytest.raises(ConfigError, match=r"^--prompt: ") as caught:
            capture_view(run, str(path))
        assert said in str(caught.value)


def test_what_no_sound_model_can_do_is_refused_by_name(run, tmp_path):
    with pytest.raises(ConfigError, match=r"task\.objective=classify_sounds reads sounds,"):
        convert.convert(str(run), str(tmp_path / "exported"))
    with pytest.raises(ConfigError, match=r"none\.wav' is no file; give the path of one"):
        capture_view(run, str(tmp_path / "none.wav"))


def test_attention_over_a_spectrogram(run, tmp_path):
    path = str(write_wav(tmp_path / "a.wav", tone(310, 0.15)))
    view, model = capture_view(run, path), loaded_run.load(run)
    (attention,) = view.maps
    # 16 frames of 10 ms and 16 bands, in patches of 8 x 8, frame by frame. Bands have their middles
    # at equal steps of mel = 2595 log10(1 + f / 700), from 40 to 3800 Hz.
    low, high = "493Hz", "2.1kHz"
    assert attention.queries == attention.keys
    assert attention.keys[1:] == (
        f"0.04s·{low}",
        f"0.04s·{high}",
        f"0.12s·{low}",
        f"0.12s·{high}",
    )
    assert attention.visible_lts.all()
    np.testing.assert_allclose(attention.weights_lhts.sum(axis=-1), 1, atol=1e-5)
    assert_weights_give_the_next_layer(model, read_input(model, path, None))
    assert attention.gradients_lhts is not None and view.lens is not None
    (found,) = generate.generate(run, [path])
    assert view.prediction == f"low ({found[0]['probability']:.1%})"
    assert dict(view.facts)["input"] == "a.wav", "without its directory"
    assert '"name":"spectrogram"' in render(view)


def test_the_picture_of_a_sound_has_time_across_and_pitch_upwards(run, tmp_path):
    """And each patch has the cell that shows what the model reads in it."""
    early_and_high = np.concatenate([tone(1900, 0.07), np.zeros(640)])
    view = capture_view(run, str(write_wav(tmp_path / "a.wav", early_and_high)))
    pixels = np.asarray(Image.open(io.BytesIO(view.image_png))).astype(int)
    assert pixels.shape == (16, 16) and view.patch_grid == (2, 2)
    loudest = np.unravel_index(pixels.argmax(), pixels.shape)
    assert loudest[0] < 8 and loudest[1] < 8, "above on the left"
    signal = read_input(loaded_run.load(run), str(tmp_path / "a.wav"), None).fields["signals"]
    patches = [signal[t : t + 8, f : f + 8, 0] for t in (0, 8) for f in (0, 8)]
    for patch, cell in zip(patches, view.cell_of_patch, strict=True):
        row, column = divmod(int(cell), 2)
        shown = pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        np.testing.assert_allclose(shown[::-1].T / 255 * 80 - 80, patch, atol=0.2)


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("model", dict(patch_size=5), "model.patch_size=5 does not divide model.input_shape="),
        ("model", dict(input_shape=(8, 16, 1), patch_size=8), "but model.input_shape=(8, 16, 1)"),
        ("model", dict(max_length=3), "an example becomes 5 tokens, more than model.max_length=3"),
        ("data", dict(class_balance="weights"), "are for classes of texts, not task.objective="),
        ("data", dict(buckets=(8,)), "but sounds all make rows of the same; set it to ()"),
    ],
)
def test_a_start_that_cannot_work_is_refused(section, changes, said, config, tmp_path):
    broken = {**config, section: config[section] | changes}
    with pytest.raises(ConfigError) as caught:
        train.train_and_evaluate(broken, tmp_path / "run")
    assert said in str(caught.value)


def test_other_options_do_not_fit_a_trained_model(run):
    recorded = loaded_run.recorded_config(run)
    other = {**recorded, "data": recorded["data"] | {"options": OPTIONS | {"bands": 24}}}
    with pytest.raises(ConfigError, match=r"have the shape \(16, 24, 1\), but the model was"):
        evaluate(run, config=other)
