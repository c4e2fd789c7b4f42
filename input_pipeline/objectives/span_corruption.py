"""T5's pretraining: spans of a text are masked, and the decoder writes them."""

from functools import partial

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.objectives.objective import (
    Masking,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.objectives.seq2seq import count_affixes, encoder_and_decoder
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def span_corruption(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, noise_rate: float, mean_span: float
) -> Fields:
    """The encoder sees a sentinel for each masked span, the decoder predicts the spans."""
    text = row["text"]
    noise, spans = span_counts(len(text), noise_rate, mean_span)
    lengths = np.empty(2 * spans, np.int64)
    lengths[0::2] = _random_lengths(len(text) - noise, spans, rng)
    lengths[1::2] = _random_lengths(noise, spans, rng)
    masked = np.repeat(np.arange(2 * spans) % 2 == 1, lengths)
    source = _spans_replaced(text, masked, tokenizer.sentinel_ids)
    target = _spans_replaced(text, ~masked, tokenizer.sentinel_ids)
    return encoder_and_decoder(source, target, tokenizer)


def span_counts(tokens: int, noise_rate: float, mean_span: float) -> tuple[int, int]:
    """The number of tokens that span_corruption masks, and of their spans."""
    noise = min(max(round(tokens * noise_rate), 1), tokens - 1)
    return noise, max(1, min(round(noise / mean_span), noise, tokens - noise))


class SpanCorruption(Objective):
    name = "span_corruption"
    description = "masked spans of a text, each after its sentinel, from the rest"
    families = ("encoder_decoder",)
    kinds = ("documents",)
    head = "language_model"
    specials = ("bos", "eos", "sentinels")

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        masking = given.masking
        options = dict(noise_rate=masking.rate, mean_span=masking.mean_span)
        fields = partial(span_corruption, tokenizer=given.tokenizer, **options)
        return TaskSpec(fields, given.text, (SequenceSpec(("text",), _room(given), 0),))


def _room(given: TaskInputs) -> int:
    """The longest text whose masked form fits the encoder's length.

    Both sequences grow with the text, so every shorter text fits, too.
    """
    data, masking, sentinels = given.data, given.masking, given.tokenizer.sentinel_count
    of_source, of_target = count_affixes(given.tokenizer)
    refuse_short("encoder_length", data.encoder_length, of_source + 3, "text, a sentinel and eos")
    text = 2
    while of_source + _encoder_needs(text + 1, masking) <= data.encoder_length:
        text += 1
    masked, spans = span_counts(text, masking.rate, masking.mean_span)
    needed = of_target + masked + spans
    refuse_short("length", data.length, needed, "the spans masked for the encoder")
    if spans > sentinels:
        raise ConfigError(
            f"data.encoder_length={data.encoder_length} makes {spans} spans for "
            f"{sentinels} sentinels; raise task.mean_span or lower the length"
        )
    return text


def _encoder_needs(text: int, masking: Masking) -> int:
    masked, spans = span_counts(text, masking.rate, masking.mean_span)
    return text - masked + spans


def _random_lengths(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Splits `total` into `parts` positive lengths; all splits are equally likely."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1 if parts > 1 else []
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def _spans_replaced(text: np.ndarray, spans: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """Replaces each run of True in `spans` by the next sentinel."""
    starts = spans & ~np.concatenate([[False], spans[:-1]])
    number = np.cumsum(starts) - 1
    return np.where(starts, sentinels[number], text)[starts | ~spans]
