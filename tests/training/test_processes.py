"""Arrays that are sharded over processes are gathered row by row.

Two processes of two devices each run this file as a script; the tests check its output.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from model.sharding import MESH_AXES
from training.mesh import fetch, put_batch, rows_of_batch

ROWS = 8
# In which order the mesh has the devices; the first two belong to the first process.
ORDERS = {"by process": [0, 1, 2, 3], "in turns": [2, 0, 3, 1]}


def measure(order):
    devices = np.array(jax.devices())[order].reshape(4, 1, 1, 1)
    mesh = Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    # This process's share of a batch whose row r is (r, 10 r).
    share = np.arange(ROWS).reshape(2, -1)[jax.process_index()]
    batch = put_batch({"x": np.stack([share, 10 * share], axis=1)}, mesh)
    return {"rows": rows_of_batch(ROWS, mesh).tolist(), "x": fetch(batch["x"]).tolist()}


def run_as_process(index, port):
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=index)
    print(json.dumps({name: measure(order) for name, order in ORDERS.items()}))


@pytest.fixture(scope="module")
def measured():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    root = Path(__file__).resolve().parent.parent.parent
    two_devices = "--xla_force_host_platform_device_count=2"
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": two_devices, "PYTHONPATH": str(root)
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(index), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.parametrize("order", ORDERS)
def test_every_process_has_every_row(measured, order):
    for each in measured:
        assert sorted(each[order]["x"]) == [[row, 10 * row] for row in range(ROWS)]


@pytest.mark.parametrize("order", ORDERS)
def test_the_rows_of_every_process_are_known(measured, order):
    for each in measured:
        assert [row for row, _ in each[order]["x"]] == each[order]["rows"]


def test_devices_in_turns_do_mix_the_rows(measured):
    assert measured[0]["by process"]["rows"] == list(range(ROWS))
    assert measured[0]["in turns"]["rows"] == [4, 5, 0, 1, 6, 7, 2, 3]


if __name__ == "__main__":
    run_as_process(*map(int, sys.argv[1:]))
