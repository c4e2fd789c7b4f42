"""Writers of a run's metrics: metrics.jsonl, TensorBoard, Weights & Biases and the terminal."""

import contextlib
import errno
import json
import math
import os
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from storage.mirror import PART_BYTES, source_of
from training.main_metric import main_metric
from training.weights_and_biases import WeightsAndBiases

# The metrics that a log line shows, in this order, and their format.
LOG_COLUMNS = {
    "train/loss": "loss {:.4f}",
    "train/total_loss": "total loss {:.4f}",
    "train/accuracy": "accuracy {:.4f}",
    "train/mae": "mae {:.4g}",
    "train/coverage": "coverage {:.3f}",
    "train/teacher_kl": "teacher KL {:.4f}",
    "optim/learning_rate": "lr {:.3g}",
    "optim/grad_norm": "grad norm {:.3g}",
    "perf/tokens_per_second": "{:,.0f} tokens/s",
    "perf/images_per_second": "{:,.0f} images/s",
    "perf/examples_per_second": "{:,.0f} examples/s",
    "perf/mfu": "MFU {:.1%}",
    "perf/data_wait_fraction": "data wait {:.1%}",
}


class Reporter:
    """Writes metrics to all writers; a context manager that closes them.

    Only one process of a job writes. The others pass `primary=False` and stay silent.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        resume_step: int,
        last_step: int,
        wandb_project: str = "",
        primary: bool = True,
        best_metric: str = "",
        config: Mapping[str, Any] | None = None,
    ):
        """`best_metric` is the score that the bar shows; "": the usual one of the first set.

        `config` is the run's, for TensorBoard and Weights & Biases.
        """
        config = config or {}
        self._last_step, self._best_metric = last_step, best_metric
        self._on_bar: dict[str, str] = {}
        self._primary = primary
        self._sinks = []
        if primary:
            workdir = Path(workdir)
            workdir.mkdir(parents=True, exist_ok=True)
            # First, because it may be refused.
            if wandb_project:
                self._sinks.append(WeightsAndBiases(workdir, resume_step, wandb_project, config))
            self._sinks.append(JsonLines(workdir, resume_step))
            self._sinks.append(TensorBoard(workdir, resume_step, config))
        self._bar = tqdm(
            total=last_step,
            initial=resume_step,
            unit="step",
            dynamic_ncols=True,
            disable=None if primary else True,  # None: a bar only where stderr is a terminal
        )

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()
        for sink in self._sinks:
            with self._logging_failure(sink, "the end is"):
                sink.close()

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of a step under their full names, and logs a line about them."""
        metrics = {name: float(value) for name, value in metrics.items()}
        for sink in self._sinks:
            with self._logging_failure(sink, f"step {step} is"):
                sink.write(step, metrics)
        self._show_on_bar(metrics)
        self.log(log_line(step, self._last_step, metrics))

    def _show_on_bar(self, metrics: Mapping[str, float]) -> None:
        """Keeps the newest loss and score at the end of the bar."""
        if "train/loss" in metrics:
            self._on_bar["loss"] = f"{metrics['train/loss']:.4f}"
        if score := main_metric(metrics, self._best_metric):
            self._on_bar[score.removeprefix("eval/")] = f"{metrics[score]:.4g}"
        self._bar.set_postfix(self._on_bar, refresh=False)

    @contextlib.contextmanager
    def _logging_failure(self, sink, what: str) -> Iterator[None]:
        """Logs a failed write: a full disk does not end a run unless a checkpoint does not fit."""
        try:
            yield
        except OSError as error:
            self.log(f"{sink.NAME}: {what} not recorded ({error})")

    def restore(self, step: int) -> None:
        """Writes files again that were deleted since; called before the checkpoint of a step."""
        for sink in self._sinks:
            with self._logging_failure(sink, "a file that was deleted is"):
                if warning := sink.restore(step):
                    self.log(f"warning: {warning}")

    def finish(self, scores: Collection[str]) -> None:
        """Records that the run is complete; `scores` are the names of its final metrics."""
        for sink in self._sinks:
            with self._logging_failure(sink, "the final table is"):
                sink.finish(scores)

    def rewind(self, step: int) -> None:
        """Drops what was reported after `step`, to which the run rolls back."""
        for sink in self._sinks:
            with self._logging_failure(sink, f"going back to step {step} is"):
                sink.rewind(step)
        self._bar.reset()
        self._bar.update(step)

    def log(self, text: str) -> None:
        """Writes a line to stderr, above the progress bar if there is one.

        Style: the subject in lower case, then a colon or values; no full stop; commas in thousands,
        except in step numbers, which are names of checkpoints.
        """
        if self._primary:
            tqdm.write(text, file=sys.stderr)

    def progress(self, step: int) -> None:
        """Moves the bar to `step`."""
        self._bar.update(step - self._bar.n)


class JsonLines:
    """metrics.jsonl: one object per line, with the step and the metrics of one report."""

    NAME = "metrics.jsonl"

    def __init__(self, workdir: Path, resume_step: int):
        self._path = workdir / self.NAME
        if self._path.exists():
            _drop_lines_after(resume_step, self._path)
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("a+", buffering=1)  # line by line: a crash loses none

    def rewind(self, step: int) -> None:
        _drop_lines_after(step, self._path)  # if that fails, the file stays as it is
        with contextlib.suppress(OSError):  # failed writes were logged
            self._file.close()
        self._open()

    def restore(self, step: int) -> str:
        """Writes a deleted or replaced file again; returns a warning, or "".

        What the run wrote is still in the open file, which only lost its name.
        """
        if _is_same_file(self._path, self._file):
            return ""
        what = "replaced" if self._path.exists() else "deleted"
        self._file.seek(0)
        new = self._path.with_suffix(".jsonl.new")
        new.write_text(self._file.read())
        new.replace(self._path)
        self._file.close()
        self._open()
        return f"{self._path} was {what} while the run went on: written again"

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._file.write(json_line({"step": step, **metrics}))

    def finish(self, scores: Collection[str]) -> None:
        """Does nothing: a run's directory has its config."""

    def close(self) -> None:
        self._file.close()


