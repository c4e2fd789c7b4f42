"""The losses of routers: sums over the tokens and layers that have one, and their counts."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.masks import PADDING
from model.routing import DROPPED, LOAD_BALANCE, ROUTER_Z

# Metrics by the names of the sums.
METRICS = {
    LOAD_BALANCE: "train/load_balance_loss",
    ROUTER_Z: "train/router_z_loss",
    DROPPED: "train/dropped_tokens",
}


def with_segments(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Returns a batch whose rows of text say which tokens are padding.

    Rows of causal models may have no segment ids. Then the tokens after the last one with a weight
    count as padding: no target depends on them.
    """
    if "segment_ids" in batch or "inputs" not in batch or "weights" not in batch:
        return dict(batch)
    weights = batch["weights"]
    if weights.ndim != 2 or weights.shape != batch["inputs"].shape:
        return dict(batch)
    after_bt = (weights[:, ::-1] > 0).cumsum(axis=1)[:, ::-1]
    return {**batch, "segment_ids": (after_bt > 0).astype(jnp.int32)}


def router_counts(config: TransformerConfig, batch: Mapping[str, Array]) -> dict[str, Array]:
    """Returns over how many pairs of a token and a layer each sum is averaged; {}: no experts."""
    if not config.experts:
        return {}
    batch, total = with_segments(batch), 0
    stacks = {"": config.decoder_layers if config.has_decoder else config.encoder_layers}
    if config.family == "encoder_decoder":
        stacks["encoder_"] = config.encoder_layers
    for prefix, layers in stacks.items():
        if config.input == "patches":
            tokens = len(next(iter(batch.values()))) * config.patch_tokens
        elif (segments := batch.get(f"{prefix}segment_ids")) is not None:
            tokens = (segments != PADDING).sum(dtype=jnp.float32)
        else:
            tokens = batch[f"{prefix}inputs"].size
        total += layers * tokens
    return dict.fromkeys(METRICS, jnp.asarray(total, jnp.float32))


def router_sums(collection: Mapping) -> dict[str, Array]:
    """Returns the sums over all layers, by name, from the collection that the model fills."""
    totals: dict[str, Array] = {}
    for path, leaf in jax.tree.leaves_with_path(collection):
        name = path[-1].key
        totals[name] = totals.get(name, 0) + leaf.sum()
    return totals


def router_terms(config: TransformerConfig, totals: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the terms of the loss as totals, each with its factor."""
    factors = {LOAD_BALANCE: config.load_balance_loss, ROUTER_Z: config.router_z_loss}
    return {name: factor * totals[name] for name, factor in factors.items() if factor}


def router_metrics(totals: Mapping[str, Array], counts: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the means of the sums among `totals`, without factors."""
    found = {name: metric for name, metric in METRICS.items() if name in totals}
    return {m: totals[name] / jnp.maximum(counts[name], 1) for name, m in found.items()}
