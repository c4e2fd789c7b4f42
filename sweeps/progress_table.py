"""Shows a sweep while it runs: a table that fills, and a bar over the steps of all cells.

On a terminal both are drawn again and again in the same place. Elsewhere each cell that ends gets a
line.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from sweeps.cells import CELLS, Cell
from training import run_events

REDRAW_SECONDS = 1.0
UP_AND_CLEAR = "\x1b[{}A\x1b[J"  # ANSI: {} lines up, then clear to the end of the screen

clock = time.monotonic


class ProgressTable:
    """Prints lines about cells, and on a terminal the table and the bar below them."""

    def __init__(
        self,
        sweep: Path,
        steps: Mapping[str, int],
        table: Callable[[], str],
        describe: Callable[[Cell], str],
        stream: TextIO | None = None,
        done: Collection[str] = (),
    ):
        """`steps` are those of each cell, by name; `describe` says what a finished cell reached.

        `table` is the table of what is done so far, `done` the cells that are done already.
        """
        self._sweep, self._steps, self._table, self._describe = sweep, steps, table, describe
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._reached = {name: _last_step(sweep, name, steps[name]) for name in steps}
        self._done = set(done)
        self._reached |= {name: steps[name] for name in done}
        self._at_start = sum(self._reached.values())
        self._begun, self._drawn_at, self._drawn_lines = clock(), 0.0, 0
        self._text = ""

    def line(self, text: str) -> None:
        """Prints a line; on a terminal, above the table."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def cell_done(self, cell: Cell) -> None:
        """Records that a cell is done."""
        self._reached[cell.name] = self._steps[cell.name]
        self._text = ""  # the table has changed
        self._done.add(cell.name)
        count = f"{len(self._done)} of {len(self._steps)}"
        self.line(f"{cell.name}: {self._describe(cell)} ({count})")

    def refresh(self, running: Sequence[Cell]) -> None:
        """Draws the table and the bar again, if a second has passed. Nothing without a terminal."""
        if not self._is_terminal or clock() < self._drawn_at + REDRAW_SECONDS:
            return
        for cell in running:
            steps = self._steps[cell.name]
            self._reached[cell.name] = _last_step(self._sweep, cell.name, steps)
        self._text = self._text or self._table()
        columns, rows = shutil.get_terminal_size()
        lines = self._text.splitlines()
        now = [f"running: {cell.name} {self._reached[cell.name]}" for cell in running]
        room = max(1, rows - len(now) - 3)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]
        self._clear()
        block = [each[: columns - 1] for each in (*lines, *now, self._bar(columns - 1))]
        print("\n".join(block), file=self._stream, flush=True)
        self._drawn_lines, self._drawn_at = len(block), clock()

    def _bar(self, columns: int) -> str:
        return tqdm.format_meter(
            sum(self._reached.values()),
            sum(self._steps.values()),
            clock() - self._begun,
            ncols=columns,
            unit="step",
            initial=self._at_start,
        )

    def _clear(self) -> None:
        if self._drawn_lines:
            self._stream.write(UP_AND_CLEAR.format(self._drawn_lines))
            self._drawn_lines, self._drawn_at = 0, 0.0

    def close(self) -> None:
        """Removes the table and the bar."""
        self._clear()
        self._stream.flush()


def _last_step(sweep: Path, name: str, steps: int) -> int:
    """The newest step that a cell has recorded."""
    events = run_events.read_events(sweep / CELLS / name / run_events.NAME)
    return min(events[-1]["step"], steps) if events else 0
