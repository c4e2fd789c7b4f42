import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.default import get_config
from training.config import TaskConfig
from training.losses import cross_entropy, term_counts, term_sums, total_loss

DEFAULT = TaskConfig(**get_config().task)
TOKEN_OBJECTIVES = ["seq2seq", "causal_lm", "prefix_lm", "span_corruption", "masked_lm"]
B, T, V, D = 4, 5, 7, 3


def task(objective, **changes):
    return dataclasses.replace(DEFAULT, objective=objective, **changes)


def token_batch(seed=0):
    """Rows of 5, 3, 1 and 0 real tokens."""
    generator = np.random.default_rng(seed)
    weights_bt = (np.arange(T) < np.array([[5], [3], [1], [0]])).astype(np.float32)
    return {
        "targets": jnp.asarray(generator.integers(0, V, (B, T)), jnp.int32),
        "weights": jnp.asarray(weights_bt),
        "segment_ids": jnp.asarray(weights_bt, jnp.int32),
        "next_sentence": jnp.asarray([1, 0, 1, 1], jnp.int32),
    }


def label_batch():
    return {
        "labels": jnp.asarray([2, 0, 6, 1], jnp.int32),
        "weights": jnp.asarray([1.0, 1.0, 1.0, 0.0]),
    }


def random_logits(*shape, seed=1):
    return jnp.asarray(3 * np.random.default_rng(seed).normal(size=shape), jnp.float32)


