"""What counts as the loss of another process; tests/reliability/test_jobs.py runs whole jobs."""

import threading

import jax
import pytest

from experiment.schema import ConfigError
from training import job_ends


def caused(error, cause):
    error.__cause__ = cause
    return error


GLOO = jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (GLOO, True),
        (ValueError("Barrier failed. The following tasks stopped sending heartbeats"), True),
        (caused(KeyError("step"), GLOO), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (ConnectionResetError("Connection reset by peer"), False),  # of a server of data
        (ConfigError("data.path matches no file"), False),
        (KeyError("gloo"), False),
    ],
)
def test_lost_processes_are_known_by_what_jax_says(error, is_lost):
    assert job_ends.lost_process(error) == is_lost


class Store:
    """jax's key-value store, in this process."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def key_value_dir_get(self, key):
        return [(name, value) for name, value in self.values.items() if name.startswith(key)]


class Ended(BaseException):
    """In place of the end of a process."""


@pytest.fixture
def ends(monkeypatch):
    codes = []

    def end(code):
        codes.append(code)
        raise Ended

    monkeypatch.setattr(job_ends.os, "_exit", end)
    monkeypatch.setattr(job_ends, "abort", lambda: end(job_ends.DIED))
    monkeypatch.setattr(job_ends, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(job_ends, "FAREWELL_SECONDS", 0.5)
    return codes


@pytest.mark.parametrize(("code", "theirs"), [(2, 2), (143, 143), (74, 74), (1, 134)])
def test_the_others_end_with_the_same_code_and_message(ends, capsys, code, theirs):
    store = Store()
    first, second = (job_ends.Watch(store, index, 2) for index in (1, 0))
    second.follow()  # nobody has ended: nothing happens
    assert ends == []
    with pytest.raises(Ended):
        first.end(code, "data.path matches no file")
    with pytest.raises(Ended):
        second.follow()
    assert ends == [code, theirs]
    assert "process 1 on " in (said := capsys.readouterr().err)
    assert said.endswith(": data.path matches no file\n")


def test_process_0_waits_until_the_others_know(ends):
    store = Store()
    first, other = (job_ends.Watch(store, index, 2) for index in (0, 1))
    order = []
    timer = threading.Timer(0.2, lambda: (order.append("told"), other._tell(2, "the same")))
    timer.start()
    with pytest.raises(Ended):
        first.end(2, "refused")
    timer.join()
    assert order == ["told"]
    assert len(store.values) == 2


def test_one_process_has_no_watch():
    with job_ends.ending_together():
        assert job_ends._watch is None
    with pytest.raises(KeyError), job_ends.ending_together():
        raise KeyError("passes through")
