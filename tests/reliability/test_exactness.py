"""Rows 1, 2, 11, 12, 13: interruptions and moves do not change a run."""

import json
import random
import shutil
import signal
from collections import Counter

import numpy as np
import pytest

import train
from tests.reliability.commands import (
    FAMILIES,
    SHORT,
    config_of,
    contents,
    finish,
    last_step,
    loaded,
    metrics,
    started,
)

pytestmark = pytest.mark.slow
STEPS, STOPS = (12, (3, 6, 9)) if SHORT else (50, (10, 20, 30))


@pytest.mark.parametrize("family", FAMILIES)
def test_repeated_and_resumed_runs_are_identical(family, texts, tmp_path, compiled_once, figure):
    def run(workdir, steps=STEPS):
        train.train_and_evaluate(config_of(family, texts, steps), tmp_path / workdir)

    run("first")
    run("second")
    expected = contents(tmp_path / "first", STEPS)
    assert contents(tmp_path / "second", STEPS) == expected
    losses = metrics(tmp_path / "first")
    assert len(losses) == STEPS
    assert metrics(tmp_path / "second") == losses
    figure(1, f"{family}: {STEPS} losses and {len(expected)} arrays byte-identical")

    for stop in STOPS:
        run("parts", stop)
    run("parts")
    assert contents(tmp_path / "parts", STEPS) == expected
    assert metrics(tmp_path / "parts") == losses
    figure(2, f"{family}: stopped at {STOPS}, {len(expected)} arrays byte-identical")


def test_a_run_moves_to_another_number_of_devices(texts, tmp_path, figure):
    def config(steps):
        return config_of(
            "encoder_decoder", texts, steps,
            checkpoint=dict(every=10, keep=9), mesh=dict(fsdp=-1, data=1),
        )  # fmt: skip

    finish(config(20), tmp_path / "straight", devices=8)
    finish(config(10), tmp_path / "run", devices=8)
    expected = list(metrics(tmp_path / "straight").values())[10:]
    worst = 0.0
    counts = (1, 8) if SHORT else (4, 1, 8)
    for devices in counts:
        workdir = tmp_path / f"on{devices}"
        shutil.copytree(tmp_path / "run", workdir)
        finish(config(20), workdir, devices=devices)
        found = list(metrics(workdir).values())[10:]
        assert len(found) == 10
        worst = max(worst, np.max(np.abs(np.array(found) / expected - 1)))
        if devices == 8:
            assert contents(workdir, 20) == contents(tmp_path / "straight", 20)
    assert worst <= 1e-6
    figure(11, f"8 -> {counts}: next 10 losses within {worst:.1e}; on 8 the state byte-identical")


def test_the_number_of_processes_may_change(texts, tmp_path, figure):
    """Two processes of four, one of eight, and back."""

    def config(steps):
        return config_of(
            "decoder", texts, steps, checkpoint=dict(every=10, keep=9), mesh=dict(fsdp=2)
        )

    finish(config(30), tmp_path / "straight", devices=8)
    finish(config(10), tmp_path / "moved", 2, devices=4)
    finish(config(20), tmp_path / "moved", devices=8)
    finish(config(30), tmp_path / "moved", 2, devices=4)
    ours, theirs = (metrics(tmp_path / name) for name in ("moved", "straight"))
    assert ours.keys() == theirs.keys()
    ratios = np.array(list(ours.values())) / list(theirs.values())
    worst = np.max(np.abs(ratios - 1))
    assert worst <= 1e-6

    def ids(index, count):
        data = loaded(config(30), index, count)
        return [data.train_ids(n) for n in range(20, 120)]

    together = [first + second for first, second in zip(ids(0, 2), ids(1, 2), strict=True)]
    assert together == ids(0, 1)
    figure(12, f"2x4 -> 1x8 -> 2x4: losses within {worst:.1e}, 100 batches of the same examples")


@pytest.mark.parametrize("count", [1, 2])
def test_an_epoch_has_every_example_once(count, tmp_path, figure):
    """By the rows that the steps received, with several kills in between."""
    examples, batch, kills = (160, 4, 2) if SHORT else (400, 4, 5)
    data = tmp_path / "data"
    data.mkdir()
    for split, first, size in (("train", 0, examples), ("validation", examples, 8)):
        lines = [f"{n % 2}\tnumber {n}\n" for n in range(first, first + size)]
        (data / f"{split}.tsv").write_text("".join(lines))
    steps = examples // batch
    config = config_of(
        "encoder", tmp_path, steps,
        task=dict(objective="classify_text"),
        data=dict(source="labelled_text_files", path=str(data), mixture=(), packing=False,
                  batch_size=batch),
        optimizer=dict(accumulate=1), checkpoint=dict(every=10),
    )  # fmt: skip
    workdir, rng = tmp_path / "run", random.Random(count)
    options = dict(script="tests/reliability/recorded.py")
    for kill in range(kills):
        with started(config, workdir, count, **options) as commands:
            # Each time some steps on, but never near the end of the epoch.
            commands[0].until_step(min(last_step(workdir) + rng.randint(2, 22), 15 * (kill + 1)))
            for command in commands:
                command.signal(signal.SIGKILL)
            for command in commands:
                command.wait()
    finish(config, workdir, count, **options)
    counts, repeated = Counter(), 0
    for index in range(count):
        given = {}
        for line in (workdir / f"rows-{index}.jsonl").read_text().splitlines():
            record = json.loads(line)
            repeated += record["step"] in given
            # A step that is made again is made of the same rows.
            assert given.setdefault(record["step"], record["rows"]) == record["rows"]
        assert sorted(given) == list(range(1, steps + 1))
        counts.update(row for rows in given.values() for row in rows)
    assert len(counts) == examples
    assert set(counts.values()) == {1}
    assert repeated, "no step was lost, so no step was made again"
    figure(13, f"{count} processes, 5 kills: {examples} examples once each; {repeated} steps again")
