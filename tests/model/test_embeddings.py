"""Embedding tables: which exist, which are shared, and how they are scaled."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import architectures
from model.heads import LanguageModel, MaskedLanguageModel
from model.layers import Embedding, PatchEmbedding
from model.positions import sinusoidal
from tests.model.examples import pack, text_arguments, text_logits, text_params, tokens, unpadded
from tests.tiny import IMAGES, quick_jit, random_params, tiny_config

TARGET, SOURCE = unpadded(3, 12, seed=0), unpadded(3, 12, seed=5)
SHORT = pack([np.array([3, 4, 3], np.int32)], columns=3)  # most tokens do not occur
UNSEEN = 7


def table_gradients(config):
    inputs, options = text_arguments(SHORT)

    def loss(params):
        logits = LanguageModel(config).apply({"params": params}, *inputs, **options)
        return jnp.square(logits).sum()

    gradients = quick_jit(jax.grad(loss))(text_params(config))
    return gradients["backbone"]["token_embedding"]["embedding"]


def test_tied_output_is_the_token_table():
    config = tiny_config(family="decoder", tie_output=True)
    assert "vocabulary" not in text_params(config)
    rows = table_gradients(config)
    assert np.any(rows[UNSEEN] != 0), "a token that only the output knows moves its row"


def test_separate_output_has_a_kernel_of_its_own():
    config = tiny_config(family="decoder", tie_output=False)
    assert text_params(config)["vocabulary"]["output"]["kernel"].shape == (16, 17)
    rows = table_gradients(config)
    assert np.all(rows[UNSEEN] == 0)
    assert np.any(rows[3] != 0)


def test_tied_logits_equal_a_transposed_kernel():
    tied = tiny_config(family="decoder", tie_output=True)
    separate = tiny_config(family="decoder", tie_output=False)
    params = text_params(tied)
    kernel = params["backbone"]["token_embedding"]["embedding"].T
    copied = {**params, "vocabulary": {"output": {"kernel": kernel}}}
    np.testing.assert_allclose(
        text_logits(tied, TARGET), text_logits(separate, TARGET, params=copied), atol=1e-5
    )


def test_output_scale_divides_by_the_root_of_width():
    config = tiny_config(family="decoder", output_scale=True)
    plain = tiny_config(family="decoder")
    np.testing.assert_allclose(
        text_logits(config, TARGET, params=text_params(plain)),
        text_logits(plain, TARGET) / np.sqrt(16),
        rtol=1e-5,
        atol=1e-6,
    )


def test_output_bias_is_added_to_logits():
    config, plain = tiny_config(family="decoder", output_bias=True), tiny_config(family="decoder")
    params = text_params(config)
    assert params["vocabulary"]["bias"].shape == (17,)
    without = text_logits(plain, TARGET, params={"backbone": params["backbone"]})
    np.testing.assert_allclose(
        text_logits(config, TARGET), without + params["vocabulary"]["bias"], atol=1e-5
    )


@pytest.mark.parametrize("share", [True, False])
def test_embedding_scale_multiplies_by_the_root_of_width(share):
    options = dict(family="encoder_decoder", tie_output=False, share_embeddings=share)
    options |= dict(sinusoidal_scale=1.0)
    scaled, plain = tiny_config(**options, embedding_scale=True), tiny_config(**options)
    params = text_params(scaled)
    tables = {
        name: {"embedding": table["embedding"] * np.float32(np.sqrt(16))}
        for name, table in params["backbone"].items()
        if name.endswith("token_embedding")
    }
    assert len(tables) == (1 if share else 2)
    larger = {**params, "backbone": params["backbone"] | tables}
    np.testing.assert_allclose(
        text_logits(scaled, TARGET, SOURCE),
        text_logits(plain, TARGET, SOURCE, params=larger),
        atol=1e-5,
    )


SIZES = {
    "plain": dict(width=64),
    "scaled, as in the paper": dict(width=64, embedding_scale=True),
    "initialised by a number": dict(width=64, init_std=0.02),
    "both": dict(width=64, init_std=0.02, embedding_scale=True),
}


def root_mean_square(x):
    return float(np.sqrt(np.square(np.asarray(x, np.float64)).mean()))


@pytest.mark.parametrize("case", SIZES)
def test_neither_sinusoids_nor_tokens_swamp_the_other_at_first(case):
    config = tiny_config(**SIZES[case], position="sinusoidal", vocab_size=200)
    ids = np.arange(200)[None]
    model = Embedding(config, 200, "vocab")
    tokens_btd = model.apply(nn.unbox(model.init(jax.random.key(0), ids)), ids)
    if config.embedding_scale:
        tokens_btd *= 64**0.5
    waves_btd = config.sinusoidal_scale * sinusoidal(ids, 64)
    ratio = root_mean_square(tokens_btd) / root_mean_square(waves_btd)
    assert ratio == pytest.approx(2**0.5, rel=0.05), "a sine's mean square is a half"


def test_neither_sinusoids_nor_patches_swamp_the_other_at_first():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(20, 6, 6, 2)).astype(np.float32)
    for init_std in (0.0, 0.02):
        config = tiny_config(**IMAGES, init_std=init_std, class_token=False, pooling="mean")
        model = PatchEmbedding(config)
        patches_btd = model.apply(nn.unbox(model.init(jax.random.key(0), images)), images)
        ratio = root_mean_square(patches_btd) / config.sinusoidal_scale
        assert ratio == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("name", ["transformer_style", "transformer_base", "transformer_big"])
def test_the_papers_sinusoids_are_exactly_of_one(name):
    changes = architectures.ARCHITECTURES[name]()
    assert tiny_config(**changes).sinusoidal_scale == 1.0


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_sinusoids_are_a_table_of_positions_that_is_not_learnt(scale):
    config = tiny_config(family="decoder", position="sinusoidal", sinusoidal_scale=scale)
    learned = tiny_config(family="decoder", position="learned")
    params = text_params(config)
    table = scale * sinusoidal(np.arange(32)[None], 16)[0]
    backbone = params["backbone"]
    decoder = backbone["decoder"] | {"position_embedding": {"embedding": table}}
    np.testing.assert_allclose(
        text_logits(config, TARGET),
        text_logits(learned, TARGET, params=params | {"backbone": backbone | {"decoder": decoder}}),
        atol=1e-5,
    )


def test_a_shared_table_equals_two_equal_tables():
    shared = tiny_config(family="encoder_decoder", share_embeddings=True)
    separate = tiny_config(family="encoder_decoder", share_embeddings=False)
    params = text_params(shared)
    backbone = params["backbone"]
    assert "encoder_token_embedding" not in backbone
    table = backbone["token_embedding"]
    copied = {**params, "backbone": {**backbone, "encoder_token_embedding": table}}
    together = text_logits(shared, TARGET, SOURCE)
    np.testing.assert_allclose(
        together, text_logits(separate, TARGET, SOURCE, params=copied), atol=1e-5
    )
    # Each side reads its own table: another one for the encoder changes the answer.
    copied["backbone"]["encoder_token_embedding"] = {"embedding": table["embedding"][::-1]}
    assert not np.allclose(
        together, text_logits(separate, TARGET, SOURCE, params=copied), atol=1e-2
    )


def test_token_types_are_added():
    config = tiny_config(family="encoder", token_types=2, position="none")
    model, inputs = MaskedLanguageModel(config), tokens(6, seed=0)[None]
    params = random_params(model, inputs)

    @quick_jit
    def logits(params, types):
        return model.apply({"params": params}, inputs, token_types_bt=types)[0]

    first, second = (np.full((1, 6), kind, np.int32) for kind in (0, 1))
    # Type 1 for all is type 0 for all with the table's rows exchanged.
    table = params["backbone"]["token_type_embedding"]["embedding"]
    exchanged = {**params, "backbone": {**params["backbone"]}}
    exchanged["backbone"]["token_type_embedding"] = {"embedding": table[::-1]}
    np.testing.assert_array_equal(logits(params, second), logits(exchanged, first))
    assert not np.allclose(logits(params, first), logits(params, second), atol=1e-2)
    unsaid = model.apply({"params": params}, inputs)[0]
    np.testing.assert_allclose(unsaid, logits(params, first), atol=1e-5)


def test_dictionary_of_tables():
    config = tiny_config(family="encoder", token_types=2, position="learned", embedding_norm=True)
    backbone = text_params(config)["backbone"]
    shapes = jax.tree.map(jnp.shape, {k: v for k, v in backbone.items() if k != "encoder"})
    assert shapes == {
        "token_embedding": {"embedding": (17, 16)},
        "token_type_embedding": {"embedding": (2, 16)},
    }
    assert backbone["encoder"]["position_embedding"]["embedding"].shape == (32, 16)
    assert set(backbone["encoder"]["embedding_norm"]) == {"scale", "bias"}
