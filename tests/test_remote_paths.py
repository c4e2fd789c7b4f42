"""Paths with a scheme, such as gs://bucket/run, are refused where object storage is not supported.

Python would make a local directory named `gs:` of them.
"""

import json
import os
from pathlib import Path

import pytest

import convert
import evaluate
import generate
import prepare
import train
from checkpointing import loaded_run
from checkpointing.checkpoint_manager import find_checkpoint
from configs import dates
from experiment import command_line, schema, sections
from experiment.schema import ConfigError, refuse_remote
from inference import sampling_options
from inference.prompts import ImagePrompts
from input_pipeline.sources import tfds_source
from tests import scripts
from tests.experiment.test_bad_input import assert_short_and_clear, changed
from tests.tiny import data_config

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "gs://bucket/run"
SAID = f"={BUCKET} has the scheme gs://, which is not supported here"
OTHER = "hdfs://host/run"
NEEDS = f"={BUCKET} needs no_such_package: pip install -e '.[gcs]'"


@pytest.fixture
def no_gcsfs(monkeypatch):
    """As where the extra is not installed."""
    monkeypatch.setitem(schema.OBJECT_STORAGE, "gs", ("no_such_package", "gcs"))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Where a path that is taken for a local one would leave its mark."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield directory
    assert os.listdir(directory) == []


def refusal(function, *args, **kwargs):
    with pytest.raises(ConfigError) as refused:
        function(*args, **kwargs)
    return str(refused.value)


@pytest.mark.parametrize(("key", "path"), [("data.name", BUCKET), ("data.cache_dir", OTHER)])
def test_keys(key, path, tmp_path):
    config = changed(dates.get_config(), {key: path})
    for run in (
        lambda: train.train_and_evaluate(config, tmp_path / "run"),
        lambda: prepare.prepare(config),
        lambda: sections.from_mapping(config),  # which is all that plan.py reads paths with
    ):
        scheme = path.partition("://")[0]
        assert_short_and_clear(
            refusal(run), f"{key}={path} has the scheme {scheme}://, which is not supported here"
        )
    assert not (tmp_path / "run").exists()


def test_schemes_that_a_tokenizer_cannot_have():
    config = changed(dates.get_config(), {"data.tokenizer": "hdfs://host/tokenizer.json"})
    message = refusal(sections.from_mapping, config)
    assert_short_and_clear(message, "data.tokenizer=hdfs://host/tokenizer.json has the scheme")


def test_parts_of_a_mixture():
    mixture = (("text_files:/local/*.txt", 1.0), ("text_files:hdfs://host/*.txt", 1.0))
    message = refusal(sections.from_mapping, changed(dates.get_config(), {"data.mixture": mixture}))
    assert_short_and_clear(message, "data.mixture: text_files=hdfs://host/*.txt has the scheme")
    assert "local" not in message.split(";")[0]


@pytest.mark.parametrize("path", [Path(BUCKET), "abfs://c@host/run", "hdfs://host/run"])
def test_workdirs(path):
    config = dates.get_config().to_dict()
    for run in (
        lambda: train.train_and_evaluate(config, path),
        lambda: evaluate.evaluate(path),
        lambda: generate.generate(path, ["a"]),
        lambda: loaded_run.load(path),
    ):
        assert_short_and_clear(refusal(run), f"--workdir={path} has the scheme ")


def test_a_run_in_a_bucket_needs_the_extra(no_gcsfs, tmp_path):
    config = dates.get_config().to_dict()
    for run in (
        lambda: train.train_and_evaluate(config, BUCKET),
        lambda: evaluate.evaluate(BUCKET),
        lambda: generate.generate(BUCKET, ["a"]),
        lambda: loaded_run.load(BUCKET),
    ):
        assert_short_and_clear(refusal(run), f"--workdir{NEEDS}")
    keys = ("init_from", "task.teacher", "data.path", "data.tokenizer", "data.cache_dir")
    keys += ("compilation_cache",)
    for key in keys:
        other = changed(dates.get_config(), {key: BUCKET})
        assert f"{key}{NEEDS}" in refusal(train.train_and_evaluate, other, tmp_path / "run")
    assert f"init_from{NEEDS}" in refusal(find_checkpoint, BUCKET)
    assert f"--draft_workdir{NEEDS}" in refusal(
        sampling_options.from_flags, {"draft_workdir": BUCKET}
    )
    ended = scripts.run("evaluate.py", "--workdir", BUCKET)
    assert_short_and_clear(ended.err, f"--workdir{NEEDS}")
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")


