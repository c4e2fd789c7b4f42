"""A mesh of devices computes what one device computes, and each holds no more than its share."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from experiment.schema import ConfigError
from model.mixers import MIXERS
from tests.devices import measured_on
from tests.training.on_meshes import (
    DEVICES,
    EVEN,
    EXPERTS,
    FAMILIES,
    HELD_ON,
    MIXED_ON,
    ON_ALL,
    OTHER_OPTIMIZERS,
    mesh_config,
)
from training.mesh import check_batch, make_mesh, parameter_shardings

# Parameters that every device holds a part of, and the shape of that part.
PARTS = {
    "fsdp 8": {
        "backbone/token_embedding/embedding": [18, 2],
        "backbone/decoder/blocks/self_attention/query/kernel": [2, 2, 4, 4],
        "backbone/decoder/blocks/self_attention/out/kernel": [2, 4, 4, 2],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 2, 24],
        "backbone/decoder/blocks/feed_forward/in/bias": [2, 24],
        "backbone/decoder/final_norm/scale": [16],
    },
    "fsdp 4 x tensor 2": {
        "backbone/token_embedding/embedding": [9, 4],
        "backbone/decoder/blocks/self_attention/query/kernel": [2, 4, 2, 4],
        "backbone/decoder/blocks/self_attention/out/kernel": [2, 2, 4, 4],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 4, 12],
        "backbone/decoder/blocks/feed_forward/in/bias": [2, 12],
        "backbone/decoder/final_norm/scale": [16],
    },
    "data 8": {
        "backbone/token_embedding/embedding": [18, 16],
        "backbone/decoder/blocks/feed_forward/in/kernel": [2, 16, 24],
    },
}


def measured(what):
    """A process for each test, so that parallel test workers divide the work."""
    found, log = measured_on(DEVICES, "tests.training.on_meshes", what)
    # So it warns where it finds no way from one sharding to another but by all of an array.
    assert "Involuntary full rematerialization" not in log
    return found


def far_off(deviations):
    """Deviations above the tolerance, and NaN."""
    return {name: by for name, by in deviations.items() if not all(x <= 1e-5 for x in by.values())}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mesh_computes_what_one_device_computes(family):
    found = measured(family)
    assert list(found) == ON_ALL
    assert far_off({mesh: observed["deviation"] for mesh, observed in found.items()}) == {}
    for mesh, observed in found.items():
        check_what_is_communicated(f"{family} on {mesh}", observed)
        check_share(mesh, observed["share"])


def test_other_jobs_compute_the_same_on_a_mesh():
    found = measured("other jobs")
    assert len(found) == 4 + len(OTHER_OPTIMIZERS)
    assert far_off(found) == {}


def test_mixers_compute_the_same_on_a_mesh():
    found = measured("mixers")
    assert len(found) == len(MIXERS) * len(MIXED_ON)
    assert far_off(found) == {}


def test_experts_compute_the_same_on_a_mesh():
    found = measured("experts")
    layer = "backbone/decoder/blocks/feed_forward"
    assert found.pop("parts") == {  # layers, experts, width, feed_forward
        f"{layer}/router/kernel": [2, 4, 8],
        f"{layer}/experts/gate/kernel": [2, 4, 4, 24],
        f"{layer}/experts/in/kernel": [2, 4, 4, 24],
        f"{layer}/experts/out/kernel": [2, 4, 24, 4],
    }
    assert list(found) == list(EXPERTS)
    assert far_off(found) == {}


def test_a_device_holds_no_more_than_its_share():
    found = measured("what is held")
    for mesh in HELD_ON:
        check_parts(mesh, found[f"adamw on {mesh}"])
    for optimizer in ("adamw", "muon", "adafactor"):
        check_shares(found[f"{optimizer} on fsdp 8"])
    # The axis of -1 takes the rest.
    assert found["shapes"]["fsdp 8"] == [1, 8, 1, 1]
    assert found["shapes"]["fsdp 2 x sequence 2 x tensor 2"] == [1, 2, 2, 2]


def check_what_is_communicated(name, observed):
    """Every mesh sums gradients; every other collective belongs to an axis."""
    expected = {"all-reduce"}
    if "fsdp" in name or "tensor" in name:
        expected.add("all-gather")  # of matrices or of the residual stream, before they are used
    if "sequence" in name:
        # Keys travel, or plain attention gathers them.
        expected.add("all-gather" if "ViT" in name else "collective-permute")
    # On several axes, parts of a matrix may change places on their way to where they are used.
    allowed = expected | ({"collective-permute"} if "2 x" in name else set())
    if "tensor" in name:
        # Outputs of sublayers are scattered; halves of sinusoidal positions change places.
        allowed |= {"reduce-scatter", "all-to-all"}
    assert expected <= set(observed["collectives"]) <= allowed, name
    if "sequence" in name and "ViT" in name:
        return
    others = {tuple(shape) for shape in observed["gathered"]}
    if "tensor" in name:
        # The residual stream (B, T, D), and keys of four heads, which eight devices do not split.
        widths = EVEN["width"], 4 * EVEN["head_size"]
        others = {shape for shape in others if len(shape) != 3 or shape[-1] not in widths}
    matrices = set(map(tuple, observed["matrices"]))
    assert others <= matrices, f"{name}: more is gathered than a layer's matrices"


def check_share(name, share):
    """What of the parameters a device has; vectors are whole on every one."""
    if "2 x" in name:
        assert 1 / 4 < share < 1 / 2.5, name
    elif "fsdp" in name:
        assert 1 / 8 < share < 1 / 4, name
    elif "tensor" in name:  # so are tables of positions and token types
        assert 1 / 8 < share < 1 / 3, name
    else:
        assert share == 1, name


def check_parts(mesh, held):
    assert {name: held["parts"][name] for name in PARTS[mesh]} == PARTS[mesh]
    # AdamW has two moments for each parameter, and counts its steps on every device.
    counts = 16
    assert 0 <= held["opt_state"]["device"] - 2 * held["params"]["device"] <= counts


def check_shares(held):
    # An eighth of every matrix and of its moments; vectors and factors are on every device.
    assert 1 / 8 < held["params"]["device"] / held["params"]["all"] < 1 / 4
    assert 1 / 8 < held["opt_state"]["device"] / held["opt_state"]["all"] < 1 / 4
    assert held["ema"] == held["params"]


@pytest.mark.parametrize(
    "sizes",
    [
        dict(data=3),
        dict(data=2, fsdp=2),  # too few
        dict(data=8, tensor=2),  # too many
        dict(data=-1, tensor=3),
        dict(data=-1, fsdp=16),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(ConfigError, match="does not fit 8 devices: the sizes must multiply to 8"):
        make_mesh(mesh_config(sizes), jax.devices("cpu")[:1] * 8)


def test_a_batch_that_cannot_be_shared_out_is_refused():
    mesh = SimpleNamespace(shape=dict(data=2, fsdp=4, sequence=1, tensor=1))
    check_batch("data.batch_size", 16, mesh, accumulate=2)
    with pytest.raises(ConfigError, match=r"^eval\.batch_size=12 .* choose a multiple of 8$"):
        check_batch("eval.batch_size", 12, mesh)
    with pytest.raises(ConfigError, match="and 2 micro-batches; choose a multiple of 16"):
        check_batch("data.batch_size", 24, mesh, accumulate=2)


def test_a_parameter_without_axis_names_is_a_mistake():
    mesh = make_mesh(mesh_config(dict(data=-1)))
    with pytest.raises(ValueError, match="declares no axis names"):
        parameter_shardings({"kernel": jnp.zeros((2, 3))}, mesh)
