"""train.py, with a note of the rows that each step was given; and steps that take their time."""

import hashlib
import json
import os
import runpy
import sys
import time
from pathlib import Path

import loop

_step = loop.Loop._step


def recorded(self, state, batch):
    rows = [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in batch["inputs"]]
    own = os.environ.get("JAX_PROCESS_ID", "0")
    with Path(self.workdir, f"rows-{own}.jsonl").open("a") as file:
        file.write(json.dumps({"step": int(state.step) + 1, "rows": rows}) + "\n")
    time.sleep(0.02)
    return _step(self, state, batch)


if __name__ == "__main__":
    loop.Loop._step = recorded
    sys.argv[0] = "train.py"
    runpy.run_path("train.py", run_name="__main__")
