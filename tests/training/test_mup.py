"""muP: sizes of activations and of their changes do not depend on the width (coordinate check)."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.heads import LanguageModel
from tests.model.examples import text_logits, text_params, unpadded
from tests.tiny import quick_jit, tiny_config
from tests.training.examples import MODELS, OPTIMIZER, TASK, make_batch
from training.finetune import as_tree, by_name
from training.model_for_task import make_model, model_arguments
from training.mup import direction_scales, parameter_group
from training.optimizer import make_optimizer

BASE = 64
MUP = dict(parametrization="mup", mup_base_width=BASE)
TOKENS, RATE, STEPS = 32, 0.01, 3
ADAM = dataclasses.replace(OPTIMIZER, name="adam", clip_norm=0.0)


def logits_and_hidden(model, params, inputs):
    """Logits, and the hidden states before the final norm."""
    found = []

    def observe(function, args, kwargs, context):
        if context.module.name == "final_norm":
            found.append(args[0])
        return function(*args, **kwargs)

    with nn.intercept_methods(observe):
        return model.apply({"params": params}, inputs), found[0]


@functools.cache
def measured(width, tied, options):
    """Mean sizes of logits and hidden states at init, and of their changes in a few steps."""
    config = tiny_config(
        family="decoder", decoder_layers=1, width=width, feed_forward=2 * width, vocab_size=TOKENS,
        tie_output=tied, **dict(options),
    )  # fmt: skip
    model, rng = LanguageModel(config), np.random.default_rng(0)
    inputs, targets = rng.integers(TOKENS, size=(2, 4, 16)).astype(np.int32)
    optimizer = make_optimizer(ADAM, lambda _: RATE, None, direction_scales(config))

    def loss(params):
        logits, hidden = logits_and_hidden(model, params, inputs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return losses.mean(), (logits, hidden)

    def step(carried, _):
        params, state = carried
        gradients, observed = jax.grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), observed

    @quick_jit
    def measure(key):
        params = nn.unbox(model.init(key, inputs))["params"]
        start = params, optimizer.init(params)
        _, observed = jax.lax.scan(step, start, None, length=STEPS + 1)
        sizes = [jnp.abs(each[0]).mean() for each in observed]
        changes = [jnp.abs(each[-1] - each[0]).mean() for each in observed]
        return jnp.stack(sizes), jnp.stack(changes)

    return jax.device_get(measure(jax.random.key(0)))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_with_mup_changes_are_as_large_in_wide_models(tied):
    mup = tuple(MUP.items())
    (_, hidden), narrow = measured(BASE, tied, mup)
    (_, wide_hidden), wide = measured(8 * BASE, tied, mup)
    np.testing.assert_allclose(wide_hidden, hidden, rtol=0.2)
    assert ((wide / narrow > 0.6) & (wide / narrow < 1.3)).all()


def test_with_the_standard_rule_changes_grow_with_the_width():
    _, narrow = measured(BASE, False, ())
    _, wide = measured(8 * BASE, False, ())
    logits, hidden = wide / narrow
    assert logits > 2
    assert hidden > 8


def test_at_the_base_width_both_rules_are_the_same_to_the_bit():
    standard, mup = measured(BASE, False, ()), measured(BASE, False, tuple(MUP.items()))
    jax.tree.map(np.testing.assert_array_equal, standard, mup)


# Formulas of Table 8 of the paper.


def initial(config, objective="causal_lm"):
    task = dataclasses.replace(TASK, objective=objective)
    arguments, named = model_arguments(task, make_batch(objective))
    init = make_model(config, task).init
    params = quick_jit(lambda key: nn.unbox(init(key, *arguments, **named))["params"])
    return by_name(jax.device_get(params(jax.random.key(0))))


@pytest.mark.parametrize("init_std", [0.0, 0.05])
def test_initial_deviations(init_std):
    options = dict(MUP, mup_base_width=16, init_std=init_std, tie_output=False, heads=4)
    sizes = dict(family="decoder", decoder_layers=1, width=256, feed_forward=384)
    wide = initial(tiny_config(**sizes, **options))
    hidden = init_std or 1 / 4
    expected = {
        "backbone/token_embedding/embedding": init_std or 1 / 4,  # that of the base width
        "vocabulary/output/kernel": init_std or 1 / 4,
        "backbone/decoder/blocks/self_attention/query/kernel": hidden / 4,
        "backbone/decoder/blocks/self_attention/out/kernel": hidden / 4,
        "backbone/decoder/blocks/feed_forward/in/kernel": hidden / 4,
        "backbone/decoder/blocks/feed_forward/out/kernel": (init_std or 24**-0.5) / 4,
    }
    for name, deviation in expected.items():
        np.testing.assert_allclose(wide[name].std(), deviation, rtol=0.05, err_msg=name)
    assert not wide["backbone/decoder/blocks/feed_forward/in/bias"].any()


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        (dict(heads=4), 4**0.5 / 64),  # heads of 64, and of 4 in the base
        (dict(heads=4, attention_scale=False), 1 / 16),
        (dict(heads=64, mup_base_head_size=4), 4**-0.5),  # more heads of the same size
        (dict(heads=4, parametrization="standard", mup_base_width=0), 64**-0.5),
    ],
    ids=str,
)
def test_the_score_scale_falls_with_the_head_size(options, scale):
    config = tiny_config(width=256, **dict(MUP, mup_base_width=16) | options)
    assert config.score_scale == pytest.approx(scale)


def test_the_output_is_divided_by_the_width_multiplier():
    sizes = dict(family="decoder", width=32, head_size=8, position="none", tie_output=False)
    standard = tiny_config(**sizes)
    mup = tiny_config(**sizes, **dict(MUP, mup_base_width=8, mup_base_head_size=8))
    params, inputs = text_params(standard), unpadded(2, 6, seed=0)
    logits = text_logits(standard, inputs, params=params)
    found = text_logits(mup, inputs, params=params)
    np.testing.assert_allclose(found, logits / 4, rtol=1e-5, atol=1e-6)


def test_rates_and_weight_decay():
    """Adam's first update is the rate; weight decay is not divided by the width multiplier."""
    config = tiny_config(
        family="decoder", width=64, tie_output=False, **dict(MUP, mup_base_width=16)
    )
    adamw = dataclasses.replace(ADAM, name="adamw", weight_decay=0.1, epsilon=1e-30)
    optimizer = make_optimizer(adamw, lambda _: RATE, None, direction_scales(config))
    shapes = {
        "backbone/token_embedding/embedding": 1,
        "backbone/decoder/blocks/self_attention/query/kernel": 4,
        "backbone/decoder/blocks/feed_forward/out/kernel": 4,
        "backbone/decoder/blocks/feed_forward/in/bias": 1,
        "vocabulary/output/kernel": 1,
    }
    params = as_tree({name: jnp.full((2, 3), 5.0) for name in shapes})
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    for name, divisor in shapes.items():
        decay = 0.1 * 5.0 if name.endswith("kernel") else 0.0
        np.testing.assert_allclose(
            by_name(updates)[name], -RATE * (1 / divisor + decay), rtol=1e-5, err_msg=name
        )


