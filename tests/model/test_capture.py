"""Capturing attention weights and hidden states: exact, the same in both stacks, free if unused."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import stack as stack_module
from model.attention import KINDS, attention_weights, module
from model.attention.attention_weights import CAPTURE, PERTURBATIONS
from model.heads import Classifier
from model.kv_cache import empty_cache
from tests.model.examples import (
    image_params,
    random_images,
    text_arguments,
    text_model,
    text_params,
    unpadded,
)
from tests.model.test_quantization import TYPES, multiplied
from tests.tiny import IMAGES, quick_jit, random_params, tiny_config

LENGTH, SOURCE = 11, 7
PATTERN = "longformer,dot"
REACH = dict(attention_window=3, attention_chunk=4, attention_memory=4, attention_features=8)

configs = {
    "encoder": dict(family="encoder", position="learned"),
    "decoder": dict(family="decoder", position="rope"),
    "encoder_decoder": dict(family="encoder_decoder", position="t5_bias"),
    "post_norm": dict(family="encoder", norm_placement="post", norm="layernorm"),
    "grouped": dict(family="decoder", kv_heads=2, position="alibi"),
    "one_kv_head": dict(family="decoder", kv_heads=1, attention="dot"),
    "transformer_xl": dict(family="decoder", position="transformer_xl", attention="recurrent"),
    "remat": dict(family="decoder", remat="full"),
    "pattern": dict(family="decoder", attention=PATTERN, decoder_layers=3, position="rope"),
    "pattern_remat": dict(family="encoder", attention=PATTERN, encoder_layers=5, remat="dots"),
    "pattern_of_both": dict(family="encoder_decoder", attention="local,performer"),
    # As Gemma 2 and 3: windows in some layers, caps, four norms in a block, norms of the heads.
    "capped": dict(
        family="decoder",
        attention="local,flash",
        decoder_layers=3,
        position="rope",
        rope_local_theta=50.0,
        score_cap=1.5,
        logit_cap=3.0,
        qk_norm="head",
        kv_heads=2,
        norm="rmsnorm",
        norm_placement="sandwich",
        norm_zero_centered=True,
        embedding_multiplier=3.0,
    ),
    # As Cohere, GPT-NeoX, SmolLM3 and Granite.
    "parallel": dict(
        family="decoder",
        decoder_layers=3,
        position="rope",
        rope_fraction=0.5,
        rope_layers=(1, 1, 0),
        parallel_residual="two_norms",
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logit_multiplier=0.5,
    ),
    # As OLMo 2.
    "reordered": dict(
        family="encoder",
        norm="rmsnorm",
        norm_placement="reordered",
        qk_norm="full",
    ),
    "int8": dict(family="decoder", matmul="int8"),
    "fp8": dict(family="decoder", matmul="fp8"),
    **{
        # Additive scores are no dot products, which rope turns.
        f"decoder_{kind}": dict(
            family="decoder",
            attention=kind,
            position="learned" if kind == "additive" else "rope",
        )
        for kind in KINDS
    },
}
cases = pytest.mark.parametrize("name", configs)


def example(name):
    config = tiny_config(**{**REACH, **configs[name]})
    source = unpadded(2, SOURCE, 5) if config.family == "encoder_decoder" else None
    return config, text_arguments(unpadded(2, LENGTH, 3), source)


def run(config, given, mutable=(CAPTURE,)):
    """Outputs and what was captured, as NumPy arrays."""

    @quick_jit
    def apply(params, given):
        inputs, options = given
        variables = {"params": params}
        return text_model(config).apply(variables, *inputs, **options, mutable=list(mutable))

    outputs, state = apply(text_params(config), given)
    logits = outputs[0] if config.family == "encoder" else outputs
    return jax.device_get((logits, state.get(CAPTURE, {}).get("backbone")))


@functools.cache
def captured_of(name):
    """Config, logits and what was captured, computed once for all tests."""
    config, given = example(name)
    return config, *run(config, given)


def blocks_of(captured):
    """(stack, module, what it captured)."""
    for stack, layers in captured.items():
        for name in ("self_attention", "cross_attention"):
            if name in layers["blocks"]:
                yield stack, name, layers["blocks"][name]


@cases
def test_outputs_are_the_same_to_the_bit(name):
    config, with_capture, captured = captured_of(name)
    given = example(name)[1]
    without, nothing = run(config, given, mutable=())
    assert captured and nothing is None
    np.testing.assert_array_equal(with_capture, without)


@cases
def test_weights_are_a_distribution_over_visible_keys(name):
    config, _, captured = captured_of(name)
    found = list(blocks_of(captured))
    depths = dict(encoder=config.encoder_layers, decoder=config.decoder_layers)
    assert [each[:2] for each in found] == {
        "encoder": [("encoder", "self_attention")],
        "decoder": [("decoder", "self_attention")],
        "encoder_decoder": [
            ("decoder", "self_attention"),
            ("decoder", "cross_attention"),
            ("encoder", "self_attention"),
        ],
    }[config.family]
    for stack, attention, layers in found:
        weights, visible = layers["weights"], layers["visible"]
        queries = SOURCE if (stack, config.family) == ("encoder", "encoder_decoder") else LENGTH
        keys = SOURCE if attention == "cross_attention" else queries
        assert weights.shape == (depths[stack], 2, config.heads, queries, keys)
        assert weights.dtype == np.float32
        assert visible.shape == (depths[stack], 2, queries, keys)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        assert not weights[~np.broadcast_to(visible[:, :, None], weights.shape)].any()
        if attention == "self_attention" and stack == "decoder":
            assert not np.triu(visible, 1).any()
        if attention == "cross_attention":
            assert visible.all()


def dense(config, x, layer, params):
    kernel = params["kernel"][layer]
    if config.matmul == "float":
        y = np.tensordot(x, kernel, axes=1)
    else:  # rounded to 8 bits, in NumPy
        kind, _ = TYPES[config.matmul]
        rows, columns = (
            x.reshape(-1, x.shape[-1]).astype(np.float32),
            kernel.reshape(len(kernel), -1),
        )
        y = multiplied(rows, kind, columns, kind).reshape(*x.shape[:-1], *kernel.shape[1:])
    return y + params["bias"][layer] if "bias" in params else y


def normed(config, x, layer, params):
    """The input of a sublayer, in NumPy."""
    if not config.norms_input:
        return x
    x = x.astype(np.float64)
    if config.norm == "layernorm":
        x = x - x.mean(axis=-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.norm_epsilon)
    scale = params["scale"][layer] + config.norm_zero_centered
    return y * scale + (params["bias"][layer] if "bias" in params else 0)


@pytest.mark.parametrize(
    "name",
    [
        "encoder", "decoder", "encoder_decoder", "post_norm", "grouped", "one_kv_head", "remat",
        "pattern", "pattern_remat", "capped", "parallel", "reordered", "int8", "fp8",
        *(f"decoder_{kind}" for kind in KINDS),
    ],
)  # fmt: skip
def test_weights_times_values_are_what_the_layer_passes_on(name):
    """With values computed here from the hidden state before the layer."""
    config, _, captured = captured_of(name)
    for stack, attention, layers in blocks_of(captured):
        if attention == "cross_attention":
            continue  # its source is the encoder's output: the test below
        params = jax.device_get(text_params(config))["backbone"][stack]["blocks"]
        hidden = np.concatenate(
            [captured[stack]["embedded"][None], captured[stack]["blocks"]["hidden"]]
        )
        for layer in range(len(layers["weights"])):
            x = normed(config, hidden[layer], layer, params["self_attention_norm"])
            prefixes = ["value"]
            if config.attention_kind(layer) == "longformer":
                prefixes.append("global_value")
            outputs = []
            for prefix in prefixes:
                values = dense(config, x, layer, params["self_attention"][prefix])
                values = np.repeat(values, config.heads // config.kv_heads, axis=2)
                outputs.append(np.einsum("bhts,bshk->bthk", layers["weights"][layer], values))
            expected = outputs[0]
            if len(outputs) > 1:
                expected[:, 0] = outputs[1][:, 0]  # the first token is global
            np.testing.assert_allclose(layers["output"][layer], expected, rtol=0, atol=1e-5)


def test_cross_attention_is_softmax_of_products():
    """From the hidden states alone, in NumPy."""
    config, _, captured = captured_of("encoder_decoder")
    params = jax.device_get(text_params(config))["backbone"]
    encoder, decoder = captured["encoder"], captured["decoder"]
    stacked = {k: v[None] for k, v in params["encoder"]["final_norm"].items()}
    source = normed(config, encoder["blocks"]["hidden"][-1], 0, stacked)
    blocks = params["decoder"]["blocks"]
    hidden = np.concatenate([decoder["embedded"][None], decoder["blocks"]["hidden"]])
    for layer in range(config.decoder_layers):
        weights = decoder["blocks"]["self_attention"]["output"][layer]
        out = blocks["self_attention"]["out"]
        y = np.einsum("bthk,hkd->btd", weights, out["kernel"][layer])
        x = hidden[layer] + y + (out["bias"][layer] if "bias" in out else 0)
        x = normed(config, x, layer, blocks["cross_attention_norm"])
        cross = blocks["cross_attention"]
        q, k = dense(config, x, layer, cross["query"]), dense(config, source, layer, cross["key"])
        scores = np.einsum("bthk,bshk->bhts", q, k) * config.score_scale
        expected = np.exp(scores - scores.max(axis=-1, keepdims=True))
        expected /= expected.sum(axis=-1, keepdims=True)
        found = decoder["blocks"]["cross_attention"]
        np.testing.assert_allclose(found["weights"][layer], expected, rtol=0, atol=1e-5)
        values = dense(config, source, layer, cross["value"])
        y = np.einsum("bhts,bshk->bthk", expected, values)
        np.testing.assert_allclose(found["output"][layer], y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["pattern", "decoder"])
def test_a_prefix_is_visible_to_every_token(name):
    config, (inputs, options) = example(name)
    prefix = np.broadcast_to(np.arange(LENGTH) < 4, (2, LENGTH))
    captured = run(config, (inputs, options | dict(prefix_bt=prefix)))[1]
    layers = captured["decoder"]["blocks"]["self_attention"]
    full = [n for n in range(config.decoder_layers) if config.attention_kind(n) != "longformer"]
    assert layers["visible"][full][..., :4].all()
    assert (layers["weights"][full][..., :4] > 0).all()


def test_images_are_captured():
    config = tiny_config(**IMAGES, class_token=True, pooling="first")

    def apply(params, images):
        return Classifier(config).apply({"params": params}, images, mutable=[CAPTURE])

    images = random_images(2, 0)
    captured = quick_jit(apply)(image_params(config), images)[1][CAPTURE]["backbone"]["encoder"]
    weights = captured["blocks"]["self_attention"]["weights"]
    assert weights.shape == (2, 2, config.heads, 10, 10)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["decoder", "pattern", "encoder_decoder"])
def test_hidden_states_are_those_between_layers(name):
    """The first layers alone give the same hidden states."""
    config, _, captured = captured_of(name)
    captured, given = captured["decoder"], example(name)[1]
    assert captured["embedded"].shape == (2, LENGTH, config.width)
    assert captured["blocks"]["hidden"].shape == (
        config.decoder_layers, 2, LENGTH, config.width,
    )  # fmt: skip
    shallow = tiny_config(**{**REACH, **configs[name], "decoder_layers": 1})
    params = text_params(config)
    decoder = dict(params["backbone"]["decoder"])
    decoder["blocks"] = jax.tree.map(lambda leaf: leaf[:1], decoder["blocks"])
    params = {**params, "backbone": {**params["backbone"], "decoder": decoder}}

    def apply(params, given):
        inputs, options = given
        variables = {"params": params}
        return text_model(shallow).apply(variables, *inputs, **options, mutable=[CAPTURE])

    alone = quick_jit(apply)(params, given)[1][CAPTURE]["backbone"]["decoder"]
    np.testing.assert_allclose(
        alone["blocks"]["hidden"][0], captured["blocks"]["hidden"][0], rtol=0, atol=1e-5
    )


# Training and decoding pay nothing


def text_of(function, *arguments) -> str:
    """The program that jax traces, without addresses of Python objects."""
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(function)(*arguments)))


def training_program(config, given) -> str:
    def loss(params, given):
        inputs, options = given
        keys = {"dropout": jax.random.key(0)}
        outputs = text_model(config).apply(
            {"params": params}, *inputs, **options, deterministic=False, rngs=keys
        )
        return jax.tree.leaves(outputs)[0].astype(jnp.float32).sum()

    return text_of(jax.grad(loss), text_params(config), given)


def decoding_program(config, given) -> str:
    def decode(params, given):
        inputs, more = given[0], {}
        if config.family == "encoder_decoder":
            more["source_bsd"] = text_model(config).apply(
                {"params": params}, inputs[1], method="encode"
            )
        source = SOURCE if config.family == "encoder_decoder" else 0
        cache = empty_cache(config, 2, LENGTH + 4, source, keep_tokens=False)
        return text_model(config).apply(
            {"params": params}, inputs[0], cache=cache, method="decode", **more
        )

    return text_of(decode, text_params(config), given)


@pytest.mark.parametrize("name", ["encoder", "decoder", "encoder_decoder", "pattern", "remat"])
def test_capture_support_does_not_change_the_programs(name, monkeypatch):
    config, given = example(name)
    programs = [training_program]
    if config.family != "encoder":
        programs.append(decoding_program)
    usual = [program(config, given) for program in programs]
    for place in (stack_module, module, attention_weights):
        monkeypatch.setattr(place, "captures", lambda module: False)
    monkeypatch.delattr(attention_weights, "_weights")
    monkeypatch.setattr(module, "attend_with_weights", None)
    assert [program(config, given) for program in programs] == usual
    assert all(len(program) > 1000 for program in usual)


def test_a_program_that_captures_is_another():
    """So the comparison above can fail."""
    config, (inputs, options) = example("decoder")

    def apply(params, mutable):
        return text_model(config).apply({"params": params}, *inputs, **options, mutable=mutable)

    params = text_params(config)
    programs = {text_of(lambda p, m=m: apply(p, m), params) for m in ([], [CAPTURE])}
    assert len(programs) == 2


@pytest.mark.parametrize("name", ["decoder", "pattern"])
def test_nothing_is_captured_at_initialization(name):
    config, (inputs, options) = example(name)
    made = jax.eval_shape(lambda: text_model(config).init(jax.random.key(0), *inputs, **options))
    assert set(made) == {"params"}


# Gradients


@pytest.mark.parametrize("name", ["encoder", "grouped", "pattern"])
def test_gradients_are_finite_differences(name, monkeypatch):
    """Of a classifier in which one layer has explicit weights, one of which is changed."""
    attention = "flash,dot" if name == "pattern" else "dot"
    changes = dict(num_classes=3, attention=attention, activation="gelu", decoder_layers=2)
    config = tiny_config(**{**REACH, **configs[name], **changes})
    tokens = unpadded(1, 6, 9).inputs
    model, stack = Classifier(config), config.family
    params = random_params(model, tokens)

    def apply(params, perturbations):
        variables = {"params": params, PERTURBATIONS: perturbations}
        return model.apply(variables, tokens, mutable=[CAPTURE])

    def logit(perturbation, params):
        blocks = {"self_attention": {"weights": perturbation}}
        logits, state = apply(params, {"backbone": {stack: {"blocks": blocks}}})
        return logits[0, 1], state[CAPTURE]["backbone"][stack]["blocks"]["self_attention"]

    zeros = jnp.zeros((2, 1, config.heads, 6, 6))
    gradient = quick_jit(jax.value_and_grad(logit, has_aux=True))
    (value, captured), found = jax.device_get(gradient(zeros, params))
    weights, visible = captured["weights"], captured["visible"]
    monkeypatch.setattr(stack_module.Stack, "_blocks", blocks_in_a_loop)
    rng, step = np.random.default_rng(0), 0.02
    for layer in range(2):
        changed = logit_with_weights(model, tokens, layer, monkeypatch)
        np.testing.assert_allclose(changed(params, weights[layer]), value, rtol=0, atol=1e-5)
        places = np.argwhere(np.broadcast_to(visible[layer, :, None], weights[layer].shape))
        for place in rng.permutation(places)[:10]:
            more = np.zeros_like(weights[layer])
            more[tuple(place)] = step
            slope = changed(params, weights[layer] + more) - changed(params, weights[layer] - more)
            expected = slope / (2 * step)
            np.testing.assert_allclose(found[layer][tuple(place)], expected, rtol=0.01, atol=1e-3)
        assert np.abs(found[layer]).max() > 0.02


def logit_with_weights(model, tokens, layer, monkeypatch):
    """A function of parameters and the weights of one layer, by a pass of our own."""

    def apply(params, weights_bhts):
        numbers = itertools.count()

        def replaced(original):
            def attend(inputs):
                if next(numbers) != layer:
                    return original(inputs)
                v_bsgk = inputs.qkv.v_bsgk
                values = jnp.repeat(v_bsgk, model.config.heads // model.config.kv_heads, axis=2)
                return jnp.einsum("bhts,bshk->bthk", weights_bhts, values)

            return attend

        with monkeypatch.context() as patch:
            for kind in ("dot", "flash"):
                patch.setattr(KINDS[kind], "attend", replaced(KINDS[kind].attend), raising=False)
            return model.apply({"params": params}, tokens)[0, 1]

    return quick_jit(apply)


def blocks_in_a_loop(self, x_btd, context, caches, deterministic):
    params = stack_module.by_layer(self.get_variable("params", "blocks"), self.layers)
    for number in range(self.layers):
        kind = self.config.attention_kind(number)
        block = stack_module.Block(self.config, kind, self.cross, True, parent=None)
        variables = {"params": params[stack_module.LAYER.format(number)]}
        x_btd, _ = block.apply(variables, x_btd, None, context)
    return x_btd, None
