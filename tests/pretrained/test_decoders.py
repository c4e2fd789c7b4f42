"""Imported models write the same text as transformers, token by token, from a cache."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from inference import generation
from inference.decoding import GREEDY, Ends
from inference.generation import Generator, Prompts
from model.heads import LanguageModel
from tests.pretrained.test_parity import TOLERANCE, imported
from tests.pretrained.transformers_models import (
    EXAMPLES,
    LIKE_LLAMA,
    LONGROPE,
    VOCABULARY,
    Draw,
    like_llama,
    oracle,
    randomize,
)
from tests.tiny import QUICKLY, quick_jit

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
STEPS, LENGTHS = 10, (6, 1, 4)
# Of EXAMPLES: decoders, and encoder-decoders, whose prompt is the token that begins an output.
DECODERS = ("gpt2", "llama", "llama3", *LIKE_LLAMA)
ENCODER_DECODERS = ("t5", "t5_v1_1", "mt5", "umt5", "marian", "bart", "mbart", "pegasus", "m2m_100")
START = 0


def saved(build, directory, seed):
    """A random model in float64, and its weights in a directory."""
    torch, hf = oracle()
    torch.manual_seed(seed)
    model = randomize(build(hf, Draw(seed)), seed)
    model.save_pretrained(directory)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    return model.double().eval()


def written(model, rows):
    """The tokens after each row, and the smallest lead of a chosen token over the next best.

    The rows are sources if the model has an encoder.
    """
    torch, _ = oracle()
    options = dict(max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, num_beams=1)
    if model.config.is_encoder_decoder:
        options |= dict(decoder_start_token_id=START)  # T5's own config has none
    texts, leads = [], []
    for row in rows:
        given, start = torch.tensor([row]), len(row)
        with torch.no_grad():
            text = model.generate(given, **options)[0]
            if model.config.is_encoder_decoder:
                start = 1
                assert text[0] == START
                logits = model(input_ids=given, decoder_input_ids=text[None]).logits
            else:
                logits = model(text[None]).logits
            best = logits[0, start - 1 : -1].topk(2).values
        texts.append(text[start:].tolist())
        leads.append(float((best[:, 0] - best[:, 1]).min()))
    return texts, min(leads)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODER_DECODERS])
def test_greedy_text_is_that_of_transformers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, VOCABULARY, n).tolist() for n in LENGTHS]
    for seed in range(60):
        texts, lead = written(saved(EXAMPLES[name].build, tmp_path, seed), rows)
        # Many random models repeat one token, and where two tokens tie, rounding decides.
        if len(np.unique(texts)) > 2 and lead > 1e-3:
            break
    else:
        pytest.fail("no model writes varied texts")
    config, _, _, params = imported(tmp_path)
    generator = Generator(
        LanguageModel(config), config, Ends(VOCABULARY + 1, 0), steps=STEPS, rows=1, sampling=GREEDY
    )
    tokens = jnp.asarray([row + [0] * (max(LENGTHS) - len(row)) for row in rows], jnp.int32)
    lengths = jnp.asarray(LENGTHS, jnp.int32)
    prompts = Prompts(tokens, lengths)
    if name in ENCODER_DECODERS:
        is_real = jnp.arange(tokens.shape[1]) < lengths[:, None]
        starts = jnp.full((len(rows), 1), START, jnp.int32)
        prompts = Prompts(starts, jnp.ones_like(lengths), tokens, is_real.astype(jnp.int32))
    assert generator.sequences(generator.lay_out(params), prompts).tolist() == texts


def test_longrope_uses_long_factors_for_long_texts(tmp_path):
    torch, _ = oracle()
    sizes = dict(hidden_size=24, head_dim=None, max_position_embeddings=64)
    build = like_llama("Phi3", LONGROPE, original_max_position_embeddings=16, **sizes)
    theirs = saved(build, tmp_path, seed=3)
    config, _, _, params = imported(tmp_path)
    assert config.max_length == 16
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, (1, 24))
    found = {}
    for length in (16, 64):
        model = LanguageModel(dataclasses.replace(config, max_length=length))
        found[length] = quick_jit(model.apply)({"params": params}, tokens.astype(np.int32))
    with torch.no_grad():
        long, short = (theirs(torch.tensor(tokens[:, :n])).logits.numpy() for n in (24, 16))
    np.testing.assert_allclose(found[64], long, rtol=0, atol=10 * TOLERANCE)
    np.testing.assert_allclose(found[16][:, :16], short, rtol=0, atol=10 * TOLERANCE)
    assert np.abs(found[16] - found[64]).max() > 0.01
