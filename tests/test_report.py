"""report.py as a command, and on the run directories that train.py and evaluate.py really write."""

import html
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import evaluate
import report
import train
from checkpointing.recorded_run import read_run
from configs import dates, digits, pydoc
from tests import scripts
from tests.recorded_runs import write_run
from tests.runs import tiny
from tests.scripts import ROOT
from training.exits import DivergedError
from visualization import eval_tables

pytestmark = pytest.mark.usefixtures("compile_once")


def test_text_prints_a_block_for_each_run(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", events=None)
    ended = scripts.run("report.py", f"--workdirs={a},{b}", "--text")
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.out.strip().split("\n\n")
    assert first.splitlines()[0] == str(a) and second.splitlines()[0] == str(b)
    assert "34 s" in first and "34 s" not in second
    assert "\x1b" not in ended.out  # no colours where stdout is no terminal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # no page is written


def test_a_page_is_written_where_it_is_asked_for(tmp_path):
    pytest.importorskip("plotly")
    workdir, page = write_run(tmp_path / "a"), tmp_path / "page.html"
    ended = scripts.run("report.py", f"--workdirs={workdir}", f"--output={page}")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(str(page))
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and text.endswith("</html>\n")
    assert page.stat().st_size < 3e6  # plotly is packed


def test_the_page_of_a_notebook(tmp_path):
    pytest.importorskip("plotly")
    runs = [write_run(tmp_path / name) for name in ("first", "second")]
    page = report.compare(runs)
    assert "<span>first</span>" in page.html and "<span>second</span>" in page.html
    frame = page._repr_html_()
    assert frame.startswith("<iframe ") and html.escape(page.html) in frame


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--workdirs is missing"),
        (["--workdirs={}/nowhere"], "nowhere is not a directory"),
        (["--workdirs={}/a,hdfs://host/b"], "hdfs://host/b"),
        (["--workdirs={}/a", "--text", "--axis=tokes"], "axis"),
        (["--workdirs={}/old", "--svg={}/figures", "--axis=tokens"], "nothing to draw over tokens"),
        (["--workdirs={}/a", "--output={}/no/such/page.html"], "cannot be written"),
        (["--workdir={}/a"], "Did you mean --workdirs"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, arguments, reason):
    for extra in ("plotly", "matplotlib"):
        pytest.importorskip(extra)
    write_run(tmp_path / "a")
    write_run(tmp_path / "old", events=None)
    ended = scripts.run("report.py", *(each.format(tmp_path) for each in arguments))
    assert ended.code == 2
    assert reason in ended.err and len(ended.err.splitlines()) == 1


def test_no_colour_is_respected_on_a_terminal(tmp_path):
    write_run(tmp_path)

    def shown(**variables):
        """What the command writes to a terminal."""
        controller, terminal = os.openpty()
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TERM": "xterm"} | variables
        process = subprocess.run(
            [sys.executable, "report.py", f"--workdirs={tmp_path}", "--text"],
            cwd=ROOT, env=environment, stdout=terminal, timeout=120,
        )  # fmt: skip
        os.close(terminal)
        text = os.read(controller, 100_000)
        os.close(controller)
        assert process.returncode == 0
        return text

    os.environ.pop("NO_COLOR", None)
    assert b"\x1b[1m" in shown()
    assert b"\x1b" not in shown(NO_COLOR="1")


# Real runs


def test_a_real_run_is_reported_with_time_tokens_and_restarts(tmp_path):
    config = tiny(pydoc, data=dict(length=32))
    train.train_and_evaluate({**config, "steps": 2}, tmp_path)
    train.train_and_evaluate(config, tmp_path)
    run = read_run(tmp_path)
    assert run.problems == ()
    assert (run.last_step, run.status, run.checkpoints) == (4, "finished", (2, 4))
    # Rows of packed text have no padding: 4 rows of 32 tokens at each step.
    assert run.progress("tokens")[1].tolist() == [0, 128, 256, 384, 512]
    steps, seconds = run.progress("seconds")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert (np.diff(seconds) >= 0).all() and seconds[-1] > seconds[0]
    assert [event["event"] for event in run.events if event["event"] != "progress"] == [
        "start", "end", "start", "end",
    ]  # fmt: skip
    counts = run.parameters
    assert counts["total"] == counts["trainable"] > 1000
    assert {sample.step for sample in run.samples} == {2, 4}


def test_a_diverged_run_says_why(tmp_path, monkeypatch):
    config = tiny(digits, optimizer=dict(learning_rate=1e38), eval=dict(every=0))
    with pytest.raises(DivergedError):
        train.train_and_evaluate(config, tmp_path)
    run = read_run(tmp_path)
    assert run.status.startswith("ended by DivergedError: the loss at step ")


def test_details_of_classes_hold_every_row(tmp_path):
    train.train_and_evaluate(tiny(digits, steps=2), tmp_path)
    record = evaluate.evaluate(tmp_path, details=True)
    (details,) = read_run(tmp_path).details
    rows = record["rows"]["held_out"]
    matrix = eval_tables.confusion_matrix(details["classes"])
    assert matrix.sum() == rows
    assert np.trace(matrix) / rows == pytest.approx(record["eval/held_out/accuracy"], abs=1e-6)
    probabilities = [each["probability"] for each in details["classes"]["worst"]]
    assert probabilities == sorted(probabilities)
    assert details["classes"]["labels"] == [str(digit) for digit in range(10)]


def test_details_of_answers_agree_with_the_score(tmp_path):
    config = tiny(dates, steps=2, data=dict(length=12, encoder_length=40))
    train.train_and_evaluate(config, tmp_path)
    record = evaluate.evaluate(tmp_path, details=True)
    for details in read_run(tmp_path).details:
        answers, name = details["answers"], details["eval_set"]
        bins = answers["by_length"]
        rows = sum(each["rows"] for each in bins)
        assert rows == record["rows"][name]
        matched = sum(each["rows"] * each["exact_match"] for each in bins) / rows
        assert matched == pytest.approx(record[f"eval/{name}/exact_match"], abs=1e-5)
        assert all(a["to"] < b["from"] for a, b in itertools.pairwise(bins))
        chrf = [each["chrf"] for each in answers["worst"]]
        assert chrf == sorted(chrf) and answers["worst"][0]["source"]


def test_details_of_positions_add_up_to_the_loss(tmp_path):
    train.train_and_evaluate(tiny(pydoc, steps=2, data=dict(length=32)), tmp_path)
    record = evaluate.evaluate(tmp_path, details=True)
    (details,) = read_run(tmp_path).details
    positions = details["positions"]
    loss = sum(positions["nll"]) / sum(positions["weight"])
    assert loss == pytest.approx(record[f"eval/{details['eval_set']}/loss"], rel=1e-5)
    assert len(positions["nll"]) == 32


def test_the_flag_writes_details_and_leaves_the_output_as_it_is(tmp_path):
    train.train_and_evaluate(tiny(digits, steps=2), tmp_path)
    plain = json.loads(scripts.run("evaluate.py", f"--workdir={tmp_path}").out)
    assert not (tmp_path / "evaluations").exists()
    ended = scripts.run("evaluate.py", f"--workdir={tmp_path}", "--details")
    detailed = json.loads(ended.out)
    assert {**detailed, "seconds": 0} == {**plain, "seconds": 0}
    assert f"details: {tmp_path}/evaluations/00000002_held_out.json" in ended.err
