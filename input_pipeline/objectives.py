"""Objectives: pure functions (row, random generator) -> the fields of one row of a batch.

A row's texts are ids that already fit. Objectives shift and mask them; nothing else shifts.
`inputs` is what the model reads at a position, `targets` what it predicts there, `weights` how much
the prediction counts. Fields have the length of the text; `RowLayout` pads them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from input_pipeline.augmentation import unit_range
from input_pipeline.rows import Row, fit
from input_pipeline.tokenizers.tokenizer import Tokenizer

Fields = dict[str, np.ndarray]


def causal_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Predicts every id from the ids before it."""
    del rng
    return _next_token(row["text"], 0, tokenizer)


def prefix_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Documents: a prefix of random length is read bidirectionally, the rest is predicted."""
    text = row["text"]
    split = int(rng.integers(1, max(2, len(text))))
    return _prefix_and_rest(text[:split], text[split:], tokenizer)


def prefix_lm_pair(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Pairs: source and sep are the prefix; target and eos are predicted."""
    del rng
    prefix = np.append(row["source"], tokenizer.sep_id)
    return _prefix_and_rest(prefix, np.append(row["target"], tokenizer.eos_id), tokenizer)


def seq2seq(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """The encoder reads the source; the decoder predicts the target."""
    del rng
    return _encoder_and_decoder(row["source"], row["target"], tokenizer)


def masked_lm(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
) -> Fields:
    """BERT: [cls] text [sep]; of the chosen ids 80% become mask, 10% a random id, 10% stay."""
    return _masked([row["text"]], rng, tokenizer, noise_rate, whole_words)


def masked_lm_with_next_sentence(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
    room: int,
) -> Fields:
    """[cls] sentences [sep] sentences [sep]; in half of the rows the second part follows the first.

    In the others it comes from another row. `room`: ids of both parts together.
    """
    sentences, others = row["sentences"], row["other"]["sentences"]
    follows = rng.random() < 0.5
    cut = int(rng.integers(1, len(sentences)))
    second = sentences[cut:] if follows else others[int(rng.integers(len(others))) :]
    before = np.concatenate(sentences[:cut])
    first, second = fit([before, np.concatenate(second)], room)
    first = before[
        len(before) - len(first) :
    ]  # cut at the front, so that the second part still follows
    fields = _masked([first, second], rng, tokenizer, noise_rate, whole_words)
    return {**fields, "next_sentence": np.int32(follows)}


def span_corruption(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, noise_rate: float, mean_span: float
) -> Fields:
    """T5: the encoder sees a sentinel for each masked span, the decoder predicts the spans."""
    text = row["text"]
    noise, spans = span_counts(len(text), noise_rate, mean_span)
    lengths = np.empty(2 * spans, np.int64)
    lengths[0::2] = _random_lengths(len(text) - noise, spans, rng)
    lengths[1::2] = _random_lengths(noise, spans, rng)
    masked = np.repeat(np.arange(2 * spans) % 2 == 1, lengths)
    source = _spans_replaced(text, masked, tokenizer.sentinel_ids)
    target = _spans_replaced(text, ~masked, tokenizer.sentinel_ids)
    return _encoder_and_decoder(source, target, tokenizer)


def span_counts(tokens: int, noise_rate: float, mean_span: float) -> tuple[int, int]:
    """The number of tokens that span_corruption masks, and of their spans."""
    noise = min(max(round(tokens * noise_rate), 1), tokens - 1)
    return noise, max(1, min(round(noise / mean_span), noise, tokens - noise))


@dataclasses.dataclass(frozen=True)
class MaskHalfOfRows:
    """Marks a random half of the rows, in which classify_text then masks tokens."""

    needs_other_row: bool = False

    def __call__(self, row: Row, rng: np.random.Generator) -> Row:
        return {**row, "masked": rng.random() < 0.5}


def classify_text(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, noise_rate: float
) -> Fields:
    """The class of a text, or of a pair of texts, with special tokens around them.

    Rows with the key `masked` also get the fields of masked_lm. If it is True, some of their tokens
    are masked; if False, none are, so that the classifier also sees unmasked text.
    """
    texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
    answer = {"labels": np.int32(row["label"]), "weights": np.float32(1)}
    if "masked" not in row:
        return {**between_separators(texts, tokenizer), **answer}
    if row["masked"]:
        fields = _masked(texts, rng, tokenizer, noise_rate, whole_words=False)
    else:
        fields = between_separators(texts, tokenizer)
        fields |= {"targets": fields["inputs"], "weights": np.zeros(len(fields["inputs"]))}
    return {**fields, "token_weights": fields["weights"], **answer}


def classify_images(
    row: Row, rng: np.random.Generator, *, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> Fields:
    """Normalizes an image. Mixup rows have two labels, each with a weight; other rows have one."""
    del rng
    image = unit_range(row["image"])
    if mean:
        image = image - np.asarray(mean, np.float32)
    if std:
        image = image / np.asarray(std, np.float32)
    return {
        "images": image,
        "labels": np.asarray(row["label"], np.int32),
        "weights": np.asarray(row.get("label_weights", 1), np.float32),
    }


def _next_token(text: np.ndarray, given: int, tokenizer: Tokenizer) -> Fields:
    """Predicts each id from those before it, except the first `given` ids of the text.

    If no special id begins a text, its first id is not predicted, either.
    """
    return _shifted(tokenizer.causal_prefix, text, given)


def _shifted(start: Sequence[int], text: np.ndarray, given: int) -> Fields:
    tokens = np.concatenate([np.asarray(start, np.int64), text])
    return {
        "inputs": tokens[:-1],
        "targets": tokens[1:],
        "weights": np.arange(1, len(tokens)) >= len(start) + given,
    }


def _prefix_and_rest(prefix: np.ndarray, rest: np.ndarray, tokenizer: Tokenizer) -> Fields:
    text = np.concatenate([prefix, rest])
    fields = _next_token(text, len(prefix), tokenizer)
    given = len(tokenizer.causal_prefix) + len(prefix)
    return {**fields, "prefix": np.arange(len(fields["inputs"])) < given}


def _encoder_and_decoder(source: np.ndarray, target: np.ndarray, tokenizer: Tokenizer) -> Fields:
    decoder_text = between(tokenizer.target_affixes, target)
    return {
        "encoder_inputs": between(tokenizer.source_affixes, source),
        **_shifted([tokenizer.bos_id], decoder_text, 0),
    }


def between(affixes: tuple[Sequence[int], Sequence[int]], text: np.ndarray) -> np.ndarray:
    """A text with the special ids before and after it."""
    return np.concatenate([affixes[0], text, affixes[1]]).astype(np.int32)


def between_separators(texts: Sequence[np.ndarray], tokenizer: Tokenizer) -> Fields:
    """One or two texts with an encoder's special ids; two also have token types."""
    row = tokenizer.encoder_template.with_special_tokens(texts)
    del row["is_text"]
    return row


def _masked(
    texts: Sequence[np.ndarray],
    rng: np.random.Generator,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
) -> Fields:
    fields = tokenizer.encoder_template.with_special_tokens(texts)
    tokens, maskable = fields["inputs"], np.flatnonzero(fields.pop("is_text"))
    count = max(1, round(len(maskable) * noise_rate))
    if whole_words:
        starts = np.concatenate([tokenizer.word_starts(text) for text in texts])
        chosen = maskable[_whole_words(starts, count, rng)]
    else:
        chosen = rng.permutation(maskable)[:count]
    inputs, fate = tokens.copy(), rng.random(len(chosen))
    anything = tokenizer.text_ids[rng.integers(0, len(tokenizer.text_ids), len(chosen))]
    inputs[chosen] = np.where(
        fate < 0.8, tokenizer.mask_id, np.where(fate < 0.9, anything, tokens[chosen])
    )
    weights = np.zeros(len(tokens))
    weights[chosen] = 1
    return {**fields, "inputs": inputs, "targets": tokens, "weights": weights}


def _whole_words(starts: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of random whole words, as many words as fit into `count` positions.

    The first word is always taken, so that at least one word is masked.
    """
    if not len(starts):
        return np.empty(0, np.int64)
    word_of = np.cumsum(starts) - starts[0]
    sizes = np.bincount(word_of)
    order = rng.permutation(len(sizes))
    taken = np.cumsum(sizes[order]) <= count
    taken[0] = True
    return np.flatnonzero(np.isin(word_of, order[taken]))


def _random_lengths(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Splits `total` into `parts` positive lengths; all splits are equally likely."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1 if parts > 1 else []
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def _spans_replaced(text: np.ndarray, spans: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """Replaces each run of True in `spans` by the next sentinel."""
    starts = spans & ~np.concatenate([[False], spans[:-1]])
    number = np.cumsum(starts) - 1
    return np.where(starts, sentinels[number], text)[starts | ~spans]
