"""Position schemes against their papers' formulas, written independently here."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from model.positions import ScoreBias, alibi_slopes, rope, rope_frequencies, sinusoidal, t5_bucket
from tests.pretrained.transformers_models import oracle
from tests.tiny import tiny_config


@pytest.mark.parametrize("width", [2, 6, 16])
def test_sinusoidal_is_the_papers_formula(width):
    positions = np.array([[0, 1, 2, 50], [7, 7, 300, 3]], np.int32)
    waves = np.asarray(sinusoidal(positions, width))
    assert waves.shape == (2, 4, width)
    for row, column in np.ndindex(positions.shape):
        for i in range(width // 2):
            angle = positions[row, column] / 10_000 ** (2 * i / width)
            # The paper's columns 2i and 2i + 1 are columns i and D/2 + i here.
            sine, cosine = waves[row, column, i], waves[row, column, width // 2 + i]
            assert sine == pytest.approx(math.sin(angle), abs=2e-5)
            assert cosine == pytest.approx(math.cos(angle), abs=2e-5)


def test_sinusoids_of_tensor2tensor_end_at_a_ten_thousandth():
    positions = np.array([[0, 2, 500]], np.int32)
    waves = np.asarray(sinusoidal(positions, 8, "tensor2tensor"))[0]
    turns = np.geomspace(1, 1e-4, 4)
    expected = [[*np.sin(p * turns), *np.cos(p * turns)] for p in positions[0]]
    np.testing.assert_allclose(waves, expected, atol=5e-5)


def random_heads(rng, length, head_size=8):
    return jnp.asarray(rng.normal(size=(1, length, 1, head_size)), jnp.float32)


def frequencies(theta, head_size=8, **scaling):
    return rope_frequencies(
        tiny_config(position="rope", head_size=head_size, rope_theta=theta, **scaling)
    )


def test_rope_scores_depend_on_differences_only():
    rng = np.random.default_rng(0)
    query, key = random_heads(rng, 1), random_heads(rng, 1)

    def score(query_position, key_position):
        q = rope(query, jnp.array([[query_position]]), frequencies(10_000.0))
        k = rope(key, jnp.array([[key_position]]), frequencies(10_000.0))
        return float((q * k).sum())

    for difference in (-3, 0, 5):
        at_origin = score(20 + difference, 20)
        assert score(100 + difference, 100) == pytest.approx(at_origin, abs=1e-4)
        assert score(511 + difference, 511) == pytest.approx(at_origin, abs=1e-4)
    assert abs(score(25, 20) - score(20, 20)) > 0.01


def test_rope_turns_complex_numbers():
    """Column i and column i + K/2 are the two parts of a number turned by t * theta^(-2i/K)."""
    head_size, theta = 8, 500.0
    x = random_heads(np.random.default_rng(1), 6, head_size)
    positions = np.array([[0, 1, 2, 9, 40, 3]], np.int32)
    half = head_size // 2
    numbers = np.asarray(x[..., :half], np.complex128) + 1j * np.asarray(x[..., half:])
    for i in range(half):
        numbers[..., i] *= np.exp(1j * positions[..., None] * theta ** (-2 * i / head_size))
    expected = np.concatenate([numbers.real, numbers.imag], axis=-1)
    np.testing.assert_allclose(
        rope(x, positions, frequencies(theta, head_size)), expected, atol=1e-5
    )


def test_linear_scaling_divides_positions_by_the_factor():
    """Position 4 t turns as position t did."""
    x = random_heads(np.random.default_rng(2), 3)
    positions = np.array([[0, 5, 9]], np.int32)
    scaled = frequencies(900.0, rope_scaling="linear", rope_factor=4.0)
    np.testing.assert_allclose(
        rope(x, 4 * positions, scaled), rope(x, positions, frequencies(900.0)), atol=1e-5
    )


@pytest.mark.parametrize("head_size", [4, 8, 64])
@pytest.mark.parametrize("factor", [0.5, 1.0, 8.0])
def test_ntk_scaling_is_a_larger_theta(head_size, factor):
    """b' = b s^(K / (K - 2)) gives pair i, of K / 2, an angle that is s^(2i / (K - 2)) smaller."""
    theta = 700.0
    found = frequencies(theta, head_size, rope_scaling="ntk", rope_factor=factor)
    plain = frequencies(theta, head_size)
    powers = np.arange(head_size // 2) / (head_size // 2 - 1)
    np.testing.assert_allclose(found, plain / factor**powers, rtol=1e-6)
    assert found[0] == plain[0] == 1.0, "neighbours are told apart as before"
    assert found[-1] == pytest.approx(plain[-1] / factor, rel=1e-6)
    larger = theta * factor ** (head_size / (head_size - 2))
    np.testing.assert_allclose(found, frequencies(larger, head_size), rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("times", [1, 2, 8])
def test_ntk_scaling_is_transformers_dynamic_one_at_that_length(times):
    """Its factor of 1 lets the base follow the length alone, times that of training."""
    _, hf = oracle()
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    trained_at, head_size, theta = 256, 32, 10_000.0
    config = hf.LlamaConfig(
        hidden_size=4 * head_size, num_attention_heads=4, max_position_embeddings=trained_at,
        rope_parameters=dict(rope_type="dynamic", factor=1.0, rope_theta=theta),
    )  # fmt: skip
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=times * trained_at)
    ours = frequencies(theta, head_size, rope_scaling="ntk", rope_factor=float(times))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)


