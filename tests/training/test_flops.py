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
from training.flops import forward_flops, row_flops, train_flops
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
    "one projection for queries and keys": (
        "seq2seq",
        dict(family="encoder_decoder", share_qk=True, feed_forward_kind="linear"),
    ),
    "no feed-forward": ("causal_lm", dict(family="decoder", feed_forward_kind="none")),
    # Buffers that an even load fills.
    "experts": (
        "causal_lm",
        dict(family="decoder", experts=4, shared_experts=1, expert_capacity=1.0),
    ),
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


BY_HAND = {
    # Of each token: the gates from x and from h, and the layer after them.
    "rnn": (1 + 1 + 1, 2 * (1 + 1 + 1)),
    "gru": (3 + 3 + 1, 2 * (3 + 3 + 1)),
    "lstm": (4 + 4 + 1, 2 * (4 + 4 + 1)),
    # Five taps of values and of gates, and the layer after them.
    "conv": (5 * 2 + 1, 5 * 2 + 1),
    "mean": (2, 2),
}


@pytest.mark.parametrize("mixer", BY_HAND)
def test_mixers_are_counted_by_their_matrices(mixer):
    """In matrices of width x width, in a decoder's layer and an encoder's."""
    options = (("taps", 5.0),) if mixer == "conv" else ()
    config = tiny_config(
        mixer=mixer, mixer_options=options, bridge="context_vector", position="none",
        width=10, heads=1, feed_forward=30, vocab_size=7, encoder_layers=3, decoder_layers=2,
    )  # fmt: skip
    causal, two_sided = BY_HAND[mixer]
    target, source = 6, 9
    squares = 2 * target * (causal + 2 * 3) + 3 * source * (two_sided + 2 * 3)
    squares += target  # the context vector
    expected = 2 * (squares * 10 * 10 + target * 10 * 7)
    assert forward_flops(config, "seq2seq", target, source) == expected


def test_the_compiler_agrees_about_a_mixer():
    changes = dict(family="decoder", mixer="conv", unroll=8, position="none")
    config = tiny_config(**SIZES | changes)
    counted = ROWS * forward_flops(config, "causal_lm", LENGTH)
    assert 0.97 < counted / xla_flops(config, "causal_lm", TEXT) < 1


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


def test_few_predicted_positions_cost_less_in_the_head_only():
    config = tiny_config(family="encoder", **SIZES)
    task = dataclasses.replace(TASK, objective="masked_items")
    everywhere = row_flops(config, task, TEXT)
    few = row_flops(config, task, {**TEXT, "predicted": np.zeros((ROWS, 4), np.int32)})
    head = 3 * 2 * config.width * (config.width + config.vocab_size)  # at one position
    assert everywhere - few == (LENGTH - 4) * head
