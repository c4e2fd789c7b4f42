"""Batches built by worker processes. Starting these takes seconds, so one script tests it all."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The workers import the script too, as they import train.py.
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from jax._src import xla_bridge
from input_pipeline import pipeline
from tests.input_pipeline.corpora import load, write_corpus

class Watched(pipeline.Data):
    def train_batch(self, n):
        touched = np.array(xla_bridge.backends_are_initialized())
        return {**super().train_batch(n), "touched_a_device": touched}

pipeline.Data = Watched

if __name__ == "__main__":
    corpus = write_corpus(Path(sys.argv[1]))
    on_disk = load(corpus, "pairs", workers=2, packing=True)
    in_memory = load(corpus, "labelled", workers=2, source="names")
    made_on_demand = load(corpus, "pairs", workers=2, source="dates")
    for data in (on_disk, in_memory, made_on_demand):
        batches = list(data.train_iterator(5, 12))
        assert len(batches) == 7
        for n, batch in enumerate(batches, start=5):
            assert not batch["touched_a_device"]
            for name, values in data.train_batch(n).items():
                np.testing.assert_array_equal(batch[name], values)
    print("the same")
"""


def test_worker_processes_build_the_same_batches_and_leave_devices_alone(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the same\n", "")
