"""Generation from a state, or from slots (beams, sliding): linear attention, token mixers."""

import dataclasses

import numpy as np
import pytest

from inference import generation
from model import masks
from model.heads import LanguageModel
from tests.inference import plain_decoding as plain
from tests.model.examples import text_arguments
from tests.tiny import QUICKLY, quick_jit
from tests.training.recomputation import (
    BEAMS,
    NEVER,
    ROWS,
    STEPS,
    assert_not_trivial,
    greedy,
    lively_params,
    make_generator,
    prompts,
    recomputed,
    small,
)

CONFIGS = {
    "linear": small(family="decoder", attention="linear", kv_heads=2),
    "performer": small(family="decoder", attention="performer", attention_features=8),
    "pattern": small(
        family="encoder_decoder", attention="performer,dot", attention_features=8, kv_heads=2
    ),
}
MIXED = {
    "lstm": small(family="encoder_decoder", mixer="lstm", bridge="context_vector", position="none"),
    "conv": small(
        family="decoder", mixer="conv", mixer_options=(("dilations", 2.0),), position="learned"
    ),
    "mean": small(family="decoder", mixer="mean", position="learned"),
}
CONFIGS |= {name: MIXED[name] for name in ("lstm", "conv")}
every_config = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


@every_config
def test_greedy_and_beam_search(name):
    config = CONFIGS[name]
    expected = greedy(config)
    assert_not_trivial(expected)
    generator = make_generator(config)
    params = generator.lay_out(lively_params(config))
    assert generator.sequences(params, prompts(config)).tolist() == expected
    found = generator.search(params, prompts(config), beams=BEAMS, alpha=0.6)
    for row in range(ROWS):
        best = plain.beam_search(
            recomputed(config, row), beams=BEAMS, steps=STEPS, alpha=0.6, eos_id=NEVER
        )
        assert found.tokens_bnt[row].tolist() == [tokens for _, tokens in best]


@pytest.mark.parametrize("config", [CONFIGS["linear"], MIXED["mean"]], ids=["linear", "mean"])
def test_bidirectional_prompts(config):
    expected = greedy(config, bidirectional_prompt=True)
    assert expected != greedy(config)
    generator = make_generator(config, bidirectional_prompt=True)
    params = generator.lay_out(lively_params(config))
    assert generator.sequences(params, prompts(config)).tolist() == expected


@pytest.mark.parametrize("name", ["performer", "conv"])
def test_rejected_drafts_are_removed_from_the_state(name):
    config = CONFIGS[name]
    smaller = dataclasses.replace(CONFIGS["linear"], decoder_layers=1)
    target, drafter = make_generator(config), make_generator(smaller)
    found = target.speculate(
        target.lay_out(lively_params(config)),
        drafter,
        drafter.lay_out(lively_params(smaller)),
        prompts(config),
        ahead=2,
    )
    assert found.tokens_bt.tolist() == greedy(config)
    assert found.rounds > -(-(STEPS - 1) // 3), "or no draft was taken back"


def test_several_outputs_share_a_prompt():
    config = CONFIGS["linear"]
    generator = make_generator(config)
    params = generator.lay_out(lively_params(config))
    tokens_bt = generator.sequences(params, prompts(config), outputs=2).tolist()
    assert tokens_bt[0::2] == tokens_bt[1::2] == greedy(config)


def test_slots_forget_old_tokens_and_states_do_not(monkeypatch):
    """With fewer slots than tokens, the oldest are forgotten as by any other kind."""
    steps, slots = 10, 8
    config = CONFIGS["linear"]
    forgetful = make_generator(config, steps=steps, slots=slots)
    params = forgetful.lay_out(lively_params(config))
    tokens_bt = forgetful.sequences(params, prompts(config))
    progress = forgetful._begin.eval_shape(params, prompts(config), outputs=1)
    assert progress.cache.layers[0].self_attention.has_token_slots
    unlimited = greedy(config, steps=steps)
    roomy = make_generator(config, steps=steps, slots=100)
    assert roomy.sequences(params, prompts(config)).tolist() == unlimited
    progress = roomy._begin.eval_shape(params, prompts(config), outputs=1)
    assert not progress.cache.layers[0].self_attention.has_token_slots

    # A full pass in which no token sees one that is `slots` or more before it: short rows are
    # read under the mask itself.
    original_mask = masks.attention_mask

    def only_the_last(query_positions_bt, key_positions_bs, *segments, causal, **options):
        mask_b1ts = original_mask(query_positions_bt, key_positions_bs, *segments, causal=causal)
        distance_bts = query_positions_bt[:, :, None] - key_positions_bs[:, None]
        return mask_b1ts & (distance_bts < slots)[:, None]

    monkeypatch.setattr(masks, "attention_mask", only_the_last)
    apply = quick_jit(LanguageModel(config).apply)

    def logits(config, *batch, prefix):
        inputs, options = text_arguments(*batch)
        return np.asarray(apply({"params": lively_params(config)}, *inputs, **options))

    expected = greedy(config, steps=steps, logits=logits)
    assert expected != unlimited, "what was forgotten must have mattered"
    assert tokens_bt.tolist() == expected
