"""Parameters laid out for decoding come back as they were, layer by layer."""

import dataclasses
import re
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inference.cpu_layout import (
    FEW_ROWS,
    Order,
    Transposed,
    lay_out,
    matmul_transposed,
    reading,
    restore,
)
from model.heads import LanguageModel
from model.kv_cache import empty_cache
from tests.model.examples import text_params
from tests.tiny import tiny_config

ROWS = 5
CONFIG = tiny_config(family="encoder_decoder", kv_heads=2, activation="swiglu", head_size=6)


def is_transposed(leaf):
    return isinstance(leaf, Transposed)


@pytest.mark.parametrize("experts", [0, 3])
@pytest.mark.parametrize("order", get_args(Order))
def test_restored_parameters_are_those_of_each_layer(order, experts):
    config = dataclasses.replace(CONFIG, experts=experts)
    params = text_params(config)
    restored = restore(lay_out(params, config, order))
    blocks = restored["backbone"]["decoder"].pop("blocks")
    stacked = params["backbone"]["decoder"]["blocks"]
    assert len(blocks) == CONFIG.decoder_layers
    for number in range(CONFIG.decoder_layers):
        layer = jax.tree.map(lambda leaf, n=number: leaf[n], stacked)
        jax.tree.map(np.testing.assert_array_equal, blocks[f"layer_{number}"], layer)
    # All else is left alone: the encoder reads once, and its layers stay stacked.
    others = {
        name: leaf for name, leaf in params["backbone"]["decoder"].items() if name != "blocks"
    }
    backbone = {**params["backbone"], "decoder": others}
    jax.tree.map(np.testing.assert_array_equal, restored, {**params, "backbone": backbone})


def experts_of_a_layer():
    config = dataclasses.replace(CONFIG, experts=3)
    laid_out = lay_out(text_params(config), config, "outputs_first")
    return laid_out["backbone"]["decoder"]["blocks"]["layer_0"]["feed_forward"]["experts"]


def test_with_outputs_first_kernels_have_a_row_for_each_output():
    laid_out = lay_out(text_params(CONFIG), CONFIG, "outputs_first")
    layer = laid_out["backbone"]["decoder"]["blocks"]["layer_0"]
    config, heads = CONFIG, CONFIG.heads * CONFIG.head_size
    few = config.kv_heads * config.head_size
    assert not any(map(is_transposed, jax.tree.leaves(experts_of_a_layer(), is_leaf=is_transposed)))
    shapes = {
        ("self_attention", "query"): (heads, config.width),
        ("cross_attention", "key"): (few, config.width),
        ("self_attention", "value"): (few, config.width),
        ("cross_attention", "out"): (config.width, heads),
        ("feed_forward", "gate"): (config.feed_forward, config.width),
        ("feed_forward", "in"): (config.feed_forward, config.width),
        ("feed_forward", "out"): (config.width, config.feed_forward),
    }
    for (module, name), shape in shapes.items():
        assert layer[module][name]["kernel"].matrix.shape == shape
    # Nothing but kernels is transposed, and all of those: four and four of attention, three more.
    assert sum(map(is_transposed, jax.tree.leaves(layer, is_leaf=is_transposed))) == 4 + 4 + 3
    untied = dataclasses.replace(CONFIG, tie_output=False)
    laid_out = lay_out(text_params(untied), untied, "outputs_first")
    output = laid_out["vocabulary"]["output"]
    assert output["kernel"].matrix.shape == (config.vocab_size, config.width)


def test_with_outputs_first_the_token_table_stays_as_it_is():
    for tied in (True, False):
        config = dataclasses.replace(CONFIG, tie_output=tied)
        params = text_params(config)
        table = lay_out(params, config, "outputs_first")["backbone"]["token_embedding"]
        expected = params["backbone"]["token_embedding"]["embedding"]
        np.testing.assert_array_equal(table["embedding"], expected)


def test_with_inputs_first_only_a_tied_table_is_transposed():
    def transposed(config):
        leaves = jax.tree.leaves(
            lay_out(text_params(config), config, "inputs_first"), is_leaf=is_transposed
        )
        return [leaf.matrix.shape for leaf in leaves if is_transposed(leaf)]

    assert transposed(dataclasses.replace(CONFIG, tie_output=True)) == [
        (CONFIG.width, CONFIG.vocab_size)
    ]
    assert transposed(dataclasses.replace(CONFIG, tie_output=False)) == []


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("order", ["outputs_first", "as_trained"])
def test_the_vocabulary_is_a_left_operand_only_with_outputs_first(tied, order):
    config = dataclasses.replace(CONFIG, tie_output=tied)
    params = lay_out(text_params(config), config, order)
    one = jnp.ones((3, 1), jnp.int32)
    cache = empty_cache(config, 3, 4, 4)

    def decode(params):
        with reading(order):
            model = LanguageModel(config)
            return model.apply({"params": restore(params)}, one, cache=cache, method="decode")[0]

    program = jax.jit(decode).lower(params).compile().as_text()
    operands = re.findall(r" dot\(%([\w.]+), ", program)
    shapes = [re.search(rf"%{re.escape(each)} = f32\[([\d,]+)\]", program) for each in operands]
    left = {shape.group(1) for shape in shapes if shape}
    assert (f"{config.vocab_size},{config.width}" in left) == (order == "outputs_first")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [(1,), (ROWS,), (FEW_ROWS + 1,), (4, 16)])
def test_a_transposed_product_is_the_product(rows, dtype):
    rng = np.random.default_rng(0)
    # Whole numbers so small that every sum is exact in either type, whatever is added first.
    x = jnp.asarray(rng.integers(-3, 4, (*rows, 8)), dtype)
    matrix = jnp.asarray(rng.integers(-3, 4, (6, 8)), jnp.float32)
    y = matmul_transposed(x, matrix.T)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.asarray(x, np.float64) @ np.asarray(matrix).T)


@pytest.mark.parametrize(("rows", "left"), [(ROWS, "6,8"), (FEW_ROWS + 1, f"{FEW_ROWS + 1},8")])
def test_compiled_with_few_rows_the_matrix_is_its_left_operand(rows, left):
    x, matrix = jnp.ones((rows, 8)), jnp.ones((6, 8))
    transposed = jax.jit(lambda x, matrix: matmul_transposed(x, matrix.T) + 1)
    program = transposed.lower(x, matrix).compile().as_text()
    (operand,) = re.findall(r" dot\(%([\w.]+),", program)
    assert re.search(rf"%{re.escape(operand)} = f32\[{left}\]", program)
