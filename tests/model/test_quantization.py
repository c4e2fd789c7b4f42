"""Matmuls in 8 bits against NumPy, and which matmuls of a model are quantized."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.heads import Classifier
from model.quantization import quantized_matmul
from tests.model.examples import (
    image_model,
    image_params,
    pack,
    random_images,
    text_arguments,
    text_logits,
    text_model,
    text_params,
    tokens,
)
from tests.model.test_kv_cache import decode_in_chunks
from tests.tiny import IMAGES, tiny_config

# The types of activations and of gradients, and how far a model of two layers may be from one that
# multiplies floats: int8 has steps of 1/127 of the largest, e4m3 of up to 1/8 of each.
TYPES = {"int8": (np.int8, np.int8), "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2)}
TOLERANCE = {"int8": 0.05, "fp8": 0.25}
LARGEST = {np.int8: 127.0, jnp.float8_e4m3fn: 448.0, jnp.float8_e5m2: 57344.0}
both = pytest.mark.parametrize("matmul", TYPES)

TARGET = pack([tokens(6, seed=0)], [tokens(4, seed=1)], columns=6)
SOURCE = pack([tokens(3, seed=2)], [tokens(5, seed=3)], columns=5)
# Dense layers of a block: four of attention and two, or gated three, of the feed-forward; four more
# with a source. In a scan each is in the program once for a stack.
PROJECTIONS = {
    "encoder": (dict(family="encoder"), 6),
    "decoder": (dict(family="decoder", tie_output=False), 6),
    "gated decoder with distances": (
        dict(family="decoder", activation="swiglu", position="transformer_xl"),
        8,
    ),
    "encoder_decoder": (dict(family="encoder_decoder"), 6 + 10),
    "images": (IMAGES, 6),
}


def rounded(x, kind):
    """Rows in 8 bits, as floats again, and what each was divided by."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(LARGEST[kind])
    scale = np.where(scale == 0, np.float32(1), scale)
    if kind is np.int8:  # NumPy too rounds halves to even
        return np.rint(x / scale).astype(np.float64), scale
    return np.clip(x / scale, -LARGEST[kind], LARGEST[kind]).astype(kind).astype(np.float64), scale


def multiplied(x, x_kind, kernel, kernel_kind):
    (x_8bit, x_scale), (columns, scales) = rounded(x, x_kind), rounded(kernel.T, kernel_kind)
    return (x_8bit @ columns.T) * x_scale * scales.T


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    x, kernel, slope = (
        rng.normal(size=size).astype(np.float32) for size in ((12, 32), (32, 8), (12, 8))
    )
    x[3] = slope[4] = kernel[:, 5] = 0  # nothing to divide by
    x[7] *= 1e4  # a scale of its own
    return x, kernel, slope


@both
def test_a_product_is_that_of_rounded_rows_and_columns(matmul, drawn):
    x, kernel, _ = drawn
    kind, _ = TYPES[matmul]
    found = jax.jit(quantized_matmul, static_argnums=2)(x.reshape(3, 4, 32), kernel, matmul)
    expected = multiplied(x, kind, kernel, kind).reshape(3, 4, 8)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(x @ kernel).max())
    # Rounding is what makes the difference: the test would not see its absence otherwise.
    assert np.abs(expected - (x @ kernel).reshape(3, 4, 8))[0].max() > 1e-3


