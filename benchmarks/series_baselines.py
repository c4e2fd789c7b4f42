"""Compares forecasts of a series with seasonal naive and a linear model, on the same windows.

    python train.py --config=configs/series.py --config.data.path=FILE.csv
    python benchmarks/series_baselines.py --workdir=runs/series --split=test --period=52

Seasonal naive repeats the value of one period before; with drift, it adds the change of the last
period. The linear model is ridge regression from all
values of the window to each value of the forecast; its penalty is the one of PENALTIES with the
smallest error on the split `validation`. Both forecast the median; their other quantiles add the
quantiles of their errors on training windows, for each step ahead. Missing values do not count, as
in evaluate.py. Prints a table in Markdown, in the units of the series.
"""

import dataclasses
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from absl import flags  # noqa: E402

from checkpointing import loaded_run  # noqa: E402
from evaluate import evaluate  # noqa: E402
from experiment import command_line, sections  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline.sources.registry import components  # noqa: E402

WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run on series_files.")
SPLIT = flags.DEFINE_string("split", "test", "The split to score on.")
STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
PERIOD = flags.DEFINE_integer("period", 52, "Steps of a season.")
METRICS = ("loss", "mae", "coverage")
PENALTIES = tuple(10.0**power for power in range(-3, 7))


def windows(examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is read (B, T), what follows (B, H), and whether that is known."""
    rows = [examples[n] for n in range(len(examples))]
    columns = [row["signal"][:, 0] for row in rows], [row["future"] for row in rows]
    read_bs, future_bt = (np.stack(column).astype(np.float64) for column in columns)
    return read_bs, future_bt, np.stack([row["is_known"] for row in rows])


def seasonal_naive(read_bs: np.ndarray, horizon: int, period: int) -> np.ndarray:
    """Repeats the last period of each window: (B, S) -> (B, horizon)."""
    length = read_bs.shape[1]
    return read_bs[:, [length - period + step % period for step in range(horizon)]]


def with_drift(read_bs: np.ndarray, horizon: int, period: int) -> np.ndarray:
    """Seasonal naive, plus the change from the value one period before the last value."""
    change_b1 = read_bs[:, -1:] - read_bs[:, -1 - period, None]
    return seasonal_naive(read_bs, horizon, period) + change_b1


def ridge(read_bs: np.ndarray, future_bt: np.ndarray, penalty: float):
    """The forecasts (B, H) of a linear model, as a function of windows."""
    mean_s, mean_t = read_bs.mean(axis=0), future_bt.mean(axis=0)
    centred_bs = read_bs - mean_s
    square_ss = centred_bs.T @ centred_bs + penalty * np.eye(len(mean_s))
    weights_st = np.linalg.solve(square_ss, centred_bs.T @ (future_bt - mean_t))
    return lambda read_bs: (read_bs - mean_s) @ weights_st + mean_t


def scores_of(forecasts, train, scored, levels) -> dict[str, float]:
    """The pinball loss, error and coverage of median forecasts with quantiles of their errors."""
    read_bs, future_bt, is_known_bt = train
    errors_bt = np.where(is_known_bt, future_bt - forecasts(read_bs), np.nan)
    spread_ct = np.nanquantile(errors_bt, levels, axis=0)
    spread_ct[levels.index(0.5)] = 0
    read_bs, future_bt, is_known_bt = scored
    quantiles_cbt = np.sort(forecasts(read_bs) + spread_ct[:, None], axis=0)
    missing_cbt = future_bt - quantiles_cbt
    level_c11 = np.array(levels)[:, None, None]
    loss_bt = np.maximum(level_c11 * missing_cbt, (level_c11 - 1) * missing_cbt).mean(axis=0)
    error_bt = abs(future_bt - forecasts(read_bs))
    inside_bt = (quantiles_cbt[0] <= future_bt) & (future_bt <= quantiles_cbt[-1])
    values = (loss_bt, error_bt, inside_bt)
    return {
        name: float(value_bt[is_known_bt].mean())
        for name, value_bt in zip(METRICS, values, strict=True)
    }


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run")
    experiment = sections.from_mapping(loaded_run.recorded_config(WORKDIR.value))
    data, levels = experiment.data, experiment.task.quantiles
    if data.example_kind != "series":
        raise ConfigError(f"data.source={data.source} has no series; choose another run")
    if not 1 <= PERIOD.value < data.length:
        raise ConfigError(f"--period={PERIOD.value} must be 1 to {data.length - 1}")

    def split(name: str):
        return components(dataclasses.replace(data, eval_split=name))[0].splits

    train = windows(split("validation").train)
    validation = windows(split("validation").evals["validation"])
    scored = windows(split(SPLIT.value).evals[SPLIT.value])
    linear = {penalty: ridge(*train[:2], penalty) for penalty in PENALTIES}
    penalty = min(
        PENALTIES, key=lambda each: scores_of(linear[each], train, validation, levels)["mae"]
    )
    horizon, scored_on = train[1].shape[1], (train, scored, levels)
    print(f"{len(train[0]):,} windows to train on, {len(scored[0]):,} to score on; {penalty=:g}\n")
    table = {
        name: scores_of(partial(forecasts, horizon=horizon, period=PERIOD.value), *scored_on)
        for name, forecasts in (
            ("seasonal naive", seasonal_naive),
            ("seasonal naive with drift", with_drift),
        )
    }
    table |= {
        "linear": scores_of(linear[penalty], *scored_on),
    }
    record = evaluate(WORKDIR.value, STEP.value, SPLIT.value)
    table[f"{WORKDIR.value}, step {record['step']}"] = {
        metric: record[f"eval/{SPLIT.value}/{metric}"] for metric in METRICS
    }
    print(f"| model | {' | '.join(METRICS)} |\n|---|---|---|---|")
    for name, scores in table.items():
        print(f"| {name} | {' | '.join(f'{scores[metric]:.4f}' for metric in METRICS)} |")


if __name__ == "__main__":
    command_line.launch(main)
