"""Shows and compares runs: python report.py --workdirs=DIR,DIR,... [--output=report.html]

It writes one HTML file that opens in any browser without a network: curves of all metrics, what
differs between the configs, scores, samples, troubles. Instead, --text prints a short summary,
--svg=DIR writes a figure for each metric, and --serve shows the page on this machine and renews it
while the runs go on. It only reads the run directories.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from checkpointing import run_summary
from checkpointing.recorded_run import RunRecord, read_run
from experiment import command_line
from experiment.schema import RUN_SCHEMES, ConfigError, refuse_remote
from visualization import report_figures, report_page, report_server
from visualization.framed_page import Page


def compare(workdirs: Sequence[str | Path]) -> Page:
    """The page as an object that a notebook shows."""
    return Page(report_page.report_page([read_run(each) for each in workdirs]), title="report")


def read_runs() -> list[RunRecord]:
    """What each run of --workdirs has recorded."""
    return [read_run(workdir) for workdir in workdirs()]


def workdirs() -> list[str]:
    """The directories of --workdirs, each once."""
    named = [each.strip() for each in WORKDIRS.value if each.strip()]
    if not named:
        raise ConfigError("--workdirs is missing; give directories of runs, such as runs/dates")
    return list(dict.fromkeys(named))


def write_page(path: str) -> None:
    """Writes the report to a page."""
    refuse_remote("--output", path)
    page = report_page.report_page(read_runs())
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output={path} cannot be written ({error.strerror}); choose another"
        ) from error
    print(f"{path} ({len(page.encode()) / 1e6:.1f} MB)")


def write_figures(directory: str) -> None:
    """Writes the report's figures to a directory, as SVG."""
    refuse_remote("--svg", directory)
    try:
        paths = report_figures.write_figures(
            read_runs(), Path(directory), axis=AXIS.value, smoothing=SMOOTHING.value
        )
    except OSError as error:
        raise ConfigError(
            f"--svg={directory} cannot be written ({error.strerror}); choose another"
        ) from error
    if not paths:
        raise ConfigError(f"--svg: nothing to draw over {AXIS.value}: none of it is recorded yet")
    print(f"{directory}: {len(paths)} figures")


def serve() -> None:
    """Serves the report, and updates it while the runs go on."""

    def make_page(version: str) -> str:
        seconds = report_server.refresh_seconds(workdirs())
        return report_page.report_page(read_runs(), refresh=seconds, version=version)

    for workdir in workdirs():
        refuse_remote("--workdirs", workdir, RUN_SCHEMES)
    server = report_server.ReportServer(workdirs(), make_page, PORT.value)
    server.page()  # refuses now what cannot be shown
    report_server.serve(server)


def main() -> None:
    if TEXT.value:
        colour = run_summary.wants_colour(sys.stdout)
        print(run_summary.of_runs(read_runs(), colour=colour))
    if SVG.value:
        write_figures(SVG.value)
    if flags.FLAGS["output"].present or not (TEXT.value or SVG.value or SERVE.value):
        write_page(OUTPUT.value)
    if SERVE.value:
        serve()


if __name__ == "__main__":
    WORKDIRS = flags.DEFINE_list("workdirs", [], "Directories of runs, with commas between them.")
    OUTPUT = flags.DEFINE_string("output", "report.html", "The file to write.")
    TEXT = flags.DEFINE_bool("text", False, "Print a short summary instead.")
    SVG = flags.DEFINE_string("svg", "", "Write a figure for each metric to this directory.")
    AXIS = flags.DEFINE_enum(
        "axis", "steps", ["steps", "tokens", "seconds"], "The horizontal axis of --svg."
    )
    SMOOTHING = flags.DEFINE_float(
        "smoothing", 0.0, "Weight of the moving average of --svg.", lower_bound=0, upper_bound=0.999
    )
    SERVE = flags.DEFINE_bool("serve", False, "Show the page on this machine, and renew it.")
    PORT = flags.DEFINE_integer("port", 0, "The port of --serve; default: a free one.")
    command_line.launch(main)
