"""The keys of a block: cached decoding equals the full pass, and neutral values change nothing.

tests/pretrained compares the formulas with transformers, which has a model with each key.
"""

import jax
import numpy as np
import pytest

from model.heads import LanguageModel
from tests.model.examples import left_padded, text_logits, text_params, tokens
from tests.model.test_kv_cache import COLUMNS, assert_same_at_real_tokens, decode_in_chunks
from tests.tiny import quick_jit, tiny_config

ROPE = dict(family="decoder", position="rope", kv_heads=2)
STYLES = {
    "gemma 3": dict(
        norm="rmsnorm", norm_placement="sandwich", norm_zero_centered=True, qk_norm="head",
        attention="local,flash", attention_window=3, rope_local_theta=50.0, score_cap=2.0,
        logit_cap=3.0, attention_multiplier=0.3, embedding_scale=True, layer_scale=0.7,
    ),
    "olmo 2 without positions in some layers": dict(
        norm_placement="reordered", qk_norm="full", rope_layers=(1, 0), rope_fraction=0.5,
        bias=False, attention_bias="qkv",
    ),
    "modernbert and umt5": dict(
        attention="dot,local,local", attention_window=3, rope_local_theta=50.0, first_norm=False,
        relative_bias=True, own_relative_bias=True, bias=False, decoder_layers=5,
    ),
    "groups of layers": dict(decoder_layers=4, layer_groups=2, attention="dot,local"),
    "gpt-oss": dict(
        norm="rmsnorm", attention="local,dot", attention_window=3, attention_sinks=True, experts=4,
        router_bias=True, activation="swiglu_clamped", activation_limit=0.4, rope_scaling="yarn",
        rope_factor=4.0, rope_high_frequency=8.0, rope_original_length=16, rope_truncate=False,
    ),
    "parallel": dict(
        parallel_residual="one_norm", qk_norm="heads", residual_multiplier=0.5,
        embedding_multiplier=2.0, logit_multiplier=0.5, bias=False, norm_bias=True,
        rope_scaling="yarn", rope_factor=4.0, rope_high_frequency=8.0, rope_original_length=16,
        layer_scale=0.1,
    ),
}  # fmt: skip


def rows():
    return left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)


@pytest.mark.parametrize("name", STYLES)
def test_cached_decoding_equals_the_full_pass(name):
    config = tiny_config(**ROPE, **STYLES[name])
    cached = decode_in_chunks(config, rows(), chunks=(5, 1, 6))
    full = text_logits(config, rows())
    assert_same_at_real_tokens(rows(), cached, full)
    if config.logit_cap:
        assert np.abs(full).max() < config.logit_cap


def logits_of(config, params):
    model = LanguageModel(config)
    return quick_jit(model.apply)({"params": params}, np.asarray(rows().inputs))


def test_neutral_values_change_nothing():
    plain = tiny_config(**ROPE, norm="rmsnorm", head_size=4)
    params = text_params(plain)
    neutral = tiny_config(
        **ROPE, norm="rmsnorm", head_size=4, norm_zero_centered=True, attention_multiplier=0.5,
        score_cap=1e6, logit_cap=1e6, rope_layers=(1,),
    )  # fmt: skip
    centred = jax.tree.map_with_path(
        lambda path, leaf: leaf - 1 if path[-1].key == "scale" else leaf, params
    )
    np.testing.assert_allclose(logits_of(neutral, centred), logits_of(plain, params), atol=2e-5)


def test_a_first_layer_without_norm_reads_its_input_as_it_is():
    """With embeddings of mean 0 and variance 1, the first norm with scales of 1 changes nothing."""
    given = dict(ROPE, norm_epsilon=1e-9, bias=False, embedding_norm=True)
    plain, without = (tiny_config(**given, first_norm=value) for value in (True, False))
    params = text_params(plain)
    stack = params["backbone"]["decoder"]
    stack["embedding_norm"]["scale"] = np.ones_like(stack["embedding_norm"]["scale"])
    norms = np.array(stack["blocks"]["self_attention_norm"]["scale"])
    stack["blocks"]["self_attention_norm"]["scale"] = np.concatenate(
        [np.ones_like(norms[:1]), norms[1:]]
    )
    expected, found = logits_of(plain, params), logits_of(without, params)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # The scale is not read, so another changes nothing.
    stack["blocks"]["self_attention_norm"]["scale"] = np.concatenate([2 + norms[:1], norms[1:]])
    np.testing.assert_array_equal(logits_of(without, params), found)


def test_layers_without_rope_have_no_positions():
    given = dict(family="decoder", kv_heads=2)
    unrotated = tiny_config(**given, position="rope", rope_layers=(0,))
    params = text_params(unrotated)
    without = logits_of(tiny_config(**given, position="none"), params)
    np.testing.assert_array_equal(logits_of(unrotated, params), without)
