import numpy as np
import pytest
from absl import logging

from experiment.schema import ConfigError
from input_pipeline.sources.files import sounds
from input_pipeline.sources.spectrogram import SpectrogramSpec, read_wav, spectrogram
from tests.input_pipeline.sources.waves import tone, write_wav
from tests.tiny import data_config

OPTIONS = dict(seconds=0.1, bands=8, highest_hertz=3000.0)


@pytest.fixture
def directory(tmp_path):
    for n, name in enumerate(["high/a.wav", "high/b.WAV", "low/c.wav", "low/d.wav"]):
        write_wav(tmp_path / "data/train" / name, tone((2000, 400)[n // 2] + 20 * n, 0.1))
    for n, name in enumerate(["high/e.wav", "low/f.wav"]):
        write_wav(tmp_path / "data/validation" / name, tone((2100, 500)[n], 0.1))
    return tmp_path / "data"


def load(directory, **keys):
    options = OPTIONS | keys.pop("options", {})
    cache = str(directory.parent / "cache")
    return sounds.load(
        data_config(
            source="sound_files", path=str(directory), cache_dir=cache, options=options, **keys
        )
    )


def refusal(directory, **keys):
    with pytest.raises(ConfigError) as caught:
        load(directory, **keys)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_examples_are_spectrograms_with_the_class_of_their_folder(directory):
    splits = load(directory)
    assert splits.kind == "sounds" and splits.labels == ("high", "low")
    assert [each["label"] for each in splits.train] == [0, 0, 1, 1]
    assert [each["name"] for each in splits.evals["validation"]] == [
        f"validation/{name}" for name in ("high/e.wav", "low/f.wav")
    ]
    path = directory / "train/low/c.wav"
    expected = spectrogram(*read_wav(path, ""), SpectrogramSpec(**OPTIONS), "")
    for _ in range(2):  # the second time from memory
        np.testing.assert_array_equal(splits.train[2]["signal"], expected)
    assert (
        expected.shape
        == sounds.outline(data_config(source="sound_files", options=OPTIONS))["signal"].shape
    )
    assert splits.description == {"sample_rates": [8000]}


def test_the_training_split_alone_is_measured(directory):
    splits = load(directory)
    values = np.stack([each["signal"] for each in splits.train])
    mean, std = splits.mean_and_std
    assert mean == (pytest.approx(values.mean(), rel=1e-4),)
    assert std == (pytest.approx(values.std(), rel=1e-4),)


def test_memory_is_bounded(directory, monkeypatch):
    monkeypatch.setattr(sounds, "CACHE_BYTES", 2 * 4 * 10 * 8)
    train = load(directory).train
    assert [train[n]["signal"].shape for n in range(4)] == [(10, 8, 1)] * 4
    assert len(train._cache) == 2


def test_without_splits_a_share_of_each_class_is_held_out(directory):
    splits = load(directory / "train", eval_share=0.5)
    assert splits.named_evals == () and splits.labels == ("high", "low")
    assert len(splits.train) + len(splits.evals["validation"]) == 4


def test_options_and_content_change_the_digest(directory):
    before = load(directory).digest
    assert load(directory).digest == before
    assert load(directory, options=dict(bands=9)).digest != before
    write_wav(directory / "train/low/c.wav", tone(450, 0.1))
    assert load(directory).digest != before


def test_a_bad_file_is_named_or_skipped_on_request(directory):
    write_wav(directory / "train/low/quiet.wav", np.zeros(800))
    assert "train/low/quiet.wav is silent" in refusal(directory)
    assert len(load(directory, max_bad_records=1).train) == 4
    (directory / "train/low/quiet.wav").write_bytes(b"RIFF")
    assert "train/low/quiet.wav is no WAV file that can be read" in refusal(directory)


def test_what_is_not_there_is_said(directory, tmp_path):
    assert "data.train_split='nothing' is not a folder in" in refusal(
        directory, train_split="nothing"
    )
    (directory / "train/middle").mkdir()
    assert "train/middle has no file that ends in .wav" in refusal(directory)
    (directory / "validation/loud").mkdir()
    assert "validation/loud is a class that" in refusal(directory)
    assert "is not a directory" in refusal(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"data\.source='sound_files' reads a directory"):
        sounds.load(data_config(source="sound_files", path=""))


def test_long_sounds_lose_their_end_with_a_warning(directory, monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    load(directory)
    assert not lines
    write_wav(directory / "train/low/long.wav", tone(400, 0.3))
    load(directory)
    assert lines == [
        "1 of 7 sounds are longer than data.options.seconds=0.1 and lose their end; the longest "
        "has 0.30 s"
    ]
