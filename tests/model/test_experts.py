"""The layer of experts against loops over tokens, choices and experts in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, expit, logsumexp, softmax

from experiment.schema import ConfigError
from model.experts import ExpertFeedForward
from model.routing import DROPPED, LOAD_BALANCE, ROUTER, ROUTER_Z
from tests.tiny import quick_jit, random_params, tiny_config

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "swiglu": lambda x: x * expit(x),
}
BASE = dict(family="decoder", experts=5, experts_per_token=2, feed_forward=6, width=8)
CASES = {
    "softmax": {},
    "not renormalised": dict(router_renormalise=False, activation="gelu"),
    "top 1": dict(router_renormalise=False, experts_per_token=1, init_std=0.02),
    "sigmoid, gated, shared": dict(
        router_scores="sigmoid", activation="swiglu", bias=False, shared_experts=2
    ),
    "sigmoid as it is, all experts": dict(
        router_scores="sigmoid", router_renormalise=False, experts_per_token=5
    ),
    "capacity": dict(expert_capacity=0.6),
    "capacity, gated, sigmoid": dict(
        expert_capacity=1.0, activation="swiglu", router_scores="sigmoid", experts_per_token=3
    ),
    "clamped, with a bias in the router": dict(
        activation="swiglu_clamped", activation_limit=0.4, router_bias=True
    ),
    "room for one": dict(expert_capacity=0.01, bias=False),
    "room for all": dict(expert_capacity=9.0),
}
LENGTHS = (7, 3, 6)  # of rows of 7 columns
NAMES = (LOAD_BALANCE, ROUTER_Z, DROPPED)


def mlp(config, weights, x):
    def dense(name, x):
        return x @ weights[name]["kernel"] + weights[name].get("bias", 0)

    if config.activation == "swiglu_clamped":
        limit = config.activation_limit
        gate, inner = np.minimum(dense("gate", x), limit), np.clip(dense("in", x), -limit, limit)
        return dense("out", gate * expit(1.702 * gate) * (inner + 1))
    act = ACTIVATIONS[config.activation]
    if config.activation == "swiglu":
        return dense("out", act(dense("gate", x)) * dense("in", x))
    return dense("out", act(dense("in", x)))


def by_hand(config, params, x_btd, real_bt):
    """Outputs and totals, token after token."""
    y_btd, totals = np.zeros(x_btd.shape), dict.fromkeys(NAMES, 0.0)
    number, choices, columns = config.experts, config.experts_per_token, x_btd.shape[1]
    room = columns
    if config.expert_capacity:
        room = max(1, math.ceil(config.expert_capacity * choices * columns / number))
    for b, row in enumerate(x_btd):
        taken, chosen, mean, real = np.zeros(number), np.zeros(number), np.zeros(number), 0
        for t, x in enumerate(row):
            if config.shared_experts:
                y_btd[b, t] += mlp(config, params["shared"], x)
            if not real_bt[b, t]:
                continue
            logits = x @ params["router"]["kernel"] + params["router"].get("bias", 0)
            scores = softmax(logits) if config.router_scores == "softmax" else expit(logits)
            best = sorted(range(number), key=lambda e: -scores[e])[:choices]
            total = sum(scores[e] for e in best) if config.router_renormalise else 1
            for e in best:
                chosen[e] += 1
                if taken[e] >= room:
                    totals[DROPPED] += 1 / choices
                    continue
                taken[e] += 1
                weights = {
                    name: {leaf: array[e] for leaf, array in layer.items()}
                    for name, layer in params["experts"].items()
                }
                y_btd[b, t] += scores[e] / total * mlp(config, weights, x)
            real += 1
            mean += scores / scores.sum()
            totals[ROUTER_Z] += logsumexp(logits) ** 2
        if real:
            totals[LOAD_BALANCE] += real * number * (chosen / choices / real) @ (mean / real)
    return y_btd, totals


def given(config, seed=0):
    rng = np.random.default_rng(seed)
    x_btd = jnp.asarray(rng.normal(size=(len(LENGTHS), 7, config.width)), jnp.float32)
    segments_bt = (np.arange(7) < np.array(LENGTHS)[:, None]).astype(np.int32)
    layer = ExpertFeedForward(config, deterministic=True)
    return layer, random_params(layer, x_btd, segments_bt), x_btd, segments_bt


@pytest.mark.parametrize("case", CASES)
def test_outputs_sums_and_gradients_are_those_of_loops(case):
    config = tiny_config(**BASE | CASES[case])
    layer, params, x_btd, segments_bt = given(config)
    rng = np.random.default_rng(1)
    factors_btd = rng.normal(size=x_btd.shape).astype(np.float32)
    both = {"params": params, "x": jnp.asarray(x_btd)}
    along = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), both)

    def of(both):
        y_btd, found = layer.apply(
            {"params": both["params"]}, both["x"], segments_bt, mutable=[ROUTER]
        )
        value = (y_btd * factors_btd).sum() + found[ROUTER][LOAD_BALANCE] + found[ROUTER][ROUTER_Z]
        return value, (y_btd, found[ROUTER])

    (_, (y_btd, totals)), gradients = quick_jit(jax.value_and_grad(of, has_aux=True))(both)

    def wanted(both):
        y_btd, totals = by_hand(config, both["params"], both["x"], segments_bt)
        value = (y_btd * factors_btd).sum() + totals[LOAD_BALANCE] + totals[ROUTER_Z]
        return value, y_btd, totals

    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), both)
    _, expected_btd, expected = wanted(exact)
    np.testing.assert_allclose(y_btd, expected_btd, atol=2e-5)
    assert (DROPPED in totals) == (config.expert_capacity > 0)
    for name, value in totals.items():
        assert value == pytest.approx(expected[name], rel=1e-5), name
    assert (expected[DROPPED] > 0) == (case in ("capacity", "capacity, gated, sigmoid",
                                                "room for one"))  # fmt: skip

    # So short a step that no token changes its experts.
    step = 1e-6
    ahead, behind = (
        wanted(jax.tree.map(lambda leaf, d: leaf + sign * step * d, exact, along))[0]  # noqa: B023
        for sign in (1, -1)
    )
    slope = sum(map(np.vdot, jax.tree.leaves(gradients), jax.tree.leaves(along)))
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=2e-4)


@pytest.mark.parametrize("capacity", [0.0, 0.6])
def test_padding_takes_no_part(capacity):
    """Rows with padding, on either side, give what the same rows give without it."""
    config = tiny_config(**BASE, expert_capacity=capacity)
    layer, params, x_btd, segments_bt = given(config)
    apply = quick_jit(lambda x, s: layer.apply({"params": params}, x, s, mutable=[ROUTER]))
    y_btd, totals = apply(x_btd, segments_bt)
    other_btd = jnp.where(segments_bt[..., None] > 0, x_btd, 9.0)
    same_btd, same = apply(other_btd, segments_bt)
    np.testing.assert_array_equal(same_btd, y_btd)
    flipped_btd, _ = apply(x_btd[:, ::-1], segments_bt[:, ::-1])
    if not capacity:  # which tokens are dropped depends on their order
        np.testing.assert_allclose(flipped_btd[:, ::-1], y_btd, atol=1e-6)
    for name, value in same[ROUTER].items():
        assert value == totals[ROUTER][name]
    assert np.abs(y_btd[segments_bt == 0]).max() == 0


def test_an_even_load_is_one_and_the_most_uneven_the_number_of_experts():
    config = tiny_config(
        **BASE | dict(experts=4, width=4, experts_per_token=1, router_renormalise=False)
    )
    layer, params, *_ = given(config)
    params["router"]["kernel"] = 30 * jnp.eye(4)

    def balance(x_td):
        _, found = layer.apply(
            {"params": params}, x_td[None], np.ones((1, len(x_td))), mutable=[ROUTER]
        )
        return found[ROUTER][LOAD_BALANCE] / len(x_td)

    assert balance(jnp.tile(jnp.eye(4), (2, 1))) == pytest.approx(1, abs=1e-5)
    assert balance(jnp.tile(jnp.eye(4)[:1], (8, 1))) == pytest.approx(4, abs=1e-5)


@pytest.mark.parametrize("capacity", [0.0, 0.5])
def test_bfloat16_routes_in_float32_and_sums_gradients_in_float32(capacity):
    config = tiny_config(**BASE, dtype="bfloat16", expert_capacity=capacity)
    layer, params, x_btd, segments_bt = given(config)
    x_btd = x_btd.astype(jnp.bfloat16)

    def of(params):
        y_btd, found = layer.apply({"params": params}, x_btd, segments_bt, mutable=[ROUTER])
        return y_btd.astype(jnp.float32).sum(), (y_btd, found[ROUTER])

    (_, (y_btd, totals)), gradients = quick_jit(jax.value_and_grad(of, has_aux=True))(params)
    assert y_btd.dtype == jnp.bfloat16
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected_btd, expected = by_hand(config, exact, np.asarray(x_btd, np.float64), segments_bt)
    assert totals[ROUTER_Z] == pytest.approx(expected[ROUTER_Z], rel=1e-5)
    np.testing.assert_allclose(y_btd.astype(np.float32), expected_btd, atol=0.05)
    of_kernel = gradients["experts"]["in"]["kernel"]
    assert of_kernel.dtype == jnp.float32
    assert np.any(of_kernel != of_kernel.astype(jnp.bfloat16).astype(jnp.float32))


REFUSED = {
    "more of them than there are": (dict(experts_per_token=6), "exceeds model.experts=5"),
    "one, always with weight 1": (dict(experts_per_token=1), "router learns nothing"),
    "linear": (dict(feed_forward_kind="linear"), "are mlps"),
    "dropout": (dict(dropout_feed_forward=0.1), "set it to 0"),
    "8 bits": (dict(matmul="int8"), "no products by expert"),
    "muP": (dict(parametrization="mup", mup_base_width=8), "no settled rule"),
    "shared without others": (dict(experts=0, shared_experts=1), "needs experts"),
    "capacity without experts": (dict(experts=0, expert_capacity=1.0), "needs experts"),
    "sigmoids without experts": (dict(experts=0, router_scores="sigmoid"), "needs experts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(case):
    changes, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=reason) as refused:
        tiny_config(**BASE | changes)
    assert len(str(refused.value).splitlines()) == 1
