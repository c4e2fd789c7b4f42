"""The optimizer's state between updates in the host's memory.

XLA's CPU backend has that memory by name, though it is the same: so the program can be tried here,
while a job on CPU is refused.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiment.schema import ConfigError
from tests.training.examples import OPTIMIZER, make_batch, make_job
from training.mesh import HOST, check_offload


def after_two_steps(**optimizer):
    batch = make_batch("causal_lm")
    job = make_job("causal_lm", batch, optimizer=optimizer)
    return job.run(job.start(), batch, steps=2)


def test_offloading_moves_the_optimizer_state_and_changes_no_value():
    plain, losses = after_two_steps()
    state, same_losses = after_two_steps(offload=True)
    assert losses == same_losses
    jax.tree.map(np.testing.assert_array_equal, plain.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, plain.opt_state, state.opt_state)
    kinds = lambda tree: {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.ndim}  # noqa: E731
    assert kinds(state.opt_state) == {HOST}
    assert HOST not in kinds(plain.opt_state) | kinds(state.params)


def mesh_of(platform, *kinds):
    device = SimpleNamespace(
        platform=platform,
        device_kind="a chip",
        addressable_memories=lambda: [SimpleNamespace(kind=kind) for kind in kinds],
    )
    return SimpleNamespace(devices=np.array([device]))


def test_devices_without_such_memory_are_refused_by_name():
    asked = dataclasses.replace(OPTIMIZER, offload=True)
    check_offload(OPTIMIZER, mesh_of("cpu", "device"))
    check_offload(asked, mesh_of("tpu", "device", HOST))
    with pytest.raises(ConfigError, match="a CPU's memory is the host's already; set it to False"):
        check_offload(asked, mesh_of("cpu", "device", HOST))
    with pytest.raises(ConfigError, match="a chip cannot read the host's memory; set it to False"):
        check_offload(asked, mesh_of("tpu", "device"))