# Groups.

ALL_MODELS = {
    "seq2seq": dict(tie_output=False, share_embeddings=False, position="t5_bias"),
    "causal_lm": dict(position="transformer_xl", attention="recurrent", activation="swiglu"),
    "masked_lm": dict(position="learned", embedding_norm=True, pooler=True, output_bias=True),
    "classify_text": dict(attention="longformer", pooler=True),
    "classify_images": {},
}


@pytest.mark.parametrize("objective", ALL_MODELS)
def test_every_parameter_is_in_one_group(objective):
    """The group follows from which axes grow with the width."""
    task = dataclasses.replace(TASK, objective=objective, next_sentence=objective == "masked_lm")
    arguments, named = model_arguments(task, make_batch(objective))

    def shapes(width):
        options = dict(width=width, feed_forward=2 * width, **ALL_MODELS[objective])
        config = tiny_config(**MODELS[objective] | options)
        init = make_model(config, task).init
        tree = jax.eval_shape(lambda: nn.unbox(init(jax.random.key(0), *arguments, **named)))
        return by_name(tree["params"])

    narrow, wide = shapes(16), shapes(32)
    for name, leaf in wide.items():
        before = narrow[name].shape
        if "blocks" in name.split("/"):
            before = before[1:]
        after = leaf.shape[len(leaf.shape) - len(before) :]
        grown = [a > b for a, b in zip(after, before, strict=True)]
        is_matrix = name.endswith("kernel")
        if not is_matrix:
            expected = {"input"} if name.endswith("embedding") else {"vector"}
        elif name.endswith("_attention/out/kernel"):
            expected = {"hidden"}
        else:
            grows_in, grows_out = grown[0], any(grown[1:])
            expected = {("hidden" if grows_out else "output") if grows_in else "input"}
        assert {parameter_group(name)} == expected, name


def test_an_unknown_parameter_has_no_group():
    with pytest.raises(ValueError, match="blocks/lstm/recurrent/kernel has no muP group"):
        parameter_group("backbone/decoder/blocks/lstm/recurrent/kernel")
    with pytest.raises(ValueError, match="decay_rate has no muP group"):
        parameter_group("backbone/decoder/blocks/lstm/decay_rate")
