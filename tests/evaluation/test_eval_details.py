"""Details of evaluations against plain NumPy loops."""

import itertools
import json

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from evaluation import eval_details
from evaluation.eval_details import EvalDetails, length_bins, make_position_step, write_details


def test_the_worst_examples_have_the_smallest_probability_of_their_label():
    rng = np.random.default_rng(0)
    labels_b, probabilities_bc = rng.integers(0, 3, 200), rng.random((200, 3))
    collector = EvalDetails("classify_text", "abc", [{"text": f"t{n}"} for n in range(200)])
    collector.add_classes(labels_b, probabilities_bc, np.ones(200))
    worst = collector.record()["classes"]["worst"]
    given = {n: probabilities_bc[n, labels_b[n]] for n in range(200)}
    expected = sorted(given, key=given.get)[: eval_details.WORST]
    assert [each["row"] for each in worst] == expected
    assert [each["text"] for each in worst] == [f"t{n}" for n in expected]
    assert worst[0]["label"] == "abc"[labels_b[expected[0]]]
    assert worst[0]["guess"] == "abc"[probabilities_bc[expected[0]].argmax()]


def test_answers_are_ordered_by_chrf_with_exact_matches_as_the_best():
    collector = EvalDetails("seq2seq", (), ())
    answers = ["2020-01-01", "2020-01-02", "", "2020-01-01"]
    expected = ["2020-01-01", "2020-01-01", "2020-01-01", "2020-01-01"]
    collector.add_answers(answers[:2], ["s0", "s1"], expected[:2], [3, 4], [False, False])
    collector.add_answers(answers[2:], ["s2", "s3"], expected[2:], [5, 3], [False, True])
    found = collector.record()["answers"]
    assert [each["source"] for each in found["worst"]] == ["s2", "s1", "s0", "s3"]
    assert [each["source"] for each in found["best"]] == ["s3", "s0", "s1", "s2"]
    assert (found["best"][0]["chrf"], found["worst"][0]["chrf"]) == (100.0, 0.0)
    assert [(b["from"], b["to"], b["rows"], b["exact_match"]) for b in found["by_length"]] == [
        (3, 3, 2, 0.5), (4, 4, 1, 0.0), (5, 5, 1, 0.0),
    ]  # fmt: skip


def test_bins_hold_every_row_once_and_are_in_order():
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    bins = length_bins(lengths, most=8)
    assert sorted(np.concatenate(bins).tolist()) == list(range(500))
    assert 6 <= len(bins) <= 8
    spans = [(lengths[rows].min(), lengths[rows].max()) for rows in bins]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    assert len(length_bins(np.array([7, 7, 7]))) == 1


def test_losses_by_position_add_up_over_row_lengths():
    collector = EvalDetails("causal_lm", (), ())
    collector.add_positions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]))
    collector.add_positions(np.array([0.5, np.inf]), np.array([2.0, 1.0]))
    positions = collector.record()["positions"]
    assert positions == {"nll": [1.5, None, 3.0], "weight": [3.0, 2.0, 1.0]}


class Table(nn.Module):
    """A model whose logits are the rows of a table."""

    table: tuple

    @nn.compact
    def __call__(self, inputs_bt, **_):
        return jnp.asarray(self.table, jnp.float32)[inputs_bt]


def test_losses_by_position_are_numpys(monkeypatch):
    rng = np.random.default_rng(0)
    table_vv = rng.normal(size=(5, 5))
    inputs_bt, targets_bt = rng.integers(0, 5, (2, 3, 4)).astype(np.int32)
    weights_bt = rng.integers(0, 2, (3, 4)).astype(np.float32)
    model = Table(tuple(map(tuple, table_vv.tolist())))
    monkeypatch.setattr(
        eval_details,
        "forward",
        lambda model, task, params, batch: {"logits": model.apply({}, batch["inputs"])},
    )
    batch = {"inputs": inputs_bt, "targets": targets_bt, "weights": weights_bt}
    nll_t, weight_t = make_position_step(model, None)({}, batch)
    expected_t = np.zeros(4)
    for row in range(3):
        for place in range(4):
            logits = table_vv[inputs_bt[row, place]]
            share = np.exp(logits[targets_bt[row, place]]) / np.exp(logits).sum()
            expected_t[place] -= weights_bt[row, place] * np.log(share)
    np.testing.assert_allclose(nll_t, expected_t, rtol=1e-5)
    np.testing.assert_allclose(weight_t, weights_bt.sum(axis=0))


def test_a_file_is_valid_json_of_bounded_size(tmp_path):
    long = "x" * 100_000
    collector = EvalDetails("classify_text", ["a"], [{"text": long}] * 1000)
    probabilities_bc = np.full((1000, 1), np.nan)
    collector.add_classes(np.zeros(1000, int), probabilities_bc, np.ones(1000))
    path = write_details(tmp_path, 7, "a/b", collector.record())
    assert path == tmp_path / "evaluations" / "00000007_a_b.json"
    assert path.stat().st_size < 200_000

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(path.read_text(), parse_constant=refuse)
    assert (record["step"], record["eval_set"]) == (7, "a/b")
    assert record["classes"]["worst"][0]["probability"] is None
    assert record["classes"]["confusion"] == [[0, 0, 1000]]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("example", "text"),
    [({"text": "a", "text_pair": "b"}, "a | b"), ({"image": np.zeros(3)}, "image 0")],
)
def test_inputs_are_shown_as_text(example, text):
    collector = EvalDetails("classify_text", ["a"], [example])
    collector.add_classes(np.zeros(1, int), np.ones((1, 1)), np.ones(1))
    assert collector.record()["classes"]["worst"][0]["text"] == text
