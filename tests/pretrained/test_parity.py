"""Published models say here what they say in transformers: hidden states, answers, gradients.

The normal run compares with stored fixtures; `pytest -m oracle` draws sizes and weights anew. What
transformers computes is float64, so the differences are our own rounding. Rows have different
lengths; padding is compared nowhere.
"""

import secrets

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
from configs import default
from experiment import sections
from model.stack import Stack
from pretrained import published
from tests.pretrained.batches import our_batch, parts_of, real
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import ALL_EXAMPLES, EXAMPLES, save, scores_in
from tests.tiny import quick_jit
from training.model_for_task import by_name, make_model, model_arguments

TOLERANCE = 3e-5  # of numbers of order one in float32; relative to larger ones
SMALLEST = 0.01  # of the largest answer and gradient: far above the tolerance


def imported(directory):
    """Our config, task, model and parameters of a directory."""
    found = published.read(directory)
    config = default.get_config().to_dict()
    config["model"] |= {**found.model, "unroll": 1}
    config["task"] |= found.task
    config["data"] |= dict(length=8, encoder_length=8)
    checked = sections.from_mapping(config)
    model_config, task = checked.model.resolve(), checked.task
    params = convert.load_params(found, model_config, task)
    return model_config, task, make_model(model_config, task), params


def compare(directory, record_property):
    stored = load_file(directory / "expected.safetensors")
    _, task, model, params = imported(directory)
    batch = our_batch(stored)

    def loss(params):
        arguments, named = model_arguments(task, batch)
        outputs, state = model.apply(
            {"params": params}, *arguments, **named,
            capture_intermediates=lambda module, _: isinstance(module, Stack),
        )  # fmt: skip
        found, total = by_name(task, outputs), 0.0
        if task.objective_spec.head == "span":
            found |= dict(zip(("start", "end"), found["logits"].swapaxes(0, 1), strict=True))
        for stack, captured in state["intermediates"]["backbone"].items():
            found[stack] = captured["__call__"][0][0]
        for name, targets in parts_of(stored, "target/").items():
            likelihoods = jax.nn.log_softmax(found[name][targets >= 0])
            chosen = targets[targets >= 0]
            total -= likelihoods[np.arange(len(chosen)), chosen].mean()
        total += sum((found[name] ** 2).mean() for name in scores_in(found))
        return total, found

    (our_loss, found), our_gradients = quick_jit(jax.value_and_grad(loss, has_aux=True))(params)
    worst = 0.0
    for name, theirs in parts_of(stored, "output/").items():
        ours, theirs = real(batch, name, np.asarray(found[name])), real(batch, name, theirs)
        assert ours.shape == theirs.shape
        assert np.abs(theirs).max() > SMALLEST, "too small to tell apart"
        worst = max(worst, np.abs(ours - theirs).max())
        assert np.abs(ours - theirs).max() < TOLERANCE, name
    assert float(our_loss) == pytest.approx(float(stored["loss"][0]), abs=TOLERANCE)
    # Gradients lie as weights do, so the same tables translate them.
    *_, gradients = imported(directory / "gradients")
    errors = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), gradients, our_gradients)
    sizes = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), gradients)
    for (path, error), size in zip(
        jax.tree_util.tree_leaves_with_path(errors), jax.tree.leaves(sizes), strict=True
    ):
        assert error < TOLERANCE * max(1.0, size), jax.tree_util.keystr(path)
    assert max(jax.tree.leaves(sizes)) > SMALLEST
    record_property("largest_difference", max(float(worst), *jax.tree.leaves(errors)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_stored_models(name, record_property):
    compare(FIXTURES / name, record_property)


def test_fixtures_are_small():
    sizes = [path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()]
    assert sum(sizes) < 5e6
    assert {path.name for path in FIXTURES.iterdir()} == set(EXAMPLES)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL_EXAMPLES)
def test_random_models(name, tmp_path, record_property):
    seed = secrets.randbits(24)
    record_property("seed", seed)
    print(f"seed {seed}")
    save(name, seed, tmp_path / name)
    compare(tmp_path / name, record_property)