def by_hand(logits_btv, targets_bt, weights_bt, smoothing, z_loss):
    """The smoothed distribution written out, in float64."""
    logits_btv = np.asarray(logits_btv, np.float64)
    z_bt = np.exp(logits_btv).sum(-1)
    log_p_btv = np.log(np.exp(logits_btv) / z_bt[..., None])
    one_hot_btv = np.eye(logits_btv.shape[-1])[np.asarray(targets_bt)]
    q_btv = (1 - smoothing) * one_hot_btv + smoothing / logits_btv.shape[-1]
    loss_bt = -(q_btv * log_p_btv).sum(-1) + z_loss * np.log(z_bt) ** 2
    nll_bt = -(one_hot_btv * log_p_btv).sum(-1)
    correct_bt = logits_btv.argmax(-1) == np.asarray(targets_bt)
    return [(x_bt * np.asarray(weights_bt)).sum() for x_bt in (loss_bt, nll_bt, correct_bt)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_cross_entropy_agrees_with_the_definition(smoothing, z_loss):
    batch, logits_btv = token_batch(), random_logits(B, T, V)
    result = cross_entropy(logits_btv, batch["targets"], batch["weights"], smoothing, z_loss)
    expected = by_hand(logits_btv, batch["targets"], batch["weights"], smoothing, z_loss)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert 0 < result.correct < batch["weights"].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_the_gradient_is_the_slope_of_the_definition(smoothing, z_loss):
    batch, logits_btv = token_batch(), random_logits(B, T, V)
    targets_bt, weights_bt = batch["targets"], batch["weights"]
    # Both sums that have a slope, the second one counted three times.
    gradient_btv = jax.grad(
        lambda logits: jnp.dot(
            jnp.stack(cross_entropy(logits, targets_bt, weights_bt, smoothing, z_loss)[:2]),
            jnp.asarray([1.0, 3.0]),
        )
    )(logits_btv)
    step, differences = 1e-5, np.zeros(logits_btv.shape)
    for place in np.ndindex(logits_btv.shape):
        moved = np.asarray(logits_btv, np.float64)[None].repeat(2, axis=0)
        moved[:, *place] += [-step, step]
        low, high = (
            np.dot(by_hand(m, targets_bt, weights_bt, smoothing, z_loss)[:2], [1, 3]) for m in moved
        )
        differences[place] = (high - low) / (2 * step)
    np.testing.assert_allclose(gradient_btv, differences, atol=1e-5)


def test_smoothing_and_z_loss_stay_out_of_the_likelihood():
    batch, logits_btv = token_batch(), random_logits(B, T, V)
    plain = cross_entropy(logits_btv, batch["targets"], batch["weights"])
    changed = cross_entropy(logits_btv, batch["targets"], batch["weights"], 0.1, 0.01)
    assert plain.loss == plain.nll == changed.nll
    assert changed.loss != plain.loss


def test_weights_scale_the_loss_of_each_token():
    targets_bt, logits_btv = token_batch()["targets"], random_logits(B, T, V)
    weights_bt = jnp.asarray(np.random.default_rng(2).uniform(size=(B, T)), jnp.float32)
    result = cross_entropy(logits_btv, targets_bt, weights_bt, 0.1, 0.01)
    expected = by_hand(logits_btv, targets_bt, weights_bt, 0.1, 0.01)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_bfloat16_logits_are_summed_in_float32():
    batch = token_batch()
    logits_btv = random_logits(B, T, V).astype(jnp.bfloat16)
    result = cross_entropy(logits_btv, batch["targets"], batch["weights"], 0.1, 0.01)
    expected = by_hand(
        logits_btv.astype(jnp.float32), batch["targets"], batch["weights"], 0.1, 0.01
    )
    assert {value.dtype for value in result} == {jnp.dtype(jnp.float32)}
    # Far finer than bfloat16's 1/256.
    np.testing.assert_allclose(result[:2], expected[:2], rtol=1e-5)


def test_large_logits_neither_overflow_nor_vanish():
    logits_bv = jnp.asarray([[1e4, 0.0, -1e4], [0.0, 1e4, 0.0]])
    result = cross_entropy(logits_bv, jnp.asarray([0, 0], jnp.int32), jnp.ones(2))
    np.testing.assert_allclose(result, [1e4, 1e4, 1.0])


@pytest.mark.parametrize("logits_v", [[0.0, 0.0, 0.0], [jnp.nan] * 3, [jnp.nan, 1.0, 0.0]])
def test_ties_and_nans_are_not_right_answers(logits_v):
    result = cross_entropy(jnp.asarray([logits_v]), jnp.asarray([0], jnp.int32), jnp.ones(1))
    assert result.correct == 0


def test_padding_gets_exactly_zero_gradient():
    batch, logits_btv = token_batch(), random_logits(B, T, V)
    gradient_btv = jax.grad(
        lambda x: cross_entropy(x, batch["targets"], batch["weights"], 0.1, 0.01).loss
    )(logits_btv)
    is_padding_bt = np.asarray(batch["weights"]) == 0
    assert is_padding_bt.any()
    assert np.all(np.asarray(gradient_btv)[is_padding_bt] == 0)
    assert np.all(np.asarray(gradient_btv)[~is_padding_bt] != 0)


@pytest.mark.parametrize("objective", TOKEN_OBJECTIVES)
def test_token_objectives_have_one_term(objective):
    batch, logits_btv = token_batch(), random_logits(B, T, V)
    totals, metrics = term_sums(task(objective), {"logits": logits_btv}, batch)
    loss, nll, correct = by_hand(logits_btv, batch["targets"], batch["weights"], 0, 0)
    assert term_counts(task(objective), batch) == {"tokens": 9}
    assert totals == {"tokens": pytest.approx(loss)}
    assert metrics == {"nll": (pytest.approx(nll), 9), "accuracy": (correct, 9)}


@pytest.mark.parametrize("objective", ["classify_text", "classify_images"])
def test_classification_has_one_term(objective):
    batch, logits_bc = label_batch(), random_logits(B, V)
    totals, metrics = term_sums(
        task(objective, label_smoothing=0.1, z_loss=0.01), {"logits": logits_bc}, batch
    )
    loss, nll, correct = by_hand(logits_bc, batch["labels"], batch["weights"], 0.1, 0.01)
    assert term_counts(task(objective), batch) == {"labels": 3}
    assert totals == {"labels": pytest.approx(loss)}
    assert metrics == {"nll": (pytest.approx(nll), 3), "accuracy": (correct, 3)}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixup_blends_the_losses_of_both_labels(smoothing):
    mixup = task("classify_images", label_smoothing=smoothing, z_loss=0.01)
    logits_bc = random_logits(B, V)
    first_b, second_b = np.array([2, 1, 6, 4], np.int32), np.array([0, 1, 3, 5], np.int32)
    part_b = np.array([0.7, 0.4, 1.0, 0.25], np.float32)
    batch = {
        "labels": jnp.stack([first_b, second_b], axis=1),
        "weights": jnp.stack([part_b, 1 - part_b], axis=1),
    }

    def loss(logits_bc):
        return term_sums(mixup, {"logits": logits_bc}, batch)[0]["labels"]

    def blend(logits_bc):
        first = by_hand(logits_bc, first_b, part_b, smoothing, 0.01)
        second = by_hand(logits_bc, second_b, 1 - part_b, smoothing, 0.01)
        return first[0] + second[0]

    assert term_counts(mixup, batch) == {"labels": B}
    assert loss(logits_bc) == pytest.approx(blend(logits_bc), rel=1e-5)
    gradient_bc, step = jax.grad(loss)(logits_bc), 1e-5
    for place in np.ndindex(logits_bc.shape):
        moved = np.asarray(logits_bc, np.float64)[None].repeat(2, axis=0)
        moved[:, *place] += [-step, step]
        slope = (blend(moved[1]) - blend(moved[0])) / (2 * step)
        assert gradient_bc[place] == pytest.approx(slope, abs=1e-5)


def test_next_sentence_is_a_term_of_its_own_and_skips_empty_rows():
    bert = task("masked_lm", next_sentence=True)
    batch = token_batch()
    outputs = {"logits": random_logits(B, T, V), "next_sentence": random_logits(B, 2, seed=3)}
    totals, metrics = term_sums(bert, outputs, batch)
    loss, nll, correct = by_hand(
        outputs["next_sentence"], batch["next_sentence"], [1.0, 1.0, 1.0, 0.0], 0, 0
    )
    assert term_counts(bert, batch) == {"tokens": 9, "next_sentence": 3}
    assert totals["next_sentence"] == pytest.approx(loss)
    assert metrics["next_sentence_nll"] == (pytest.approx(nll), 3)
    assert metrics["next_sentence_accuracy"] == (correct, 3)
    assert metrics["nll"][1] == 9


def test_an_auxiliary_masked_lm_counts_by_its_weight_and_in_training_alone():
    task = dataclasses.replace(DEFAULT, objective="classify_text", auxiliary_masked_lm=0.25)
    rng = np.random.default_rng(0)
    outputs = {
        "logits": rng.normal(size=(3, 4)).astype(np.float32),
        "masked_tokens": rng.normal(size=(3, 5, 7)).astype(np.float32),
    }
    batch = {"labels": np.array([1, 0, 3]), "weights": np.ones(3, np.float32)}
    hidden = np.zeros((3, 5), np.float32)
    hidden[0, [1, 4]] = hidden[2, 2] = 1
    tokens = {"targets": rng.integers(7, size=(3, 5)), "token_weights": hidden}

    def loss(batch):
        return total_loss(term_sums(task, outputs, batch)[0], term_counts(task, batch))

    def mean_nll(logits, targets):
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return -np.log(np.take_along_axis(shares, targets[..., None], -1)).mean()

    of_labels = mean_nll(outputs["logits"], batch["labels"])
    of_tokens = mean_nll(outputs["masked_tokens"][hidden > 0], tokens["targets"][hidden > 0])
    np.testing.assert_allclose(loss(batch), of_labels, rtol=1e-5)
    np.testing.assert_allclose(loss(batch | tokens), of_labels + 0.25 * of_tokens, rtol=1e-5)
    _, metrics = term_sums(task, outputs, batch | tokens)
    assert metrics["accuracy"][1] == 3 and metrics["masked_tokens_accuracy"][1] == 3


def test_the_total_is_the_sum_of_the_means():
    total = total_loss(
        {"tokens": jnp.asarray(6.0), "next_sentence": jnp.asarray(1.0)},
        {"tokens": jnp.asarray(4.0), "next_sentence": jnp.asarray(2.0)},
    )
    assert total == 2.0


def test_a_term_without_data_is_zero_and_so_is_its_gradient():
    batch = token_batch() | {"weights": jnp.zeros((B, T))}

    def loss(logits_btv):
        totals, _ = term_sums(task("causal_lm"), {"logits": logits_btv}, batch)
        return total_loss(totals, term_counts(task("causal_lm"), batch))

    value, gradient_btv = jax.value_and_grad(loss)(random_logits(B, T, V))
    assert value == 0
    assert np.all(np.asarray(gradient_btv) == 0)


def test_micro_batches_equal_one_batch():
    bert = task("masked_lm", next_sentence=True, label_smoothing=0.1, z_loss=0.01)
    inputs_btd = random_logits(B, T, D, seed=4)
    batch = token_batch() | {"inputs": inputs_btd}
    params = {"tokens": random_logits(D, V, seed=5), "rows": random_logits(D, 2, seed=6)}

    def loss(params, batch, counts):
        outputs = {
            "logits": batch["inputs"] @ params["tokens"],
            "next_sentence": batch["inputs"][:, 0] @ params["rows"],
        }
        totals, metrics = term_sums(bert, outputs, batch)
        return total_loss(totals, counts), metrics

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    counts = term_counts(bert, batch)
    full_batch = step(params, batch, counts)
    # Rows of 5, 3, 1 and 0 tokens: the parts differ in size, so means of means would be wrong.
    parts = [
        step(params, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], batch), counts)
        for i in range(B)
    ]
    added = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    jax.tree.map(
        lambda a, w: np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-6), added, full_batch
    )


def test_the_squared_error_counts_weights():
    scores_b = np.array([0.5, -1.0, 2.0, 9.0])
    batch = {"scores": jnp.asarray(scores_b, jnp.float32), "weights": jnp.asarray([1.0, 1, 1, 0])}
    outputs = {"logits": random_logits(B, 1)}
    errors = (np.asarray(outputs["logits"])[:, 0] - scores_b)[:3]
    regression = task("regress_text")
    totals, metrics = term_sums(regression, outputs, batch)
    counts = term_counts(regression, batch)
    assert float(total_loss(totals, counts)) == pytest.approx((errors**2).mean())
    assert float(metrics["absolute_error"][0]) == pytest.approx(np.abs(errors).sum())
    slope = jax.grad(lambda x: total_loss(term_sums(regression, {"logits": x}, batch)[0], counts))
    expected = np.append(2 * errors / 3, 0)
    np.testing.assert_allclose(slope(outputs["logits"])[:, 0], expected, rtol=1e-5)