@both
def test_the_gradient_of_x_is_such_a_product_and_that_of_the_kernel_is_not(matmul, drawn):
    x, kernel, slope = drawn
    kind, of_gradients = TYPES[matmul]
    _, pull_back = jax.vjp(lambda x, kernel: quantized_matmul(x, kernel, matmul), x, kernel)
    of_x, of_kernel = pull_back(jnp.asarray(slope))
    expected = multiplied(slope, of_gradients, kernel.T, kind)
    np.testing.assert_allclose(of_x, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert np.abs(expected - slope @ kernel.T).max() > 1e-3
    exact = x.astype(np.float64).T @ slope
    np.testing.assert_allclose(of_kernel, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


@both
def test_bfloat16_is_rounded_once_and_the_parameter_keeps_its_type(matmul, drawn):
    x, kernel, slope = drawn
    x = jnp.asarray(x, jnp.bfloat16)
    y, pull_back = jax.vjp(lambda x, kernel: quantized_matmul(x, kernel, matmul), x, kernel)
    of_x, of_kernel = pull_back(jnp.asarray(slope, jnp.bfloat16))
    assert (y.dtype, of_x.dtype, of_kernel.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    in_float32 = quantized_matmul(x.astype(jnp.float32), kernel, matmul)
    np.testing.assert_array_equal(y, in_float32.astype(jnp.bfloat16))


@both
def test_nan_and_infinity_survive_quantization(matmul, drawn):
    x, kernel, _ = drawn
    for bad in (np.nan, np.inf):
        x[2, 1] = bad
        is_finite = np.isfinite(quantized_matmul(jnp.asarray(x), kernel, matmul)).all(axis=1)
        assert is_finite.tolist() == [row != 2 for row in range(12)]


def logits(config):
    if config.input == "patches":
        images = random_images(2, seed=0)
        return np.asarray(image_model(config)(image_params(config), images, None))
    batch = [TARGET, SOURCE] if config.family == "encoder_decoder" else [TARGET]
    found = text_logits(config, *batch)
    return np.concatenate(TARGET.pick(found))


@both
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder", "images"])
def test_quantized_logits_are_close_to_float_logits(family, matmul):
    kind, _ = PROJECTIONS[family]
    plain, ours = logits(tiny_config(**kind)), logits(tiny_config(**kind, matmul=matmul))
    apart = np.linalg.norm(ours - plain) / np.linalg.norm(plain)
    assert 1e-4 < apart < TOLERANCE[matmul]


def program(gradient=False, **changes):
    """A model's forward pass, or its gradient, as text; rows are too few for joint products."""
    config = tiny_config(**changes)
    if config.input == "patches":
        model, params = Classifier(config), image_params(config)
        inputs, options = [random_images(1, seed=0)], {}
    else:
        batch = [TARGET, SOURCE] if config.family == "encoder_decoder" else [TARGET]
        model, params = text_model(config), text_params(config)
        inputs, options = text_arguments(*batch)

    def run(params):
        answers = model.apply({"params": params}, *inputs, **options)
        return sum(answer.sum() for answer in jax.tree.leaves(answers))

    return str(jax.make_jaxpr(jax.grad(run) if gradient else run)(params))


def products(text):
    """How many there are, and how many of them are summed in int32."""
    return text.count("dot_general["), text.count("preferred_element_type=int32")


@pytest.mark.parametrize("family", PROJECTIONS)
def test_only_projections_of_blocks_are_quantized(family):
    kind, projections = PROJECTIONS[family]
    plain, quantized = products(program(**kind)), products(program(**kind, matmul="int8"))
    assert plain == (quantized[0], 0)
    assert quantized[1] == projections < quantized[0]
    plain, quantized = (
        products(program(gradient=True, **kind, matmul=matmul)) for matmul in ("float", "int8")
    )
    # The gradient of transformer_xl's distances is in the text, though nothing asks for it.
    unused = kind.get("position") == "transformer_xl"
    assert plain == (quantized[0] - unused, 0)
    assert quantized[1] == 2 * projections


def test_remat_saves_matmul_outputs_in_the_activation_dtype():
    config = dict(family="decoder", matmul="int8", dtype="bfloat16")
    none, dots, full = (
        products(program(gradient=True, **config, remat=remat))[1]
        for remat in ("none", "dots", "full")
    )
    assert (none, dots, full) == (12, 12, 12 + 5)  # the last of a block no gradient needs
    # The scan over layers hands on what is saved of both of them, of 12 rows: no sums in int32.
    text = program(gradient=True, **config, remat="dots")
    assert re.search(r"bf16\[2,12,(16|24)\]", text)
    assert not re.search(r"i32\[2,12,(16|24)\]", text)


def test_parameters_are_the_same_ones():
    for kind, _ in PROJECTIONS.values():
        params = image_params if kind is IMAGES else text_params
        shapes = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params(tiny_config(**kind, **way)))
            for way in ({}, dict(matmul="int8"), dict(matmul="fp8"))
        ]
        assert shapes[0] == shapes[1] == shapes[2]


def test_cached_decoding_is_that_of_one_pass():
    """Each token has its own scale, independent of the other tokens."""
    config = tiny_config(family="decoder", position="rope", matmul="int8")
    rows = pack([tokens(12, seed=5)], [tokens(12, seed=6)], columns=12)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 6))
    full = text_logits(config, rows)
    # Attention's last digit may take a value over the middle between two steps.
    assert np.linalg.norm(cached - full) < 1e-3 * np.linalg.norm(full)
