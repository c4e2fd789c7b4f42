"""Small models for tests: a config that is validated like any other, and its parameters."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np

from configs import default
from experiment import schema
from input_pipeline.config import DataConfig
from input_pipeline.objectives.objective import Masking
from model.config import TransformerConfig

# `unroll=1` compiles one block instead of all of them, which is most of a small test's time.
SIZES = dict(
    vocab_size=17, width=16, heads=4, feed_forward=24, max_length=32,
    encoder_layers=2, decoder_layers=2, relative_buckets=8, relative_max_distance=12, unroll=1,
)  # fmt: skip
IMAGES = dict(
    family="encoder", input="patches", image_size=6, image_channels=2, patch_size=2, num_classes=5
)

# Tests compile many small programs and run each a few times: with these, compiling takes a third.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
quick_jit = functools.partial(jax.jit, compiler_options=QUICKLY)


def tiny_config(**overrides) -> TransformerConfig:
    """configs/default.py's model, made small, then changed as asked."""
    values = {**default.get_config().model.to_dict(), **SIZES, **overrides}
    config, problems = schema.build(TransformerConfig, values, "model")
    if problems:
        raise schema.ConfigError(problems)
    return config.resolve()


def data_config(**overrides) -> DataConfig:
    """configs/default.py's data section, changed as asked."""
    return dataclasses.replace(DataConfig(**default.get_config().data.to_dict()), **overrides)


def masking(**overrides) -> Masking:
    """The default masking, with `overrides`."""
    usual = Masking(rate=0.15, mean_span=3.0, whole_words=False, next_sentence=False)
    return dataclasses.replace(usual, **overrides)


def random_params(model: nn.Module, *inputs, seed: int = 0, **options):
    """Parameters with no zero and no one among them, so that none can be left out unnoticed.

    Drawn with NumPy from the shapes alone: running the initializers costs a compilation.
    """
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), *inputs, **options)))

    def draw(path, leaf):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return jax.numpy.asarray(rng.normal(centre, 0.3, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)["params"]
