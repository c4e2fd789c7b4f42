"""Execution options change neither outputs nor gradients."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.heads import Classifier, LanguageModel
from tests.model.examples import (
    PATCHES,
    image_model,
    image_params,
    pack,
    random_images,
    text_arguments,
    text_logits,
    text_params,
    tokens,
    unpadded,
)
from tests.tiny import IMAGES, quick_jit, tiny_config

TARGET = pack([tokens(5, seed=0), tokens(3, seed=1)], [tokens(7, seed=2)], columns=8)
SOURCE = pack([tokens(2, seed=3), tokens(4, seed=4)], [tokens(6, seed=5)], columns=7)
LAYERS = dict(encoder_layers=3, decoder_layers=3)
DROPOUT = dict(dropout_attention=0.2, dropout_residual=0.2, dropout_feed_forward=0.2)


@functools.cache
def value_and_gradients(config):
    """With dropout on, because what is computed twice has to drop the same entries twice."""
    both = (TARGET, SOURCE) if config.family == "encoder_decoder" else (TARGET,)
    inputs, options = text_arguments(*both)

    def loss(params):
        logits = LanguageModel(config).apply(
            {"params": params}, *inputs, **options,
            deterministic=False, rngs={"dropout": jax.random.key(0)},
        )  # fmt: skip
        return jnp.square(logits).mean(), logits

    # One set of parameters for all: only what is not about sizes may differ between the configs.
    params = text_params(tiny_config(family=config.family, **LAYERS))
    (_, logits), gradients = quick_jit(jax.value_and_grad(loss, has_aux=True))(params)
    return logits, gradients


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("decoder", dict(unroll=2)),  # does not divide the layers
        ("decoder", dict(unroll=3)),
        ("decoder", dict(remat="dots")),
        ("decoder", dict(remat="full", unroll=3)),
        ("encoder_decoder", dict(remat="save_attention")),
        ("decoder", dict(remat="save_attention", attention="flash")),
        ("encoder_decoder", dict(remat="full")),
    ],
    ids=str,
)
def test_unrolling_and_remat_change_no_result(family, options):
    kind = options.get("attention", "dot")
    same = dict(family=family, **LAYERS, **DROPOUT)
    plain = value_and_gradients(tiny_config(**same, attention=kind))
    other = value_and_gradients(tiny_config(**same, **options))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), plain, other)


def gradient_program(**options) -> str:
    config = tiny_config(family="decoder", **LAYERS, **options)
    inputs, arguments = text_arguments(TARGET)

    def loss(params):
        return LanguageModel(config).apply({"params": params}, *inputs, **arguments).sum()

    return str(jax.make_jaxpr(jax.grad(loss))(text_params(config)))


# Equal results would also be had by ignoring the settings; these look at the program itself.


@pytest.mark.parametrize(("unroll", "expected"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_unrolling_is_in_the_program(unroll, expected):
    program = gradient_program(unroll=unroll)
    assert set(re.findall(r"unroll=(\d+)", program)) == {str(expected)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_remat_recomputes_matmuls_in_the_program(dtype):
    # "dots" repeats the scores of attention, which its gradients need; "full" repeats every product
    # but the feed-forward's last, whose result no gradient needs.
    none, dots, full = (
        gradient_program(remat=remat, dtype=dtype).count("dot_general[")
        for remat in ("none", "dots", "full")
    )
    assert (dots - none, full - none) == (1, 5)


def test_attention_that_is_saved_is_not_computed_again():
    """Of plain attention the scores are, which its gradients need; of flash nothing is."""

    def products(remat, attention):
        return gradient_program(remat=remat, attention=attention).count("dot_general[")

    for attention, saved in (("dot", 1), ("flash", 2)):
        full = products("full", attention)
        assert full - products("save_attention", attention) == saved, attention


@pytest.mark.slow
def test_saved_attention_costs_memory_between_none_and_full():
    config = dict(family="decoder", width=64, feed_forward=256, decoder_layers=8, max_length=256)
    inputs = jax.ShapeDtypeStruct((4, 256), jnp.int32)

    def temporary(remat, attention):
        model = LanguageModel(tiny_config(**config, remat=remat, attention=attention))
        params = jax.eval_shape(model.init, jax.random.key(0), inputs)
        loss = lambda params, inputs: model.apply(params, inputs).sum()  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(nn.unbox(params), inputs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    for attention in ("dot", "flash"):
        none, saved, full = (
            temporary(remat, attention) for remat in ("none", "save_attention", "full")
        )
        assert full < saved < 0.7 * none, attention


def test_grouped_heads_are_full_heads_that_repeat():
    grouped = tiny_config(family="encoder_decoder", kv_heads=2)
    full = tiny_config(family="encoder_decoder")

    def repeat(path, leaf):
        # Kernels are (L, D, G, K), biases (L, G, K): the axis of groups is the last but one.
        is_grouped = {key.key for key in path} & {"key", "value"}
        return jnp.repeat(leaf, 2, axis=-2) if is_grouped else leaf

    params = text_params(grouped)
    assert params["backbone"]["decoder"]["blocks"]["self_attention"]["key"]["kernel"].shape == (
        2, 16, 2, 4,
    )  # fmt: skip
    repeated = jax.tree_util.tree_map_with_path(repeat, params)
    np.testing.assert_allclose(
        text_logits(grouped, TARGET, SOURCE),
        text_logits(full, TARGET, SOURCE, params=repeated),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("family", "position"),
    [
        ("encoder", "rope"),
        ("decoder", "alibi"),
        ("decoder", "t5_bias"),
        ("encoder_decoder", "rope"),
    ],
)
def test_bfloat16_activations_with_float32_parameters(family, position):
    config = tiny_config(family=family, position=position, dtype="bfloat16")
    batch = [unpadded(3, 12, seed) for seed in range(2 if family == "encoder_decoder" else 1)]
    assert {leaf.dtype for leaf in jax.tree.leaves(text_params(config))} == {np.dtype("float32")}
    logits = text_logits(config, *batch)
    assert logits.dtype == jnp.bfloat16
    exact = text_logits(tiny_config(family=family, position=position), *batch)
    error = np.abs(logits.astype(np.float32) - exact)
    assert error.max() < 0.05 * np.abs(exact).max()
    assert error.max() > 0, "bfloat16 rounds; equality means that it was not used"


def test_bfloat16_images():
    config = tiny_config(**IMAGES, dtype="bfloat16")
    segments = np.ones((2, 1 + PATCHES), np.int32)
    logits = image_model(config)(image_params(config), random_images(2, seed=0), segments)
    assert logits.dtype == jnp.bfloat16
    assert np.isfinite(logits.astype(np.float32)).all()


def test_parameters_in_bfloat16():
    config = tiny_config(**IMAGES, param_dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(image_params(config))} == {jnp.dtype("bfloat16")}
    logits = Classifier(config).apply({"params": image_params(config)}, random_images(2, seed=0))
    assert logits.dtype == jnp.float32
