"""Direct preference optimization (DPO, arXiv:2305.18290) as sums over pairs of answers.

A row holds a chosen and a rejected answer, each after its prompt, as two segments. `weights` is 1
at the tokens of the chosen answer, `rejected_weights` at those of the rejected one.

    reward(answer) = beta * (log p(answer) - log p_reference(answer))
    loss = -log sigmoid(reward(chosen) - reward(rejected))
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from training.config import TaskConfig

PAIRS = "pairs"  # the name of the term
MARGIN, CHOSEN, REJECTED = "margin", "chosen_reward", "rejected_reward"  # metrics


def preference_counts(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The number of pairs, without rows that only pad the batch."""
    return {PAIRS: _is_pair(batch).sum()}


def preference_sums(
    task: TaskConfig, logits_btv: Array, reference_btv: Array, batch: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Returns the loss sum, and every metric as (sum, count).

    The metric `nll` is the loss without label smoothing, `accuracy` the share of pairs whose chosen
    answer has the greater reward. Label smoothing e is the share of pairs that are labelled the
    wrong way round: (1 - e) times the loss plus e times that of the swapped pair.
    """
    is_pair_b = _is_pair(batch)
    ratio_bt = _log_probs(logits_btv, batch) - jax.lax.stop_gradient(
        _log_probs(reference_btv, batch)
    )
    chosen_b, rejected_b = (
        task.dpo_beta * (ratio_bt * batch[name].astype(jnp.float32)).sum(axis=1)
        for name in ("weights", "rejected_weights")
    )
    margin_b = chosen_b - rejected_b
    nll_b = -jax.nn.log_sigmoid(margin_b)
    loss_b = nll_b + task.label_smoothing * margin_b  # -log sigmoid(-m) = m - log sigmoid(m)
    # A tie does not count as correct: at the start, all margins are 0.
    values = {
        "nll": nll_b, "accuracy": (margin_b > 0).astype(jnp.float32), MARGIN: margin_b,
        CHOSEN: chosen_b, REJECTED: rejected_b,
    }  # fmt: skip
    count = is_pair_b.sum()
    metrics = {name: ((value_b * is_pair_b).sum(), count) for name, value_b in values.items()}
    return {PAIRS: (loss_b * is_pair_b).sum()}, metrics


def _is_pair(batch: Mapping[str, Array]) -> Array:
    both = (batch["weights"] > 0).any(axis=1) | (batch["rejected_weights"] > 0).any(axis=1)
    return both.astype(jnp.float32)


def _log_probs(logits_btv: Array, batch: Mapping[str, Array]) -> Array:
    """The log-probability of each target, in float32."""
    logits_btv = logits_btv.astype(jnp.float32)
    ids_v = jnp.arange(logits_btv.shape[-1], dtype=batch["targets"].dtype)
    is_target_btv = ids_v == batch["targets"][..., None]
    # A masked sum, not a gather: it fuses, and stays local on a sharded vocabulary.
    target_bt = jnp.where(is_target_btv, logits_btv, 0).sum(axis=-1)
    return target_bt - jax.nn.logsumexp(logits_btv, axis=-1)