def test_llama3_scaling_keeps_high_frequencies():
    """Meta's rule, wave by wave: by how often it fits into the original length."""
    original, low, high, factor, theta, size = 64, 1.0, 4.0, 32.0, 500.0, 16
    found = frequencies(
        theta, size, rope_scaling="llama3", rope_factor=factor, rope_original_length=original,
        rope_low_frequency=low, rope_high_frequency=high,
    )  # fmt: skip
    kinds = set()
    for i, frequency in enumerate(theta ** (-2 * i / size) for i in range(size // 2)):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            expected, kind = frequency, "fast"
        elif wavelength > original / low:
            expected, kind = frequency / factor, "slow"
        else:
            share = (original / wavelength - low) / (high - low)
            expected, kind = (1 - share) * frequency / factor + share * frequency, "between"
        kinds.add(kind)
        assert found[i] == pytest.approx(expected, rel=1e-6)
    assert kinds == {"fast", "slow", "between"}


def test_rope_angles_are_exact_in_bfloat16():
    # Rounded to bfloat16, positions 256 and 257 would be the same.
    x = jnp.ones((1, 2, 1, 8), jnp.bfloat16)
    turned = rope(x, jnp.array([[256, 257]]), frequencies(10_000.0))
    assert turned.dtype == jnp.bfloat16
    assert abs(float(turned[0, 0, 0, 0] - turned[0, 1, 0, 0])) > 0.1


def test_alibi_slopes_of_eight_heads():
    assert alibi_slopes(8).tolist() == [
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
        1 / 64,
        1 / 128,
        1 / 256,
    ]


def test_alibi_slopes_of_twelve_heads():
    # As the authors' get_slopes(12) lists them: eight heads' slopes, then the first, third, fifth
    # and seventh of sixteen heads'.
    published = [
        0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625,
        0.7071067811865476, 0.35355339059327384, 0.17677669529663692, 0.08838834764831849,
    ]  # fmt: skip
    np.testing.assert_allclose(alibi_slopes(12), published, rtol=1e-7)


def test_alibi_grows_with_distance_on_both_sides():
    alibi = ScoreBias("alibi", jnp.asarray(alibi_slopes(2)))
    bias = alibi(None, jnp.array([[3]]), jnp.array([[0, 2, 3, 5]]))
    expected_slopes = np.array([1 / 16, 1 / 256])
    expected = -expected_slopes[:, None] * np.array([3, 1, 0, 2])
    np.testing.assert_array_equal(bias[0, :, 0], expected)


def bucket_from_the_paper(distance: int, bidirectional: bool, buckets: int, furthest: int) -> int:
    """T5's scheme in words: half of the buckets are for exact small offsets, the other half for
    logarithmically larger ranges up to `furthest`, beyond which all share the last bucket. Where
    both directions occur, keys after the query have the upper half of the buckets; where only the
    past is seen, keys after the query count as distance zero."""
    base = 0
    if bidirectional:
        buckets = buckets // 2
        if distance > 0:
            base = buckets
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    # The smallest distance of logarithmic bucket j solves exact * (furthest / exact)^(j / n) <= d.
    # Compared as whole powers, d^n >= exact^(n - j) * furthest^j, nothing is rounded at the edges.
    n = buckets - exact
    j = max(j for j in range(n) if distance**n >= exact ** (n - j) * furthest**j)
    return base + exact + j


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 12), (16, 100)])
def test_t5_buckets(bidirectional, buckets, furthest):
    distances = list(range(-300, 301))
    expected = [bucket_from_the_paper(d, bidirectional, buckets, furthest) for d in distances]
    actual = t5_bucket(
        jnp.array(distances), bidirectional=bidirectional, buckets=buckets, max_distance=furthest
    )
    assert actual.tolist() == expected
    assert set(expected) >= set(range(buckets // 2)), "every bucket of the past is used"
