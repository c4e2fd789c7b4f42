"""Captured weights, hidden states and gradients do not depend on the number of devices.

`python -m tests.visualization.test_several_devices` prints the differences; it needs four devices.
"""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from checkpointing.loaded_run import LoadedRun
from configs import langid
from tests.devices import measured_on
from tests.test_generate import untrained
from training.mesh import make_mesh
from training.model_for_task import smallest_batch
from training.train_state import abstract_params
from visualization.captured_pass import run_and_capture
from visualization.model_inputs import read_input

# Windows in half of the layers, grouped heads, and what Gemma adds. A classifier has gradients.
MODEL = dict(
    encoder_layers=2, heads=4, kv_heads=2, attention="local,flash", attention_window=4,
    position="rope", qk_norm="head", score_cap=2.0, unroll=1,
)  # fmt: skip
MESH = dict(sequence=2, tensor=2)


def placed(run: LoadedRun, **mesh: int) -> LoadedRun:
    """The run with its parameters on a mesh, as if it had been loaded there."""
    sizes = dict(data=1, fsdp=1, sequence=1, tensor=1) | mesh
    devices = jax.devices()[: math.prod(sizes.values())]
    mesh = make_mesh(dataclasses.replace(run.experiment.mesh, **sizes), devices)
    like = abstract_params(run.model, run.experiment.task, smallest_batch(run.model_config), mesh)
    params = jax.tree.map(lambda x, at: jax.device_put(x, at.sharding), run.params, like)
    return dataclasses.replace(run, mesh=mesh, params=params)


def captured(run: LoadedRun) -> dict[str, np.ndarray]:
    given = read_input(run, "Anna Kournikova", None)
    found = run_and_capture(run, given.batch(run.mesh))
    (layers,) = found.attention.values()
    assert len(run.mesh.devices.ravel()) == len(found.hidden["encoder"].devices())
    return {
        "weights": layers.weights_lhts,
        "gradients": layers.gradients_lhts,
        "hidden": np.asarray(found.hidden["encoder"])[:, 0],
    }


def main() -> None:
    jax.config.update("jax_disable_most_optimizations", True)  # compiles faster
    with jax.default_device(jax.devices()[0]):
        run = untrained(langid, model=MODEL, mesh=dict(data=-1))
    expected, found = captured(placed(run)), captured(placed(run, **MESH))
    assert np.abs(expected["gradients"]).max() > 1e-3
    print(json.dumps({name: float(np.abs(found[name] - expected[name]).max()) for name in found}))


@pytest.mark.slow
def test_several_devices_give_the_same_weights():
    differences, _ = measured_on(4, "tests.visualization.test_several_devices")
    assert differences.keys() == {"weights", "gradients", "hidden"}
    assert max(differences.values()) < 1e-5, differences


if __name__ == "__main__":
    main()
