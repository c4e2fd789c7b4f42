"""The losses of routers in a training step: their means, padding, and micro-batches."""

import functools

import jax
import numpy as np
import pytest

from model.routing import ROUTER
from tests.tiny import tiny_config
from tests.training.examples import make_batch, make_job
from training.router_losses import router_counts, with_segments

DESCENT = dict(name="sgd", beta1=0.0, clip_norm=0.0, learning_rate=0.5)
MODEL = dict(bias=False, experts=4, expert_capacity=0.9, load_balance_loss=0.5, router_z_loss=0.1)


def uneven_batch():
    """Rows of unequal lengths; of four micro-batches one has no weight at all."""
    batch = make_batch("causal_lm")
    batch["weights"][2] = 0
    return batch


@functools.cache
def job(accumulate):
    optimizer = DESCENT | dict(accumulate=accumulate)
    return make_job("causal_lm", uneven_batch(), model=MODEL, optimizer=optimizer)


def one_step(accumulate, batch):
    state, metrics = job(accumulate).step(job(accumulate).start(), batch)
    return jax.device_get((state.params, metrics))


def test_micro_batches_equal_one_batch():
    """Also in the gradients of the routers' losses."""
    (params, metrics), (other, others) = (one_step(parts, uneven_batch()) for parts in (1, 4))
    assert metrics.keys() == others.keys()
    for name, value in metrics.items():
        assert others[name] == pytest.approx(value, rel=1e-5), name
    start = jax.device_get(job(1).start().params)
    for leaf, same, old in zip(*map(jax.tree.leaves, (params, other, start)), strict=True):
        assert np.abs(leaf - old).max() > 1e-4
        np.testing.assert_allclose(same, leaf, atol=1e-5)


def test_the_total_is_the_sum_of_the_terms_and_the_means_are_over_tokens_and_layers():
    batch = uneven_batch()
    _, metrics = one_step(1, batch)
    balance, z = metrics["train/load_balance_loss"], metrics["train/router_z_loss"]
    expected = metrics["train/loss"] + 0.5 * balance + 0.1 * z
    assert metrics["train/total_loss"] == pytest.approx(expected, rel=1e-5)
    # The sums of one row after another.
    model, params = job(1).model, job(1).start().params
    lengths = [int(np.max(np.nonzero(row)[0], initial=-1)) + 1 for row in batch["weights"]]
    assert 0 in lengths and len(set(lengths)) > 3
    totals = dict.fromkeys(("load_balance", "router_z"), 0.0)
    for row, length in zip(batch["inputs"], lengths, strict=True):
        segments = (np.arange(len(row)) < length).astype(np.int32)[None]
        _, found = model.apply(
            {"params": params}, row[None], segments_bt=segments, mutable=[ROUTER]
        )
        of_row = found[ROUTER]["backbone"]["decoder"]["blocks"]["feed_forward"]
        totals = {name: totals[name] + float(of_row[name].sum()) for name in totals}
    count = sum(lengths) * job(1).config.decoder_layers
    assert balance == pytest.approx(totals["load_balance"] / count, rel=1e-5)
    assert z == pytest.approx(totals["router_z"] / count, rel=1e-5)
    assert 0 < metrics["train/dropped_tokens"] < 1


def test_what_padding_holds_changes_nothing():
    batch = uneven_batch()
    is_padding = np.cumsum(batch["weights"][:, ::-1], axis=1)[:, ::-1] == 0
    assert is_padding.any()
    other = batch | {"inputs": np.where(is_padding, 3, batch["inputs"])}
    (params, metrics), (same, others) = one_step(1, batch), one_step(1, other)
    assert metrics == others
    jax.tree.map(np.testing.assert_array_equal, params, same)


def test_tokens_after_the_last_weight_are_padding():
    weights = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], np.float32)
    batch = dict(inputs=np.ones((3, 5), np.int32), weights=jax.numpy.asarray(weights))
    segments = with_segments(batch)["segment_ids"]
    assert segments.tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    given = batch | dict(segment_ids=np.full((3, 5), 2))
    assert with_segments(given)["segment_ids"] is given["segment_ids"]


def test_counts_are_those_of_each_stack():
    count = lambda objective, **model: {  # noqa: E731
        float(n) for n in router_counts(tiny_config(**model), make_batch(objective)).values()
    }
    batch = make_batch("seq2seq")
    tokens = [(batch[f"{prefix}segment_ids"] > 0).sum() for prefix in ("", "encoder_")]
    layers = dict(encoder_layers=3, decoder_layers=2)
    assert count("seq2seq", experts=4, **layers) == {float(2 * tokens[0] + 3 * tokens[1])}
    images = dict(family="encoder", input="patches", image_size=6, image_channels=2, patch_size=2)
    rows = len(make_batch("classify_images")["images"])
    assert count("classify_images", experts=4, num_classes=5, **images) == {2.0 * rows * (9 + 1)}
    assert router_counts(tiny_config(), batch) == {}
