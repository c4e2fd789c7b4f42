"""Runs a script's command line inside the process of the tests, where jax is imported already."""

import contextlib
import io
import runpy
import sys
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def run(script: str, *arguments: str) -> Ended:
    """How `python script arguments` ends. absl's flags are afterwards as they were before."""
    out, err = io.StringIO(), io.StringIO()
    path = str(ROOT / script)
    with (
        mock.patch.object(sys, "argv", [path, *arguments]),
        # Without what absl does to logging and signals at the start of a process.
        mock.patch.object(app, "run", lambda main, flags_parser: main(flags_parser(sys.argv))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _flags_of_its_own(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # as in a process of its own
        try:
            runpy.run_path(path, run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _flags_of_its_own():
    """Removes a script's flags afterwards: the next script may define the same ones."""
    state = vars(flags.FLAGS)
    before = {key: _copy(value) for key, value in state.items()}
    try:
        yield
    finally:
        state.clear()
        state.update(before)


def _copy(value):
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return list(value) if isinstance(value, list) else value
