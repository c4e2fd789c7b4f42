"""Objectives: pure functions (row, random generator) -> the fields of one line of a batch.

A row's text comes as ids that fit; here they are shifted, hidden and padded to fixed lengths.
Shifting happens here and nowhere else: `inputs` is what the model sees at a position, `targets`
what it should say there, `weights` how much that counts. `segment_ids` is 1 on real tokens and 0
on padding; objectives read from left to right leave it out, because padding at the end is never
seen from before it.
"""

import numpy as np

from input_pipeline.rows import Row
from input_pipeline.tokenizer import Tokenizer

Fields = dict[str, np.ndarray]


def causal_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, length: int) -> Fields:
    del rng
    text = row["text"]
    return _next_token(text, np.ones(len(text)), tokenizer, length)


def prefix_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, length: int) -> Fields:
    """Running text: a prefix of random length is read both ways, the rest is predicted."""
    text = row["text"]
    split = int(rng.integers(1, max(2, len(text))))
    return _prefix_and_rest(text[:split], text[split:], tokenizer, length)


def prefix_lm_pair(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, length: int
) -> Fields:
    """A pair: source and sep are the prefix, target and eos are predicted."""
    del rng
    prefix = np.append(row["source"], tokenizer.sep_id)
    return _prefix_and_rest(prefix, np.append(row["target"], tokenizer.eos_id), tokenizer, length)


def seq2seq(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    length: int,
    encoder_length: int,
) -> Fields:
    del rng
    return _encoder_and_decoder(row["source"], row["target"], tokenizer, length, encoder_length)


def masked_lm(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    length: int,
    noise_rate: float,
) -> Fields:
    """BERT: [cls] text [sep]; of the chosen ids 80% become mask, 10% any id, 10% stay."""
    tokens = np.concatenate([[tokenizer.cls_id], row["text"], [tokenizer.sep_id]])
    maskable = np.arange(1, len(tokens) - 1)
    return _masked(tokens, maskable, rng, tokenizer, length, noise_rate)


def masked_lm_with_next_sentence(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    length: int,
    noise_rate: float,
) -> Fields:
    """[cls] first half [sep] second half [sep], where half of the second halves are `other`'s."""
    follows = rng.random() < 0.5
    first = row["text"][: len(row["text"]) // 2]
    second_from = row["text"] if follows else row["other"]
    second = second_from[len(second_from) // 2 :]
    tokens = np.concatenate(
        [[tokenizer.cls_id], first, [tokenizer.sep_id], second, [tokenizer.sep_id]]
    )
    second_start = len(first) + 2
    maskable = np.delete(np.arange(1, len(tokens) - 1), second_start - 2)
    return {
        **_masked(tokens, maskable, rng, tokenizer, length, noise_rate),
        "token_types": _padded((np.arange(len(tokens)) >= second_start).astype(np.int32), length),
        "next_sentence": np.int32(follows),
    }


def span_corruption(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    length: int,
    encoder_length: int,
    noise_rate: float,
    mean_span: float,
) -> Fields:
    """T5: the encoder sees a sentinel for each hidden span, the decoder says what they hide."""
    text = row["text"]
    noise, spans = span_counts(len(text), noise_rate, mean_span)
    lengths = np.empty(2 * spans, np.int64)
    lengths[0::2] = _random_lengths(len(text) - noise, spans, rng)
    lengths[1::2] = _random_lengths(noise, spans, rng)
    hidden = np.repeat(np.arange(2 * spans) % 2 == 1, lengths)
    source = _spans_replaced(text, hidden, tokenizer.sentinel_ids)
    target = _spans_replaced(text, ~hidden, tokenizer.sentinel_ids)
    return _encoder_and_decoder(source, target, tokenizer, length, encoder_length)


def span_counts(tokens: int, noise_rate: float, mean_span: float) -> tuple[int, int]:
    """How many of the tokens span_corruption hides, and in how many spans."""
    noise = min(max(round(tokens * noise_rate), 1), tokens - 1)
    return noise, max(1, min(round(noise / mean_span), noise, tokens - noise))


def classify_text(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, length: int
) -> Fields:
    del rng
    tokens = np.concatenate([[tokenizer.cls_id], row["text"], [tokenizer.sep_id]])
    return {
        "inputs": _padded(tokens, length),
        "segment_ids": _padded(np.ones(len(tokens)), length),
        "labels": np.int32(row["label"]),
        "weights": np.float32(1),
    }


def classify_images(row: Row, rng: np.random.Generator) -> Fields:
    del rng
    return {
        "images": row["image"],
        "labels": np.int32(row["label"]),
        "weights": np.float32(1),
    }


def _padded(values: np.ndarray, length: int, dtype: type = np.int32) -> np.ndarray:
    """With zeros: the weight and the segment of padding, which no loss and no query reads."""
    padded = np.zeros(length, dtype)
    padded[: len(values)] = values
    return padded


def _next_token(text: np.ndarray, weights: np.ndarray, tokenizer: Tokenizer, length: int) -> Fields:
    return {
        "inputs": _padded(np.concatenate([[tokenizer.bos_id], text[:-1]]), length),
        "targets": _padded(text, length),
        "weights": _padded(weights, length, np.float32),
    }


def _prefix_and_rest(
    prefix: np.ndarray, rest: np.ndarray, tokenizer: Tokenizer, length: int
) -> Fields:
    text = np.concatenate([prefix, rest])
    predicted = np.arange(len(text)) >= len(prefix)
    # bos comes first among the inputs, so the prefix ends one place later there.
    return {
        **_next_token(text, predicted, tokenizer, length),
        "prefix": _padded(np.ones(min(len(prefix) + 1, len(text))), length),
    }


def _encoder_and_decoder(
    source: np.ndarray,
    target: np.ndarray,
    tokenizer: Tokenizer,
    length: int,
    encoder_length: int,
) -> Fields:
    source, target = np.append(source, tokenizer.eos_id), np.append(target, tokenizer.eos_id)
    return {
        "encoder_inputs": _padded(source, encoder_length),
        "encoder_segment_ids": _padded(np.ones(len(source)), encoder_length),
        **_next_token(target, np.ones(len(target)), tokenizer, length),
        "segment_ids": _padded(np.ones(len(target)), length),
    }


def _masked(
    tokens: np.ndarray,
    maskable: np.ndarray,
    rng: np.random.Generator,
    tokenizer: Tokenizer,
    length: int,
    noise_rate: float,
) -> Fields:
    count = max(1, round(len(maskable) * noise_rate))
    chosen = rng.permutation(maskable)[:count]
    inputs, fate = tokens.copy(), rng.random(len(chosen))
    anything = tokenizer.text_ids[rng.integers(0, len(tokenizer.text_ids), len(chosen))]
    inputs[chosen] = np.where(
        fate < 0.8, tokenizer.mask_id, np.where(fate < 0.9, anything, tokens[chosen])
    )
    return {
        "inputs": _padded(inputs, length),
        "targets": _padded(tokens, length),
        "weights": _padded(np.isin(np.arange(len(tokens)), chosen), length, np.float32),
        "segment_ids": _padded(np.ones(len(tokens)), length),
    }


def _random_lengths(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`total` in `parts` parts of at least one, every way equally likely."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1 if parts > 1 else []
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def _spans_replaced(text: np.ndarray, spans: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """The text with each run of True in `spans` replaced by one sentinel, the next each time."""
    starts = spans & ~np.concatenate([[False], spans[:-1]])
    number = np.cumsum(starts) - 1
    return np.where(starts, sentinels[number], text)[starts | ~spans]
