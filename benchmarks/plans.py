"""Compiled training steps of this code beside MaxText's, on TPUs that are not here.

    pip install -e '.[plan-tpu]'
    python benchmarks/plans.py          all rows; --rows=134M: those with this in their name

Each row is one run of plan.py. MaxText's figures are quoted: they were measured elsewhere, on
another day, by compiling its own step with the same compiler (jax 0.10.2, libtpu 0.0.42.1) and
counting it with planning/. At that time planning/ counted the buffers of asynchronous collectives
several times, so MaxText's memory traffic may be less than quoted, and is no exact peer of ours.

FLOPs are relative to the model's if all pairs of queries and keys counted, masked or not: so was
MaxText counted. plan.py itself counts only visible pairs.
"""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import app, flags

from experiment import sections

ROOT = Path(__file__).resolve().parents[1]
ROWS = flags.DEFINE_string("rows", "", "Only rows with this in their name.")
PEER = "MaxText, quoted"


@dataclasses.dataclass(frozen=True)
class Quoted:
    """MaxText's figures for the same job; None: not known."""

    remat: str  # its name for the policy
    memory: float  # GiB
    flops: float | None = None  # relative to the model's
    traffic: float | None = None  # GiB
    sent: float | None = None  # GiB


@dataclasses.dataclass(frozen=True)
class Row:
    """A job and the devices to plan it for."""

    device: str
    config: str  # a file in configs/, and after a colon the architecture
    changes: Mapping[str, Any]
    quoted: Quoted | None = None

    @property
    def command(self) -> list[str]:
        """The arguments of plan.py."""
        file, _, arch = self.config.partition(":")
        config = f"--config=configs/{file}.py" + (f":{arch}" if arch else "")
        changes = [f"--config.{key}={value}" for key, value in self.changes.items()]
        return [config, f"--device={self.device}", *changes]

    def experiment(self) -> sections.Experiment:
        """Returns the validated experiment."""
        file, _, arch = self.config.partition(":")
        config = importlib.import_module(f"configs.{file}").get_config(arch or None)
        config.update_from_flattened_dict(self.changes)
        return sections.from_mapping(config.to_dict())


def _row(device, config, rows, quoted=None, **changes) -> Row:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return Row(device, config, {"data.batch_size": rows, **named}, quoted)


FLASH = dict(model__attention="flash")
LARGE = FLASH | dict(data__length=8192, mesh__data=1, mesh__fsdp=64, mesh__tensor=4)
ONE_B = FLASH | dict(data__length=2048, mesh__data=1, mesh__fsdp=4)
CONTEXT = "minimal_with_context"
TABLE = {
    "134M none": _row("v5e:2x2", "c4", 64, **FLASH),
    "134M dots": _row(
        "v5e:2x2", "c4", 64, Quoted(CONTEXT, 5.87, traffic=20.1), **FLASH, model__remat="dots"
    ),
    "134M full": _row(
        "v5e:2x2", "c4", 64, Quoted("full", 2.83), **FLASH, model__remat="full"
    ),
    "1B dots": _row(
        "v5e:2x2", "c4:llama_1b", 8, Quoted(CONTEXT, 12.07, traffic=76.4),
        **ONE_B, model__remat="dots",
    ),
    "8B dots": _row(
        "v5e:16x16", "c4:llama_8b", 64, Quoted(CONTEXT, 8.31, 0.955, 137, 30.4),
        **LARGE, model__remat="dots",
    ),
    "8B full": _row(
        "v5e:16x16", "c4:llama_8b", 64, Quoted("full", 3.07, 1.170, 145, 36.8),
        **LARGE, model__remat="full",
    ),
    "BERT base": _row("v5e:2x4", "wikipedia_bert", 128),
    "BERT base, flash, dots": _row(
        "v5e:2x4", "wikipedia_bert", 128, **FLASH, model__remat="dots"
    ),
}  # fmt: skip


def planned(row: Row) -> dict[str, Any]:
    """Returns the plan of a row, as plan.py prints it."""
    command = [sys.executable, str(ROOT / "plan.py"), *row.command, "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def all_pairs(row: Row) -> float:
    """Returns the FLOPs of the pairs that a causal mask excludes, in a step of a decoder.

    Scores and weighted sums are two matmuls in the forward pass and four in the backward pass.
    """
    experiment = row.experiment()
    model, data = experiment.model.resolve(vocab_size=1), experiment.data
    if model.family != "decoder":
        return 0
    masked = data.length * (data.length - 1) // 2
    return 6 * 2 * data.batch_size * model.decoder_layers * model.heads * model.head_size * masked


def cells(row: Row, found: Mapping[str, Any]) -> list[str]:
    """Returns memory, FLOPs, traffic and bytes sent of a plan, as in the table."""
    memory = f"{found['memory']['total'] / 2**30:.2f}"
    if "flops" not in found:
        return [f"does not fit: {memory}", "", "", "", ""]
    flops = found["flops"]["compiled"] / (found["flops"]["model"] + all_pairs(row))
    sent = sum(each["bytes"] for each in found["collectives"])
    moved, sent = (f"{size / 2**30:.1f}" for size in (found["bytes_moved"], sent))
    return [memory, f"{flops:.3f}", moved, sent, f"{found['time']['mfu']:.1%}"]


def quoted_cells(quoted: Quoted) -> list[str]:
    """Returns the same cells of MaxText."""
    shown = (quoted.memory, quoted.flops, quoted.traffic, quoted.sent)
    return ["" if value is None else f"{value:g}" for value in shown] + [""]


def main(_) -> None:
    print("| | | memory GiB | FLOPs / model's | traffic GiB | sent GiB | MFU at most |")
    print("|---|---|---|---|---|---|---|")
    for name, row in TABLE.items():
        if ROWS.value not in name:
            continue
        print(f"| {name} | ours | {' | '.join(cells(row, planned(row)))} |", flush=True)
        if row.quoted:
            peer = f"{PEER} ({row.quoted.remat})"
            print(f"| | {peer} | {' | '.join(quoted_cells(row.quoted))} |", flush=True)


if __name__ == "__main__":
    app.run(main)
