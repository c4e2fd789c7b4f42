"""Scores position schemes on rows longer than those of training.

    python benchmarks/extrapolation.py --workdirs=runs/rope,runs/alibi,...

Each run is a byte-level language model with one scheme. It scores its eval text in rows of 1, 2, 4
and 8 times the training length; rope also with linear and ntk scaling by that factor. Longer rows
have more context, so a model that can use it should need fewer bits per byte.

Prints a table and draws it. Needs matplotlib: pip install -e '.[plots]'
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags

from checkpointing import loaded_run
from experiment import command_line
from experiment.schema import ConfigError
from sweeps.probes.score_longer_rows import fits, row_scores

ROOT = Path(__file__).resolve().parents[1]
WORKDIRS = flags.DEFINE_list("workdirs", [], "Runs that differ in model.position.")
OUTPUT = flags.DEFINE_string(
    "output", str(ROOT / "docs/extrapolation"), "Path of the plot, no suffix."
)
BATCHES = flags.DEFINE_integer("batches", 0, "Batches of 8,192 tokens to score; 0: all.")

TIMES = (1, 2, 4, 8)
METRIC = "bits_per_byte"

Config = Mapping[str, Any]
# Changes to the model config for rows of `times` the length, by name.
SCALINGS = {
    "": lambda times: {},
    " linear": lambda times: dict(rope_scaling="linear", rope_factor=float(times)),
    " ntk": lambda times: dict(rope_scaling="ntk", rope_factor=float(times)),
}


def trained_length(configs: Sequence[Config]) -> int:
    """Returns the training length of all runs; raises if the runs cannot be compared."""
    for name in ("data.length", "data.source", "data.tokenizer", "task.objective"):
        section, key = name.split(".")
        values = {config[section][key] for config in configs}
        if len(values) > 1:
            raise ConfigError(f"--workdirs: {name} differs ({values}); choose runs that share it")
    return configs[0]["data"]["length"]


def score(workdir: str, config: Config, length: int, changes: Mapping[str, Any]) -> float:
    """Returns the bits per byte of a run on rows of `length`, with changes to its model config."""
    options = dict(batches=BATCHES.value, changes=changes)
    return row_scores(Path(workdir), config, length, **options)[METRIC]


def lines(workdir: str, config: Config, trained_at: int) -> Iterator[tuple[str, list[float]]]:
    """Yields the name and the scores of each line of a run; NaN beyond its learned positions."""
    position, last = config["model"]["position"], config["model"]["max_length"]
    at_trained_length = score(workdir, config, trained_at, {})
    for name, reach in SCALINGS.items() if position == "rope" else [("", SCALINGS[""])]:
        scores = [at_trained_length]
        for times in TIMES[1:]:
            length = times * trained_at
            is_known = fits(position, last, length)
            scores.append(
                score(workdir, config, length, reach(times)) if is_known else float("nan")
            )
        yield position + name, scores


def as_table(found: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> str:
    """A Markdown table: a row for each position scheme, a column for each length."""
    rows = [["positions", *(f"{length:,}" for length in lengths)]]
    rows += [[name, *(f"{value:.3f}" for value in scores)] for name, scores in found.items()]
    first, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    return f"{first}|{'---|' * len(rows[0])}\n{''.join(others)}"


def draw(found: Mapping[str, Sequence[float]], lengths: Sequence[int], output: Path) -> None:
    """Draws the scores over the length as an SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "extrapolation"  # the same scores give the same file
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    colours: dict[str, str] = {}
    for name, scores in found.items():
        scheme, _, scaling = name.partition(" ")
        style = {"": "-", "linear": "--", "ntk": ":"}[scaling]
        (line,) = axes.plot(lengths, scores, style, marker="o", label=name, c=colours.get(scheme))
        colours.setdefault(scheme, line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel(f"bytes in a row; trained at {lengths[0]:,}")
    axes.set_ylabel("bits per byte of the held-out text")
    axes.grid(alpha=0.3)
    axes.legend()
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        figure.savefig(f"{output}.{ending}", dpi=120, metadata=metadata)


def main() -> None:
    if not WORKDIRS.value:
        raise ConfigError("--workdirs is missing; give the directories of runs, with commas")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("matplotlib is missing; run: pip install -e '.[plots]'") from None
    configs = [loaded_run.recorded_config(workdir) for workdir in WORKDIRS.value]
    trained_at = trained_length(configs)
    lengths = [times * trained_at for times in TIMES]
    found: dict[str, list[float]] = {}
    for workdir, config in zip(WORKDIRS.value, configs, strict=True):
        for name, scores in lines(workdir, config, trained_at):
            found[name] = scores
            print(f"{name}: {', '.join(f'{value:.3f}' for value in scores)}", file=sys.stderr)
    print(as_table(found, lengths), end="")
    draw(found, lengths, Path(OUTPUT.value))


if __name__ == "__main__":
    command_line.launch(main)
