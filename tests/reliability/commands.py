"""Small jobs of each family, run here or as a command, and what they leave behind."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs import default
from experiment import sections
from input_pipeline import pipeline
from tests.runs import saved, tiny
from training import processes

ROOT = Path(__file__).resolve().parent.parent.parent
# A process in the background of a shell ignores Ctrl-C, and so would those that it starts.
PYTHON = (
    sys.executable, "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
)  # fmt: skip
OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "seq2seq"}
FAMILIES = tuple(OBJECTIVES)
# Seconds after which a process hangs: a busy machine needs minutes for what an idle one does in
# seconds.
PATIENCE = 1200
# RELIABILITY=short pytest -m slow ...: the same checks with fewer steps and kills, for .ci/run.
SHORT = os.environ.get("RELIABILITY") == "short"


def write_texts(directory: Path) -> None:
    """Two corpora of documents and two tasks of text to text, all of random words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(50)]

    def text(most: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(1, most)))

    for corpus in ("one", "two"):
        (directory / corpus).mkdir(parents=True)
        for number in range(40):
            (directory / corpus / f"{number:02d}.txt").write_text(text(30))
    for split, count in (("train", 200), ("validation", 20)):
        lines = [
            json.dumps(dict(inputs=text(4), targets=text(3), task=rng.choice(["copy", "answer"])))
            for _ in range(count)
        ]
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def config_of(family: str, texts: Path, steps: int, **sections) -> dict:
    """With dropout, moving average, packing, a mixture and accumulation: all may go wrong."""
    if family == "encoder_decoder":
        source = "text_to_text_files"
        mixture = (("copy", 2.0), ("answer", 1.0))
    else:
        source = "text_files"
        mixture = ((f"text_files:{texts}/one", 2.0), (f"text_files:{texts}/two", 1.0))
    changes = {
        "model": dict(family=family, max_length=64),
        "task": dict(objective=OBJECTIVES[family]),
        "data": dict(
            source=source, path=str(texts), mixture=mixture, packing=True, batch_size=16,
            length=32, encoder_length=32, cache_dir=str(texts / "cache"),
        ),
        "optimizer": dict(accumulate=2),
        "eval": dict(every=0, samples=0),
    }  # fmt: skip
    for name, values in sections.items():
        changes[name] = {**changes.get(name, {}), **values}
    return tiny(default, steps, **changes)


def loaded(config: dict, index: int = 0, count: int = 1) -> pipeline.Data:
    """What the n-th of several processes trains on."""
    experiment = sections.from_mapping(config)
    return pipeline.load(
        experiment.data,
        objective=experiment.task.objective,
        masking=experiment.masking,
        seed=experiment.run.seed,
        process_index=index,
        process_count=count,
    )


def contents(workdir: Path, step: int) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in saved(workdir, step).items()}


def metrics(workdir: Path, name: str = "train/loss") -> dict[int, float]:
    """A metric by step, as far as it was written."""
    path, found = workdir / "metrics.jsonl", {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line that is being written
            record = json.loads(line)
            if name in record:
                found[record["step"]] = record[name]
    return found


def last_step(workdir: Path) -> int:
    """The last step that is written of, without reading it all."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2_000))
        lines = file.read().split(b"\n")[:-1]  # what is behind the last end of line is not whole
    return json.loads(lines[-1])["step"] if lines else 0


class Command:
    """A run of train.py in a process of its own."""

    def __init__(
        self,
        config: dict,
        workdir: Path,
        *,
        devices: int = 1,
        script: str = "train.py",
        inside: Sequence[str] = (),
        **variables: str,
    ):
        self.workdir = workdir
        file = workdir.parent / f"{workdir.name}.py"
        file.write_text(
            "import ml_collections\n\n\ndef get_config(arg=None):\n"
            f"    return ml_collections.ConfigDict({config!r}).lock()\n"
        )
        # Output goes into files: an unread pipe would block the process when full.
        self._out = (workdir.parent / f"{workdir.name}.{time.time_ns()}.txt").open("w+")
        self._process = subprocess.Popen(
            [*inside, *PYTHON, script, f"--config={file}", f"--workdir={workdir}"],
            cwd=ROOT,
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                "JAX_ENABLE_COMPILATION_CACHE": "true",
                "JAX_COMPILATION_CACHE_DIR": str(workdir.parent / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "PYTHONPATH": str(ROOT),
            }
            | variables,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        try:
            return self._process.wait(seconds)
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def text(self) -> str:
        return Path(self._out.name).read_text()

    def until(self, condition, what: str, seconds: float = PATIENCE) -> None:
        """Waits for something to become true; fails if the run ends before, or never does it."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.is_running, f"ended before {what}: {self.text}"
            assert time.monotonic() < end, f"never came to {what}: {self.text}"
            time.sleep(0.002)

    def until_step(self, step: int) -> None:
        self.until(lambda: last_step(self.workdir) >= step, f"step {step}")

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *exception) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()


def variables_of(count: int) -> list[dict[str, str]]:
    """The environment variables of each process of a job."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    common = {processes.ADDRESS: address, processes.COUNT: str(count)}
    return [common | {processes.INDEX: str(n)} for n in range(count)]


@contextlib.contextmanager
def started(config: dict, workdir: Path, count: int = 1, **options) -> Iterator[list[Command]]:
    """A job on so many processes."""
    variables = variables_of(count) if count > 1 else [{}]
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Command(config, workdir, **options, **each)) for each in variables
        ]


def finish(config: dict, workdir: Path, count: int = 1, **options) -> None:
    """Runs a job until it succeeds."""
    with started(config, workdir, count, **options) as commands:
        codes = [command.wait() for command in commands]
        assert not any(codes), "\n".join(command.text for command in commands)
