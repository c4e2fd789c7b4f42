"""Arithmetic counted from the architecture, against XLA's own count of the compiled model.

Of attention only the visible pairs count: they are counted again by loops over positions.
"""

import dataclasses

import jax
import numpy as np
import pytest

from model import masks
from model.attention import KINDS
from model.attention.linear import FeatureMapAttention
from tests.model.attention.oracle import is_local
from tests.tiny import IMAGES, tiny_config
from tests.training.examples import TASK
from training.flops import forward_flops, train_flops
from training.model_for_task import make_model, model_arguments

LENGTH, SOURCE, ROWS = 128, 160, 2
# Wide enough that products of matrices are nearly all there is to count.
SIZES = dict(width=128, heads=4, feed_forward=384, vocab_size=200, max_length=256, encoder_layers=3)
TEXT = {"inputs": np.zeros((ROWS, LENGTH), np.int32)}
CASES = {
    "encoder-decoder": ("seq2seq", dict(family="encoder_decoder")),
    "decoder": ("causal_lm", dict(family="decoder")),
    "grouped heads of another size, gated": (
        "causal_lm",
        dict(family="decoder", kv_heads=2, head_size=48, activation="swiglu", position="rope"),
    ),
    "untied": ("causal_lm", dict(family="decoder", tie_output=False, position="t5_bias")),
    "encoder": ("masked_lm", dict(family="encoder")),
    "classifier": ("classify_text", dict(family="encoder", num_classes=5, pooler=True)),
    "ViT": (
        "classify_images",
        IMAGES | dict(image_size=28, patch_size=4, image_channels=3, num_classes=50),
    ),
}


def xla_flops(config, objective, batch):
    """What XLA counts in the forward pass. All layers unrolled: it counts a loop's body once."""
    task = dataclasses.replace(TASK, objective=objective)
    model = make_model(config, task)
    arguments, named = model_arguments(task, batch)

    def forward(params, arguments, named):
        return model.apply({"params": params}, *arguments, **named)

    shapes = jax.eval_shape(
        lambda: model.init({"params": jax.random.key(0)}, *arguments, **named)["params"]
    )
    lowered = jax.jit(forward).lower(shapes, arguments, named)
    return lowered.cost_analysis()["flops"]


def batch_and_length(config, objective):
    match objective:
        case "classify_images":
            shape = (ROWS, config.image_size, config.image_size, config.image_channels)
            patches = (config.image_size // config.patch_size) ** 2
            return {"images": np.zeros(shape, np.float32)}, patches + config.class_token
        case "seq2seq":
            return TEXT | {"encoder_inputs": np.zeros((ROWS, SOURCE), np.int32)}, LENGTH
    return TEXT, LENGTH


@pytest.mark.parametrize("case", CASES)
def test_the_count_agrees_with_the_compiler(case):
    objective, changes = CASES[case]
    config = tiny_config(**SIZES | dict(unroll=8) | changes)
    batch, length = batch_and_length(config, objective)
    counted = ROWS * forward_flops(config, objective, length, SOURCE)
    if config.has_decoder:  # `dot` multiplies pairs that are then masked
        masked = length * (length - 1) / 2
        counted += ROWS * config.decoder_layers * per_pair(config) * masked
    # The compiler also counts what is no product: softmax, norms, activations.
    assert 0.97 < counted / xla_flops(config, objective, batch) < 1


def test_a_training_step_costs_three_forward_passes():
    config = tiny_config(family="decoder")
    assert train_flops(config, "causal_lm", 16) == 3 * forward_flops(config, "causal_lm", 16)


def test_six_operations_for_each_parameter_and_token():
    """Kaplan et al. 2020: true where sequences are short beside the width."""
    config = tiny_config(
        family="decoder", width=1024, heads=8, feed_forward=4096, vocab_size=256, decoder_layers=12
    )
    block = 4 * 1024**2 + 2 * 1024 * 4096
    parameters = 12 * block + 256 * 1024
    assert train_flops(config, "causal_lm", 64) == pytest.approx(6 * parameters * 64, rel=0.02)


def per_pair(config):
    """A score of each head, and its share of the sum of values."""
    return 2 * 2 * config.heads * config.head_size


def attention_pairs(config, objective, length):
    """The FLOPs that do not grow linearly with the length, as pairs for each layer."""
    (layers,) = {config.encoder_layers, config.decoder_layers}
    total = forward_flops(config, objective, length)
    rest = length * (forward_flops(config, objective, 1) - layers * per_pair(config))
    return (total - rest) / layers / per_pair(config)


def pairs_by_hand(kind, config, length, causal):
    """Loops over queries and keys, by the rules of tests/model/attention/oracle.py."""
    chunk, found = config.attention_chunk, 0
    for query in range(length):
        keys = [key for key in range(length) if key <= query or not causal]
        if kind == "hierarchical":  # another chunk is one key
            own = [key for key in keys if key // chunk == query // chunk]
            others = {key // chunk for key in keys} - {query // chunk}
            found += len(own) + len(others)
        else:
            found += sum(is_local(kind, config, query, key) for key in keys)
    return found


MASKED = [name for name, kind in KINDS.items() if not isinstance(kind, FeatureMapAttention)]


@pytest.mark.parametrize("length", [1, 7, 24, 31])
@pytest.mark.parametrize(
    ("kind", "causal"),
    [(kind, True) for kind in MASKED] + [(kind, False) for kind in MASKED if kind != "recurrent"],
)
def test_attention_is_counted_by_its_visible_pairs(kind, causal, length):
    objective, family = ("causal_lm", "decoder") if causal else ("masked_lm", "encoder")
    config = tiny_config(
        family=family, attention=kind, attention_window=5, attention_dilation=2,
        attention_chunk=8, attention_overlap=3, attention_memory=6,
    )  # fmt: skip
    expected = pairs_by_hand(kind, config, length, causal)
    assert attention_pairs(config, objective, length) == expected


def test_causal_attention_is_half_of_all_pairs():
    """As MaxText counts it, but for the diagonal, which is seen."""
    config = tiny_config(family="decoder")
    length = 4096
    found = attention_pairs(config, "causal_lm", length)
    assert found == length * (length + 1) / 2
    assert found == pytest.approx(length**2 / 2, rel=1e-3)


def test_pairs_are_counted_once_for_each_length(monkeypatch):
    """The count is asked for at every step, beside the device."""
    config = tiny_config(family="decoder", attention="local")
    forward_flops(config, "causal_lm", 333)
    monkeypatch.setattr(masks, "np", None)
    forward_flops(config, "causal_lm", 333)
