"""Updates of bfloat16 parameters are not lost: by stochastic rounding or a float32 master copy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.examples import make_batch, make_job
from training.config import OptimizerConfig
from training.precision import (
    rounded_kernels,
    starting_from,
    stochastic_round,
    updated,
    with_precision,
)
from training.section_checks import gradient_problems, precision_problems

BF16 = jnp.bfloat16


@pytest.mark.parametrize("x", [1.001, 1.0077, -3.14159, 1e-20, -2.5e30])
def test_rounding_at_random_is_right_on_average(x):
    x, draws = np.float32(x), 40_000
    rounded = stochastic_round(jnp.full(draws, x), jax.random.key(0))
    assert rounded.dtype == BF16
    low, high = np.unique(np.asarray(rounded, np.float64))
    assert low < x < high
    # The next bfloat16 after the one is the other.
    assert high == float(np.nextafter(np.asarray(low, BF16), np.asarray(high, BF16)))
    share = (float(x) - low) / (high - low)
    found = (np.asarray(rounded, np.float64) == high).mean()
    assert abs(found - share) < 4 * (share * (1 - share) / draws) ** 0.5


def test_stochastic_rounding_keeps_bfloat16_values():
    x = np.array([0.0, -0.0, 1.0, -1.5, 3e38, np.inf, -np.inf, np.nan], np.float32)
    x = np.asarray(x.astype(BF16), np.float32)
    for seed in range(8):
        rounded = stochastic_round(jnp.asarray(x), jax.random.key(seed))
        np.testing.assert_array_equal(np.asarray(rounded, np.float32), x)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
def test_no_bit_pattern_of_nan_becomes_a_number(bits):
    """Adding to its lower half would carry it over to infinity, or around to zero."""
    x = jnp.full(64, np.uint32(bits).view(np.float32))
    for seed in range(4):
        assert np.isnan(np.asarray(stochastic_round(x, jax.random.key(seed)), np.float32)).all()


def descend(rounding, steps, step_size):
    """From ones, by equal small steps."""
    optimizer = with_precision(optax.sgd(1.0), rounding)
    params = {"a": jnp.ones(4000, BF16), "b": jnp.ones(4000, BF16)}
    gradients = jax.tree.map(lambda p: jnp.full_like(p, -step_size), params)

    def step(state, number):
        params, opt_state = state
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        key = jax.random.fold_in(jax.random.key(0), number)
        return (updated(rounding, params, updates, opt_state, key), opt_state), None

    start = params, optimizer.init(params)
    (params, opt_state), _ = jax.lax.scan(step, start, jnp.arange(steps))
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params), opt_state


def test_small_updates_are_not_lost():
    """A hundred of 2 ** -10; between 1 and the next bfloat16 there are eight of them."""
    steps, size = 100, 2.0**-10
    lost, _ = descend("nearest", steps, size)
    assert (lost["a"] == 1).all()
    mastered, _ = descend("master", steps, size)
    assert (mastered["a"] == float(jnp.asarray(1 + steps * size, BF16))).all()
    rounded, _ = descend("stochastic", steps, size)
    # Each step goes up by 2 ** -7 or not at all, with probability 1/8.
    deviation = (steps * (1 / 8) * (7 / 8) / 4000) ** 0.5 * 2.0**-7
    assert abs(rounded["a"].mean() - (1 + steps * size)) < 4 * deviation
    assert (rounded["a"] != rounded["b"]).any(), "each parameter has a key of its own"


def test_a_master_copy_is_float32_training_of_what_the_model_sees_rounded():
    """Against optax alone, with gradients taken at the rounded parameters."""
    rng = np.random.default_rng(0)
    start, target, matrix = (rng.normal(size=s).astype(np.float32) for s in (8, 8, (8, 8)))

    def gradient(point):
        return jax.grad(lambda p: jnp.square(matrix @ (p - target)).sum())(point)

    plain, ours = optax.adam(0.05), with_precision(optax.adam(0.05), "master")
    expected = jnp.asarray(start.astype(BF16), jnp.float32)
    params = jnp.asarray(start, BF16)
    plain_state, state = plain.init(expected), ours.init(params)
    for number in range(20):
        gradients = (
            gradient(expected.astype(BF16).astype(jnp.float32)),
            gradient(params.astype(jnp.float32)),
        )
        with jax.numpy_dtype_promotion("standard"):  # optax is not strict
            changes, plain_state = plain.update(gradients[0], plain_state, expected)
            ours_changes, state = ours.update(gradients[1], state, params)
        expected = optax.apply_updates(expected, changes)
        params = updated("master", params, ours_changes, state, jax.random.key(number))
    np.testing.assert_array_equal(state.master, expected)
    np.testing.assert_array_equal(params, expected.astype(BF16))
    assert np.abs(expected - start).max() > 0.1


def test_a_master_follows_parameters_of_another_run():
    optimizer = with_precision(optax.adam(0.1), "master")
    others = {"kernel": jnp.full(3, 2.5, BF16)}
    state = starting_from(optimizer.init({"kernel": jnp.ones(3, BF16)}), others)
    np.testing.assert_array_equal(state.master["kernel"], np.full(3, 2.5, np.float32))
    assert state.master["kernel"].dtype == jnp.float32
    plain = optax.adam(0.1).init(others)
    assert starting_from(plain, others) is plain


@pytest.mark.parametrize("rounding", ["stochastic", "master"])
def test_a_job_repeats_itself_from_any_step(rounding):
    batch = make_batch("causal_lm")
    job = make_job(
        "causal_lm", batch, model=dict(param_dtype="bfloat16"),
        optimizer=dict(rounding=rounding, accumulate=2, learning_rate=1e-3),
    )  # fmt: skip
    state, _ = job.run(job.init(jax.random.key(0)), batch, steps=1)
    saved = jax.device_get(state)
    uninterrupted, _ = job.run(state, batch, steps=2)
    places = jax.tree.map(lambda leaf: leaf.sharding, job.abstract)
    again, _ = job.run(jax.device_put(saved, places), batch, steps=2)
    jax.tree.map(np.testing.assert_array_equal, uninterrupted, again)
    assert {leaf.dtype for leaf in jax.tree.leaves(uninterrupted.params)} == {jnp.dtype(BF16)}
    floats = {leaf.dtype for leaf in jax.tree.leaves(uninterrupted.opt_state) if leaf.ndim}
    assert floats == {jnp.dtype(jnp.float32)}, "moments too are float32"
    if rounding == "master":
        rounded_master = jax.tree.map(lambda own: own.astype(BF16), uninterrupted.opt_state.master)
        jax.tree.map(np.testing.assert_array_equal, rounded_master, uninterrupted.params)


def test_rounding_depends_on_step_and_seed():
    batch = make_batch("causal_lm")
    asked = dict(
        model=dict(param_dtype="bfloat16"), optimizer=dict(rounding="stochastic", name="sgd")
    )

    def kernel(seed, step):
        job = make_job("causal_lm", batch, seed=seed, **asked)
        state, _ = job.run(job.start(step), batch, steps=1)
        return np.asarray(state.params["backbone"]["token_embedding"]["embedding"], np.float32)

    first = kernel(0, 0)
    assert (kernel(0, 0) == first).all()
    assert (kernel(0, 1) != first).any() and (kernel(1, 0) != first).any()


def test_rounding_where_it_has_no_meaning_is_refused():
    def problems(param_dtype, **changes):
        values = dict.fromkeys(OptimizerConfig.__dataclass_fields__, 0) | changes
        return list(precision_problems(OptimizerConfig(**values), param_dtype))

    assert problems("bfloat16", rounding="master") == []
    assert problems("float32", rounding="nearest", ema_decay=0.9) == []
    (problem,) = problems("float32", rounding="master")
    assert problem.endswith("not float32; set it to nearest")
    (problem,) = problems("bfloat16", rounding="stochastic", ema_decay=0.9)
    assert problem.startswith("optimizer.ema_decay=0.9 would not change in bfloat16")


def test_gradients_in_bfloat16_are_those_in_float32_but_rounded():
    batch = make_batch("causal_lm")

    def step(gradient_dtype):
        # Momentum without a clip: the optimizer's state is the gradient.
        job = make_job(
            "causal_lm", batch,
            model=dict(dtype="bfloat16", tie_output=False),
            optimizer=dict(name="sgd", beta1=0.5, clip_norm=0.0, gradient_dtype=gradient_dtype),
        )  # fmt: skip
        state, losses = job.run(job.init(jax.random.key(0)), batch, steps=1)
        return losses, optax.tree.get(state.opt_state, "trace"), state.params

    losses, exact, _ = step("float32")
    same, rounded, params = step("bfloat16")
    np.testing.assert_array_equal(same, losses)  # the forward pass does not change
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    has_bfloat16 = {}
    for (path, found), expected in zip(
        jax.tree.leaves_with_path(rounded), jax.tree.leaves(exact), strict=True
    ):
        assert found.dtype == jnp.float32
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7 * scale)
        is_rounded = bool((found == found.astype(BF16).astype(jnp.float32)).all())
        has_bfloat16.setdefault(path[-1].key, set()).add(is_rounded)
    assert has_bfloat16["kernel"] == {True}
    assert has_bfloat16["embedding"] == {False}


def test_gradients_in_bfloat16_are_for_models_in_bfloat16():
    def problems(*model):
        values = dict.fromkeys(OptimizerConfig.__dataclass_fields__, 0)
        return list(
            gradient_problems(OptimizerConfig(**values | dict(gradient_dtype="bfloat16")), *model)
        )

    assert problems("bfloat16", "float32", "float") == []
    (problem,) = problems("bfloat16", "bfloat16", "float")
    assert "needs model.param_dtype=float32, not bfloat16" in problem
    (problem,) = problems("bfloat16", "float32", "int8")
    assert "needs model.matmul=float, not int8" in problem


def test_routers_and_tables_keep_their_type():
    params = {
        "router": {"kernel": jnp.ones(2)}, "in": {"kernel": jnp.ones(2), "bias": jnp.ones(2)},
        "token_embedding": {"embedding": jnp.ones(2)},
    }  # fmt: skip
    found = jax.tree.map(lambda leaf: leaf.dtype == BF16, rounded_kernels(params))
    assert found == {
        "router": {"kernel": False}, "in": {"kernel": True, "bias": False},
        "token_embedding": {"embedding": False},
    }  # fmt: skip
