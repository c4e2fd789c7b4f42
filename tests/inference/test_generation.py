"""Generation with a cache gives the same tokens as recomputing everything for each token."""

import numpy as np
import pytest

from inference import generation
from inference.decoding import Ends
from tests.inference import plain_decoding as plain
from tests.model.examples import POSITIONS
from tests.tiny import QUICKLY
from tests.training.recomputation import (
    BEAMS,
    PAD,
    ROWS,
    STEPS,
    assert_not_trivial,
    early_token,
    greedy,
    lively_params,
    make_generator,
    prompts,
    recomputed,
    small,
)


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    "changes",
    [dict(family="decoder", kv_heads=2), dict(family="encoder_decoder")],
    ids=["decoder", "encoder_decoder"],
)
def test_greedy_and_beam_search(changes, position):
    """Prompts have mixed lengths. For an encoder-decoder they are forced prefixes of the target."""
    config = small(position=position, **changes)
    unending = greedy(config)
    assert_not_trivial(unending)
    end = early_token(unending)

    generator = make_generator(config, ends=Ends(end, PAD))
    params = generator.lay_out(lively_params(config))
    tokens_bt = generator.sequences(params, prompts(config))
    assert tokens_bt.tolist() == greedy(config, end)

    found = generator.search(params, prompts(config), beams=BEAMS, alpha=0.6)
    for row, tokens_kn, scores_k in zip(range(ROWS), *map(np.asarray, found), strict=True):
        expected = plain.beam_search(
            recomputed(config, row), beams=BEAMS, steps=STEPS, alpha=0.6, eos_id=end
        )
        assert tokens_kn.tolist() == [plain.filled_up(ids, STEPS, PAD) for _, ids in expected]
        np.testing.assert_allclose(scores_k, [score for score, _ in expected], rtol=0, atol=1e-5)
