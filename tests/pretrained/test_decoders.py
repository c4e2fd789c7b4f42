"""Imported decoders write the same text as transformers, token by token, from a cache."""

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


def saved(build, directory, seed):
    """A random model in float64, and its weights in a directory."""
    torch, hf = oracle()
    torch.manual_seed(seed)
    model = randomize(build(hf, Draw(seed)), seed)
    model.save_pretrained(directory)
    model.generation_config.eos_token_id = None
    return model.double().eval()


def written(model, rows):
    """The tokens after each row, and the smallest lead of a chosen token over the next best."""
    torch, _ = oracle()
    options = dict(max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, num_beams=1)
    texts, leads = [], []
    for row in rows:
        with torch.no_grad():
            text = model.generate(torch.tensor([row]), **options)[0]
            best = model(text[None]).logits[0, len(row) - 1 : -1].topk(2).values
        texts.append(text[len(row) :].tolist())
        leads.append(float((best[:, 0] - best[:, 1]).min()))
    return texts, min(leads)


@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_greedy_text_is_that_of_transformers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, VOCABULARY, n).tolist() for n in LENGTHS]
    for seed in range(60):
        texts, lead = written(saved(LIKE_LLAMA[name], tmp_path, seed), rows)
        # Many random models repeat one token, and where two tokens tie, rounding decides.
        if len(np.unique(texts)) > 2 and lead > 1e-3:
            break
    else:
        pytest.fail("no model writes varied texts")
    config, _, _, params = imported(tmp_path)
    generator = Generator(
        LanguageModel(config), config, Ends(VOCABULARY + 1, 0), steps=STEPS, rows=1, sampling=GREEDY
    )
    tokens = [row + [0] * (max(LENGTHS) - len(row)) for row in rows]
    prompts = Prompts(jnp.asarray(tokens, jnp.int32), jnp.asarray(LENGTHS, jnp.int32))
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
