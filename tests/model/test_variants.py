"""Every option works in every family: right shapes, finite values, no unused parameter."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.config import TransformerConfig
from model.heads import Classifier, Embedder, LanguageModel, MaskedLanguageModel
from model.layers import PatchEmbedding
from tests.model.examples import PATCHES, POSITIONS, pack, random_images, tokens
from tests.tiny import IMAGES, quick_jit, random_params, tiny_config

ACTIVATIONS = typing.get_args(typing.get_type_hints(TransformerConfig)["activation"])
FAMILIES = ("encoder", "decoder", "encoder_decoder", "images")
TARGET = pack([tokens(6, seed=0)], [tokens(4, seed=1)], columns=6)
SOURCE = pack([tokens(3, seed=2)], [tokens(5, seed=3)], columns=5)

# What else can be chosen, one for each activation.
OTHERS = (
    dict(qk_norm="heads", score_cap=2.0),
    dict(head_size=6, kv_heads=2, qk_norm="full"),
    dict(kv_heads=1, residual_multiplier=0.5),
    dict(embedding_norm=True, norm_zero_centered=True),
    dict(attention_scale=False, output_scale=True),
    dict(tie_output=False, share_embeddings=False),
    dict(encoder_layers=1, decoder_layers=3, attention_bias="qkv", qk_norm="head"),
    dict(logit_cap=3.0, output_bias=True, init_std=0.02, pooling="mean"),
    dict(attention_sinks=True, kv_heads=2, activation_limit=0.4),
)


def covering_set():
    """Nine configs a family: every choice, and every mix of norm and placement.

    Positions are shifted from family to family, so that each meets both norms.
    """
    for shift, family in enumerate(FAMILIES):
        kind = IMAGES if family == "images" else dict(family=family)
        for i, (activation, other) in enumerate(zip(ACTIVATIONS, OTHERS, strict=True)):
            yield tiny_config(
                **kind,
                **other,
                activation=activation,
                position=POSITIONS[(i + shift) % len(POSITIONS)],
                norm=("layernorm", "rmsnorm")[i % 2],
                norm_placement=("pre", "post", "sandwich", "reordered")[i // 2 % 4],
                bias=(True, False)[i // 4 % 2],
            )


def name(config):
    family = "images" if config.input == "patches" else config.family
    bias = "bias" if config.bias else "no_bias"
    choices = (family, config.position, config.norm, config.norm_placement, config.activation, bias)
    return "-".join(choices)


def model_and_inputs(config):
    """The head to try, its arguments, and the shapes of what it should answer."""
    if config.input == "patches":
        return Classifier(config), [random_images(2, seed=0)], {}, [(2, 5)]
    inputs, options = [TARGET.inputs], dict(segments_bt=TARGET.segments)
    if config.family == "encoder":
        model = MaskedLanguageModel(config, next_sentence=True)
        return model, inputs, options, [(2, 6, 17), (2, 2)]
    if config.family == "encoder_decoder":
        inputs.append(SOURCE.inputs)
        options["encoder_segments_bs"] = SOURCE.segments
    return LanguageModel(config), inputs, options, [(2, 6, 17)]


def is_without_effect(path, config) -> bool:
    """A key's bias moves all scores of a query alike, and softmax undoes that; RoPE turns it."""
    attention, projection, leaf = path[-3:] if len(path) > 2 else (None, None, None)
    turned = config.position == "rope" and attention == "self_attention"
    # A sink is a score that the bias does not move.
    turned |= config.attention_sinks and attention == "self_attention"
    return (projection, leaf) == ("key", "bias") and not turned


@pytest.mark.parametrize("config", list(covering_set()), ids=name)
def test_every_parameter_has_a_gradient(config):
    model, inputs, options, shapes = model_and_inputs(config)
    params = random_params(model, *inputs, **options)

    def loss(params):
        outputs = jax.tree.leaves(model.apply({"params": params}, *inputs, **options))
        rng = np.random.default_rng(1)  # a plain sum would be constant after a layernorm
        weights = [rng.normal(size=y.shape).astype(np.float32) for y in outputs]
        return sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)), outputs

    gradients, outputs = quick_jit(jax.grad(loss, has_aux=True))(params)
    assert [y.shape for y in outputs] == shapes
    assert all(np.isfinite(y).all() for y in outputs)
    for keys, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        path = tuple(key.key for key in keys)
        assert np.isfinite(gradient).all(), path
        layers = gradient if "blocks" in path else [gradient]
        if not is_without_effect(path, config):
            assert all(np.abs(layer).max() > 1e-5 for layer in layers), path


