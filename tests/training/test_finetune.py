"""Fine-tuning: adapters, frozen parameters, and learning rates by layer."""

import dataclasses
import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpointing import run_directory
from checkpointing.checkpoint_manager import Checkpoints
from checkpointing.stored_params import (
    base_provenance,
    fingerprint,
    load_base,
    load_params,
    read_params,
)
from configs.default import get_config
from experiment.schema import ConfigError
from tests.tiny import tiny_config
from tests.training.examples import FINETUNE, make_batch, make_job
from training.config import CheckpointConfig
from training.finetune import Tuning, as_tree, by_name, merge_lora, rate_scales, select_trainable
from training.losses import term_counts, term_sums, total_loss
from training.model_for_task import forward
from training.train_state import TrainState

DESCENT = dict(name="sgd", beta1=0.0, clip_norm=0.0, learning_rate=0.5)
HEAD = ("classes/kernel", "classes/bias")
QUERY = "backbone/encoder/blocks/self_attention/query"
VALUE = "backbone/encoder/blocks/self_attention/value"
ADAPTERS = {f"{kernel}/lora_{part}" for kernel in (QUERY, VALUE) for part in "ab"}
ALPHA, RANK = 3.0, 2
LORA = dict(lora_rank=RANK, lora_alpha=ALPHA)


@functools.cache
def lora_job():
    return make_job(
        "classify_text", make_batch("classify_text"), optimizer=DESCENT, finetune=LORA, new=HEAD
    )


def arrays(tree):
    return {name: np.array(leaf) for name, leaf in by_name(tree).items()}


