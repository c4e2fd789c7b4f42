"""What probes measure, against numbers that were found in another way."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sacrebleu
from flax.traverse_util import flatten_dict, unflatten_dict
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from configs import dates, digits, langid, pydoc, recall
from experiment.sections import from_mapping
from sweeps.probes import (
    attention_by_layer,
    attention_entropy,
    gradient_by_distance,
    gradient_by_layer,
    head_similarity,
    latency,
    score_by_length,
)
from sweeps.probes.attention_by_layer import LayerWeights
from sweeps.probes.probe import ProbedRun
from tests.runs import tiny
from tests.test_generate import untrained
from training.model_for_task import model_arguments
from training.schedules import learning_rate
from training.train_state import TrainSpec, abstract_state

# Two kinds of attention, whose layers are not scanned alike. The window is longer than a row.
MIXED = dict(decoder_layers=2, attention="dot,local", attention_window=16, tie_output=False)
RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def language_model(compile_once):
    return untrained(pydoc, model=MIXED)


def probed(run, *batches):
    """A run whose eval sets and training data are these batches."""
    data = SimpleNamespace(
        eval_names=[str(n) for n in range(len(batches))],
        eval_batches=lambda name, rows, count: [batches[int(name)]],
        train_batch=lambda step: batches[0],
    )
    return ProbedRun(Path("nowhere"), run, data)


def distinct_tokens(rows, length):
    return np.stack([RNG.permutation(200)[:length] for _ in range(rows)]).astype(np.int32)


def text_batch(rows=3, length=9, real=(9, 6, 3)):
    """Rows in which no token occurs twice; padding has the segment id 0 and the weight 0."""
    is_real = np.arange(length) < np.array(real)[:, None]
    return {
        "inputs": distinct_tokens(rows, length),
        "targets": distinct_tokens(rows, length),
        "weights": is_real.astype(np.float32),
        "segment_ids": is_real.astype(np.int32),
        "positions": np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)),
    }


def hand_made(monkeypatch, weights_lbhts, visible_lbts, name="decoder"):
    found = {name: (np.asarray(weights_lbhts, np.float32), np.asarray(visible_lbts))}
    monkeypatch.setattr(attention_by_layer, "captured_attention", lambda *given: found)


def test_entropy_of_weights_made_by_hand(monkeypatch, language_model):
    """The second row is half padding; a query that sees one key has no choice and is left out."""
    visible_ts = np.tril(np.ones((4, 4), bool))
    scores_lbhts = np.where(visible_ts, RNG.normal(size=(2, 2, 3, 4, 4)), -np.inf)
    weights_lbhts = np.exp(scores_lbhts) / np.exp(scores_lbhts).sum(-1, keepdims=True)
    hand_made(monkeypatch, weights_lbhts, np.broadcast_to(visible_ts, (2, 2, 4, 4)))
    batch = {"weights": np.ones((2, 4)), "segment_ids": np.array([[1, 1, 1, 1], [1, 1, 0, 0]])}
    run = SimpleNamespace(params={}, experiment=SimpleNamespace(run=SimpleNamespace(init_from="x")))
    found = attention_entropy.compute(probed(run, batch))
    chosen = [(0, 1), (0, 2), (0, 3), (1, 1)]  # (row, query)
    for layer in range(2):
        values = np.array([entropy(weights_lbhts[layer, b, :, t], axis=-1) for b, t in chosen])
        assert found[f"trained/layer_0{layer}"] == pytest.approx(values.mean(), rel=1e-6)
        even = values / np.log([t + 1 for _, t in chosen])[:, None]
        assert found[f"trained/evenness/layer_0{layer}"] == pytest.approx(even.mean(), rel=1e-6)
    layers = [found[f"trained/layer_0{layer}"] for layer in range(2)]
    assert found["trained/all"] == pytest.approx(np.mean(layers))
    assert not any(name.startswith("init/") for name in found)  # init_from: another model's


def test_a_model_without_queries_attends_evenly(language_model):
    """With queries of 0, all scores are 0, so a query that sees n keys has the entropy log n."""
    flat = flatten_dict(language_model.params)
    zeros = {path: jnp.zeros_like(leaf) if "query" in path else leaf for path, leaf in flat.items()}
    run = dataclasses.replace(language_model, params=unflatten_dict(zeros))
    batch = text_batch()
    found = attention_entropy.compute(probed(run, batch))
    expected = np.mean([np.log(n) for length in (9, 6, 3) for n in range(2, length + 1)])
    for name in ("all", "layer_00", "layer_01"):
        assert found[f"trained/{name}"] == pytest.approx(expected, rel=1e-5)
        assert found[f"trained/evenness/{name}"] == pytest.approx(1, rel=1e-5)
        assert 0.9 < found[f"init/evenness/{name}"] < 1 - 1e-6  # initial queries are not 0
    same = head_similarity.compute(probed(run, batch))
    assert set(same) == {f"divergence/{name}" for name in ("all", "layer_00", "layer_01")}
    assert all(value == pytest.approx(0, abs=1e-6) for value in same.values())


def divergence(weights_hts):
    weights_hts = np.asarray(weights_hts, np.float64)
    return head_similarity.divergence(LayerWeights("", weights_hts, np.array([4])))


def test_divergence_of_heads():
    same, other = [[0.5, 0.25, 0.25, 0.0]], [[0.0, 0.0, 0.0, 1.0]]
    assert divergence([same, same, same]) == pytest.approx(0, abs=1e-12)
    assert divergence([same, other]) == pytest.approx(np.log(2))
    assert divergence([same, same, other]) == pytest.approx(np.log(2) * 2 / 3)
    p, q, r = RNG.dirichlet(np.ones(4), size=3)
    pairs = [jensenshannon(*pair) ** 2 for pair in ((p, q), (p, r), (q, r))]
    assert divergence([[p], [q], [r]]) == pytest.approx(np.mean(pairs))


def test_initial_parameters_are_those_of_training(language_model):
    experiment = language_model.experiment
    rate = learning_rate(experiment.optimizer, 4, 16)
    spec = TrainSpec(language_model.model, experiment.task, experiment.optimizer, rate)
    with jax.set_mesh(language_model.mesh):
        _, init = abstract_state(spec, text_batch(), language_model.mesh)
        expected = init(jax.random.key(experiment.run.seed)).params
    ours = probed(language_model).initial_params
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def logits_of(run, params, batch):
    arguments, named = model_arguments(run.experiment.task, batch)
    return run.model.apply({"params": params}, *arguments, **named)


def test_gradient_norms_by_layer(language_model):
    batch = text_batch()
    subject = probed(language_model, batch)
    found = gradient_by_layer.compute(subject)

    def loss(params):
        logits = logits_of(language_model, params, batch)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (losses * batch["weights"]).sum() / batch["weights"].sum()

    with jax.set_mesh(language_model.mesh):
        gradients = jax.jit(jax.grad(loss))(subject.initial_params)
    blocks = gradients["backbone"]["decoder"]["blocks"]
    norms = [
        np.sqrt(sum(np.sum(np.square(leaf[n])) for leaf in jax.tree.leaves(blocks)))
        for n in range(2)
    ]
    assert found == {f"decoder_0{n}": pytest.approx(float(norms[n]), rel=1e-4) for n in range(2)}
    assert norms[0] != pytest.approx(float(norms[1]), rel=1e-2)


def table_gradients(run, batch, score):
    """The gradient of each row's score by the embedding of each of its tokens, as norms (B, T).

    No token occurs twice in a row, so the gradient by the table has one line for each position.
    """

    def of_row(table, row):
        params = {**run.params, "backbone": {**run.params["backbone"]}}
        params["backbone"]["token_embedding"] = {"embedding": table}
        return score(logits_of(run, params, {k: v[None] for k, v in row.items()})[0], row)

    table = run.params["backbone"]["token_embedding"]["embedding"]
    with jax.set_mesh(run.mesh):
        gradients_bvd = jax.jit(jax.vmap(jax.grad(of_row), in_axes=(None, 0)))(table, batch)
    rows = np.arange(len(batch["inputs"]))[:, None]
    return np.linalg.norm(np.asarray(gradients_bvd)[rows, batch["inputs"]], axis=-1)


def test_gradients_by_distance_of_a_language_model(language_model):
    batch = text_batch()
    found = gradient_by_distance.compute(probed(language_model, text_batch(real=(4, 4, 4)), batch))

    def last_loss(logits_tv, row):
        last = row["weights"].sum().astype(jnp.int32) - 1
        return -jax.nn.log_softmax(logits_tv[last])[row["targets"][last]]

    norms_bt = table_gradients(language_model, batch, last_loss)
    ends = np.array([8, 5, 2])
    for distance in (1, 2, 4, 8):  # the second eval set has the longest rows
        rows = np.flatnonzero(ends >= distance)
        expected = norms_bt[rows, ends[rows] - distance].mean()
        assert found[f"trained/{distance}"] == pytest.approx(expected, rel=1e-3)
    assert len(found) == 8 and found["init/1"] != found["trained/1"]


def test_gradients_by_distance_of_a_classifier():
    run = untrained(recall, model=dict(unroll=1))
    batch = text_batch()
    batch = {"inputs": batch["inputs"], "segment_ids": batch["segment_ids"]}
    batch |= {"labels": np.array([1, 0, 6], np.int32), "weights": np.ones(3, np.float32)}
    last_b = np.array([8, 5, 2])
    segments_bt, found_b = gradient_by_distance.last_positions(run, batch)
    np.testing.assert_array_equal(found_b, last_b)
    np.testing.assert_array_equal(segments_bt, batch["segment_ids"])
    norms_bt = gradient_by_distance.input_gradient_norms(run, run.params, batch, last_b)
    expected_bt = table_gradients(
        run, batch, lambda logits_v, row: -jax.nn.log_softmax(logits_v)[row["labels"]]
    )
    np.testing.assert_allclose(norms_bt, expected_bt, rtol=1e-3, atol=1e-6)


def test_scores_by_length_are_those_of_the_rows_of_each_bin():
    experiment = from_mapping(tiny(dates, eval=dict(metrics=("bleu",))))
    references = ["a b c d e", "f g h i j", None, "k l m n o", "p q r s t u"]
    texts = ["a b c d e", "f g h i x", "k l m n o", "p q r z t u"]
    lengths = [3, 4, 5, 400]

    class Stub(ProbedRun):
        def evaluate(self, details):
            real = [each for each in references if each is not None]
            exact = [text == expected for text, expected in zip(texts, real, strict=True)]
            details.add_answers(texts, texts, real, lengths, exact)
            return SimpleNamespace(references=references), {}

    run = SimpleNamespace(experiment=experiment, labels=())
    found = score_by_length.compute(Stub(Path("nowhere"), run, None))
    expected = {"rows/4": 2, "exact_match/4": 0.5, "rows/8": 1, "exact_match/8": 1.0}
    expected |= {"rows/512": 1, "exact_match/512": 0.0}
    assert {k: v for k, v in found.items() if not k.startswith("bleu")} == expected
    two = sacrebleu.corpus_bleu(texts[:2], [references[:2]], force=True).score
    assert found["bleu/4"] == pytest.approx(two) and 0 < two < 100
    assert found["bleu/8"] == pytest.approx(100) and found["bleu/512"] < 100


@pytest.mark.parametrize("length", [1, 4, 5, 32, 33, 48, 49, 64, 65_536, 100_000])
def test_a_bin_has_the_lengths_up_to_its_edge(length):
    ((edge, rows),) = score_by_length.bins([length]).items()
    assert rows == [0] and (length <= edge or edge == score_by_length.EDGES[-1])
    below = [each for each in score_by_length.EDGES if each < edge]
    assert not below or below[-1] < length


def test_latency_of_a_classifier(monkeypatch):
    monkeypatch.setattr(latency, "PASSES", 1)
    run = untrained(digits, model=dict(unroll=1))
    rows = {"images": np.zeros((64, 8, 8, 1), np.float32), "weights": np.ones(64, np.float32)}
    found = latency.compute(probed(run, rows))
    assert set(found) == {"batch_1", "batch_64"} and all(value > 0 for value in found.values())


LSTM = dict(mixer="lstm", position="none")
PAIRS = dict(task=dict(objective="prefix_lm"), data=dict(source="dates"))
LEARNED = dict(position="learned", max_length=30)


@pytest.mark.parametrize(
    ("probe", "config", "changes", "reason"),
    [
        (
            "attention_entropy",
            pydoc,
            dict(model=LSTM),
            "no attention weights",
        ),
        ("head_similarity", pydoc, dict(model=dict(heads=1)), "model.heads=1 has no pairs"),
        ("gradient_by_layer", pydoc, dict(init_from="runs/x"), "init_from gives"),
        ("gradient_by_distance", langid, {}, "model.pooling=mean is not last"),
        ("gradient_by_distance", pydoc, PAIRS, "task.objective=prefix_lm has no last position"),
        ("latency", pydoc, {}, "task.objective=causal_lm is no classifier"),
        ("score_by_length", pydoc, {}, "on pydoc has no answers"),
        ("score_longer_rows", digits, {}, "does not predict running text"),
        ("score_longer_rows", pydoc, dict(data=dict(source="dates")), "is no running text"),
        (
            "score_longer_rows",
            pydoc,
            dict(model=LEARNED, data=dict(length=20)),
            "only 30 positions",
        ),
    ],
)
def test_configs_that_a_probe_does_not_fit(probe, config, changes, reason):
    from sweeps.probes import PROBES

    assert reason in PROBES[probe].problem(from_mapping(tiny(config, **changes)))
