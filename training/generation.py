"""Asking a model under training for text: answers to sources, continuations of prompts."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.decoding import generate
from model.transformer import empty_cache
from training.compilation import compiler_options


def make_answer(
    model: nn.Module,
    config: TransformerConfig,
    *,
    steps: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
) -> Callable:
    """answer(params, source_bs, source_segments_bs) -> tokens (B, steps), greedily."""

    def answer(params, source_bs: Array, source_segments_bs: Array) -> Array:
        variables, batch = {"params": params}, source_bs.shape[0]
        source_bsd = model.apply(
            variables, source_bs, segments_bt=source_segments_bs, method="encode"
        )
        cache = empty_cache(config, batch, steps, source_bs.shape[1])

        def decode(tokens_b1, positions_b1, cache, source_bsd=None):
            return model.apply(
                variables,
                tokens_b1,
                positions_bt=positions_b1,
                source_bsd=source_bsd,
                source_segments_bs=source_segments_bs,
                cache=cache,
                method="decode",
            )

        start_b1 = jnp.full((batch, 1), bos_id, jnp.int32)
        logits_b1v, cache = decode(start_b1, jnp.zeros_like(start_b1), cache, source_bsd)
        first_b = jnp.ones(batch, jnp.int32)
        return generate(
            decode, logits_b1v[:, 0], first_b, cache, steps=steps, eos_id=eos_id, pad_id=pad_id
        )

    return jax.jit(answer, compiler_options=compiler_options())


def make_continuation(
    model: nn.Module,
    config: TransformerConfig,
    *,
    steps: int,
    eos_id: int,
    pad_id: int,
    see_whole_prompt: bool,
    temperature: float = 0.0,
) -> Callable:
    """continuation(params, tokens_bt, prompt_lengths_b, key) -> tokens (B, steps).

    `see_whole_prompt`: tokens of the prompt see each other in both directions (prefix LM).
    """

    def continuation(params, tokens_bt: Array, prompt_lengths_b: Array, key: Array) -> Array:
        variables, (batch, length) = {"params": params}, tokens_bt.shape
        # Prompts are moved to the right edge, so that all rows continue in the same slot.
        positions_bt = jnp.arange(length, dtype=jnp.int32) - (length - prompt_lengths_b[:, None])
        inside_bt = positions_bt >= 0
        tokens_bt = jnp.take_along_axis(tokens_bt, jnp.maximum(positions_bt, 0), axis=1)

        def decode(tokens_bt, positions_bt, cache, **prompt):
            return model.apply(
                variables,
                tokens_bt,
                positions_bt=positions_bt,
                cache=cache,
                method="decode",
                **prompt,
            )

        logits_btv, cache = decode(
            tokens_bt,
            jnp.maximum(positions_bt, 0),
            empty_cache(config, batch, length + steps),
            segments_bt=inside_bt.astype(jnp.int32),
            prefix_bt=inside_bt if see_whole_prompt else None,
        )
        return generate(
            decode,
            logits_btv[:, -1],
            prompt_lengths_b,
            cache,
            steps=steps,
            eos_id=eos_id,
            pad_id=pad_id,
            temperature=temperature,
            key=key,
        )

    return jax.jit(continuation, compiler_options=compiler_options())
