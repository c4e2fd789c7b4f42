"""Stands in for train.py where a test is about the sweep: it records a run without training.

The score after `steps` steps is 1 - |log10(learning_rate) + 3| - 1 / steps, so 1e-3 is the best
rate. A learning rate of 1 or more fails. It waits while a file named `hold` is in the sweep, and
stops at SIGTERM then, as train.py does. starts.txt, in the sweep, lists what was started.
"""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from experiment.command_line import parse_config

METRIC = "eval/held_out/accuracy"


def main() -> None:
    given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
    workdir, path = Path(given.pop("workdir")), given.pop("config")
    config = parse_config(path, {key.removeprefix("config."): v for key, v in given.items()})
    sweep = workdir.parent.parent
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    workdir.mkdir(parents=True, exist_ok=True)
    with (sweep / "starts.txt").open("a") as file:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        file.write(f"{workdir.name} {config['steps']} cores={cores}\n")
    while (sweep / "hold").exists() and not stopped:
        time.sleep(0.02)
    steps, rate = config["steps"], config["optimizer"]["learning_rate"]
    (workdir / "config.json").write_text(json.dumps(config))
    if stopped:
        record(workdir, "events.jsonl", event="start", step=0)
        record(workdir, "events.jsonl", event="end", step=0, reason="StoppedError: asked")
        sys.exit(75)
    if rate >= 1:
        print("the loss is nan; lower optimizer.learning_rate", file=sys.stderr)
        sys.exit(65)
    score = 1 - abs(math.log10(rate) + 3) - 1 / steps
    record(workdir, "events.jsonl", event="start", step=0, parameters={"total": 7})
    record(workdir, "metrics.jsonl", step=steps, **{METRIC: score + config["seed"] / 1000})
    record(workdir, "events.jsonl", event="end", step=steps, seconds=float(steps))


def record(workdir: Path, name: str, **values) -> None:
    with (workdir / name).open("a") as file:
        file.write(json.dumps({**values, "time": 0.0} if "event" in values else values) + "\n")


if __name__ == "__main__":
    main()
