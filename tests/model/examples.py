"""Batches made by hand, and every family behind one call that is compiled once for each config."""

import dataclasses
import functools
import typing

import numpy as np

from model.config import TransformerConfig
from model.heads import Classifier, LanguageModel, MaskedLanguageModel
from tests.tiny import IMAGES, quick_jit, random_params, tiny_config

DECODER_POSITIONS = typing.get_args(typing.get_type_hints(TransformerConfig)["position"])
POSITIONS = tuple(p for p in DECODER_POSITIONS if p != "transformer_xl")  # of every family
TEXT_FAMILIES = ("encoder", "decoder", "encoder_decoder")
PATCHES = (IMAGES["image_size"] // IMAGES["patch_size"]) ** 2
VOCABULARY = tiny_config().vocab_size


@dataclasses.dataclass(frozen=True)
class Rows:
    """Token rows, and where each of the examples in them stands: (row, first, end)."""

    inputs: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    places: tuple[tuple[int, int, int], ...]

    def pick(self, outputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of each example, without padding."""
        return [outputs[row, first:end] for row, first, end in self.places]

    def with_other(self, where: np.ndarray) -> "Rows":
        """The same rows with another token wherever `where` is true."""
        return dataclasses.replace(
            self, inputs=np.where(where, (self.inputs + 5) % VOCABULARY, self.inputs)
        )


def tokens(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(VOCABULARY, size=length).astype(np.int32)


def pack(*rows: list[np.ndarray], columns: int) -> Rows:
    """Each row holds its examples one after another, then padding."""
    inputs, positions, segments = np.zeros((3, len(rows), columns), np.int32)
    places = []
    for r, examples in enumerate(rows):
        first = 0
        for segment, example in enumerate(examples, start=1):
            end = first + len(example)
            inputs[r, first:end] = example
            positions[r, first:end] = np.arange(len(example))
            segments[r, first:end] = segment
            places.append((r, first, end))
            first = end
    return Rows(inputs, positions, segments, tuple(places))


def unpadded(batch: int, columns: int, seed: int) -> Rows:
    return pack(*([tokens(columns, seed + r)] for r in range(batch)), columns=columns)


def left_padded(*examples: np.ndarray, columns: int) -> Rows:
    inputs, positions, segments = np.zeros((3, len(examples), columns), np.int32)
    places = []
    for r, example in enumerate(examples):
        first = columns - len(example)
        inputs[r, first:], segments[r, first:] = example, 1
        positions[r, first:] = np.arange(len(example))
        places.append((r, first, columns))
    return Rows(inputs, positions, segments, tuple(places))


def text_model(config: TransformerConfig) -> LanguageModel | MaskedLanguageModel:
    """A family's usual head; encoders answer with (tokens, next sentence or None)."""
    return (MaskedLanguageModel if config.family == "encoder" else LanguageModel)(config)


@functools.cache
def text_params(config: TransformerConfig):
    column = np.zeros((1, 1), np.int32)
    inputs = (column, column) if config.family == "encoder_decoder" else (column,)
    return random_params(text_model(config), *inputs)


def text_arguments(target: Rows, source: Rows | None = None, prefix: np.ndarray | None = None):
    """What a text model is called with: positional and keyword arguments."""
    inputs = [target.inputs]
    options = dict(positions_bt=target.positions, segments_bt=target.segments)
    if source is not None:
        inputs.append(source.inputs)
        options |= dict(encoder_positions_bs=source.positions, encoder_segments_bs=source.segments)
    if prefix is not None:
        options["prefix_bt"] = prefix
    return inputs, options


@functools.cache
def _compiled(config: TransformerConfig):
    model = text_model(config)

    def apply(params, inputs, options):
        logits = model.apply({"params": params}, *inputs, **options)
        return logits[0] if config.family == "encoder" else logits

    return quick_jit(apply)


def text_logits(config: TransformerConfig, *batch, params=None, **more) -> np.ndarray:
    """Logits (B, T, V) of the family's usual head, by default with random parameters."""
    params = text_params(config) if params is None else params
    return np.asarray(_compiled(config)(params, *text_arguments(*batch, **more)))


def random_images(batch: int, seed: int) -> np.ndarray:
    size = (batch, IMAGES["image_size"], IMAGES["image_size"], IMAGES["image_channels"])
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@functools.cache
def image_params(config: TransformerConfig):
    return random_params(Classifier(config), random_images(1, 0))


@functools.cache
def image_model(config: TransformerConfig):
    """Class logits (B, C) from parameters, images and segments over class token and patches."""

    def apply(params, images, segments):
        return Classifier(config).apply({"params": params}, images, segments_bt=segments)

    return quick_jit(apply)
