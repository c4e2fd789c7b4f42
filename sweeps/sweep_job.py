"""Runs the cells of a sweep on this machine, and shows how far they are."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeps import timed_run
from sweeps.cell_results import CellResult, read_result
from sweeps.cells import Cell
from sweeps.job_devices import JobDevices
from sweeps.metric_patterns import without_patterns
from sweeps.progress_table import ProgressTable
from sweeps.runner import Runner, SweepEnd
from sweeps.timed_run import StepTime

DIVERGED = "ended by DivergedError"  # the status of such a run


@dataclasses.dataclass(frozen=True)
class SweepJob:
    """Where and how cells run."""

    sweep: Path
    trainer: tuple[str, ...]  # the command that gets a cell's arguments
    devices: tuple[JobDevices, ...]  # of each job
    first: Callable[[int], int]  # the number of cells -> the one to begin with
    prober: tuple[str, ...] = ()  # the command that gets --run and --probes

    def run(
        self,
        cells: Sequence[Cell],
        steps: dict[str, int],
        metrics: Sequence[str],
        table: Callable[[], str],
        *,
        probes: Mapping[str, Sequence[str]] | None = None,
        exact: bool = False,
        waits: bool = False,
    ) -> SweepEnd:
        """Runs the cells that are not done; returns how they ended.

        `steps` and `probes` are those of each cell, by name. `exact`: cells may have gone on beyond
        these steps, and those that diverged are done. `waits`: also for cells that run elsewhere.
        """

        def probes_of(cell: Cell) -> Sequence[str]:
            return (probes or {}).get(cell.name, ())

        def result(cell: Cell) -> CellResult:
            workdir, options = cell.workdir(self.sweep), dict(exact=exact, probes=probes_of(cell))
            return read_result(workdir, metrics, steps[cell.name], **options)

        def is_done(cell: Cell) -> bool:
            found = result(cell)
            return found.is_done or (exact and found.status.startswith(DIVERGED))

        def command(cell: Cell) -> list[str]:
            if result(cell).is_trained:
                names = ",".join(probes_of(cell))
                return [*self.prober, f"--run={cell.workdir(self.sweep)}", f"--probes={names}"]
            return [*self.trainer, *cell.arguments(self.sweep)]

        def describe(cell: Cell) -> str:
            found = result(cell)
            scores = [
                f"{name} {found.values[name]:.4g}"
                for name in without_patterns(metrics)
                if name in found.values  # a probe may not fit the variant
            ]
            return ", ".join([*scores, f"{found.seconds or 0:.0f} s"])

        todo = [cell for cell in cells if not is_done(cell)]
        done = {cell.name for cell in cells} - {cell.name for cell in todo}
        progress = ProgressTable(self.sweep, steps, table, describe, done=done)
        if len(todo) < len(cells):
            progress.line(f"{len(cells) - len(todo)} of {len(cells)} cells are done already")
        try:
            with Runner(self.sweep, command, self.devices, is_done, progress) as runner:
                return runner.run(todo, first=self.first(len(todo)), waits=waits)
        finally:
            progress.close()

    def time(self, cell: Cell) -> StepTime:
        """How long a step of a cell takes with the devices of one job."""
        return timed_run.measure(self.sweep, self.trainer, self.devices[0], cell)
