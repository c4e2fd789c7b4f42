"""The prompt and the target of each row, and which outputs match their target."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array


def prompt_lengths(batch: Mapping[str, Array]) -> Array:
    """The length of each row's prompt.

    It is the row's prefix; or what precedes the first answer of a conversation, at most half of the
    row; or half of the row for running text.
    """
    if "prefix" in batch:
        return batch["prefix"].sum(axis=1).astype(jnp.int32)
    half = batch["inputs"].shape[1] // 2
    first_b = (batch["weights"] > 0).argmax(axis=1).astype(jnp.int32)  # 0 for running text
    return jnp.where(first_b > 0, jnp.minimum(first_b + 1, half), half)


@jax.jit
def after_prompt(targets_bt: Array, weights_bt: Array, lengths_b: Array) -> tuple[Array, Array]:
    """Targets and weights shifted so that column 0 is the first token after the prompt."""
    length = targets_bt.shape[1]
    columns_bt = lengths_b[:, None] - 1 + jnp.arange(length, dtype=jnp.int32)
    inside_bt, columns_bt = columns_bt < length, jnp.minimum(columns_bt, length - 1)
    moved_bt = jnp.take_along_axis(targets_bt, columns_bt, axis=1)
    return moved_bt, jnp.take_along_axis(weights_bt, columns_bt, axis=1) * inside_bt.astype(
        weights_bt.dtype
    )


@jax.jit
def exact_rows(
    tokens_bt: Array, expected_bt: Array, weights_bt: Array, cut_b: Array | int
) -> tuple[Array, Array]:
    """(number of rows whose tokens match the target up to its end, number of rows).

    A row whose target was truncated (`cut_b`) does not match.
    """
    matches_b = matching_rows(tokens_bt, expected_bt, weights_bt, cut_b)
    real_b = (weights_bt > 0).any(axis=1)
    return (matches_b & real_b).sum().astype(jnp.float32), real_b.sum().astype(jnp.float32)


def matching_rows(
    tokens_bt: Array, expected_bt: Array, weights_bt: Array, cut_b: Array | int
) -> Array:
    """Whether the tokens of each row match its target up to the target's end, (B).

    A row whose target was truncated (`cut_b`) does not match.
    """
    # The targets include the end token, so no token follows a match.
    return ((tokens_bt == expected_bt) | (weights_bt == 0)).all(axis=1) & (cut_b == 0)
