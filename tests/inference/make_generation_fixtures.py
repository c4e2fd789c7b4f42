"""Makes fixtures/generation.json: what transformers' `generate` says with small random models.

    pip install -e '.[oracle]'
    python -m tests.inference.make_generation_fixtures

The weights are not stored. They are drawn by NumPy in the order of the names and shapes that are,
so that a test without torch can draw the same. transformers computes in float64: what differs is
our own rounding.

Beams are scored without a length penalty, by the sum of log-probabilities. With one, transformers
divides by n ** alpha and this project by ((5 + n) / 6) ** alpha, so only 0 can be compared.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from configs import architectures
from model.config import TransformerConfig
from pretrained.architecture import Architecture
from pretrained.bart import MARIAN
from pretrained.gpt2 import GPT2
from pretrained.t5 import T5
from tests.model import published_models
from tests.pretrained.transformers_models import learned, oracle
from tests.tiny import tiny_config

FIXTURE = Path(__file__).parent / "fixtures" / "generation.json"
STEPS, BEAMS, PENALTY = 12, 4, 1.5
PAD = START = 0
LENGTHS = (7, 2, 5, 1, 4, 3)  # of the prompts, or of the sources
SIZES = dict(
    vocab_size=47, width=24, heads=4, head_size=6, feed_forward=40,
    encoder_layers=2, decoder_layers=2, max_length=32,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Published:
    """An architecture, where its weights are found, and how transformers builds it."""

    config: TransformerConfig
    architecture: Architecture
    build: Callable
    seed: int  # of the weights; with these, rows say different things and end at different places
    eos_id: int


def _config(style: Callable[[], dict], **changes) -> TransformerConfig:
    return tiny_config(**{**style(), **SIZES, **changes})


PUBLISHED = {
    "gpt2": Published(
        _config(architectures.gpt2_style),
        GPT2,
        published_models.gpt2,
        seed=1,
        eos_id=8,
    ),
    "t5": Published(
        _config(architectures.t5_style, relative_buckets=8, relative_max_distance=12),
        T5,
        lambda config: published_models.t5(config, "relu"),
        seed=3,
        eos_id=2,
    ),
    "marian": Published(
        _config(architectures.transformer_style, activation="silu", output_bias=True),
        MARIAN,
        lambda config: published_models.marian(config, "swish"),
        seed=3,
        eos_id=26,
    ),
}


def draw_weights(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, np.ndarray]:
    """transformers' weights by name, such that the next token depends on the last one above all.

    Strong attention or large biases would make a small model say the same thing again and again.
    """
    # Of NumPy's generators, the one that gives the same numbers in all versions.
    rng = np.random.RandomState(seed)

    def draw(name: str, shape: Sequence[int]) -> np.ndarray:
        centre, deviation = 0.0, 1.0
        if name.endswith(".bias") or name == "final_logits_bias":
            deviation = 0.05
        elif "norm" in name or "ln_" in name:
            centre, deviation = 1.0, 0.2
        elif "attn" in name or "Attention" in name:
            deviation = 0.25
        return rng.normal(centre, deviation, shape).astype(np.float32)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def draw_rows(lengths: Sequence[int], seed: int) -> list[list[int]]:
    rng = np.random.RandomState(seed)
    return [rng.randint(PAD + 1, SIZES["vocab_size"], length).tolist() for length in lengths]


def transformers_model(name: str):
    """One of PUBLISHED as transformers has it, in float64, and the shapes of its weights."""
    torch, _ = oracle()
    published = PUBLISHED[name]
    model = published.build(published.config)
    weights = learned(model)
    shapes = {weight: list(tensor.shape) for weight, tensor in weights.items()}
    with torch.no_grad():
        for weight, array in draw_weights(shapes, published.seed).items():
            weights[weight].copy_(torch.tensor(array))
    return model.double().eval(), shapes


def answers_of_transformers(name: str) -> dict:
    """What the fixture holds of one of PUBLISHED."""
    published = PUBLISHED[name]
    model, shapes = transformers_model(name)

    def asked(prompts, sources=None, **options):
        answer = generate(model, [published.eos_id], prompts, sources, **options)
        return {"prompts": prompts, "sources": sources, "answers": answer}

    rows = draw_rows(LENGTHS, seed=1)
    if published.config.family == "decoder":
        questions = {"greedy": asked(rows), "beams": asked(rows, num_beams=BEAMS)}
        return {"weights": shapes, "questions": questions}
    starts = [[START]] * len(rows)
    forced = [[START, *row] for row in draw_rows([2] * len(rows), seed=2)]
    questions = {
        "greedy": asked(starts, rows),
        "penalised": asked(starts, rows, repetition_penalty=PENALTY),
        "beams": asked(starts, rows, num_beams=BEAMS),
        "forced": asked(forced, rows, num_beams=BEAMS),
    }
    return {"weights": shapes, "questions": questions}


def generate(model, eos_ids: list[int], prompts, sources, **options) -> list[list[dict]]:
    """For each row its answers, the best first: their tokens, and what they score as beams."""
    torch, hf = oracle()
    beams = options.get("num_beams", 1)
    model.generation_config = hf.GenerationConfig(
        max_new_tokens=STEPS,
        do_sample=False,
        eos_token_id=eos_ids,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        num_return_sequences=beams,
        length_penalty=0.0,
        early_stopping="never" if beams > 1 else False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    # A decoder goes on at the right edge, so its padding is on the left.
    tokens, mask = _padded(prompts if sources is None else sources, on_the_left=sources is None)
    given = dict(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(mask))
    if sources is not None:
        given["decoder_input_ids"] = torch.tensor(prompts)
    out = model.generate(**given)
    start = tokens.shape[1] if sources is None else len(prompts[0])
    sequences = out.sequences[:, start:].tolist()
    answers = [{"tokens": _up_to(eos_ids, sequence)} for sequence in sequences]
    if beams > 1:
        for answer, score in zip(answers, out.sequences_scores.tolist(), strict=True):
            answer["score"] = round(score, 6)
    return [answers[first : first + beams] for first in range(0, len(answers), beams)]


def _padded(rows: list[list[int]], *, on_the_left: bool) -> tuple[np.ndarray, np.ndarray]:
    tokens, mask = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        where = slice(-len(row), None) if on_the_left else slice(len(row))
        tokens[number, where], mask[number, where] = row, 1
    return tokens, mask


def _up_to(ends: list[int], sequence: list[int]) -> list[int]:
    length = next((n for n, token in enumerate(sequence, start=1) if token in ends), len(sequence))
    return sequence[:length]


def read_fixture() -> dict:
    return json.loads(FIXTURE.read_text())


def main() -> None:
    FIXTURE.parent.mkdir(exist_ok=True)
    content = {name: answers_of_transformers(name) for name in PUBLISHED}
    FIXTURE.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