def assert_same(tree, other):
    ours, theirs = arrays(tree), arrays(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


# Adapters


def test_new_adapters_do_not_change_the_base_model():
    job, batch = lora_job(), make_batch("classify_text")
    own, base = job.init(jax.random.key(0)).params, job.frozen_inputs().base
    assert set(by_name(own)) == ADAPTERS | set(HEAD)
    assert set(by_name(base)) == set(by_name(job.model_params)) - set(HEAD)
    merged = job.tuning.merge(own, base)
    assert_same(merged, {**base, "classes": own["classes"]})
    for kernel in (QUERY, VALUE):
        assert np.all(by_name(own)[f"{kernel}/lora_b"] == 0)
        spread = by_name(own)[f"{kernel}/lora_a"].std() * job.config.width**0.5
        assert 0.7 < spread < 1.3, "A draws with the deviation of width ** -0.5"
    assert not np.array_equal(by_name(own)[f"{QUERY}/lora_a"], by_name(own)[f"{VALUE}/lora_a"])
    answers = forward(job.model, job.task, merged, batch)["logits"]
    plain = forward(job.model, job.task, {**base, "classes": own["classes"]}, batch)["logits"]
    np.testing.assert_array_equal(answers, plain)


def test_every_layer_has_its_own_low_rank_update():
    shapes = {  # rows and columns of the matrix, as the model multiplies by it
        "query/kernel": ((3, 8, 4, 5), (8, 20)),
        "out/kernel": ((3, 4, 5, 8), (20, 8)),
        "in/kernel": ((3, 8, 12), (8, 12)),
    }
    rng = np.random.default_rng(0)
    for name, (shape, (rows, columns)) in shapes.items():
        module = name.split("/")[0]
        by_head = {"query": ((8,), (4, 5)), "out": ((4, 5), (8,)), "in": ((8,), (12,))}[module]
        a = rng.normal(size=(3, *by_head[0], RANK)).astype(np.float32)
        b = rng.normal(size=(3, RANK, *by_head[1])).astype(np.float32)
        kernel = rng.normal(size=shape).astype(np.float32)
        own = {"blocks": {module: {"lora_a": jnp.asarray(a), "lora_b": jnp.asarray(b)}}}
        base = {"blocks": {module: {"kernel": jnp.asarray(kernel)}}}
        found = merge_lora(own, base, ALPHA)["blocks"][module]["kernel"]
        for layer in range(3):
            low_rank = a[layer].reshape(rows, RANK) @ b[layer].reshape(RANK, columns)
            expected = kernel[layer].reshape(rows, columns) + ALPHA / RANK * low_rank
            np.testing.assert_allclose(found[layer].reshape(rows, columns), expected, rtol=1e-5)


def test_every_expert_has_an_adapter_of_its_own():
    name, rng = "blocks/feed_forward/experts/in/kernel", np.random.default_rng(0)
    kernel = rng.normal(size=(2, 3, 8, 12)).astype(np.float32)  # layers, experts
    box = nn.LogicallyPartitioned(jnp.asarray(kernel), ("layers", "expert", "width", None))
    tuning = Tuning(base=frozenset([name]), adapted=frozenset([name]), rank=RANK, alpha=ALPHA)
    boxes = by_name(tuning.init_params(as_tree({name: box}), jax.random.key(0)))
    shapes = {path.rpartition("/")[2]: (b.value.shape, b.names) for path, b in boxes.items()}
    assert shapes == {
        "lora_a": ((2, 3, 8, RANK), ("layers", "expert", "width", None)),
        "lora_b": ((2, 3, RANK, 12), ("layers", "expert", None, None)),
    }
    a, b = (rng.normal(size=shape).astype(np.float32) for shape, _ in shapes.values())
    own = dict(zip(boxes, map(jnp.asarray, (a, b)), strict=True))
    found = merge_lora(as_tree(own), as_tree({name: jnp.asarray(kernel)}), ALPHA)
    expected = [
        [kernel[m, e] + ALPHA / RANK * a[m, e] @ b[m, e] for e in range(3)] for m in range(2)
    ]
    np.testing.assert_allclose(by_name(found)[name], np.stack(expected), rtol=1e-4, atol=1e-5)


def test_one_step_moves_adapters_as_the_chain_rule_says_and_nothing_else():
    job, batch = lora_job(), make_batch("classify_text")
    state, frozen_inputs = job.start(), job.frozen_inputs()
    own, base = arrays(state.params), arrays(frozen_inputs.base)

    # An ordinary gradient at the merged parameters, without adapters.
    def loss(params):
        totals, _ = term_sums(job.task, forward(job.model, job.task, params, batch), batch)
        return total_loss(totals, term_counts(job.task, batch))

    gradients = arrays(jax.jit(jax.grad(loss))(job.tuning.merge(state.params, frozen_inputs.base)))
    after = arrays(job.step(state, batch, frozen_inputs)[0].params)
    assert after.keys() == own.keys()
    for stem in (QUERY, VALUE):
        for layer in range(2):
            a, b = own[f"{stem}/lora_a"][layer], own[f"{stem}/lora_b"][layer]
            slope = gradients[f"{stem}/kernel"][layer].reshape(16, 16)
            b_matrix = b.reshape(RANK, 16)
            new_a = a - 0.5 * ALPHA / RANK * slope @ b_matrix.T
            new_b = b_matrix - 0.5 * ALPHA / RANK * a.T @ slope
            np.testing.assert_allclose(after[f"{stem}/lora_a"][layer], new_a, atol=1e-6)
            found_b = after[f"{stem}/lora_b"][layer].reshape(RANK, 16)
            np.testing.assert_allclose(found_b, new_b, atol=1e-6)
            assert np.abs(new_a - a).max() > 1e-4, "or there was nothing to compare"
    for name in HEAD:
        np.testing.assert_allclose(after[name], own[name] - 0.5 * gradients[name], atol=1e-6)
    assert_same(frozen_inputs.base, job.frozen_inputs().base)
    assert base.keys().isdisjoint(after)


def leaves_of_optimizer(job):
    """The names of the parameters that the optimizer remembers something of."""
    adam = job.abstract.opt_state[1]
    assert set(by_name(adam.mu)) == set(by_name(adam.nu))
    return set(by_name(adam.mu))


def test_the_optimizer_holds_state_of_trainable_parameters_only():
    batch = make_batch("classify_text")
    adapters = make_job("classify_text", batch, finetune=LORA, new=HEAD)
    assert leaves_of_optimizer(adapters) == ADAPTERS | set(HEAD)
    also = dict(lora_also_train=".*_norm/scale")
    adapters = make_job("classify_text", batch, finetune=LORA | also, new=HEAD)
    norms = {
        f"backbone/encoder/{where}_norm/scale"
        for where in ("blocks/self_attention", "blocks/feed_forward", "final")
    }
    assert leaves_of_optimizer(adapters) == ADAPTERS | set(HEAD) | norms
    frozen = make_job("classify_text", batch, finetune=dict(freeze="backbone/.*"))
    assert leaves_of_optimizer(frozen) == set(HEAD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (LORA | dict(lora_targets=".*/qery/kernel"), "no kernel of the blocks. Did you mean 'quer"),
        (LORA | dict(lora_targets="classes/kernel"), "matches no kernel of the blocks."),
        (LORA | dict(lora_also_train="classes"), "matches no full name of a parameter."),
        (
            LORA | dict(lora_rank=17),
            "lora_rank=17 exceeds the rank of backbone/encoder/blocks/self",
        ),
        (LORA | dict(lora_also_train=".*/query/.*"), "which is in lora_also_train; narrow it"),
        (dict(freeze="backbone/encodr/.*"), "Did you mean 'encoder'?"),
        (dict(freeze=".*"), "matches all parameters"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(changes, message):
    with pytest.raises(ConfigError) as refused:
        select_trainable(dataclasses.replace(FINETUNE, **changes), lora_job().model_params, HEAD)
    (line,) = str(refused.value).splitlines()
    assert message in line


def test_adapters_on_a_new_kernel_are_refused():
    with pytest.raises(ConfigError, match=f"matches {QUERY}/kernel, which is new"):
        select_trainable(
            dataclasses.replace(FINETUNE, **LORA), lora_job().model_params, (f"{QUERY}/kernel",)
        )


# Freezing


def test_frozen_parameters_keep_every_bit():
    batch = make_batch("classify_text")
    adamw = dict(name="adamw", weight_decay=0.1, learning_rate=0.01, ema_decay=0.9)
    frozen = r"backbone/token_embedding/.*|.*/blocks/.*/bias"
    job = make_job("classify_text", batch, optimizer=adamw, finetune=dict(freeze=frozen))
    state = job.start()
    before = arrays(state.params)
    state, _ = job.run(state, batch, steps=2)
    assert "backbone/token_embedding/embedding" in job.tuning.frozen
    assert 1 < len(job.tuning.frozen) < len(before)
    for found in (arrays(state.params), arrays(state.ema)):
        assert found.keys() == before.keys()
        same = {name for name in before if np.array_equal(found[name], before[name])}
        assert same == job.tuning.frozen


# Learning rates


def test_lower_layers_learn_more_slowly_and_heads_faster():
    batch = make_batch("classify_text")

    def update(**finetune):
        job = make_job("classify_text", batch, optimizer=DESCENT, finetune=finetune)
        state = job.start()
        before = arrays(state.params)
        after = arrays(job.step(state, batch)[0].params)
        return {name: after[name] - before[name] for name in before}

    plain, scaled = update(), update(layer_decay=0.5, head_scale=4.0)
    blocks = [name for name in plain if "/blocks/" in name]
    assert len(blocks) == 16
    for name in blocks:
        for layer, factor in enumerate([0.25, 0.5]):
            np.testing.assert_allclose(
                scaled[name][layer], factor * plain[name][layer], atol=1e-6, err_msg=name
            )
    factors = dict.fromkeys(HEAD, 4.0)
    factors["backbone/token_embedding/embedding"] = 0.125
    factors |= {f"backbone/encoder/final_norm/{name}": 1.0 for name in ("scale", "bias")}
    assert factors.keys() == plain.keys() - set(blocks)
    for name, factor in factors.items():
        np.testing.assert_allclose(scaled[name], factor * plain[name], atol=1e-6, err_msg=name)
        assert np.abs(plain[name]).max() > 1e-3


def test_encoder_and_decoder_count_their_own_layers():
    config = tiny_config(encoder_layers=1, decoder_layers=3, position="t5_bias")
    ones = {
        "backbone": {
            "token_embedding": {"embedding": jnp.ones((5, 2))},
            **{
                stack: {
                    "blocks": {"out": {"kernel": jnp.ones((layers, 2, 2))}},
                    "relative_bias": {"embedding": jnp.ones((4, 2))},
                    "final_norm": {"scale": jnp.ones(2)},
                }
                for stack, layers in (("encoder", 1), ("decoder", 3))
            },
        },
        "vocabulary": {"bias": jnp.ones(5)},
    }
    scales = rate_scales(dataclasses.replace(FINETUNE, layer_decay=0.5), config)(ones)
    found = {name: scale.ravel().tolist() for name, scale in by_name(scales).items()}
    assert found == {
        "backbone/encoder/blocks/out/kernel": [0.5],
        "backbone/encoder/relative_bias/embedding": [0.25],
        "backbone/encoder/final_norm/scale": [1.0],
        "backbone/decoder/blocks/out/kernel": [0.125, 0.25, 0.5],
        "backbone/decoder/relative_bias/embedding": [0.0625],
        "backbone/decoder/final_norm/scale": [1.0],
        "backbone/token_embedding/embedding": [0.0625],
        "vocabulary/bias": [1.0],
    }
    assert rate_scales(FINETUNE, config) is None


# On the disk


def save(workdir, params, ema=None, step=1):
    config = CheckpointConfig(**get_config().checkpoint.to_dict())
    state = TrainState(jnp.asarray(step, jnp.int32), params, (), ema)
    with Checkpoints(workdir, config) as checkpoints:
        checkpoints.save(step, state, {})


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def base_params():
    return {
        "backbone": {
            "blocks": {"query": {"kernel": normal(0, 2, 4, 2, 3)}},
            "x": {"bias": normal(1, 4)},
        },
        "head": {"bias": normal(2, 5)},
    }


def adapter_params(seed):
    return {
        "backbone": {
            "blocks": {
                "query": {"lora_a": normal(seed, 2, 4, 1), "lora_b": normal(seed + 1, 2, 1, 2, 3)}
            }
        },
        "classes": {"bias": normal(seed + 2, 3)},
    }


@pytest.fixture
def runs(tmp_path):
    """A base, and a run with adapters for it whose moving averages are other than its own."""
    base = base_params()
    save(tmp_path / "base", base)
    for step in (1, 2):
        save(tmp_path / "adapted", adapter_params(10 * step), adapter_params(50 + 10 * step), step)
    record = base_provenance(
        str(tmp_path / "base"), tmp_path / "adapted", {"backbone": base["backbone"]}, ALPHA
    )
    run_directory.record_provenance(tmp_path / "adapted", {"base": record})
    return tmp_path


def expected_model(seed):
    own, base = adapter_params(seed), base_params()
    query = own["backbone"]["blocks"]["query"]
    delta = np.einsum("lir,lrhk->lihk", query["lora_a"], query["lora_b"])
    kernel = np.asarray(base["backbone"]["blocks"]["query"]["kernel"]) + ALPHA * delta
    return {
        "backbone/blocks/query/kernel": kernel,
        "backbone/x/bias": np.asarray(base["backbone"]["x"]["bias"]),
        "classes/bias": np.asarray(own["classes"]["bias"]),
    }


def like_adapted():
    merged = {"backbone": base_params()["backbone"], "classes": {"bias": jnp.zeros(3)}}
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), merged
    )


def assert_close(tree, expected):
    found = arrays(tree)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_adapters_are_read_merged_into_their_base(runs):
    read = functools.partial(read_params, runs / "adapted", like=like_adapted())
    assert_close(read([2], ema=False), expected_model(20))
    assert_close(read([2], ema=True), expected_model(70))
    # The mean of the models is not the model of the mean factors.
    first, second = expected_model(10), expected_model(20)
    assert_close(
        read([1, 2], ema=False), {name: (first[name] + second[name]) / 2 for name in first}
    )


def test_init_from_a_run_with_adapters_loads_merged_parameters(runs):
    ours = {"backbone": base_params()["backbone"], "new": {"bias": jnp.zeros(2)}}
    ours = jax.tree.map(jnp.zeros_like, ours)
    found, new, _ = load_params(f"{runs / 'adapted'}:1", ours)
    assert new == ["new/bias"]
    expected = expected_model(10)
    del expected["classes/bias"]
    assert_close({"backbone": found["backbone"]}, expected)


def test_a_base_may_move_with_its_adapters_but_not_change_or_disappear(runs, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("base", "adapted"):
        (runs / name).rename(moved / name)
    assert load_base(moved / "adapted", like_adapted()).alpha == ALPHA

    (moved / "base" / "checkpoints" / "1").rename(moved / "hidden")
    with pytest.raises(ConfigError, match=r"holds adapters for step 1 of .*base, which is gone"):
        load_base(moved / "adapted", like_adapted())
    changed = base_params()
    changed["head"]["bias"] += 1  # which the adapters know nothing of
    save(moved / "base", changed)
    assert load_base(moved / "adapted", like_adapted()) is not None

    (moved / "base" / "checkpoints" / "1").rename(moved / "hidden too")
    changed["backbone"]["x"]["bias"] = changed["backbone"]["x"]["bias"].at[1].add(1e-6)
    save(moved / "base", changed)
    with pytest.raises(ConfigError, match="whose backbone/x/bias has changed since"):
        load_base(moved / "adapted", like_adapted())
    assert load_base(moved / "base", like_adapted()) is None


def test_fingerprints_depend_on_values_positions_and_dtypes():
    value = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    swapped = value.copy()
    swapped[0, 0, 0], swapped[1, 2, 3] = value[1, 2, 3], value[0, 0, 0]
    other = value.copy()
    other[1, 1, 1] = np.nextafter(other[1, 1, 1], 100, dtype=np.float32)
    variants = [value, swapped, other, value.reshape(4, 3, 2), value.astype(jnp.bfloat16)]
    prints = [json.dumps(fingerprint({"x": jnp.asarray(v)})) for v in variants]
    assert len(set(prints)) == len(variants)
    assert fingerprint({"x": jnp.asarray(value)}) == json.loads(prints[0])


def test_token_tables_are_fitted_row_by_row(tmp_path):
    theirs = {
        "backbone": {"token_embedding": {"embedding": normal(0, 5, 3)}},
        "vocabulary": {"output": {"kernel": normal(1, 3, 5)}, "bias": normal(2, 5)},
        "classes": {"bias": normal(3, 4)},
    }
    save(tmp_path, theirs)
    ours = {
        "backbone": {"token_embedding": {"embedding": jnp.zeros((4, 3))}},
        "vocabulary": {"output": {"kernel": jnp.zeros((3, 4))}, "bias": jnp.zeros(4)},
        "classes": {"bias": jnp.zeros(2)},
    }
    rows = np.array([3, -1, 0, 4], np.int32)
    found, new, resized = load_params(str(tmp_path), ours, rows)
    assert new == ["classes/bias"]
    assert resized == [
        "backbone/token_embedding/embedding", "vocabulary/bias", "vocabulary/output/kernel",
    ]  # fmt: skip
    table = np.asarray(theirs["backbone"]["token_embedding"]["embedding"])
    embedding = found["backbone"]["token_embedding"]["embedding"]
    np.testing.assert_array_equal(embedding[np.array([0, 2, 3])], table[[3, 0, 4]])
    np.testing.assert_allclose(embedding[1], table.mean(axis=0), rtol=1e-6)
    kernel, bias = found["vocabulary"]["output"]["kernel"], found["vocabulary"]["bias"]
    their_kernel = np.asarray(theirs["vocabulary"]["output"]["kernel"])
    np.testing.assert_array_equal(kernel[:, np.array([0, 2, 3])], their_kernel[:, [3, 0, 4]])
    np.testing.assert_allclose(kernel[:, 1], their_kernel.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(bias[1], np.asarray(theirs["vocabulary"]["bias"]).mean(), rtol=1e-6)
