"""What a terminal shows while a sweep runs."""

import io
import json
import re

import pytest

from sweeps import progress_table
from sweeps.cells import Cell
from sweeps.progress_table import ProgressTable


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def screen(self) -> list[str]:
        """The lines that are visible: an emulation of the two codes that are used."""
        lines = []
        for text in re.split(r"(\x1b\[\d+A\x1b\[J)", self.getvalue()):
            if match := re.fullmatch(r"\x1b\[(\d+)A\x1b\[J", text):
                del lines[len(lines) - int(match[1]) :]
            else:
                lines += text.splitlines()
        return lines


CELLS = [Cell(name, name, 0, "configs/digits.py", {}) for name in ("a", "b")]


@pytest.fixture
def at(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_table, "clock", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "12")
    return now


def reach(sweep, name, step):
    path = sweep / "cells" / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "events.jsonl").write_text(json.dumps({"event": "progress", "step": step}) + "\n")


def test_the_table_and_the_bar_are_drawn_in_place(tmp_path, at):
    screen, rows = Terminal(), ["variant", "a"]
    progress = ProgressTable(
        tmp_path, {"a": 100, "b": 100}, lambda: "\n".join(rows), lambda cell: "fine", screen
    )
    reach(tmp_path, "a", 50)
    progress.refresh(CELLS[:1])
    assert screen.screen()[:3] == ["variant", "a", "running: a 50"]
    assert " 25%|" in screen.screen()[3] and "50/200" in screen.screen()[3]
    reach(tmp_path, "a", 60)
    progress.refresh(CELLS[:1])  # too early
    assert "50/200" in screen.screen()[-1]
    at[0] += 2
    progress.refresh(CELLS[:1])
    assert "60/200" in screen.screen()[-1] and len(screen.screen()) == 4
    rows[1] = "a 0.5"
    progress.cell_done(CELLS[0])
    progress.refresh(CELLS[1:])
    shown = screen.screen()
    assert shown[:4] == ["a: fine (1 of 2)", "variant", "a 0.5", "running: b 0"]
    assert "100/200" in shown[4]
    progress.close()
    assert screen.screen() == ["a: fine (1 of 2)"]


def test_a_long_table_is_cut_to_the_terminal(tmp_path, at):
    screen = Terminal()
    text = "\n".join(f"row {number} " + "x" * 100 for number in range(30))
    progress = ProgressTable(tmp_path, {"a": 100}, lambda: text, str, screen)
    progress.refresh(CELLS[:1])
    shown = screen.screen()
    assert len(shown) < 12 and max(map(len, shown)) < 70
    assert "... 23 more lines" in shown


def test_elsewhere_there_are_only_lines(tmp_path, at):
    stream = io.StringIO()
    progress = ProgressTable(tmp_path, {"a": 9, "b": 9}, lambda: "table", lambda c: "0.5", stream)
    progress.refresh(CELLS)
    progress.cell_done(CELLS[1])
    progress.line("a: failed")
    progress.close()
    assert stream.getvalue() == "b: 0.5 (1 of 2)\na: failed\n"
