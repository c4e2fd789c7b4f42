"""Random features of performers: unbiased, more accurate with more features, orthogonal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from model.attention.dot_attention import dot_attention
from model.attention.linear import linear_attention
from model.attention.performer import drawn_directions, fixed_directions, softmax_features
from model.masks import MaskSpec, SequenceInfo
from tests.tiny import quick_jit

K, SCALE = 8, 0.35
# Of inputs. The variance of an estimate grows like exp(|q + k|^2 * scale): with large ones it takes
# more features than any test has until averages behave as they do in the limit.
SIZE = np.float32(0.5)
PINNED = [
    [0.124352, -0.696023, -0.538294],
    [0.545544, 1.66491, 0.312629],
    [0.998049, 0.216305, -0.65499],
]


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@functools.cache
def draws(count, features):
    """`count` draws of directions, (draws, M, K)."""
    draw = functools.partial(drawn_directions, count=features, head_size=K)
    return np.asarray(quick_jit(jax.vmap(draw))(keys(count)))


def kernel_estimates(directions_nmk, x, y):
    """phi(x) phi(y) of each draw, for vectors (P, K): (draws, P)."""

    def estimate(directions_mk):
        apply = softmax_features(directions_mk, SCALE).apply
        return jnp.exp(apply(x) + apply(y)).sum(axis=-1)

    return np.asarray(quick_jit(jax.vmap(estimate))(directions_nmk), np.float64)


def pairs():
    x, y = SIZE * np.random.default_rng(1).normal(size=(2, 6, K)).astype(np.float32)
    return x, y, np.exp((x * y).sum(axis=-1) * SCALE)


def test_directions_are_at_right_angles_and_as_long_as_normal_vectors():
    directions_nmk = draws(2000, 12)  # one whole block of 8, and a half
    products = directions_nmk @ directions_nmk.swapaxes(1, 2)
    lengths = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
    cosines = np.abs(products) / lengths[:, :, None] / lengths[:, None]
    inside = np.kron(np.eye(2), np.ones((K, K)))[:12, :12] - np.eye(12)
    assert (cosines * inside).max() < 1e-5
    assert (cosines[:, :8, 8:]).mean() > 0.2, "another block is independent"
    # |w|^2 is chi-squared: mean K, variance 2 K. And no direction is preferred.
    count = directions_nmk.shape[0] * 12
    assert abs((lengths**2).mean() - K) < 4 * np.sqrt(2 * K / count)
    assert abs((lengths**2).var() / (2 * K) - 1) < 0.1
    assert np.abs(directions_nmk.mean(axis=0)).max() < 4.5 / np.sqrt(2000)
    assert np.abs((directions_nmk**2).mean(axis=0) - 1).max() < 4.5 * np.sqrt(2 / 2000)


def test_the_estimate_of_softmaxs_kernel_is_unbiased():
    x, y, exact = pairs()
    estimates = kernel_estimates(draws(4000, 16), x, y)
    deviation = estimates.std(axis=0) / np.sqrt(len(estimates))
    assert (deviation < 0.03 * exact).all(), "or a bias could hide"
    assert (np.abs(estimates.mean(axis=0) - exact) < 4 * deviation).all()


def test_orthogonal_directions_lower_the_error():
    x, y, _ = pairs()
    # Where |x + y|^2 * scale is 1: of much smaller vectors only their sum's length matters, and of
    # larger ones a few rare draws.
    length = np.linalg.norm(x + y, axis=-1, keepdims=True) * np.float32(SCALE**0.5)
    x, y = x / length, y / length
    exact = np.exp((x * y).sum(axis=-1) * SCALE)
    count = 20_000
    independent = np.random.default_rng(2).normal(size=(count, K, K)).astype(np.float32)
    errors = [
        ((kernel_estimates(directions, x, y) / exact - 1) ** 2).mean()
        for directions in (draws(count, K), independent)
    ]
    assert errors[0] < 0.9 * errors[1]


def test_the_error_against_softmax_falls_with_the_root_of_the_features():
    length, heads = 24, 2
    q, k, v = jax.random.normal(jax.random.key(5), (3, 1, length, heads, K))
    q, k = SIZE * q, SIZE * k
    sequence_info = SequenceInfo(jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))
    mask_spec = MaskSpec(sequence_info, sequence_info, causal=True)
    exact = dot_attention(q, k, v, mask_b1ts=mask_spec.mask_b1ts(), scale=SCALE)

    def error(features):
        def attend(directions_mk):
            return linear_attention(q, k, v, softmax_features(directions_mk, SCALE), mask_spec)[0]

        found = quick_jit(jax.vmap(attend))(draws(24, features))
        return float(jnp.sqrt(jnp.square(found - exact).mean()))

    sizes = [32, 128, 512, 2048]
    errors = [error(size) for size in sizes]
    exponent = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < exponent < -0.4, errors
    assert errors[-1] < 0.05


def test_the_fixed_draw_never_changes():
    """Runs with attention_redraw=0 were trained with it."""
    directions_mk = fixed_directions(20, K)
    assert directions_mk.shape == (20, K) and directions_mk.dtype == np.float32
    np.testing.assert_allclose(directions_mk[[0, 8, 19], :3], PINNED, rtol=1e-4)
    gram = directions_mk[:K] @ directions_mk[:K].T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-5)
