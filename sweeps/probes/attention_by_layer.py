"""Attention weights of a batch by layer, for the probes that summarise them."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from experiment.sections import Experiment
from model.mixers import ATTENTION
from sweeps.probes.probe import ProbedRun, real_rows
from visualization.captured_pass import captured_attention

SOURCE = "encoder_"  # the prefix of the source's fields in a batch


class LayerWeights(NamedTuple):
    """The weights of one layer at all queries that see two keys or more."""

    name: str  # layer_00; with several stacks encoder_00, decoder_00, cross_00
    weights_hts: np.ndarray  # (H, queries, S)
    visible_t: np.ndarray  # the number of keys that each query sees


def attention_problem(experiment: Experiment) -> str:
    """Why a config has no attention to capture; "" if it has."""
    config = experiment.model
    if config.mixer == ATTENTION or config.has_cross_attention:
        return ""
    return f"model.mixer={config.mixer} has no attention weights"


def layer_weights(
    probed: ProbedRun, params, batch: Mapping[str, np.ndarray]
) -> Iterator[LayerWeights]:
    """The weights that each layer computes for a batch, without padding."""
    maps = captured_attention(probed.run, params, batch)
    for stack, (weights_lbhts, visible_lbts) in maps.items():
        has_source = stack == "encoder" and f"{SOURCE}inputs" in batch
        segments_bt = batch.get(f"{SOURCE}segment_ids" if has_source else "segment_ids")
        real_bt = np.broadcast_to(real_rows(batch)[:, None], visible_lbts.shape[1:3])
        if segments_bt is not None:
            real_bt = real_bt & (np.asarray(segments_bt) != 0)
        for layer, (weights_bhts, visible_bts) in enumerate(
            zip(weights_lbhts, visible_lbts, strict=True)
        ):
            visible_bt = visible_bts.sum(axis=-1)
            chosen_bt = real_bt & (visible_bt >= 2)
            yield LayerWeights(
                f"{'layer' if len(maps) == 1 else stack}_{layer:02d}",
                np.moveaxis(weights_bhts, 1, 0)[:, chosen_bt].astype(np.float64),
                visible_bt[chosen_bt],
            )


def means_by_layer(
    layers: Iterator[LayerWeights], mean_of: Callable[[LayerWeights], float]
) -> dict[str, float]:
    """A number of each layer by its name, and their mean as `all`."""
    found = {each.name: float(mean_of(each)) for each in layers}
    return {"all": float(np.mean(list(found.values()))), **found}


def keys_of(prefix: str) -> tuple[str, ...]:
    """The keys of a probe that uses `means_by_layer`."""
    names = ("all", "layer_*", "encoder_*", "decoder_*", "cross_*")
    return tuple(f"{prefix}{name}" for name in names)
