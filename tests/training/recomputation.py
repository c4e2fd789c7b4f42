"""Small models that generate, and their tokens when everything is recomputed for each token."""

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from inference.decoding import Ends
from inference.generation import Generator, Prompts
from model.config import TransformerConfig
from model.heads import LanguageModel
from tests.inference import plain_decoding as plain
from tests.model.examples import Rows, pack, text_logits, text_params, tokens
from tests.tiny import tiny_config

STEPS, COLUMNS, PAD, NEVER = 6, 6, 0, -1
LENGTHS, SOURCE_LENGTHS = (6, 2, 4, 1), (3, 6, 1, 5)
ROWS = BEAMS = len(LENGTHS)  # one shape for the full passes of both greedy and beam search
STARTS = [tokens(length, seed=length).tolist() for length in LENGTHS]
SOURCE = pack(*([tokens(n, seed=10 + n)] for n in SOURCE_LENGTHS), columns=COLUMNS)


def small(**changes) -> TransformerConfig:
    """A model whose tokens vary: with random biases or a tied output it would repeat one token."""
    return tiny_config(tie_output=False, embedding_scale=True, bias=False, vocab_size=61, **changes)


@functools.cache
def lively_params(config: TransformerConfig) -> dict:
    """Random, and such that what comes next depends on the last token and on all before it."""

    def enlarge(path, leaf):
        names = {entry.key for entry in path}
        if "token_embedding" in names:
            return 6 * leaf
        is_attention = names & {"self_attention", "cross_attention"}
        return 2 * leaf if is_attention else leaf

    return jax.tree.map_with_path(enlarge, text_params(config))


def full_logits(config: TransformerConfig, *batch: Rows, prefix: np.ndarray | None) -> np.ndarray:
    return text_logits(config, *batch, prefix=prefix, params=lively_params(config))


def prompts(config: TransformerConfig, starts: Sequence[Sequence[int]] = STARTS) -> Prompts:
    """With padding up to COLUMNS, or as long as the longest."""
    length = COLUMNS if max(map(len, starts)) > 1 else 1
    tokens_bt = jnp.asarray([plain.filled_up(start, length, PAD) for start in starts], jnp.int32)
    lengths_b = jnp.asarray([len(start) for start in starts], jnp.int32)
    if config.family == "decoder":
        return Prompts(tokens_bt, lengths_b)
    source = jnp.asarray(SOURCE.inputs), jnp.asarray(SOURCE.segments)
    return Prompts(tokens_bt, lengths_b, *source)


@functools.cache
def make_generator(config: TransformerConfig, **options) -> Generator:
    options = dict(ends=Ends(NEVER, PAD), steps=STEPS, rows=ROWS) | options
    return Generator(LanguageModel(config), config, options.pop("ends"), **options)


def recomputed(
    config: TransformerConfig,
    number: int,
    start: Sequence[int] | None = None,
    *,
    steps: int = STEPS,
    logits: Callable[..., np.ndarray] = full_logits,
    bidirectional_prompt: bool = False,
) -> plain.NextLogits:
    """Row `number`'s model: a pass over its prompt, or another, and all tokens behind it."""
    start = STARTS[number] if start is None else start
    columns = COLUMNS + steps

    def next_logits(sequences):
        rows = [[*start, *tokens] for tokens in sequences]
        rows += rows[:1] * (ROWS - len(rows))
        inputs = np.array([plain.filled_up(row, columns, PAD) for row in rows], np.int32)
        # What stands behind the last token cannot be seen from it.
        everywhere = np.broadcast_to(np.arange(columns, dtype=np.int32), inputs.shape)
        batch = [Rows(inputs, everywhere, np.ones_like(inputs), ())]
        if config.family == "encoder_decoder":
            again = [number] * ROWS
            batch.append(
                Rows(SOURCE.inputs[again], SOURCE.positions[again], SOURCE.segments[again], ())
            )
        prefix = (everywhere < len(start)).astype(np.int32) if bidirectional_prompt else None
        logits_btv = logits(config, *batch, prefix=prefix)
        last = [len(row) - 1 for row in rows]
        return logits_btv[range(ROWS), last][: len(sequences)]

    return next_logits


def greedy(config: TransformerConfig, eos_id: int = NEVER, *, steps: int = STEPS, **options):
    """Every row's tokens, with padding behind an end."""
    return [
        plain.filled_up(
            plain.greedy(recomputed(config, n, steps=steps, **options), steps=steps, eos_id=eos_id),
            steps,
            PAD,
        )
        for n in range(ROWS)
    ]


def early_token(rows: list[list[int]]) -> int:
    """A token to take for the end: some row has it before its last place, and some row has none."""
    for token in itertools.chain(*rows):
        holders = [row for row in rows if token in row]
        if len(holders) < len(rows) and any(row.index(token) < STEPS - 1 for row in holders):
            return token
    raise AssertionError("these parameters say the same in every row")


def assert_not_trivial(rows: list[list[int]]):
    assert len({tuple(row) for row in rows}) >= len(rows) - 1, "nearly all rows differ"
    assert np.mean([len(set(row)) for row in rows]) >= 2, "and so do tokens in them"
