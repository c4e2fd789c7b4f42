"""Synthetic views for tests of pages and figures: heads that do one known thing each."""

import dataclasses
import io

import numpy as np
from PIL import Image

from visualization.model_view import AttentionMap, Candidates, LogitLens, ModelView, TokenScores

TEXT = "[CLS] The animal did n't cross the street because it was too tired . [SEP]"
SENTENCE = TEXT.split(" ")
SOURCE = "Das Tier hat die Straße nicht überquert ."
TARGET = "<s> The animal did not cross the street ."


def softmax(scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Weights over visible keys, in float32; zeros where a row sees no key."""
    scores = np.where(visible, scores, -np.inf)
    largest = np.max(scores, -1, keepdims=True, initial=-1e30)
    powers = np.where(visible, np.exp(scores - largest), 0.0)
    return (powers / np.maximum(powers.sum(-1, keepdims=True), 1e-30)).astype(np.float32)


def weights(layers: int, heads: int, visible: np.ndarray, seed: int = 0) -> np.ndarray:
    """Heads take turns: previous token, first token, broad, random, own position, far away."""
    rng = np.random.default_rng(seed)
    queries, keys = visible.shape
    offset = np.arange(keys) - np.arange(queries)[:, None]
    kinds = [
        6.0 * (offset == -1),
        6.0 * np.broadcast_to(np.arange(keys) == 0, visible.shape),
        np.zeros(visible.shape),
        None,
        6.0 * (offset == 0),
        0.3 * np.abs(offset),
    ]
    result = np.empty((layers, heads, queries, keys), np.float32)
    for layer in range(layers):
        for head in range(heads):
            scores = kinds[(layer + head) % len(kinds)]
            noise = rng.normal(size=visible.shape)
            scores = 2.5 * noise if scores is None else scores + 0.3 * noise
            result[layer, head] = softmax(scores, visible)
    return result


def attention(
    name: str,
    queries: tuple[str, ...],
    keys: tuple[str, ...] | None = None,
    *,
    layers: int = 4,
    heads: int = 6,
    causal: bool = False,
    window: int | None = None,
    seed: int = 0,
) -> AttentionMap:
    """One stack of layers."""
    keys = queries if keys is None else keys
    offset = np.arange(len(keys)) - np.arange(len(queries))[:, None]
    visible = np.ones((len(queries), len(keys)), bool)
    if causal:
        visible &= offset <= 0
    if window is not None:
        visible &= np.abs(offset) <= window
    return AttentionMap(
        name=name,
        layers=tuple(range(layers)),
        kinds=("dot" if window is None else "local",) * layers,
        queries=tuple(queries),
        keys=tuple(keys),
        weights_lhts=weights(layers, heads, visible, seed),
        visible_lts=np.repeat(visible[None], layers, 0),
    )


def rollout(attention: AttentionMap) -> np.ndarray:
    mixed = np.eye(len(attention.queries), dtype=np.float32)
    for weights_hts in attention.weights_lhts:
        step = 0.5 * weights_hts.mean(0) + 0.5 * np.eye(len(mixed), dtype=np.float32)
        mixed = step @ mixed
    return mixed


def candidates(count: int, words: tuple[str, ...], rng: np.random.Generator) -> Candidates:
    chances = np.sort(rng.dirichlet(np.full(5, 0.5), count), -1)[:, ::-1].astype(np.float32)
    tokens = tuple(tuple(words[i] for i in rng.integers(0, len(words), 5)) for _ in range(count))
    return Candidates(tokens, chances)


def classifier_view(tokens: tuple[str, ...] = tuple(SENTENCE)) -> ModelView:
    """An encoder with a class, gradients and rollout."""
    stack = attention("encoder", tokens)
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=stack.weights_lhts.shape).astype(np.float32) * 1e-3
    stack = dataclasses.replace(stack, gradients_lhts=gradients, rollout_ts=rollout(stack))
    norms = np.exp(rng.normal(size=(5, len(tokens)), scale=0.2).cumsum(0) + 2).astype(np.float32)
    return ModelView(
        title="runs/sentences",
        facts=(("input", " ".join(tokens)), ("model", "encoder, 4 layers, 6 heads")),
        maps=(stack,),
        prediction="positive (0.93)",
        special_tokens=frozenset({"[CLS]", "[SEP]"}),
        norms=(("encoder", norms),),
    )


def decoder_view(tokens: tuple[str, ...] = (*SENTENCE[1:-1], " a", "\n", "  ")) -> ModelView:
    """A causal language model, with logit lens, probabilities and norms."""
    rng = np.random.default_rng(2)
    stack = attention("decoder", tokens, causal=True)
    stack = dataclasses.replace(stack, rollout_ts=rollout(stack))
    norms = (np.arange(1, 6)[:, None] ** 2 * (1 + rng.random((5, len(tokens))))).astype(np.float32)
    norms[2:, 0] *= 40
    lens = LogitLens(tokens, tuple(candidates(len(tokens), tokens, rng) for _ in range(5)))
    scores = TokenScores(
        tokens=tokens[1:],
        log_probabilities=-rng.exponential(3, len(tokens) - 1).astype(np.float32),
        ranks=rng.integers(1, 400, len(tokens) - 1),
        candidates=candidates(len(tokens) - 1, tokens, rng),
    )
    return ModelView(
        title="runs/stories",
        facts=(("input", " ".join(tokens)),),
        maps=(stack,),
        prediction=" asleep",
        norms=(("decoder", norms),),
        lens=lens,
        scores=scores,
    )


def translation_view() -> ModelView:
    """An encoder–decoder with three stacks; the encoder has a local window."""
    source = tuple(SOURCE.split(" "))
    target = tuple(TARGET.split(" "))
    return ModelView(
        title="runs/translation",
        facts=(("input", " ".join(source)), ("target", " ".join(target))),
        maps=(
            attention("encoder", source, window=2, seed=3),
            attention("decoder", target, causal=True, seed=4),
            attention("cross", target, source, seed=5),
        ),
        prediction="The animal did not cross the street.",
        special_tokens=frozenset({"<s>"}),
    )


def image_view() -> ModelView:
    """A ViT with 6 x 8 patches and [CLS]."""
    rows, columns = 6, 8
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    stack = attention("encoder", tokens, layers=3, heads=4, seed=6)
    across, down = np.meshgrid(np.linspace(0, 1, 128), np.linspace(0, 1, 96))
    pixels = np.stack([across, down, 0.5 + 0.5 * np.sin(12 * across * down)], -1)
    content = io.BytesIO()
    Image.fromarray((255 * pixels).astype(np.uint8)).save(content, "PNG")
    return ModelView(
        title="runs/images",
        facts=(("input", "wave.png"),),
        maps=(dataclasses.replace(stack, rollout_ts=rollout(stack)),),
        prediction="wave (0.81)",
        special_tokens=frozenset({"[CLS]"}),
        image_png=content.getvalue(),
        patch_grid=(rows, columns),
        leading_tokens=1,
    )


def long_view(layers: int, heads: int, length: int) -> ModelView:
    """A causal model of any size."""
    tokens = tuple(f"w{place}" for place in range(length))
    stack = attention("decoder", tokens, layers=layers, heads=heads, causal=True)
    return ModelView(title="runs/large", facts=(), maps=(stack,))
