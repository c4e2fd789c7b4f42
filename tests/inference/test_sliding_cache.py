"""A sliding cache equals masking all but the last tokens."""

import numpy as np
import pytest

from experiment.schema import ConfigError
from inference import generation
from model import masks
from model.heads import LanguageModel
from tests.inference import plain_decoding as plain
from tests.model.examples import text_arguments
from tests.tiny import QUICKLY, quick_jit
from tests.training.recomputation import (
    BEAMS,
    COLUMNS,
    NEVER,
    ROWS,
    greedy,
    lively_params,
    make_generator,
    prompts,
    recomputed,
    small,
)

STEPS, SLOTS = 10, 8  # the longest prompt has 6 tokens: all rows come to forget something


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


def masked_logits(monkeypatch):
    """Full passes in which no token sees one that is SLOTS or more before it."""
    original_mask = masks.attention_mask

    def only_the_last(query_positions_bt, key_positions_bs, *segments, causal, **options):
        given = (query_positions_bt, key_positions_bs, *segments)
        mask_b1ts = original_mask(*given, causal=causal, **options)
        distance_bts = query_positions_bt[:, :, None] - key_positions_bs[:, None]
        return mask_b1ts & (distance_bts < SLOTS)[:, None] if causal else mask_b1ts

    monkeypatch.setattr(masks, "attention_mask", only_the_last)
    applied = {}

    def logits(config, *batch, prefix):
        inputs, options = text_arguments(*batch)
        apply = applied.setdefault(config, quick_jit(LanguageModel(config).apply))
        return np.asarray(apply({"params": lively_params(config)}, *inputs, **options))

    return logits


@pytest.mark.parametrize(
    "changes",
    [
        dict(family="decoder", position="rope", kv_heads=2),
        dict(family="decoder", position="t5_bias"),
        dict(family="encoder_decoder", position="sinusoidal"),
    ],
    ids=lambda changes: changes["position"],
)
def test_the_oldest_token_is_forgotten_when_the_cache_is_full(changes, monkeypatch):
    config = small(**changes)
    generator = make_generator(config, steps=STEPS, slots=SLOTS)
    params, given = generator.lay_out(lively_params(config)), prompts(config)
    tokens_bt = generator.sequences(params, given)
    found = generator.search(params, given, beams=BEAMS, alpha=0.6)

    unlimited = greedy(config, steps=STEPS)
    logits = masked_logits(monkeypatch)
    expected = greedy(config, steps=STEPS, logits=logits)
    assert expected != unlimited, "what was forgotten must have mattered"
    assert tokens_bt.tolist() == expected
    for row in range(ROWS):
        model = recomputed(config, row, steps=STEPS, logits=logits)
        best = plain.beam_search(model, beams=BEAMS, steps=STEPS, alpha=0.6, eos_id=NEVER)
        assert found.tokens_bnt[row].tolist() == [tokens for _, tokens in best]


def test_a_cache_with_a_slot_for_every_token_equals_full_attention():
    config = small(family="decoder", position="rope", kv_heads=2)
    generator = make_generator(config, steps=STEPS, slots=COLUMNS + STEPS)
    params = generator.lay_out(lively_params(config))
    tokens_bt = generator.sequences(params, prompts(config))
    assert tokens_bt.tolist() == greedy(config, steps=STEPS)


def test_prompts_longer_than_the_cache_are_refused():
    config = small(family="decoder", position="rope", kv_heads=2)
    generator = make_generator(config, slots=COLUMNS - 1)
    params = generator.lay_out(lively_params(config))
    with pytest.raises(ConfigError, match="5 slots cannot hold prompts of 6 tokens"):
        generator.sequences(params, prompts(config))
