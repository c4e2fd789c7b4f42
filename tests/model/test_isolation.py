"""Examples of a batch do not mix: padding, packed neighbours and empty rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.dot_attention import dot_attention
from model.heads import Classifier, Pool
from model.mixers import MIXERS
from tests.model.examples import (
    PATCHES,
    POSITIONS,
    TEXT_FAMILIES,
    image_model,
    image_params,
    left_padded,
    pack,
    random_images,
    text_arguments,
    text_logits,
    text_model,
    text_params,
    tokens,
)
from tests.tiny import IMAGES, quick_jit, tiny_config

EXAMPLES = [tokens(n, seed=n) for n in (5, 3, 4)]
SOURCES = [tokens(n, seed=10 + n) for n in (2, 6, 3)]

every_text_model = pytest.mark.parametrize("family", TEXT_FAMILIES)
every_position = pytest.mark.parametrize("position", POSITIONS)


def separate(examples, columns=12):
    return pack(*([example] for example in examples), columns=columns)


def packed(examples, columns=12):
    """Two examples share the first row, and nothing is left for the last."""
    first, second, third = examples
    return pack([first, second], [third], [], columns=columns)


def sides(config, layout, **options):
    """The target's rows, and the source's where the family has one."""
    both = (EXAMPLES, SOURCES) if config.family == "encoder_decoder" else (EXAMPLES,)
    return [layout(examples, **options) for examples in both]


def assert_same_outputs(pieces, others, atol=2e-5):
    assert len(pieces) == len(others) == len(EXAMPLES)
    for piece, other in zip(pieces, others, strict=True):
        np.testing.assert_allclose(piece, other, rtol=0, atol=atol)


# Encoder-decoders have both: a mixer that reads both ways, and a causal one.
MIXED = [
    dict(mixer=mixer, bridge="context_vector" if number % 2 else "attention")
    for number, mixer in enumerate(MIXERS)
]
every_model = pytest.mark.parametrize(
    "keys",
    [dict(family=f, position=p) for p in POSITIONS for f in TEXT_FAMILIES] + MIXED,
    ids=lambda keys: "-".join(keys.values()),
)


@every_model
def test_padding_tokens_never_change_the_logits(keys):
    config = tiny_config(**keys)
    batch = sides(config, separate)
    logits = text_logits(config, *batch)
    for index, rows in enumerate(batch):
        noisy = [*batch]
        noisy[index] = rows.with_other(rows.segments == 0)
        others = text_logits(config, *noisy)
        for piece, other in zip(batch[0].pick(logits), batch[0].pick(others), strict=True):
            np.testing.assert_array_equal(piece, other)
        # The same change to real tokens is seen, so the equality above means something.
        changed = [*batch]
        changed[index] = rows.with_other(rows.segments != 0)
        assert not np.allclose(logits, text_logits(config, *changed), atol=1e-3)


@pytest.mark.parametrize(
    ("family", "position"),
    [("encoder", "learned"), ("decoder", "rope"), ("encoder_decoder", "t5_bias")],
)
def test_more_padding_changes_nothing(family, position):
    config = tiny_config(family=family, position=position)
    short, long = (sides(config, separate, columns=columns) for columns in (12, 16))
    assert_same_outputs(
        short[0].pick(text_logits(config, *short)), long[0].pick(text_logits(config, *long))
    )


@every_model
def test_packed_examples_are_as_if_alone(keys):
    config = tiny_config(**keys)
    alone, together = sides(config, separate), sides(config, packed)
    assert_same_outputs(
        alone[0].pick(text_logits(config, *alone)), together[0].pick(text_logits(config, *together))
    )


@pytest.mark.parametrize("position", [p for p in POSITIONS if p != "none"])
def test_positions_are_those_given(position):
    """Without this, a model that ignores positions would pass the tests above."""
    config = tiny_config(family="encoder", position=position)
    rows = separate(EXAMPLES)
    # Doubled, not shifted: relative schemes see only distances.
    stretched = dataclasses.replace(rows, positions=2 * rows.positions)
    (piece, *_), (other, *_) = (r.pick(text_logits(config, r)) for r in (rows, stretched))
    assert not np.allclose(piece, other, atol=1e-3)


@pytest.mark.parametrize("position", ["rope", "alibi", "t5_bias"])
@every_text_model
def test_relative_schemes_see_only_distances(family, position):
    config = tiny_config(family=family, position=position)
    batch = sides(config, separate)
    shifted = [dataclasses.replace(rows, positions=rows.positions + 7) for rows in batch]
    assert_same_outputs(
        batch[0].pick(text_logits(config, *batch)), batch[0].pick(text_logits(config, *shifted))
    )


@every_position
def test_left_padding_equals_right_padding(position):
    config = tiny_config(family="decoder", position=position)
    right, left = separate(EXAMPLES), left_padded(*EXAMPLES, columns=12)
    assert_same_outputs(
        right.pick(text_logits(config, right)), left.pick(text_logits(config, left))
    )


@every_position
def test_masked_patches_never_change_the_logits(position):
    config = tiny_config(**IMAGES, position=position)
    images = random_images(2, seed=0)
    segments = np.ones((2, 1 + PATCHES), np.int32)
    segments[1, 1 + 3 :] = 0  # of the second image, only the first row of patches is there
    noisy = images.copy()
    noisy[1, config.patch_size :] += 1.0
    apply, params = image_model(config), image_params(config)
    np.testing.assert_array_equal(apply(params, images, segments), apply(params, noisy, segments))
    everything = np.ones_like(segments)
    difference = apply(params, images, everything) - apply(params, noisy, everything)
    assert np.abs(difference[0]).max() == 0
    assert np.abs(difference[1]).max() > 1e-3


def test_pooling_reads_real_tokens():
    x = jnp.arange(1.0, 9.0).reshape(2, 4, 1)  # rows 1 2 3 4 and 5 6 7 8
    segments = jnp.array([[1, 1, 1, 0], [0, 0, 1, 1]])

    def pool(pooling, segments):
        return Pool(tiny_config(pooling=pooling)).apply({}, x, segments)[:, 0].tolist()

    assert pool("first", segments) == [1, 7]
    assert pool("last", segments) == [3, 8]
    assert pool("mean", segments) == [2, 7.5]
    assert [pool(kind, None) for kind in ("first", "last", "mean")] == [[1, 5], [4, 8], [2.5, 6.5]]


def test_a_query_that_sees_nothing_gets_zeros_and_zero_gradients():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 3, 2, 4)), jnp.float32) for _ in range(3))
    mask = jnp.array([[1, 1, 0], [0, 0, 0], [1, 1, 0]], bool)[None, None]

    def attend(q, k, v):
        return dot_attention(q, k, v, mask_b1ts=mask)

    output = attend(q, k, v)
    assert np.all(output[:, 1] == 0)
    assert np.all(output[:, [0, 2]] != 0)
    weights = jnp.asarray(rng.normal(size=output.shape), jnp.float32)
    gradients = jax.grad(lambda *qkv: (attend(*qkv) * weights).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    d_q, d_k, d_v = gradients
    assert np.all(d_q[:, 1] == 0) and np.any(d_q[:, 0] != 0)
    assert np.all(d_k[:, 2] == 0) and np.any(d_k[:, 0] != 0)  # a key that no query sees
    assert np.all(d_v[:, 2] == 0) and np.any(d_v[:, 0] != 0)


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)


@every_text_model
def test_rows_of_padding_give_no_nan(family):
    config = tiny_config(family=family, norm="rmsnorm", norm_placement="post", position="alibi")
    inputs, options = text_arguments(*sides(config, packed))
    model = text_model(config)

    def loss(params):
        output = model.apply({"params": params}, *inputs, **options)
        logits = output[0] if family == "encoder" else output
        return jnp.square(logits).sum(), logits

    gradients, logits = quick_jit(jax.grad(loss, has_aux=True))(text_params(config))
    assert_finite(logits)
    assert_finite(gradients)


def test_images_of_padding_give_no_nan():
    # A mean over nothing is the one place where an empty row could divide by zero.
    config = tiny_config(**IMAGES, pooling="mean", class_token=False)
    segments = np.array([[1] * PATCHES, [0] * PATCHES], np.int32)

    def loss(params):
        images = random_images(2, seed=0)
        logits = Classifier(config).apply({"params": params}, images, segments_bt=segments)
        return jnp.square(logits).sum(), logits

    gradients, logits = quick_jit(jax.grad(loss, has_aux=True))(image_params(config))
    assert_finite(logits)
    assert_finite(gradients)