def output_shape(model, *inputs, **options):
    # `eval_shape` finds shapes without computing anything.
    return jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs, **options))[0]


@pytest.mark.parametrize("family", ["encoder", "decoder"])
@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
@pytest.mark.parametrize("pooler", [True, False])
def test_text_classifier(family, pooling, pooler):
    config = tiny_config(family=family, pooling=pooling, pooler=pooler, num_classes=3)
    assert output_shape(Classifier(config), TARGET.inputs).shape == (2, 3)


@pytest.mark.parametrize("embedding", ["pooled", "first", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
def test_an_embedding_is_of_the_real_tokens(embedding, normalize):
    config = tiny_config(family="encoder", pooler=True)
    model = Embedder(config, embedding, normalize)
    inputs, lengths = np.array([tokens(6, seed=0), tokens(6, seed=1)]), (6, 3)
    segments = (np.arange(6) < np.array(lengths)[:, None]).astype(np.int32)
    params = random_params(model, inputs)
    found, hidden = model.apply({"params": params}, inputs, segments_bt=segments)
    for row, length in enumerate(lengths):
        dense = params["pool"]["dense"]
        expected = {
            "pooled": np.tanh(hidden[row, 0] @ dense["kernel"] + dense["bias"]),
            "first": hidden[row, 0],
            "mean": hidden[row, :length].mean(axis=0),
        }[embedding]
        expected = expected / np.linalg.norm(expected) if normalize else expected
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_a_classifier_asked_for_masked_tokens_answers_as_both_heads_would():
    config = tiny_config(family="encoder", num_classes=3)
    both = Classifier(config, masked_tokens=True)
    params = random_params(both, TARGET.inputs)
    classes, tokens = both.apply({"params": params}, TARGET.inputs)
    token_params = {name: value for name, value in params.items() if name != "classes"}
    class_params = {name: params[name] for name in ("backbone", "classes")}
    expected, _ = MaskedLanguageModel(config).apply({"params": token_params}, TARGET.inputs)
    np.testing.assert_allclose(tokens, expected, atol=1e-6)
    expected = Classifier(config).apply({"params": class_params}, TARGET.inputs)
    np.testing.assert_allclose(classes, expected, atol=1e-6)


@pytest.mark.parametrize("class_token", [True, False])
def test_image_positions_count_the_class_token(class_token):
    needed = PATCHES + class_token
    config = tiny_config(
        **IMAGES, class_token=class_token, pooling="mean", position="learned", max_length=needed
    )
    model, images = Classifier(config), random_images(2, seed=0)
    params = random_params(model, images)
    logits = quick_jit(model.apply)({"params": params}, images)
    assert np.isfinite(logits).all()
    # Each position is used: a change to any row of the table is seen.
    table = params["backbone"]["encoder"]["position_embedding"]["embedding"]
    assert table.shape == (needed, 16)

    def with_table(table):
        encoder = {**params["backbone"]["encoder"], "position_embedding": {"embedding": table}}
        changed = {**params, "backbone": {**params["backbone"], "encoder": encoder}}
        return model.apply({"params": changed}, images).sum()

    assert (np.abs(quick_jit(jax.grad(with_table))(table)).max(axis=1) > 0).all()


def test_patches_are_squares_in_reading_order():
    # As wide as a patch has values, an identity for a kernel shows the patches themselves.
    config = tiny_config(**IMAGES, width=2 * 2 * 2, class_token=False, pooling="mean")
    images = random_images(1, seed=0)
    params = {"projection": {"kernel": jnp.eye(config.width), "bias": jnp.zeros(config.width)}}
    patches = PatchEmbedding(config).apply({"params": params}, images)
    squares = [
        images[0, row : row + 2, column : column + 2].reshape(-1)
        for row in (0, 2, 4)
        for column in (0, 2, 4)
    ]
    np.testing.assert_allclose(patches[0], np.stack(squares), rtol=1e-6)