def _is_same_file(path: Path, file: Any) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def json_line(record: Mapping[str, Any]) -> str:
    """A line of JSON. NaN and infinity become strings, which float() reads back."""
    values = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
    return json.dumps(values, allow_nan=False) + "\n"


def _drop_lines_after(step: int, path: Path) -> None:
    """Drops lines after a step, and a line that a crash cut off."""
    remaining = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found = record.get("step") if isinstance(record, dict) else None
        if isinstance(found, int) and found <= step:
            remaining.append(line + "\n")
    rewritten = path.with_suffix(".jsonl.new")
    rewritten.write_text("".join(remaining))
    rewritten.replace(path)


class TensorBoard:
    """Events under tensorboard/, written when `write` returns.

    tensorboardX's own writer uses a thread that a full disk ends; reports would then wait forever.
    """

    NAME = "tensorboard"
    PAUSE = 30  # seconds between a failure and the next attempt

    def __init__(self, workdir: Path, resume_step: int, config: Mapping[str, Any]):
        self._config, self._step = config, resume_step
        self._directory = workdir / self.NAME
        # In a bucket, a file is uploaded whole each time, so that a long one would be costly.
        self._most_bytes = PART_BYTES if source_of(workdir) else math.inf
        self._files, self._file, self._failed = 0, None, -math.inf
        self._open(resume_step)
        if config:
            self._write_config()

    def _open(self, resume_step: int) -> None:
        # Imported here because it imports PyTorch where that is installed, which takes a second; a
        # bad config is refused before.
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._files += 1
        place = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{self._files}"
        self._directory.mkdir(exist_ok=True)
        self._path = self._directory / f"events.out.tfevents.{place}"
        self._file = self._path.open("wb", buffering=0)
        # TensorBoard then hides older events of this step and later ones.
        start = Event(step=resume_step + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(Event(file_version="brain.Event:2"), start)

    def _write_config(self) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import text

        shown = json.dumps(self._config, indent=2)
        indented = "".join(f"    {line}\n" for line in shown.splitlines())  # Markdown's code
        self._write(Event(step=self._step, summary=text("config", indented)))

    def finish(self, scores: Collection[str]) -> None:
        """Writes the table of hyperparameters. TensorBoard takes scores from the last events."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import hparams

        if self._config and self._file is not None:
            found = hparams(dict(scalars_of(self._config)), dict.fromkeys(scores, 0.0))
            self._try(self._write, *(Event(step=self._step, summary=each) for each in found))

    def _write(self, *events) -> None:
        data = b"".join(map(_framed, events))
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rewind(self, step: int) -> None:
        self.close()
        self._try(self._open, step)

    def restore(self, step: int) -> str:
        """Begins another file if the file was deleted; returns a warning, or ""."""
        if self._file is None or _is_same_file(self._path, self._file):
            return ""
        warning = f"{self._path} was deleted while the run went on: a new file has what follows"
        self.rewind(step)
        return warning

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if self._file is not None and self._file.tell() > self._most_bytes:
            self.rewind(step)  # another file; events up to this step stay
        if self._file is None:
            if time.monotonic() < self._failed + self.PAUSE:
                raise OSError("it could not be written a moment ago")
            self._try(self._open, step - 1)
        self._step = step
        summaries = [scalar(name, value) for name, value in metrics.items()]
        self._try(self._write, *(Event(step=step, summary=summary) for summary in summaries))

    def _try(self, action: Callable[..., None], *args) -> None:
        try:
            action(*args)
        except OSError:
            self._failed = time.monotonic()
            self.close()  # it may end in half an event, so the next event gets a new file
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def scalars_of(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of all keys; what is neither a number nor a text becomes text."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from scalars_of(value, f"{path}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{path}{key}", value
        else:
            yield f"{path}{key}", json.dumps(value)


def _framed(event) -> bytes:
    """TensorBoard's framing: length and event, each followed by a checksum."""
    from tensorboardX.record_writer import masked_crc32c

    event.wall_time = time.time()
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in (length, data))


def log_line(step: int, last_step: int, metrics: Mapping[str, float]) -> str:
    """The metrics of LOG_COLUMNS and all eval metrics, on one line."""
    shown = [text.format(metrics[name]) for name, text in LOG_COLUMNS.items() if name in metrics]
    shown += [f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith("eval/")]
    return "  ".join([f"step {step:>{len(str(last_step))}}/{last_step}", *shown])


def parameter_table(params) -> str:
    """A table with one row per module: shapes, dtype and number of parameters."""
    modules = defaultdict(list)
    for path, leaf in jax.tree.leaves_with_path(params):
        *module, name = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        modules["/".join(module)].append((name, leaf))

    rows = [("module", "shapes", "dtype", "parameters")]
    for module, leaves in modules.items():
        shapes = ", ".join(f"{name} {'x'.join(map(str, leaf.shape))}" for name, leaf in leaves)
        dtypes = "/".join(sorted({str(leaf.dtype) for _, leaf in leaves}))
        rows.append((module, shapes, dtypes, f"{sum(leaf.size for _, leaf in leaves):,}"))
    rows.append(("total", "", "", f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,}"))

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([*map(str.ljust, cells, widths), count.rjust(widths[-1])])
        for *cells, count in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])
