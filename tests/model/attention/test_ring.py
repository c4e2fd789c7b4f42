"""Ring attention equals plain attention, and no device ever holds all keys.

The number of devices is fixed when jax starts, so eight of them need a process of their own: this
file run as a script, which prints its measurements as JSON. The tests check these.
"""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from model.attention.dot_attention import dot_attention, unnormalised_softmax
from model.attention.flash_attention import flash_attention
from model.masks import Locality, MaskSpec
from model.positions import ScoreBias, alibi_slopes
from model.sharding import MESH_AXES
from tests.devices import measured_on
from tests.model.attention.test_flash import mask_spec_of, packed, sequence_info

DEVICES = 8
T, S, K, SCALE = 32, 16, 8, 0.4

PACKED = sequence_info(packed([9, 12, 5], T), packed([32], T))
ALONE = sequence_info(packed([T], T))  # one row for all
PREFIX = dataclasses.replace(PACKED, prefix_bt=(PACKED.positions_bt < 6).astype(jnp.int32))
# Of the second row's queries there is nothing in the source.
SOURCE = MaskSpec(PACKED, sequence_info(packed([4, 7], S), (range(S), [2] * S)), False)
SHORT = MaskSpec(PACKED, sequence_info(packed([4, 7], 13), packed([9], 13)), False)
# Two blocks on each of eight devices, the second in part.
LONG = sequence_info(packed([500, 700], 1280))

ROUND_ALL, FOUR, MIXED = (1, 1, 8, 1), (2, 1, 4, 1), (1, 2, 2, 2)
T5 = ScoreBias("t5_bias", jnp.zeros((8, 4)), bidirectional=False, max_distance=9)
ALIBI = ScoreBias("alibi", jnp.asarray(alibi_slopes(4)))
SINKS = "sinks"
# The mesh, what is seen, what is added to scores, heads of keys.
CASES = {
    "causal, packed": (ROUND_ALL, mask_spec_of(PACKED, True), None, 4),
    "two-sided, packed, heads share keys": (FOUR, mask_spec_of(PACKED, False), None, 2),
    "prefix, heads share keys": (MIXED, mask_spec_of(PREFIX, True), None, 2),
    "t5's bias, one key for all heads": (MIXED, mask_spec_of(PACKED, True), T5, 1),
    "alibi, two-sided": (ROUND_ALL, mask_spec_of(PACKED, False), ALIBI, 4),
    "positions of one row for all": (FOUR, mask_spec_of(ALONE, True), T5, 4),
    "a window": (ROUND_ALL, mask_spec_of(PACKED, True, Locality(window=6)), None, 2),
    "a source": (FOUR, SOURCE, None, 2),
    "a source that the ring does not divide": (FOUR, SHORT, None, 4),
    "several blocks on a device": (ROUND_ALL, mask_spec_of(LONG, True), None, 1),
    "sinks, heads share keys": (MIXED, mask_spec_of(PACKED, True), SINKS, 2),
    "sinks, all devices in the ring": (ROUND_ALL, mask_spec_of(PACKED, True), SINKS, 4),
}


def on_mesh(shape):
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    return jax.set_mesh(Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 4))


def arrays(mask_spec, groups):
    rng = np.random.default_rng(0)
    rows = 2 if len(mask_spec.queries.segments_bt) == 2 or mask_spec.queries is ALONE else 1
    heads = 4 if mask_spec.queries is not LONG else 1
    shape = lambda info, heads: (rows, info.segments_bt.shape[1], heads, K)  # noqa: E731
    shapes = (
        shape(mask_spec.queries, heads),
        shape(mask_spec.keys, groups),
        shape(mask_spec.keys, groups),
    )
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def probed(attention, qkv, *tables):
    """The output, and the gradients to every input."""
    probe = np.random.default_rng(1).normal(size=qkv[0].shape).astype(np.float32)

    def total(qkv, tables):
        y_bthk = attention(*qkv, *tables)
        return (y_bthk * probe).sum(), y_bthk

    return jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(qkv, tables)


