"""The report of runs as one HTML file that needs no network."""

import base64
import datetime
import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from checkpointing.recorded_run import RunRecord
from experiment.schema import ConfigError
from visualization import curves, detail_sections, report_sections
from visualization.html_parts import dot, escaped

ASSETS = Path(__file__).parent / "report_assets"
# Okabe and Ito's colours, which colour-blind people can tell apart; lighter ones on dark ground.
COLOURS = {
    "light": [
        "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3aa0dd", "#7a4fbf", "#555555",
    ],
    "dark": [
        "#56b4e9", "#ff9a52", "#35d0a0", "#e8a2cb", "#f0c94a", "#9bd4ff", "#bb9cff", "#bbbbbb",
    ],
}  # fmt: skip


def run_names(runs: Sequence[RunRecord]) -> list[str]:
    """A short name for each run: its directory's, with as many parents as tell the runs apart."""
    paths = [Path(os.path.abspath(run.workdir)).parts for run in runs]
    names = []
    for own in paths:
        depth = 1
        others = [path for path in paths if path != own]
        while depth < len(own) and any(path[-depth:] == own[-depth:] for path in others):
            depth += 1
        names.append("/".join(own[-depth:]))
    return names


def report_page(
    runs: Sequence[RunRecord],
    *,
    refresh: float = 0,
    version: str = "",
    title: str = "",
    lead: str = "",
) -> str:
    """The whole page. With `refresh`, it looks every so many seconds for another `version`.

    `title` takes the place of the names of the runs; `lead` is HTML above the table of runs.
    """
    names = run_names(runs)
    title = title or (", ".join(names) if len(names) <= 3 else f"{len(names)} runs")
    units = {run.unit for run in runs}
    unit = " or ".join(sorted(units))
    data = {
        "title": title,
        "refresh": refresh,
        "version": version,
        "colours": COLOURS,
        "unsmoothed": curves.UNSMOOTHED,
        "axisTitles": {axis: curves.axis_title(axis, unit) for axis in AXES},
        "runs": [
            {"key": str(run.workdir), "name": name, **curves.curve_data(run)}
            for run, name in zip(runs, names, strict=True)
        ],
        "samples": report_sections.sample_data(runs),
    }
    script, plotly = (ASSETS / "report.js").read_text(), plotly_source()
    written = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    live = '<span class="live" id="live">live</span>' if refresh else ""
    return PAGE.format(
        title=escaped(title),
        policy=escaped(_policy(script, plotly, connects=bool(refresh))),
        css=(ASSETS / "report.css").read_text(),
        written=written,
        live=live,
        chips="".join(
            f'<button class="chip" data-run="{number}" aria-pressed="true" '
            f'title="{escaped(run.workdir)}">{dot(number)}'
            f"<span>{escaped(name)}</span></button>"
            for number, (run, name) in enumerate(zip(runs, names, strict=True))
        ),
        unit=escaped(unit),
        lead=lead,
        summary=report_sections.summary(runs, names),
        plots=report_sections.plots(runs),
        config=report_sections.config(runs, names),
        samples=report_sections.samples(runs, names),
        details=detail_sections.details(runs, names),
        history=report_sections.history(runs, names),
        environment=report_sections.environment(runs, names),
        data=json_for_html(data),
        plotly=_packed(plotly),
        script=script,
    )


AXES = ("steps", "tokens", "seconds")


def json_for_html(data: object) -> str:
    """JSON that may stand in a script element: without characters that could end it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plotly_source() -> str:
    """plotly.js as it ships in the Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            "the report's curves need plotly: pip install -e '.[report]'; --text needs nothing"
        ) from error
    return get_plotlyjs()


def _packed(source: str) -> str:
    """A third of the size. `mtime` is fixed so that the same input gives the same page."""
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def _policy(*scripts: str, connects: bool) -> str:
    """A content security policy: only our own scripts run, and nothing is fetched from elsewhere.

    So even text that slipped into the page as HTML could neither run nor send anything.
    """
    hashes = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    own = "'self'" if connects else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; font-src data:; connect-src {own}; base-uri 'none'; "
        "form-action 'none'"
    )


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Report: {title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<header><h1>{title}</h1><span class="soft" id="written">written {written}</span>{live}
<span style="flex:1"></span><button id="theme" aria-label="light or dark">dark</button></header>
<div class="bar"><div>
<div class="chips" role="group" aria-label="runs">{chips}</div>
<div class="segmented" role="group" aria-label="horizontal axis"><button
 data-axis="steps">steps</button><button data-axis="tokens">{unit}</button><button
 data-axis="seconds">time</button></div>
<label>smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01"><output
 id="smoothing-value"></output></label>
<button class="toggle" id="log-y">log y</button><button class="toggle" id="log-x">log x</button>
</div></div>
<main>{lead}
<section id="summary"><h2>Runs</h2>{summary}</section>
<section id="curves"><h2>Curves</h2>
<p class="card note bad" id="no-curves" hidden>This browser cannot unpack the plotting library.
Use a current Firefox, Chrome, Edge or Safari.</p>{plots}</section>
<section id="config"><h2>Config</h2>{config}</section>
<section id="samples"><h2>Samples</h2>{samples}</section>
<section id="details"><h2>Evaluation in detail</h2>{details}</section>
<section id="history"><h2>History</h2>{history}</section>
<section id="environment"><h2>Environment</h2>{environment}</section>
</main>
<footer>Written by report.py. Drag over a plot to zoom, double-click to go back. Smoothing is an
exponential moving average; scores of evaluations and learning rates
are not smoothed.</footer>
<script type="application/json" id="data">{data}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{script}</script>
</body>
</html>
"""
