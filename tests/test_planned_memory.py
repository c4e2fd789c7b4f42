"""Planned memory against what Linux really had to give, for steps on CPU devices.

Each job runs in a process of its own: this file as a script, which prints the planned and the
observed bytes as JSON. The test compares the two.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import plan
from configs import dates, digits, langid, pydoc
from planning import targets
from tests.test_plan import ADAMW, ROOT, job
from training.train_state import NO_FROZEN_INPUTS

STEPS = 10  # threads keep what they once had, so the first steps take a little more each
JOBS = {
    "decoder, 8 rows": ("cpu:1", pydoc, {"data.batch_size": 8}),
    "decoder, 16 rows": ("cpu:1", pydoc, {"data.batch_size": 16}),
    "decoder, 32 rows": ("cpu:1", pydoc, {"data.batch_size": 32}),
    "decoder, 64 rows": ("cpu:1", pydoc, {"data.batch_size": 64}),
    "encoder": ("cpu:1", langid, {"data.batch_size": 256}),
    "encoder-decoder": ("cpu:1", dates, {"data.batch_size": 128}),
    "ViT": ("cpu:1", digits, {"data.batch_size": 512, "model.image_size": 8}),
    "decoder, 64 rows on 8 devices": ("cpu:8", pydoc, {"data.batch_size": 64}),
}


def measure(name: str) -> dict[str, int]:
    device, module, changes = JOBS[name]
    target = targets.find(device)
    planned = job(module, changes | ADAMW)
    # What a process takes once, whatever it computes: kernels that oneDNN writes when it is first
    # called, and the library's own code, which Linux reads when it is first run.
    take_steps(*ready(planned.with_batch(len(target.devices)), target))
    step, state, batch = ready(planned, target)
    given = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves((state, batch))
        for shard in leaf.addressable_shards
    )
    # The compiler leaves much behind that is free but not given back: a step would use it unseen.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts
    before = status("VmRSS")
    take_steps(step, state, batch)
    taken = status("VmHWM") - before  # now: planning, which compiles again, takes memory too
    memory = plan.plan(planned, target, planned.experiment.mesh)["memory"]
    return {"planned": memory["total"] * len(target.devices), "observed": given + taken}


def ready(planned: plan.Job, target: targets.Target):
    """The compiled step, a state and a batch, which are jax's own as in a run: it may donate."""
    mesh = plan.mesh_of(planned.experiment.mesh, target)
    lowered, abstract, _ = plan.lower_step(planned, mesh)
    arguments = abstract, planned.batch(mesh)
    make = jax.jit(
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), arguments),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, arguments),
    )
    return lowered.compile(), *jax.block_until_ready(make())


def take_steps(step, state, batch) -> None:
    """As the loop does: the next step is under way before the last one's metrics are read."""
    unread = None
    for _ in range(STEPS):
        state, metrics = step(state, batch, NO_FROZEN_INPUTS)
        jax.block_until_ready(unread)
        unread = metrics
    jax.block_until_ready((state, metrics))
    time.sleep(0.5)  # what a step had is given back by another thread, a little later


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
@pytest.mark.parametrize("name", JOBS)
def test_a_job_takes_the_planned_memory(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_planned_memory", name],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    planned, observed = found["planned"], found["observed"]
    ratio = planned / observed
    print(f"{name}: {planned / 1e6:,.0f} MB planned, {observed / 1e6:,.0f} observed: {ratio:.3f}")
    assert observed > 200e6
    assert planned == pytest.approx(observed, rel=0.1)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