def apart(found, expected):
    """Relative to the largest value of each array."""
    far = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(b).max()),
        found,
        expected,
    )
    return float(np.max(jax.tree.leaves(far)))


def deviation(shape, mask_spec, bias, groups):
    """From plain attention on one device, with all scores in memory."""
    qkv = arrays(mask_spec, groups)
    tables = ()
    if bias == SINKS:
        sinks_h = jnp.asarray(np.random.default_rng(4).normal(size=4), jnp.float32)
        options = dict(mask_b1ts=mask_spec.mask_b1ts(), scale=SCALE)
        expected = probed(lambda *qkvs: dot_attention(*qkvs[:3], sinks_h=qkvs[3], **options),
                          qkv, sinks_h)  # fmt: skip
        with on_mesh(shape):
            found = probed(lambda *qkvs: flash_attention(
                *qkvs[:3], mask_spec, sinks_h=qkvs[3], scale=SCALE), qkv, sinks_h)  # fmt: skip
        return apart(found, expected)
    if bias is not None:
        draw = np.random.default_rng(4).uniform(0.5, 1.5, bias.table.shape)
        tables = (jnp.asarray(draw, jnp.float32),)

    def ring(q, k, v, *tables):
        given = dataclasses.replace(bias, table=tables[0]) if tables else None
        return flash_attention(q, k, v, mask_spec, bias=given, scale=SCALE)

    def plain(q, k, v, *tables):
        added = None
        if tables:
            given = dataclasses.replace(bias, table=tables[0])
            added = given(None, mask_spec.queries.positions_bt, mask_spec.keys.positions_bt)
        return dot_attention(q, k, v, mask_b1ts=mask_spec.mask_b1ts(), bias_bhts=added, scale=SCALE)

    expected = probed(plain, qkv, *tables)
    with on_mesh(shape):
        found = probed(ring, qkv, *tables)
    return apart(found, expected)


def deviation_with_dropout():
    """From plain attention that drops the same weights; which ones, values of the ring tell."""
    mask_spec, shape, rate = mask_spec_of(PACKED, True), (2, 1, 4, 1), 0.5
    qkv = arrays(mask_spec, groups=4)
    options = dict(scale=SCALE, dropout_rate=rate, dropout_key=jax.random.key(3))

    def ring(q, k, v):
        return flash_attention(q, k, v, mask_spec, **options)

    eye = jnp.broadcast_to(jnp.eye(T)[None, :, None], (2, T, 4, T))
    with on_mesh(shape):
        found = probed(ring, qkv)
        is_kept_bths = jax.jit(ring)(*qkv[:2], eye) > 0
    is_kept_bhts = np.moveaxis(np.asarray(is_kept_bths), 2, 1)
    mask_b1ts = np.asarray(mask_spec.mask_b1ts())

    def plain(q, k, v):
        scores_bhts = jnp.einsum("bthk,bshk->bhts", q, k) * SCALE
        weights_bhts, total_bht1 = unnormalised_softmax(scores_bhts, mask_b1ts, None)
        weights_bhts = jnp.where(
            is_kept_bhts & mask_b1ts, weights_bhts / total_bht1 / (1 - rate), 0.0
        )
        return jnp.einsum("bhts,bshk->bthk", weights_bhts, v)

    visible = np.broadcast_to(mask_b1ts, is_kept_bhts.shape)
    # The same stretch of queries meets keys in several places: (row, stretch, head, stretch).
    pieces = is_kept_bhts[1].reshape(4, 4, T // 4, 4, T // 4)[:, 3, :, :3]  # all visible
    pieces = {pieces[h, :, j].tobytes() for h in range(4) for j in range(3)}
    return {
        "apart": apart(found, probed(plain, qkv)),
        "kept": float(is_kept_bhts[visible].mean()),
        "draws": int(visible.sum()),
        "different": len(pieces),
    }


def skipped():
    """Puts NaN into masked values: NaN times zero is NaN, so a block that is not skipped shows."""
    halves = mask_spec_of(sequence_info(packed([16, 16], T)), False)
    one_segment = mask_spec_of(ALONE, True)
    q, k, v = (x[:1] for x in arrays(halves, groups=4))
    found = {}
    with on_mesh(ROUND_ALL):
        for name, mask_spec, bad, good in (
            ("other segments", halves, slice(16, 32), slice(0, 16)),
            ("what lies ahead", one_segment, slice(8, 32), slice(0, 8)),
        ):
            spoilt = v.at[:, bad].set(jnp.nan)
            y_bthk = np.asarray(jax.jit(lambda *x: flash_attention(*x, mask_spec))(q, k, spoilt))  # noqa: B023
            found[name] = {
                "good": bool(np.isfinite(y_bthk[:, good]).all()),
                "bad": bool(np.isnan(y_bthk[:, bad]).all()),
            }
    return found


LENGTH = 49152  # and not a number of blocks or of pairs of them


def compiled(devices):
    """Forward and backward at one length, over so many devices."""
    shape = jax.ShapeDtypeStruct((1, LENGTH, 2, 16), jnp.float32)
    row = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)

    def total(q, k, v, positions, segments):
        one_side = dataclasses.replace(ALONE, positions_bt=positions, segments_bt=segments)
        return flash_attention(q, k, v, mask_spec_of(one_side, True)).sum()

    spec = jax.sharding.PartitionSpec(None, "sequence")
    step = jax.jit(jax.grad(total, (0, 1, 2)), in_shardings=(spec,) * 5, out_shardings=(spec,) * 3)
    with on_mesh((1, 1, devices, 1)):
        program = step.lower(shape, shape, shape, row, row).compile()
    text = program.as_text()
    return {
        "temporary": program.memory_analysis().temp_size_in_bytes,
        "whole rows": len(re.findall(rf"\[[\d,]*\b{LENGTH}\b[\d,]*\]", text)),
        "gathers": text.count("all-gather"),
        "passed on": text.count(" collective-permute("),
    }


