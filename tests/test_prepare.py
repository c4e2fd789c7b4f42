"""prepare.py: a later run finds all data prepared; the script summarizes the cache."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prepare
from configs import default
from experiment import command_line, sections
from experiment.schema import ConfigError
from input_pipeline import packing, pipeline, preparation, token_cache
from tests import corpora

ROOT = Path(__file__).resolve().parent.parent


def config(tmp_path, **keys) -> dict:
    made = default.get_config()
    made.data.update(corpora.translation_files(tmp_path / "corpus"))
    made.data.update(dict(cache_dir=str(tmp_path / "cache"), packing=True, batch_size=4, **keys))
    return made.to_dict()


def load(config) -> pipeline.Data:
    experiment = sections.from_mapping(config)
    return pipeline.load(
        experiment.data, objective=experiment.task.objective, masking=experiment.masking, seed=0
    )


def test_a_run_after_prepare_reuses_everything(tmp_path, monkeypatch):
    def forbidden(*_):
        raise AssertionError("this has been prepared")

    asked = config(tmp_path, tokenizer="bpe", tokenizer_size=400)
    cold = load({**asked, "data": {**asked["data"], "cache_dir": str(tmp_path / "other")}})
    prepare.prepare(asked)
    monkeypatch.setattr(preparation, "tokenized", forbidden)
    monkeypatch.setattr(token_cache, "train_tokenizer", forbidden)
    monkeypatch.setattr(packing, "plan", forbidden)
    warm = load(asked)
    for name, values in cold.train_batch(0).items():
        np.testing.assert_array_equal(warm.train_batch(0)[name], values)


def test_prepare_summarizes_the_cache(tmp_path):
    said = prepare.prepare(config(tmp_path)).splitlines()
    assert said[0].startswith(f"{tmp_path / 'cache'} is ready, after ")
    assert said[1] == "tokenizer: 362 ids"
    tokens = sum(len(f"train number {n}") + len(f"train Zahl {n}") for n in range(50))
    assert said[2].startswith(f"train: 50 entries, {tokens:,} tokens, in ")
    assert (tmp_path / "cache" / said[2].split()[-1] / "table.json").exists()
    assert said[3].startswith("validation: 5 entries, ")


def test_sources_that_store_no_text_have_nothing_to_prepare():
    said = prepare.prepare(default.get_config().to_dict())
    assert said.endswith("data.source=dates stores no text there")


def test_without_the_package_beam_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ConfigError, match=r"pip install 'backbone\[beam\]'"):
        prepare.prepare(config(tmp_path), [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config.data.pth=x"], "data.pth is not a config key. Did you mean 'path'?"),
        (["--config.data.source=text_files", "--config.data.path=/nowhere"], "matches no file"),
        (["DirectRunner"], "unexpected argument 'DirectRunner'"),
        (["--", "--runner=DirectRunner"], "Beam's options need --beam"),
    ],
)
def test_bad_input_is_refused_in_a_line(arguments, reason):
    done = run(*arguments)
    assert done.returncode == command_line.BAD_INPUT
    assert reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_beam_workers_in_processes_of_their_own(tmp_path):
    pytest.importorskip("apache_beam")
    data = corpora.translation_files(tmp_path / "corpus", pairs=3 * preparation.CHUNK)
    flags = [f"--config.data.{key}={value}" for key, value in data.items()]
    done = run(*flags, f"--config.data.cache_dir={tmp_path / 'alone'}")
    assert done.returncode == 0, done.stderr
    beam = ["--beam", "--", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    done = run(*flags, f"--config.data.cache_dir={tmp_path / 'beam'}", *beam)
    assert done.returncode == 0, done.stderr
    assert f"train: {3 * preparation.CHUNK:,} entries" in done.stdout
    alone, beam = (corpora.contents(tmp_path / name) for name in ("alone", "beam"))
    assert alone and alone == beam


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "prepare.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
