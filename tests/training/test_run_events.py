"""The history of a run: what is recorded, over resumptions and rollbacks."""

import json

import numpy as np
import pytest

from training import run_events
from training.exits import DivergedError
from training.run_events import EventLog, read_events, record_examples, surviving_progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(run_events, "clock", lambda: now[0])
    return now


def event_log(workdir, start=0, log=None):
    return EventLog(workdir, "tokens", start, log or (lambda text: None), {"total": 7})


def facts(workdir):
    """Events without the time of day."""
    events = read_events(workdir / run_events.NAME)
    return [{key: value for key, value in each.items() if key != "time"} for each in events]


def test_a_run_records_start_progress_and_end(tmp_path, clock):
    with event_log(tmp_path) as events:
        for tokens in np.array([5, 6, 7]):
            clock[0] += 2
            events.count(tokens)
        events.progress(2)  # one step late, as the loop reads
        events.progress(3)
        events.progress(3)
        clock[0] += 1
    assert facts(tmp_path) == [
        {"event": "start", "step": 0, "parameters": {"total": 7}},
        {"event": "progress", "step": 2, "seconds": 6.0, "tokens": 11},
        {"event": "progress", "step": 3, "seconds": 6.0, "tokens": 18},
        {"event": "end", "step": 3, "seconds": 7.0},
    ]


def test_a_resumed_run_counts_on_from_its_step(tmp_path, clock):
    """Step 3 was lost: its time and tokens do not count."""
    with event_log(tmp_path) as events:
        for step in (1, 2, 3):
            clock[0] += 10
            events.count(100)
            events.progress(step)
    clock[0] += 5000
    with event_log(tmp_path, start=2) as events:
        clock[0] += 10
        events.count(50)
        events.progress(3)
    survived = surviving_progress(read_events(tmp_path / run_events.NAME))
    assert [(e["step"], e["seconds"], e["tokens"]) for e in survived] == [
        (1, 10, 100), (2, 20, 200), (3, 30, 250),
    ]  # fmt: skip


def test_a_rollback_goes_on_with_the_tokens_of_its_step(tmp_path, clock):
    """Time is not given back."""
    with event_log(tmp_path) as events:
        for step in (1, 2, 3):
            clock[0] += 10
            events.count(100)
            events.progress(step)
        events.rolled_back(3, to=1)
        clock[0] += 10
        events.count(70)
        events.progress(2)
    events = read_events(tmp_path / run_events.NAME)
    assert [(e["step"], e["seconds"], e["tokens"]) for e in surviving_progress(events)] == [
        (1, 10, 100), (2, 40, 170),
    ]  # fmt: skip
    assert [(e["step"], e["to"]) for e in events if e["event"] == "rollback"] == [(3, 1)]


def test_a_rollback_to_the_beginning_counts_from_zero(tmp_path, clock):
    with event_log(tmp_path) as events:
        events.count(100)
        events.rolled_back(1, to=0)
        events.count(30)
        events.progress(1)
    assert facts(tmp_path)[2]["tokens"] == 30


def test_a_run_that_is_older_than_its_events_has_no_tokens(tmp_path, clock):
    """The tokens of the steps before are unknown."""
    with event_log(tmp_path, start=5) as events:
        clock[0] += 3
        events.count(100)
        events.progress(6)
    assert facts(tmp_path)[1] == {"event": "progress", "step": 6, "seconds": 3.0}


def test_an_error_is_the_reason_of_the_end(tmp_path, clock):
    with pytest.raises(DivergedError), event_log(tmp_path) as events:
        events.skipped(1, float("nan"))
        raise DivergedError("the loss at step 2 is nan")
    events = facts(tmp_path)
    assert events[1] == {"event": "skipped", "step": 1, "loss": "nan"}
    assert events[2]["reason"] == "DivergedError: the loss at step 2 is nan"


def test_a_line_that_a_crash_cut_off_does_not_swallow_the_next(tmp_path, clock):
    (tmp_path / run_events.NAME).write_text('{"event": "progress", "step": 4, "se')
    with event_log(tmp_path):
        pass
    assert [each["event"] for each in facts(tmp_path)] == ["start", "end"]
    lines = (tmp_path / run_events.NAME).read_text().splitlines()
    assert lines[0].endswith('"se')  # the file is only appended to


def test_a_file_that_cannot_be_written_is_told_once_and_harmless(tmp_path, clock):
    said = []
    (tmp_path / run_events.NAME).mkdir()
    with event_log(tmp_path, log=said.append) as events:
        events.count(1)
        events.progress(1)
    assert len(said) == 1 and "start at step 0 is not recorded" in said[0]


def test_other_processes_write_nothing(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(run_events, "is_primary", lambda: False)
    with event_log(tmp_path) as events:
        events.count(1)
        events.progress(1)
    assert list(tmp_path.iterdir()) == []


def test_examples_of_a_failed_step_are_recorded_and_some_named(tmp_path):
    ids = [f"file:{n}" for n in range(10)]
    words = record_examples(tmp_path, 3, float("nan"), ids, None)
    assert words == f"from the examples {', '.join(ids[:8])} and 2 more in failures.jsonl"
    record = json.loads((tmp_path / "failures.jsonl").read_text())
    assert record == {"step": 3, "loss": "nan", "examples": ids}
    assert record_examples(tmp_path, 3, 1.0, ids[:1], 2) == "from the examples file:0"
    assert (tmp_path / "failures-2.jsonl").exists()