def measure():
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    found = {
        "deviation": {name: deviation(*case) for name, case in CASES.items()},
        "dropout": deviation_with_dropout(),
        "skipped": skipped(),
    }
    jax.config.update("jax_disable_most_optimizations", False)
    return found | {"compiled": {str(n): compiled(n) for n in (1, 4, 8)}}


def test_a_ring_of_eight_devices():
    """One test, because each test process would measure everything again."""
    found, _ = measured_on(DEVICES, "tests.model.attention.test_ring")
    check_that_it_computes_what_one_device_computes(found["deviation"])
    check_that_both_passes_drop_the_same_weights(found["dropout"])
    check_that_what_no_query_sees_is_not_computed(found["skipped"])
    check_that_no_device_ever_holds_a_whole_row(found["compiled"])


def check_that_it_computes_what_one_device_computes(deviation):
    assert deviation.keys() == CASES.keys()
    assert {name: apart for name, apart in deviation.items() if apart > 1e-5} == {}


def check_that_both_passes_drop_the_same_weights(dropout):
    assert dropout["apart"] < 1e-5
    assert abs(dropout["kept"] - 0.5) < 4 * (0.25 / dropout["draws"]) ** 0.5
    assert dropout["different"] == 12, "a device drops others of each neighbour's keys"


def check_that_what_no_query_sees_is_not_computed(skipped):
    assert len(skipped) == 2
    for name, forward in skipped.items():
        assert forward == {"good": True, "bad": True}, name


def check_that_no_device_ever_holds_a_whole_row(compiled):
    one, four, eight = (compiled[n] for n in ("1", "4", "8"))
    assert one["whole rows"] > 0, "what is looked for is there to be found"
    for ring in (four, eight):
        assert ring["whole rows"] == ring["gathers"] == 0
        assert ring["passed on"] > 0
    # A ring has a second stretch of keys and of their gradients on the way, so that it costs
    # something to begin one; from there on memory is shared out.
    assert eight["temporary"] < one["temporary"] / 3
    assert eight["temporary"] < four["temporary"] / 1.9


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps(measure()))
