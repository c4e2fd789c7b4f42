"""The same weights make the same answers as in Hugging Face transformers' `generate`.

Its answers are stored, and recomputed by the oracle tests.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from inference import generation
from inference.decoding import GREEDY, Ends, Sampling, adjust_logits
from inference.generation import Generator, Prompts
from model.heads import LanguageModel
from tests.inference import plain_decoding as plain
from tests.inference.make_generation_fixtures import (
    BEAMS,
    PAD,
    PENALTY,
    PUBLISHED,
    STEPS,
    answers_of_transformers,
    draw_weights,
    generate,
    read_fixture,
    transformers_model,
)
from tests.model.published_models import to_ours
from tests.pretrained.transformers_models import oracle
from tests.tiny import QUICKLY, random_params

STORED = read_fixture()
QUESTIONS = [(name, question) for name in PUBLISHED for question in STORED[name]["questions"]]


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


@functools.cache
def our_params(name):
    published = PUBLISHED[name]
    column = np.zeros((1, 1), np.int32)
    inputs = (column,) if published.config.family == "decoder" else (column, column)
    shapes = random_params(LanguageModel(published.config), *inputs)
    weights = draw_weights(STORED[name]["weights"], published.seed)
    params, unused = to_ours(published.architecture, published.config, shapes, weights)
    assert unused == set()
    return params


@functools.cache
def make_generator(name, sampling):
    config, ends = PUBLISHED[name].config, Ends(PUBLISHED[name].eos_id, PAD)
    return Generator(LanguageModel(config), config, ends, steps=STEPS, rows=1, sampling=sampling)


def padded(rows):
    tokens = [plain.filled_up(row, max(map(len, rows)), PAD) for row in rows]
    return jnp.asarray(tokens, jnp.int32), jnp.asarray([len(row) for row in rows], jnp.int32)


def prompts_of(asked):
    if asked["sources"] is None:
        return Prompts(*padded(asked["prompts"]))
    source_bs, lengths_b = padded(asked["sources"])
    inside_bs = jnp.arange(source_bs.shape[1]) < lengths_b[:, None]
    return Prompts(*padded(asked["prompts"]), source_bs, inside_bs.astype(jnp.int32))


@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_answers_are_those_of_transformers(name, question):
    asked = STORED[name]["questions"][question]
    penalised = question == "penalised"
    generator = make_generator(name, Sampling(repetition_penalty=PENALTY) if penalised else GREEDY)
    params, prompts = generator.lay_out(our_params(name)), prompts_of(asked)
    expected_bnt = [
        [plain.filled_up(answer["tokens"], STEPS, PAD) for answer in answers]
        for answers in asked["answers"]
    ]
    if len(expected_bnt[0]) == 1:
        tokens_bt = generator.sequences(params, prompts)
        assert [[row] for row in tokens_bt.tolist()] == expected_bnt
        return
    # Without a length penalty, which is not the same there.
    found = generator.search(params, prompts, beams=BEAMS, alpha=0.0)
    assert found.tokens_bnt.tolist() == expected_bnt
    scores_bn = [[answer["score"] for answer in answers] for answers in asked["answers"]]
    np.testing.assert_allclose(found.scores_bn, scores_bn, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_the_answers_are_varied(name, question):
    rows = STORED[name]["questions"][question]["answers"]
    assert len({str(answers) for answers in rows}) >= len(rows) - 1
    every = [answer["tokens"] for answers in rows for answer in answers]
    assert len({len(tokens) for tokens in every}) > 2, "they end at different places"
    assert np.mean([len(set(tokens)) for tokens in every]) > 2


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_still_gives_the_stored_answers(name):
    answers = answers_of_transformers(name)
    assert list(answers["weights"].items()) == list(STORED[name]["weights"].items())
    for question, asked in STORED[name]["questions"].items():
        again = answers["questions"][question]
        for part in ("prompts", "sources"):
            assert again[part] == asked[part]
        for stored, now in zip(asked["answers"], again["answers"], strict=True):
            assert [a["tokens"] for a in stored] == [a["tokens"] for a in now]
            scores = [[a.get("score", 0.0) for a in answers] for answers in (stored, now)]
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("more", [(24,), (24, 25)])
def test_beams_with_several_ends_are_those_of_transformers(more):
    published, asked = PUBLISHED["gpt2"], STORED["gpt2"]["questions"]["beams"]
    model, _ = transformers_model("gpt2")
    ends = [published.eos_id, *more]
    rows = generate(model, ends, asked["prompts"], None, num_beams=BEAMS)
    assert set(ends) <= {answer["tokens"][-1] for answers in rows for answer in answers}
    generator = Generator(
        LanguageModel(published.config),
        published.config,
        Ends(published.eos_id, PAD, tuple((id,) for id in more)),
        steps=STEPS,
        rows=1,
    )
    params = generator.lay_out(our_params("gpt2"))
    found = generator.search(params, prompts_of(asked), beams=BEAMS, alpha=0.0)
    assert found.tokens_bnt.tolist() == [
        [plain.filled_up(answer["tokens"], STEPS, PAD) for answer in answers] for answers in rows
    ]
    scores_bn = [[answer["score"] for answer in answers] for answers in rows]
    np.testing.assert_allclose(found.scores_bn, scores_bn, rtol=0, atol=1e-4)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_k=5),
        Sampling(temperature=1.0, top_p=0.8),
        Sampling(temperature=1.0, min_p=0.1),
        Sampling(temperature=1.6, top_k=9, top_p=0.85, min_p=0.12),
        Sampling(temperature=0.9, top_k=9, top_p=0.95, min_p=0.02, repetition_penalty=1.4),
    ],
    ids=str,
)
def test_the_limits_on_drawing_are_those_of_transformers(sampling):
    torch, hf = oracle()
    rng = np.random.default_rng(0)
    logits_bv = rng.normal(0, 2, (50, 13)).astype(np.float32)
    said_bt = rng.integers(13, size=(50, 4))
    # In the order in which `generate` applies them.
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        hf.TemperatureLogitsWarper(sampling.temperature),
    ]
    if sampling.top_k:
        processors.append(hf.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(hf.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(hf.MinPLogitsWarper(sampling.min_p))
    theirs = torch.tensor(logits_bv)
    for processor in processors:
        theirs = processor(torch.tensor(said_bt), theirs)
    occurred_bv = (said_bt[:, :, None] == np.arange(13)).any(axis=1)
    ours = adjust_logits(jnp.asarray(logits_bv), sampling, jnp.asarray(occurred_bv))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
