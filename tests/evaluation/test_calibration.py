"""The expected calibration error, against loops in NumPy.

`python -m tests.evaluation.test_calibration` evaluates on eight devices and prints the scores as
JSON.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluation.evaluator import EvalSet
from tests.devices import measured_on
from tests.evaluation.test_evaluator import FirstTokenClassifier, make_evaluator, params_with
from tests.training.on_meshes import mesh_config
from training.mesh import make_mesh, put_batch

ROWS, COLUMNS, VOCABULARY = 45, 6, 16
OBJECTIVES = ("causal_lm", "prefix_lm", "masked_lm", "seq2seq", "classify_text")
DEVICES = 8


@functools.cache
def table():
    """Logits after each token. The tokens differ in how sure they are of the next one."""
    rng = np.random.default_rng(0)
    sharpness = np.linspace(0.2, 6, VOCABULARY)[:, None]
    return (sharpness * rng.normal(size=(VOCABULARY, VOCABULARY))).astype(np.float32)


@functools.cache
def rows_of(objective):
    """Rows whose targets are the likeliest tokens about half the time, with some padding."""
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, VOCABULARY, (ROWS, COLUMNS)).astype(np.int32)
    at_random = rng.integers(0, VOCABULARY, inputs.shape).astype(np.int32)
    likeliest = table()[inputs].argmax(axis=-1).astype(np.int32)
    targets = np.where(rng.random(inputs.shape) < 0.5, likeliest, at_random)
    weights = (rng.random(inputs.shape) < 0.8).astype(np.float32)
    if objective == "classify_text":
        return dict(inputs=inputs, labels=targets[:, 0], weights=weights[:, 0])
    rows = dict(inputs=inputs, targets=targets, weights=weights)
    if objective == "seq2seq":
        source = np.ones((ROWS, 2), np.int32)
        rows |= dict(encoder_inputs=source, encoder_segment_ids=source)
    if objective == "prefix_lm":
        rows |= dict(prefix=np.zeros_like(inputs))
    return rows


def batches_of(rows, size):
    """Batches of `size` rows; the last one is filled up with copies that have no weight."""
    batches = []
    for first in range(0, len(rows["inputs"]), size):
        part = {name: array[first : first + size] for name, array in rows.items()}
        missing = size - len(part["inputs"])
        filling = {name: np.repeat(array[:1], missing, axis=0) for name, array in rows.items()}
        filling["weights"] = np.zeros_like(filling["weights"])
        batches.append({name: np.concatenate([part[name], filling[name]]) for name in rows})
    return batches


def scores_of(objective, batches, params=None):
    model = FirstTokenClassifier() if objective == "classify_text" else None
    evaluator, _ = make_evaluator(objective, model=model, metrics=("ece",))
    return evaluator.evaluate(params or params_with(table()), EvalSet(batches, 0, False))


def derived(objective):
    """The same number by a loop over predictions, in float64."""
    rows = rows_of(objective)
    inputs = rows["inputs"][:, 0] if objective == "classify_text" else rows["inputs"]
    targets = rows["labels" if objective == "classify_text" else "targets"]
    bins = [[] for _ in range(15)]
    each = zip(inputs.flat, targets.flat, rows["weights"].flat, strict=True)
    for token, target, weight in each:
        if not weight:
            continue
        exps = np.exp(table()[token].astype(np.float64))
        top = exps.max() / exps.sum()
        number = next(n for n in range(15) if top <= (n + 1) / 15)
        bins[number].append((top, target == exps.argmax()))
    filled = [np.array(each, float) for each in bins if each]
    assert len(filled) > 8, "or there is little to sum over"
    gaps = [len(each) * abs(each[:, 0].mean() - each[:, 1].mean()) for each in filled]
    return sum(gaps) / sum(map(len, filled))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_is_that_of_all_scored_predictions_for_any_batch_size(objective):
    expected = derived(objective)
    assert 0.05 < expected < 0.6
    for size in (4, 7):
        found = scores_of(objective, batches_of(rows_of(objective), size))
        assert found["ece"] == pytest.approx(expected, abs=1e-6), size


def test_eight_devices_compute_what_one_computes():
    found, _ = measured_on(DEVICES, "tests.evaluation.test_calibration")
    assert found == {name: pytest.approx(derived(name), abs=1e-6) for name in OBJECTIVES}


def measure():
    """Rows on four devices, and the vocabulary of each row on two."""
    jax.config.update("jax_disable_most_optimizations", True)
    mesh = make_mesh(mesh_config(dict(data=2, fsdp=2, tensor=2)))
    over_vocabulary = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "tensor"))
    params = params_with(table())
    params["table"] = jax.device_put(params["table"], over_vocabulary)
    found = {}
    with jax.set_mesh(mesh):
        for objective in OBJECTIVES:
            batches = [put_batch(batch, mesh) for batch in batches_of(rows_of(objective), 8)]
            found[objective] = scores_of(objective, batches, params)["ece"]
    return found


def classes(probabilities, inputs, labels, weights):
    """The scores of a classifier that says `probabilities[token]`."""
    rows = dict(
        inputs=jnp.asarray(inputs, jnp.int32)[:, None],
        labels=jnp.asarray(labels, jnp.int32),
        weights=jnp.asarray(weights, jnp.float32),
    )
    params = params_with(np.log(np.asarray(probabilities, np.float32)))
    return scores_of("classify_text", [rows], params)


def test_by_hand():
    # Token 0 says 0.5 and token 1 says 0.52, in one bin; token 2 says 0.9. The last row is padding.
    probabilities = [[0.5, 0.3, 0.2], [0.26, 0.52, 0.22], [0.05, 0.05, 0.9]]
    found = classes(
        probabilities, inputs=[0, 1, 1, 2, 2, 2], labels=[1, 1, 1, 2, 0, 1],
        weights=[1, 1, 1, 1, 1, 0],
    )  # fmt: skip
    first = abs((0.5 + 0.52 + 0.52) / 3 - 2 / 3)
    second = abs(0.9 - 1 / 2)
    assert found["ece"] == pytest.approx((3 * first + 2 * second) / 5, abs=1e-6)
    # Apart, they would give 0.5, 0.48 and 0.48.
    assert found["accuracy"] == pytest.approx(3 / 5)


def test_a_calibrated_predictor_has_none_and_a_sure_and_wrong_one_has_all():
    probabilities = [[0.75, 0.25], [0.1, 0.9]]
    labels = [0, 0, 0, 1] + [1] * 9 + [0]
    found = classes(probabilities, [0] * 4 + [1] * 10, labels, np.ones(14))
    assert found["ece"] == pytest.approx(0, abs=1e-6)
    sure = [[1 - 1e-7, 1e-7]]
    assert classes(sure, [0, 0], [1, 1], [1, 1])["ece"] == pytest.approx(1, abs=1e-6)
    assert classes(sure, [0, 0], [0, 0], [1, 1])["ece"] == pytest.approx(0, abs=1e-6)


def test_nan_is_not_hidden():
    assert np.isnan(classes([[np.nan, 0.5]], [0], [1], [1])["ece"])


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    print(json.dumps(measure()))
