"""The few lines about a run, against figures worked out by hand."""

import io

import pytest

from checkpointing import run_summary
from checkpointing.recorded_run import read_run
from tests.recorded_runs import EVENTS, METRICS, write_run


def test_a_summary_says_scores_time_tokens_and_troubles(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert run_summary.facts(run) == [
        ("step", "40 of 40, finished"),
        ("best", "eval/dates/exact_match 0.75 at step 40 (max)"),
        ("last", "eval/dates/exact_match 0.75 at step 40"),
        ("train/loss", "1 at step 40"),
        ("time", "34 s"),
        ("tokens", "4,000"),
        ("parameters", "100"),
        ("troubles", "1 restart, 1 skipped step, 1 rollback"),
    ]


def test_the_end_of_a_run_has_the_style_of_its_log(tmp_path):
    run = read_run(write_run(tmp_path / "my run", samples={"00000040_dates.txt": "x"}))
    lines = run_summary.end_of_run(run).splitlines()
    assert all(line[0].islower() and line[-1] != "." for line in lines)
    assert f"samples: {tmp_path}/my run/samples" in lines
    assert f"--workdirs='{tmp_path}/my run'" in lines[-1]


def test_unknown_facts_are_left_out(tmp_path):
    run = read_run(write_run(tmp_path, config=None, metrics=METRICS[:1], events=None))
    assert run_summary.facts(run) == [("step", "10"), ("train/loss", "4 at step 10")]


def test_a_killed_and_a_failed_run_say_so(tmp_path):
    run = read_run(write_run(tmp_path / "a", events=EVENTS[:4]))
    assert "running, or was killed" in dict(run_summary.facts(run))["step"]
    end = {"event": "end", "step": 30, "reason": "DivergedError: the loss is nan"}
    run = read_run(write_run(tmp_path / "b", events=[*EVENTS[:4], end]))
    assert dict(run_summary.facts(run))["step"].endswith("ended by DivergedError: the loss is nan")


def test_a_finished_run_that_is_started_again_has_no_restart(tmp_path):
    """It is only evaluated."""
    events = [EVENTS[0], {"event": "start", "step": 40}, {"event": "end", "step": 40}]
    assert run_summary.trouble_counts(read_run(write_run(tmp_path, events=events))) == {}


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    end = {"event": "end", "step": 30, "reason": "\x1b[2J\x07gone\nbest: 1.0"}
    run = read_run(write_run(tmp_path / "run\x1b[31m", events=[*EVENTS[:4], end]))
    text = run_summary.of_runs([run], colour=False)
    assert "\x1b" not in text and "\x07" not in text
    assert "gone\N{REPLACEMENT CHARACTER}best: 1.0" in text
    coloured = run_summary.of_runs([run], colour=True)
    assert coloured.count("\x1b") == 2  # our own, around the title


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (9.94, "9.9 s"), (42.4, "42 s"), (59.6, "1 min 0 s"),
        (318, "5 min 18 s"), (3599.7, "1 h 0 min"), (11220, "3 h 7 min"), (90000, "25 h 0 min"),
    ],
)  # fmt: skip
def test_durations_are_readable(seconds, text):
    assert run_summary.duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_are_for_terminals_whose_user_wants_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert run_summary.wants_colour(Terminal())
    assert not run_summary.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not run_summary.wants_colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not run_summary.wants_colour(Terminal())
