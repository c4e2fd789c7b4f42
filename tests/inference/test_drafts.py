"""A draft model changes only how often the large model is called."""

import pytest

from experiment.schema import ConfigError
from inference import generation
from inference.decoding import Ends, Sampling
from tests.tiny import QUICKLY
from tests.training.recomputation import (
    COLUMNS,
    PAD,
    STEPS,
    assert_not_trivial,
    early_token,
    greedy,
    lively_params,
    make_generator,
    prompts,
    small,
)

DECODER = small(family="decoder", position="rope", kv_heads=2)


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


def drafted(config, draft_config, *, ahead, **options):
    target, drafter = make_generator(config, **options), make_generator(draft_config, **options)
    params = target.lay_out(lively_params(config))
    draft_params = drafter.lay_out(lively_params(draft_config))
    return target.speculate(params, drafter, draft_params, prompts(config), ahead=ahead)


def test_drafts_do_not_change_tokens_with_eos_and_stop_sequences():
    unending = greedy(DECODER)
    assert_not_trivial(unending)
    ends = Ends(early_token(unending), PAD, (tuple(unending[2][1:3]),))
    generator = make_generator(DECODER, ends=ends)
    tokens_bt = generator.sequences(generator.lay_out(lively_params(DECODER)), prompts(DECODER))
    smaller = small(family="decoder", position="alibi", decoder_layers=1, width=8, heads=2)
    found = drafted(DECODER, smaller, ahead=2, ends=ends)
    assert found.tokens_bt.tolist() == tokens_bt.tolist()


def test_every_draft_of_an_identical_model_is_accepted():
    found = drafted(DECODER, DECODER, ahead=2)
    assert found.tokens_bt.tolist() == greedy(DECODER)
    assert found.rounds == -(-(STEPS - 1) // 3)


def test_answers_are_drafted_up_to_the_last_position():
    """Learned positions end with the answers. Tokens drafted beyond them must do no harm."""
    changes = dict(family="encoder_decoder", position="learned", max_length=COLUMNS + STEPS)
    config = small(**changes)
    expected = greedy(config)
    assert_not_trivial(expected)
    smaller = small(**changes, decoder_layers=1, encoder_layers=1, kv_heads=1)
    assert drafted(config, smaller, ahead=4).tokens_bt.tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(slots=COLUMNS + STEPS), "12 slots drops old tokens.* give it 14"),
        (dict(sampling=Sampling(repetition_penalty=1.2)), "repetition_penalty=1.2 .* set it to 1"),
    ],
)
def test_unsupported_options_of_speculative_decoding_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        drafted(DECODER, DECODER, ahead=2, **options)