def test_other_schemes_of_other_runs_are_refused():
    assert "task.teacher=hdfs://host/run has" in refusal(
        find_checkpoint, "hdfs://host/run:20", "task.teacher"
    )


def test_conversion(tmp_path, no_gcsfs):
    local, other = str(tmp_path / "model"), "hdfs://host/model"
    for path, said in ((BUCKET, NEEDS), (other, f"={other} has the scheme hdfs://")):
        assert f"--from{said}" in refusal(convert.convert, path, local)
        assert f"--to{said}" in refusal(convert.convert, local, path)
        tokenizer = dict(tokenizer=path)
        assert f"--tokenizer{said}" in refusal(convert.convert, local, local + "2", **tokenizer)


def test_images_as_prompts():
    make = ImagePrompts(6, 1, data_config())
    assert refusal(make, "gs://bucket/a.png", "line 3").startswith("line 3=gs://bucket/a.png has")


def test_a_remote_tfds_directory_is_refused(monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", OTHER)
    data = data_config(source="tfds", name="mnist", kind="images")
    said = f"TFDS_DATA_DIR={OTHER} has the scheme hdfs://, which is not supported here"
    assert said in refusal(tfds_source.load, data)


COMMANDS = {
    "train.py --config=gs://bucket/run": "--config",
    f"train.py --config={ROOT}/configs/dates.py:gs://bucket/run": "--config",
    "visualize.py --workdir=x --prompt=a --output=gs://bucket/run": "--output",
    "report.py --workdirs=x --output=gs://bucket/run": "--output",
}


def test_other_schemes_of_lines_and_answers():
    for flag, more in (("--input", ""), ("--output", "--prompt=a")):
        path = "hdfs://host/lines"
        ended = scripts.run("generate.py", "--workdir=x", f"{flag}={path}", *more.split())
        assert_short_and_clear(ended.err, f"{flag}={path} has the scheme hdfs://")
        assert ended.code == command_line.BAD_INPUT


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(command):
    ended = scripts.run(*command.split())
    assert_short_and_clear(ended.err, f"{COMMANDS[command]}{SAID}")
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        (BUCKET, "gcloud storage cp"),
        ("s3://bucket/run", "aws s3 cp"),
        ("https://host/a.txt", "download it first"),
        ("file:///data/a.txt", "write the path without file://"),
        ("abfs://c@host/run", "copy it to a local disk, or mount it"),
        ("runs/\udcff", "--workdir='runs/\\udcff' is no text in UTF-8; rename it"),
        ("gs:/bucket/run", "a local path of this name is ./gs:/bucket/run"),
    ],
)
def test_the_refusal_names_the_fix(path, fix):
    assert fix in refusal(refuse_remote, "--workdir", path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "-",
        "runs/a",
        "/tmp/run:20",
        "a:b",
        "a:20",
        "./gs:/bucket/run",
        "C:/data",
        "org/name:sst2",
    ],
)
def test_local_paths_pass(path):
    refuse_remote("--workdir", path)


def test_a_run_recorded_with_remote_cache_paths_still_loads(tmp_path):
    config = changed(
        dates.get_config(), {"compilation_cache": OTHER, "data.cache_dir": OTHER, "seed": 7}
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = sections.from_mapping(loaded_run.recorded_config(tmp_path))
    assert (loaded.run.seed, loaded.run.compilation_cache, loaded.data.cache_dir) == (7, "", "")
