"""Published architectures have exactly the published number of parameters."""

import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import architectures
from model.heads import Classifier, LanguageModel, MaskedLanguageModel
from tests.tiny import tiny_config

TOKENS = np.zeros((1, 4), np.int32)


def parameter_shapes(model, *inputs):
    # Nothing is allocated: only shapes are worked out.
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))
    return nn.unbox(shapes)["params"]


def count(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def language_model_count(config) -> int:
    inputs = (TOKENS, TOKENS) if config.family == "encoder_decoder" else (TOKENS,)
    return count(parameter_shapes(LanguageModel(config), *inputs))


@pytest.mark.parametrize(
    ("architecture", "published"),
    [("bert_base", 109_482_240), ("bert_large", 335_141_888)],
)
def test_bert(architecture, published):
    config = tiny_config(**getattr(architectures, architecture)())
    params = parameter_shapes(MaskedLanguageModel(config, next_sentence=True), TOKENS)
    # The published number is of the encoder with its pooler, without the heads of pretraining.
    assert count(params["backbone"]) + count(params["pool"]) == published
    width, vocabulary = config.width, config.vocab_size
    transform = width * width + width + 2 * width
    heads = (count(params[name]) for name in ("transform", "transform_norm", "vocabulary"))
    assert sum(heads) == transform + vocabulary
    assert count(params["next_sentence"]) == 2 * width + 2


@pytest.mark.parametrize(
    ("architecture", "published"),
    [
        ("gpt2", 124_439_808),
        ("t5_small", 60_506_624),
        ("t5_v1_1_small", 76_961_152),
        ("llama_1b", 1_235_814_400),
    ],
)
def test_language_models(architecture, published):
    assert language_model_count(tiny_config(**getattr(architectures, architecture)())) == published


@pytest.mark.parametrize(
    ("architecture", "published"), [("vit_s16", 22_050_664), ("vit_b16", 86_567_656)]
)
def test_vit_with_a_thousand_classes(architecture, published):
    config = tiny_config(**getattr(architectures, architecture)(), num_classes=1000)
    images = np.zeros((1, 224, 224, 3), np.float32)
    assert count(parameter_shapes(Classifier(config), images)) == published


@pytest.mark.parametrize(
    ("architecture", "width", "feed_forward"),
    [("transformer_base", 512, 2048), ("transformer_big", 1024, 4096)],
)
def test_the_2017_paper(architecture, width, feed_forward):
    vocabulary, layers = 37_000, 6
    attention = 4 * (width * width + width)
    perceptron = 2 * width * feed_forward + feed_forward + width
    norm = 2 * width
    encoder_layer = attention + perceptron + 2 * norm
    decoder_layer = 2 * attention + perceptron + 3 * norm
    # One table of tokens for both sides and the output; sinusoids are not learned.
    expected = vocabulary * width + layers * (encoder_layer + decoder_layer)
    config = tiny_config(**{**getattr(architectures, architecture)(), "vocab_size": vocabulary})
    assert language_model_count(config) == expected
