"""Decoding in plain Python, one row at a time: the reference for the compiled code.

A model is here a function from sequences of generated tokens to the logits after each of them.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from inference.decoding import Sampling

NextLogits = Callable[[Sequence[Sequence[int]]], np.ndarray]


def shares(logits_v: np.ndarray, sampling: Sampling, occurred: Sequence[int] = ()) -> np.ndarray:
    """The distribution that a token is drawn from, in float64."""
    logits = [float(logit) for logit in logits_v]
    for token in set(occurred):
        penalty = sampling.repetition_penalty
        logits[token] *= penalty if logits[token] < 0 else 1 / penalty
    weights = {token: math.exp(logit / sampling.temperature) for token, logit in enumerate(logits)}

    def without_those_below(least: float) -> dict[int, float]:
        return {token: weight for token, weight in weights.items() if weight >= least}

    if sampling.top_k:
        falling = sorted(weights.values(), reverse=True)
        weights = without_those_below(falling[: sampling.top_k][-1])
    if sampling.top_p < 1:
        falling = sorted(weights.values(), reverse=True)
        enough = sampling.top_p * sum(falling)
        cumulative = zip(itertools.accumulate(falling), falling, strict=True)
        weights = without_those_below(
            next(weight for total, weight in cumulative if total >= enough)
        )
    if sampling.min_p:
        weights = without_those_below(sampling.min_p * max(weights.values()))
    total = sum(weights.values())
    return np.array([weights.get(token, 0.0) / total for token in range(len(logits))])


def assert_drawn_from(shares_v: np.ndarray, draws: np.ndarray):
    """Chi-squared: of correct draws, one set in a thousand would fail; seeds are fixed."""
    expected = shares_v * len(draws)
    counts = np.bincount(draws, minlength=len(expected))
    assert not counts[expected == 0].any(), "drawn, but impossible"
    # What is too rare to be counted by itself is counted together.
    often = expected >= 5
    counts = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    freedom = often.sum() - (expected[-1] == 0)
    # The quantile as Wilson and Hilferty approximate it.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    surprise = ((counts - expected) ** 2 / np.maximum(expected, 1)).sum()
    assert surprise < limit, "not drawn from this distribution"


def greedy(next_logits: NextLogits, *, steps: int, eos_id: int = -1) -> list[int]:
    tokens = []
    while len(tokens) < steps and eos_id not in tokens:
        tokens.append(int(next_logits([tokens])[0].argmax()))
    return tokens


def beam_search(
    next_logits: NextLogits,
    *,
    beams: int,
    steps: int,
    alpha: float,
    eos_id: int,
    more_eos_ids: Sequence[int] = (),
) -> list[tuple[float, list[int]]]:
    """The best sequences and their scores, the best first. Never stops before the last step."""
    live, done, ends = [(0.0, [])], [], (eos_id, *more_eos_ids)
    for length in range(1, steps + 1):
        log_probs = log_softmax(next_logits([tokens for _, tokens in live]))
        candidates = [
            (score + log_prob, [*tokens, token])
            for (score, tokens), row in zip(live, log_probs.tolist(), strict=True)
            for token, log_prob in enumerate(row)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        done += [
            (score / length_penalty(length, alpha), tokens)
            for score, tokens in candidates[:beams]
            if tokens[-1] in ends
        ]
        live = [candidate for candidate in candidates if candidate[1][-1] not in ends][:beams]
    done += [(score / length_penalty(steps, alpha), tokens) for score, tokens in live]
    return sorted(done, key=lambda answer: -answer[0])[:beams]


def log_softmax(logits_mv: np.ndarray) -> np.ndarray:
    logits_mv = logits_mv.astype(np.float64)
    logits_mv -= logits_mv.max(axis=1, keepdims=True)
    return logits_mv - np.log(np.exp(logits_mv).sum(axis=1, keepdims=True))


def length_penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def filled_up(tokens: Sequence[int], steps: int, pad_id: int = 0) -> list[int]:
    return [*tokens, *[pad_id] * (steps - len(tokens))]
