"""Pruned weights against NumPy's choice of them, and zero from then on in every copy."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpointing.checkpoint_manager import Checkpoints
from configs.default import get_config
from experiment.schema import ConfigError
from tests.training.examples import PRUNE, make_batch, make_job
from training.anomalies import STOP_ON_NONFINITE
from training.config import CheckpointConfig
from training.finetune import as_tree, by_name
from training.model_for_task import forward
from training.pruning import HEAD_SCORES, make_pruner, record_head_scores

BLOCKS = "backbone/decoder/blocks"
SHAPES = {
    f"{BLOCKS}/self_attention/query/kernel": (2, 8, 4, 3),
    f"{BLOCKS}/self_attention/query/bias": (2, 4, 3),
    f"{BLOCKS}/self_attention/key/kernel": (2, 8, 2, 3),
    f"{BLOCKS}/self_attention/value/kernel": (2, 8, 2, 3),
    f"{BLOCKS}/self_attention/out/kernel": (2, 4, 3, 8),
    f"{BLOCKS}/feed_forward/in/kernel": (2, 8, 12),
    f"{BLOCKS}/feed_forward/out/kernel": (2, 12, 8),
    f"{BLOCKS}/feed_forward_norm/scale": (2, 8),
    "backbone/token_embedding/embedding": (11, 8),
    "vocabulary/output/kernel": (8, 11),
}
KERNELS = [name for name in SHAPES if "blocks" in name and name.endswith("kernel")]


def draw(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def pruned(weights, step, *, gradients=None, state=None, late=False, **changes):
    """The state of a pruner after `step` steps, and the weights with their zeros."""
    pruner = make_pruner(dataclasses.replace(PRUNE, **changes), 100, as_tree(weights))
    state = pruner.init(as_tree(weights)) if state is None else state
    tree = as_tree(weights)
    gradients = as_tree(gradients or weights)
    state = jax.jit(pruner.update)(state, tree, gradients, tree, jnp.int32(step), jnp.bool_(late))
    zeroed = by_name(jax.device_get(pruner.masked(state, tree)))
    return state, zeroed, pruner.metrics(state, tree)


def smallest_zeroed(array, count):
    flat = array.reshape(-1).copy()
    flat[np.argsort(np.abs(flat), kind="stable")[:count]] = 0
    return flat.reshape(array.shape)


GRADUAL = dict(method="magnitude", share=0.8, begin_step=10, end_step=50, every=10)


@pytest.mark.parametrize("step", [10, 20, 30, 50])
def test_the_smallest_of_every_matrix_are_pruned(step):
    weights = draw(0)
    _, found, metrics = pruned(weights, step, **GRADUAL)
    share = 0.8 * (1 - (1 - (step - 10) / 40) ** 3)
    zeros = total = 0
    for name, array in weights.items():
        if name in KERNELS:
            count = round(share * array[0].size)
            array = np.stack([smallest_zeroed(layer, count) for layer in array])
            zeros, total = zeros + 2 * count, total + array.size
        np.testing.assert_array_equal(found[name], array)
    np.testing.assert_allclose(metrics["prune/sparsity"], zeros / total, rtol=1e-6)


def test_one_threshold_for_all_matrices():
    weights = draw(1)
    _, found, _ = pruned(weights, 50, **GRADUAL | dict(scope="global"))
    values = np.sort(np.abs(np.concatenate([weights[name].reshape(-1) for name in KERNELS])))
    count = round(0.8 * len(values))
    for name in KERNELS:
        expected = np.where(np.abs(weights[name]) >= values[count], weights[name], 0)
        np.testing.assert_array_equal(found[name], expected)


def test_between_its_steps_nothing_is_pruned_but_what_a_skipped_step_left():
    weights = draw(2)
    _, found, _ = pruned(weights, 35, **GRADUAL)
    assert all(found[name].all() for name in KERNELS)
    _, late, _ = pruned(weights, 35, late=True, **GRADUAL)
    _, usual, _ = pruned(weights, 30, **GRADUAL)
    jax.tree.map(np.testing.assert_array_equal, late, usual)
    _, early, _ = pruned(weights, 5, late=True, **GRADUAL)
    assert all(early[name].all() for name in KERNELS)


def test_pruned_weights_stay_pruned_whatever_the_others_become():
    state, first, _ = pruned(draw(3), 30, **GRADUAL)
    other = {name: 1e-9 * array for name, array in draw(4).items()}
    _, second, _ = pruned(other, 40, state=state, **GRADUAL)
    for name in KERNELS:
        assert not second[name][first[name] == 0].any()
        assert (second[name] == 0).sum() > (first[name] == 0).sum()


def test_two_of_four_inputs_remain_for_every_output():
    weights = draw(5)
    weights[f"{BLOCKS}/feed_forward/in/kernel"][0, :4, 0] = 1.0  # of equal ones, the last
    _, found, metrics = pruned(weights, 3, method="2:4", begin_step=3)
    for name in KERNELS:
        layers = 2
        inputs = 12 if name.endswith("out/kernel") else 8
        ours = found[name].reshape(layers, inputs, -1)
        theirs = weights[name].reshape(layers, inputs, -1)
        for layer in range(layers):
            for first in range(0, inputs, 4):
                for output in range(ours.shape[2]):
                    group = theirs[layer, first : first + 4, output]
                    expected = group.copy()
                    expected[np.argsort(np.abs(group), kind="stable")[:2]] = 0
                    np.testing.assert_array_equal(ours[layer, first : first + 4, output], expected)
    assert metrics["prune/sparsity"] == 0.5


def test_every_expert_is_a_matrix_of_its_own():
    name = f"{BLOCKS}/feed_forward/experts/in/kernel"
    array = np.random.default_rng(6).normal(size=(2, 3, 8, 5)).astype(np.float32)
    array[0, 1] *= 100  # with one threshold for the layer, nothing of it would be pruned
    _, found, _ = pruned({name: array}, 50, **GRADUAL)
    assert ((found[name] == 0).sum(axis=(2, 3)) == round(0.8 * 40)).all()
    _, found, _ = pruned({name: array}, 3, method="2:4", begin_step=3)
    groups = found[name].reshape(2, 3, 2, 4, 5)
    assert ((groups != 0).sum(axis=3) == 2).all()


def head_scores(weights, gradients):
    out = f"{BLOCKS}/self_attention/out/kernel"
    return np.abs((weights[out] * gradients[out]).sum(axis=(2, 3)))


@pytest.mark.parametrize("scope", ["matrix", "global"])
def test_the_least_important_heads_are_pruned_as_a_unit(scope):
    weights, gradients = draw(6), draw(7)
    state, found, metrics = pruned(
        weights, 2, gradients=gradients, method="heads", share=0.5, scope=scope, begin_step=2,
        end_step=2,
    )  # fmt: skip
    scores = head_scores(weights, gradients)
    module = state.scores["backbone"]["decoder"]["blocks"]["self_attention"]
    np.testing.assert_allclose(module, 0.01 * scores, rtol=1e-4)
    if scope == "matrix":
        is_pruned = np.argsort(np.argsort(scores, axis=1), axis=1) < 2
    else:
        scores /= np.linalg.norm(scores, axis=1, keepdims=True)
        is_pruned = (np.argsort(np.argsort(scores, axis=None)) < 4).reshape(2, 4)
    attention = f"{BLOCKS}/self_attention"
    for layer in range(2):
        for head in range(4):
            query = found[f"{attention}/query/kernel"][layer, :, head]
            out = found[f"{attention}/out/kernel"][layer, head]
            assert (not query.any()) == (not out.any()) == is_pruned[layer, head]
        for group in range(2):  # of keys and values, which two heads share
            both = is_pruned[layer, 2 * group : 2 * group + 2].all()
            for name in ("key", "value"):
                assert found[f"{attention}/{name}/kernel"][layer, :, group].any() != both
    np.testing.assert_array_equal(
        found[f"{BLOCKS}/feed_forward/in/kernel"], weights[f"{BLOCKS}/feed_forward/in/kernel"]
    )
    assert metrics["prune/heads"] == 4


def test_the_score_is_the_gradient_of_a_gate_on_the_head():
    batch = make_batch("causal_lm")
    job = make_job(
        "causal_lm", batch, optimizer=dict(clip_norm=0.0), prune=dict(method="heads", share=0.5)
    )
    params = job.start().params

    def loss(gates_lh):
        gated = by_name(params)
        name = f"{BLOCKS}/self_attention/out/kernel"
        gated[name] = gated[name] * gates_lh[:, :, None, None]
        logits = forward(job.model, job.task, as_tree(gated), batch)["logits"]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], -1)
        return (losses[..., 0] * batch["weights"]).sum() / batch["weights"].sum()

    gradient_lh = jax.grad(loss)(jnp.ones((2, 4)))
    state, _ = job.run(job.start(), batch, 1)
    found = by_name(state.prune.scores)[f"{BLOCKS}/self_attention"]
    np.testing.assert_allclose(found, 0.01 * np.abs(gradient_lh), rtol=1e-3, atol=1e-7)


JOBS = {
    "magnitude, micro-batches, moving average": (
        dict(method="magnitude", share=0.7, begin_step=1, end_step=4, every=1),
        dict(optimizer=dict(accumulate=2, ema_decay=0.5, weight_decay=0.1)),
    ),
    "global, bfloat16 with master copies": (
        dict(method="magnitude", share=0.7, scope="global", begin_step=1, end_step=3, every=2),
        dict(model=dict(param_dtype="bfloat16"), optimizer=dict(rounding="master")),
    ),
    "2:4 with muon": (
        dict(method="2:4", begin_step=2),
        dict(optimizer=dict(name="muon")),
    ),
    "heads, skipping": (
        dict(method="heads", share=0.5, begin_step=2, end_step=2),
        dict(failure="skip"),
    ),
}
CHECKPOINT = CheckpointConfig(**get_config().checkpoint.to_dict())


@pytest.mark.parametrize("name", JOBS)
def test_zeros_stay_zeros_through_steps_and_a_checkpoint(name, tmp_path):
    prune, changes = JOBS[name]
    batch = make_batch("causal_lm")
    if "failure" in changes:
        changes = dict(failure=dataclasses.replace(STOP_ON_NONFINITE, nonfinite="skip"))
    job = make_job("causal_lm", batch, prune=prune, **changes)
    state, before, sparsities = job.start(), {}, []
    with Checkpoints(tmp_path, CHECKPOINT) as checkpoints:
        for step in range(1, 7):
            state, metrics = job.step(state, batch)
            sparsities.append(float(metrics["prune/sparsity"]))
            now = by_name(jax.device_get(state.params))
            zeros = {n: leaf == 0 for n, leaf in now.items() if n.endswith("kernel")}
            for each, was in before.items():
                assert (zeros[each] | ~was).all(), "a zero stays a zero"
            before = zeros
            if step == 3:
                checkpoints.save(3, state, {})
                restored = checkpoints.restore(3, job.abstract)
                jax.tree.map(np.testing.assert_array_equal, state, restored)
    in_blocks = [zero for n, zero in before.items() if "blocks" in n]
    share = sum(zero.sum() for zero in in_blocks) / sum(zero.size for zero in in_blocks)
    if prune["method"] != "heads":
        np.testing.assert_allclose(share, prune.get("share", 0.5), atol=2e-3)
        np.testing.assert_allclose(sparsities[-1], share, rtol=1e-5)
    assert sparsities == sorted(sparsities)
    assert sparsities[-1] > 0
    for copy in (state.ema, getattr(state.opt_state, "master", None)):
        if copy is not None:
            named = by_name(jax.device_get(copy))
            assert all((named[n] == 0)[zero].all() for n, zero in before.items())
    # The rest of the run from the checkpoint is the same to the bit.
    for _ in range(3):
        restored, _ = job.step(restored, batch)
    jax.tree.map(np.testing.assert_array_equal, state, restored)


def test_head_scores_are_written_to_the_run_directory(tmp_path):
    state, _, _ = pruned(
        draw(8), 1, gradients=draw(9), method="heads", share=0.5, begin_step=1, end_step=1
    )
    record_head_scores(tmp_path, 1, state)
    record = json.loads((tmp_path / HEAD_SCORES).read_text())
    module = record["modules"][f"{BLOCKS}/self_attention"]
    assert (record["step"], np.shape(module["scores"])) == (1, (2, 4))
    for scores, is_pruned in zip(module["scores"], module["pruned"], strict=True):
        assert sorted(scores)[:2] == sorted(np.array(scores)[is_pruned])
    record_head_scores(tmp_path / "nowhere", 1, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(method="magnitude", parameters=".*/kernels"), "matches no full name"),
        (dict(method="magnitude", parameters=".*"), "which is a vector"),
        (dict(method="2:4", parameters=".*/embedding"), "is a table"),
        (dict(method="heads", parameters=".*/in/kernel"), "matches no output projection"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_pruned_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_pruner(dataclasses.replace(PRUNE, share=0.5, **changes), 100, as_tree(draw(0)))


def test_two_of_four_needs_groups_of_four():
    odd = as_tree({f"{BLOCKS}/feed_forward/in/kernel": np.zeros((2, 6, 4))})
    with pytest.raises(ConfigError, match=r"takes groups of 4 inputs, but .* has 6"):
        make_pruner(dataclasses.replace(PRUNE, method="2:4"), 100, odd)
