"""What a page about one input of a model shows, as plain NumPy arrays.

`capture.py` makes a `ModelView` from a loaded run; `attention_page.py` and `figures.py` draw it.
Axes: L layers, H heads, T queries, S keys.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one stack of layers."""

    name: str  # "encoder", "decoder" or "cross"
    layers: tuple[int, ...]  # the numbers of the L layers that are shown, from 0
    kinds: tuple[str, ...]  # the attention kind of each of these layers
    queries: tuple[str, ...]  # T tokens, as text
    keys: tuple[str, ...]  # S tokens, as text
    weights_lhts: np.ndarray  # float32: a row sums to 1, or to 0 if it sees no key
    visible_lts: np.ndarray  # bool: False where the mask forbids attention
    gradients_lhts: np.ndarray | None = None  # float32: of the predicted class's logit
    rollout_ts: np.ndarray | None = None  # float32: attention rollout of all layers of the stack


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The likeliest tokens at each position, best first."""

    tokens: tuple[tuple[str, ...], ...]  # (T, candidates)
    probabilities: np.ndarray  # float32 (T, candidates)


@dataclasses.dataclass(frozen=True)
class LogitLens:
    """What the output head makes of each layer's hidden states."""

    positions: tuple[str, ...]  # T tokens that the stack reads
    layers: tuple[Candidates, ...]  # after the embedding, then after each layer


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """The probability that the model gave to each token of a text, and what it preferred."""

    tokens: tuple[str, ...]  # the N tokens that were predicted
    log_probabilities: np.ndarray  # float32 (N,), in nats
    ranks: np.ndarray  # int (N,), from 1
    candidates: Candidates


@dataclasses.dataclass(frozen=True)
class ModelView:
    """Everything that is known about one input."""

    title: str  # such as the name of the run
    facts: tuple[tuple[str, str], ...]  # lines about model and input: (name, value)
    maps: tuple[AttentionMap, ...]
    prediction: str = ""  # the answer, the class or the next token
    special_tokens: frozenset[str] = frozenset()  # such as [SEP], for the summaries of heads
    norms: tuple[tuple[str, np.ndarray], ...] = ()  # (stack, (L + 1, T)): of hidden states
    lens: LogitLens | None = None
    scores: TokenScores | None = None
    image_png: bytes | None = None  # the image as the model sees it
    image_name: str = "image"  # or "spectrogram" of a sound, or "series"
    patch_grid: tuple[int, int] | None = None  # rows and columns of its patches
    patch_cells: tuple[int, ...] = ()  # the cell of each patch, counted row by row; (): in order
    leading_tokens: int = 0  # tokens before the patches, such as [CLS]

    @property
    def cell_of_patch(self) -> np.ndarray:
        """The cell of each patch of the picture; cells are counted row by row."""
        rows, columns = self.patch_grid
        return np.asarray(self.patch_cells or range(rows * columns))
