"""Rows 14, 17 to 20, 23 and 24: bad input is refused early, in few lines and without harm."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

import pytest

import train
from configs import default
from experiment.schema import ConfigError
from tests.pretrained.make_fixtures import FIXTURES
from tests.reliability.commands import ROOT, Command, config_of, finish, metrics, variables_of

OTHERS = {
    "width": dict(model=dict(width=32)),
    "depth": dict(model=dict(decoder_layers=2)),
    "vocabulary": dict(data=dict(tokenizer="bpe", tokenizer_size=400)),
    "dtype": dict(model=dict(param_dtype="bfloat16")),
    "tokenizer": dict(data=dict(tokenizer="wordpiece", tokenizer_size=500)),
    "data": dict(data=dict(packing=False)),
}


@pytest.mark.slow
def test_another_run_is_refused_with_what_differs(texts, tmp_path, figure):
    finish(config_of("decoder", texts, 2), tmp_path / "run")
    slowest = 0.0
    for name, changes in OTHERS.items():
        begin = time.monotonic()
        with Command(config_of("decoder", texts, 4, **changes), tmp_path / "run") as command:
            assert command.wait() == 2, (name, command.text)
        slowest = max(slowest, time.monotonic() - begin)
        assert "holds a run with another config (" in command.text, name
        assert len(command.text.splitlines()) == 1
    # Other text at the same path is detected.
    shutil.copytree(texts, tmp_path / "moved")
    (tmp_path / "moved" / "one" / "00.txt").write_text("something else")
    with Command(config_of("decoder", tmp_path / "moved", 4), tmp_path / "run") as command:
        assert command.wait() == 2
    assert "data_digest: " in command.text
    free = config_of("decoder", texts, 4, optimizer=dict(learning_rate=2e-3))
    with Command({**free, "log_every": 2}, tmp_path / "run") as command:
        assert command.wait() == 0, command.text
    for change in ("optimizer.learning_rate: 0.001 -> 0.002", "steps: 2 -> 4", "log_every: 1 -> 2"):
        assert f"changed since then: {change}" in command.text
    assert slowest <= 15
    figure(14, f"{len(OTHERS) + 1} refused in a line, in {slowest:.1f} s at most; 3 changes logged")


def test_bad_records_are_counted_in_the_metrics(texts, tmp_path, figure):
    data = tmp_path / "data"
    data.mkdir()
    good = [f"{n % 2}\tnumber {n}" for n in range(40)]
    bad = ["no tab", "0\t\udcff", "\t"]
    lines = "\n".join(good + bad).encode("utf-8", "surrogateescape")
    (data / "train.tsv").write_bytes(lines + b"\n")
    (data / "validation.tsv").write_text("\n".join(good[:8]) + "\n")

    def config(allowed):
        return config_of(
            "encoder", texts, 2, task=dict(objective="classify_text"),
            data=dict(source="labelled_text_files", path=str(data), mixture=(), packing=False,
                      max_bad_records=allowed),
        )  # fmt: skip

    with pytest.raises(ConfigError, match=r"train\.tsv:4\d"):
        train.train_and_evaluate(config(2), tmp_path / "run")
    train.train_and_evaluate(config(3), tmp_path / "run")
    assert metrics(tmp_path / "run", "data/bad_records") == {1: 3, 2: 3}
    figure(17, "3 kinds of bad records: refused with file and line, or skipped and counted")


def test_empty_training_and_eval_sets_are_refused(texts, tmp_path, figure):
    for name in ("hollow", "unheld"):
        (tmp_path / name).mkdir()
    (tmp_path / "hollow" / "train.txt").write_text("")
    (tmp_path / "hollow" / "validation.txt").write_text("")
    (tmp_path / "unheld" / "train.txt").write_text("some text\n" * 50)
    (tmp_path / "unheld" / "validation.txt").write_text("")
    expected = {
        "none": "none",
        "hollow": "the split 'train' has 0 examples",
        "unheld": "the split 'validation' has 0 examples",
    }
    for name, said in expected.items():
        config = config_of("decoder", texts, 2, data=dict(mixture=(), path=str(tmp_path / name)))
        with pytest.raises(ConfigError) as refused:
            train.train_and_evaluate(config, tmp_path / f"run-{name}")
        assert said in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
    figure(18, "no text, empty text, nothing held out: each refused in a line")


@pytest.mark.slow
def test_a_batch_that_devices_cannot_share_is_refused_by_number(texts, tmp_path, figure):
    config = config_of("decoder", texts, 2, data=dict(batch_size=12), optimizer=dict(accumulate=1))
    with Command(config, tmp_path / "run", devices=8) as command:
        assert command.wait() == 2
    assert "data.batch_size=12 cannot be split over mesh.data=8" in command.text
    assert "compiling" not in command.text
    figure(18, "a batch of 12 over 8 devices: refused by name and number before compiling")


def wrong(value, rng):
    """A value that a key with this one cannot have."""
    if isinstance(value, bool):
        return rng.choice(["maybe", 2, None, 0.5])
    if isinstance(value, int):
        return rng.choice(["many", -(10**9), 0.5, None, float("nan"), (1, 2)])
    if isinstance(value, float):
        return rng.choice(["many", float("nan"), -float("inf"), None, ()])
    if isinstance(value, tuple):
        return rng.choice([3, None, "()", ({},), (None,)])
    return rng.choice([7, None, 0.5, ("x",)])


def fuzzed(rng):
    """The defaults with one or two keys that are wrong, or that nobody knows."""
    config = default.get_config().to_dict()
    for _ in range(rng.randint(1, 2)):
        section = config[rng.choice([name for name in config if isinstance(config[name], dict)])]
        key = rng.choice(sorted(section))
        if rng.random() < 0.2:
            section[key + "s"] = section.pop(key)
        else:
            section[key] = wrong(section[key], rng)
    return config


@pytest.mark.slow
def test_a_hundred_fuzzed_configs(tmp_path, figure):
    rng, slowest, most_lines = random.Random(0), 0.0, 0
    file = tmp_path / "config.py"
    for _ in range(100):
        text = repr(fuzzed(rng)).replace("nan", "float('nan')").replace("-inf", "-float('inf')")
        file.write_text(
            "import ml_collections\n\n\ndef get_config(arg=None):\n"
            f"    return ml_collections.ConfigDict({text}).lock()\n"
        )
        begin = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "train.py", f"--config={file}", f"--workdir={tmp_path / 'run'}"],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        slowest = max(slowest, time.monotonic() - begin)
        assert ended.returncode == 2, (text, ended.stderr)
        assert "Traceback" not in ended.stderr
        most_lines = max(most_lines, len(ended.stderr.splitlines()))
    assert most_lines <= 3
    assert not (tmp_path / "run").exists()
    assert slowest <= 5
    figure(19, f"100 of 100 refused, in {slowest:.1f} s and {most_lines} lines at most")


def test_hostile_files_do_no_harm(tmp_path, figure):
    shutil.copytree(FIXTURES / "vit_classifier", tmp_path / "model")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.reliability.hostile", str(tmp_path / "model")],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["nested"] == 3
    assert found["headers"] > 400
    assert found["growth"] <= 64 * 2**20
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    figure(
        20,
        f"500 headers: {found['headers']} refused, the rest harmless; 100 MB of nesting refused; "
        f"memory grew by {found['growth'] / 2**20:.0f} MB (pickles, ../: tests/pretrained)",
    )


@pytest.mark.slow
def test_a_workdir_is_for_one_run_at_a_time(texts, tmp_path, figure):
    config = config_of("decoder", texts, 1_000_000, checkpoint=dict(every=10_000))
    with Command(config, tmp_path / "run") as first:
        first.until_step(2)
        with Command(config, tmp_path / "run") as second:
            assert second.wait() == 2
        assert "is in use by another run (process " in second.text
        assert first.is_running
        first.signal(9)
        first.wait()
    with Command({**config, "steps": 3}, tmp_path / "run") as third:
        assert third.wait() == 0, third.text
    figure(23, "the second was refused, naming the first; after a kill -9 the next one ran")


@pytest.mark.slow
def test_processes_that_share_no_workdir_are_refused(texts, tmp_path, figure):
    """As on two hosts, each with its own disk."""
    config = config_of("decoder", texts, 3)
    places = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    places[0].parent.mkdir()
    places[1].mkdir(parents=True)  # whether it is there already makes no difference
    begin = time.monotonic()
    first, second = (
        Command(config, place, **each) for place, each in zip(places, variables_of(2), strict=True)
    )
    with first, second:
        assert [first.wait(), second.wait()] == [2, 2], first.text + second.text
    seconds = time.monotonic() - begin
    for index, command in enumerate((first, second)):
        assert re.search(rf"process 0 on \S+ wrote a file to {places[0]}, but", command.text)
        assert re.search(rf"process 1 on \S+: did not find it in {places[1]}", command.text)
        assert f"mounted bucket; this is process {index}" in command.text
        assert "Traceback" not in command.text
    assert [list(place.iterdir()) for place in places] == [[], []]
    figure(24, f"both refused with code 2 in {seconds:.0f} s, saying what each saw")
