"""Captured attention weights equal each kind's formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention import KINDS, banded
from model.attention.attention_weights import attend_with_weights
from model.attention.dot_attention import QKV
from model.attention.interface import AttentionContext, AttentionInputs
from model.masks import MaskSpec, SequenceInfo
from tests.model.attention.oracle import pairs
from tests.model.attention.test_conformance import SCALE, SETTINGS, B, G, H, K, T, case
from tests.tiny import quick_jit, tiny_config

# Some of them are causal and some are not.
FEATURES = ("padding", "segments", "prefix", "grouped", "bias", "relative", "cap", "sinks")
cells = [
    pytest.param(kind, feature, id=f"{kind}-{feature}")
    for kind in KINDS
    for feature in FEATURES
    if feature not in KINDS[kind].refused
]


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Small blocks, so that even short rows have several."""
    monkeypatch.setattr(banded, "SMALLEST_BLOCK", 3)


def weights_of(case, perturbation_bhts=None):
    """The output and the weights of a case, from the kind's own pass."""
    passes = []

    def run(arrays, perturbation_bhts):
        with pytest.MonkeyPatch.context() as patch:

            def attend(inputs):
                passes.append(attend_with_weights(original, inputs, perturbation_bhts))
                return passes[-1][0]

            kind = KINDS[case.kind]
            original = kind.attend
            patch.setattr(kind, "attend", attend, raising=False)
            case.ours(arrays)
        return passes.pop()

    return quick_jit(run)(case.arrays, perturbation_bhts)


def oracle_weights(case):
    """From the oracle, whose values are columns of the identity: it has room for all of them."""
    columns = jnp.eye(T)[None, :, None]
    arrays = {
        name: jnp.broadcast_to(columns, (*array.shape[:3], T)) if name.endswith("v") else array
        for name, array in case.arrays.items()
    }
    return jnp.moveaxis(case.theirs(arrays), 1, 2)


@pytest.mark.parametrize(("kind", "feature"), cells)
def test_weights_are_those_of_the_formula(kind, feature):
    bias = {"bias": "t5_bias", "relative": "transformer_xl"}.get(feature, "")
    found = case(kind, feature, bias)
    y_bthk, weights_bhts = weights_of(found)
    np.testing.assert_array_equal(y_bthk, quick_jit(found.ours)(found.arrays))
    assert weights_bhts.shape == (B, H, T, T)
    real = found.rows.segments > 0
    expected = np.where(real[:, None, :, None], oracle_weights(found), 0)
    found_weights = np.where(real[:, None, :, None], weights_bhts, 0)
    np.testing.assert_allclose(found_weights, expected, rtol=0, atol=1e-5)
    row_sums = found_weights.sum(axis=-1)
    if feature == "sinks":  # they have the rest
        assert (row_sums < 1).all() and row_sums.max() > 0.1
    else:
        real_sums = np.broadcast_to(real[:, None], row_sums.shape)
        np.testing.assert_allclose(row_sums, real_sums, atol=1e-5)
    spec = KINDS[kind].mask_spec(found.config, found.mask_spec)
    visible = np.broadcast_to(spec.mask_b1ts(), weights_bhts.shape)
    assert not np.asarray(weights_bhts)[~visible].any(), "exactly zero where the mask forbids it"
    assert (found_weights >= 0).all()


def times_values(case, weights_bhts):
    """Weights times values. Which values a pair uses is written out for each kind."""
    values = {"": case.arrays["v"], **{n[:-1]: x for n, x in case.arrays.items() if "_v" in n}}
    is_global = case.rows.is_global[:, None, :, None]
    number = case.rows.positions // case.config.attention_chunk
    is_own = pairs(case.rows, lambda r, t, s: number[r, t] == number[r, s])
    parts = {"": weights_bhts}
    if case.kind == "longformer":
        parts = {"": np.where(is_global, 0, weights_bhts)}
        parts["global_"] = np.where(is_global, weights_bhts, 0)
    if case.kind == "recurrent":
        parts = {"": np.where(is_own, weights_bhts, 0), "old_": np.where(is_own, 0, weights_bhts)}
    assert parts.keys() == values.keys()
    return sum(
        np.einsum("bhts,bshk->bthk", parts[name], np.repeat(values[name], H // G, axis=2))
        for name in parts
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_times_values_are_the_output(kind):
    """With a perturbation: the output of the weights and of the perturbation together."""
    found = case(kind, "grouped")
    spec = KINDS[kind].mask_spec(found.config, found.mask_spec)
    some = np.random.default_rng(0).normal(size=(B, H, T, T)).astype(np.float32)
    y_bthk, weights_bhts = weights_of(found)
    np.testing.assert_allclose(y_bthk, times_values(found, weights_bhts), rtol=0, atol=1e-5)
    more_bthk, same_bhts = weights_of(found, jnp.asarray(some))
    np.testing.assert_array_equal(same_bhts, weights_bhts)
    expected = y_bthk + times_values(found, np.where(spec.mask_b1ts(), some, 0))
    np.testing.assert_allclose(more_bthk, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "cross" not in KINDS[kind].refused])
def test_weights_of_cross_attention(kind):
    rng = np.random.default_rng(0)
    source = 31
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    qkv = QKV(draw(B, T, H, K), draw(B, source, G, K), draw(B, source, G, K))
    segments = np.ones((B, source), np.int32)
    segments[1, 20:] = 0
    sides = [
        SequenceInfo(jnp.arange(x.shape[1])[None], jnp.asarray(x))
        for x in (np.ones((B, T), np.int32), segments)
    ]
    config = tiny_config(family="encoder_decoder", attention=kind, **SETTINGS)
    spec = MaskSpec(*sides, causal=False)
    inputs = AttentionInputs(
        config, qkv, AttentionContext(spec), spec, scale=SCALE,
        shared=KINDS[kind].shared(config, lambda: None), score_vector_hk=draw(H, K),
    )  # fmt: skip
    attend = KINDS[kind].cross_attend

    def run(qkv):
        return attend_with_weights(attend, dataclasses.replace(inputs, qkv=qkv))

    y_bthk, weights_bhts = quick_jit(run)(qkv)
    weights_bhts = np.asarray(weights_bhts)
    np.testing.assert_allclose(weights_bhts.sum(axis=-1), 1, atol=1e-5)
    assert not weights_bhts[1, ..., 20:].any()
    assert weights_bhts[0, ..., 20:].all()
    expected = np.einsum("bhts,bshk->bthk", weights_bhts, np.repeat(qkv.v_bsgk, H // G, axis=2))
    np.testing.assert_allclose(y_bthk, expected, rtol=0, atol=1e-5)


def test_weights_of_an_unregistered_kind_are_captured():
    """It sees even positions only, a rule that only its own code knows."""

    def attend(inputs):
        q, k, v = inputs.qkv
        weights = jnp.where(jnp.arange(k.shape[1]) % 2 == 0, 1.0, 0.0) / ((k.shape[1] + 1) // 2)
        return jnp.broadcast_to(jnp.einsum("s,bsgk->bgk", weights, v)[:, None], q.shape)

    found = case("dot", "two_sided")
    spec = found.mask_spec
    inputs = AttentionInputs(found.config, found.heads(found.arrays), AttentionContext(spec), spec)
    _, weights_bhts = jax.jit(lambda: attend_with_weights(attend, inputs))()
    expected = np.where(np.arange(T) % 2 == 0, 1 / 13, 0)
    np.testing.assert_allclose(weights_bhts, np.broadcast_to(expected, weights_bhts.shape))
