"""Parameters laid out for decoding come back as they were, layer by layer."""

import dataclasses
import re
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inference.decoding_params import Order, Turned, lay_out, restore
from model.heads import LanguageModel
from model.kv_cache import empty_cache
from model.layers import OUTPUTS_FIRST
from tests.model.examples import text_params
from tests.tiny import tiny_config

CONFIG = tiny_config(family="encoder_decoder", kv_heads=2, activation="swiglu", head_size=6)


def is_turned(leaf):
    return isinstance(leaf, Turned)


def without_marks(module):
    return {
        name: without_marks(inner) if isinstance(inner, dict) else inner
        for name, inner in module.items()
        if name != OUTPUTS_FIRST
    }


@pytest.mark.parametrize("order", get_args(Order))
def test_restored_parameters_are_those_of_each_layer(order):
    params = text_params(CONFIG)
    restored = without_marks(restore(lay_out(params, CONFIG, order)))
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


def test_with_outputs_first_kernels_have_a_row_for_each_output():
    laid_out = lay_out(text_params(CONFIG), CONFIG, "outputs_first")
    layer = laid_out["backbone"]["decoder"]["blocks"]["layer_0"]
    config, heads = CONFIG, CONFIG.heads * CONFIG.head_size
    few = config.kv_heads * config.head_size
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
        assert OUTPUTS_FIRST in layer[module][name]
    # Nothing but kernels is turned, and all of those: four and four of attention, three more.
    assert sum(map(is_turned, jax.tree.leaves(layer, is_leaf=is_turned))) == 4 + 4 + 3
    untied = dataclasses.replace(CONFIG, tie_output=False)
    laid_out = lay_out(text_params(untied), untied, "outputs_first")
    output = laid_out["vocabulary"]["output"]
    assert output["kernel"].matrix.shape == (config.vocab_size, config.width)
    assert OUTPUTS_FIRST in output


def test_with_outputs_first_a_tied_table_is_marked_and_stays_as_it_is():
    for tied in (True, False):
        config = dataclasses.replace(CONFIG, tie_output=tied)
        params = text_params(config)
        table = lay_out(params, config, "outputs_first")["backbone"]["token_embedding"]
        expected = params["backbone"]["token_embedding"]["embedding"]
        np.testing.assert_array_equal(table["embedding"], expected)
        assert (OUTPUTS_FIRST in table) == tied


def test_with_inputs_first_only_a_tied_table_is_turned():
    def turned(config):
        leaves = jax.tree.leaves(
            lay_out(text_params(config), config, "inputs_first"), is_leaf=is_turned
        )
        return [leaf.matrix.shape for leaf in leaves if is_turned(leaf)]

    assert turned(dataclasses.replace(CONFIG, tie_output=True)) == [
        (CONFIG.width, CONFIG.vocab_size)
    ]
    assert turned(dataclasses.replace(CONFIG, tie_output=False)) == []


@pytest.mark.parametrize("tied", [True, False])
def test_compiled_with_outputs_first_the_vocabulary_is_a_left_operand(tied):
    config = dataclasses.replace(CONFIG, tie_output=tied)
    params = lay_out(text_params(config), config, "outputs_first")
    one = jnp.ones((3, 1), jnp.int32)
    cache = empty_cache(config, 3, 4, 4)

    def decode(params):
        model = LanguageModel(config)
        return model.apply({"params": restore(params)}, one, cache=cache, method="decode")[0]

    program = jax.jit(decode).lower(params).compile().as_text()
    operands = re.findall(r" dot\(%([\w.]+), ", program)
    shapes = [re.search(rf"%{re.escape(each)} = f32\[([\d,]+)\]", program) for each in operands]
    assert f"{config.vocab_size},{config.width}" in {shape.group(1) for shape in shapes if shape}
