"""The Generator's other promises: random keys, streaming, compilation and memory."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiment.schema import ConfigError
from inference import generation
from inference.cpu_layout import Order
from inference.decoding import Ends, Sampling
from tests.inference import plain_decoding as plain
from tests.tiny import QUICKLY
from tests.training.recomputation import (
    COLUMNS,
    LENGTHS,
    NEVER,
    PAD,
    ROWS,
    STARTS,
    STEPS,
    assert_not_trivial,
    greedy,
    lively_params,
    make_generator,
    prompts,
    recomputed,
    small,
)

DECODER = small(family="decoder", position="rope", kv_heads=2)
ENCODER_DECODER = small(family="encoder_decoder", position="sinusoidal")


@pytest.fixture(autouse=True)
def _generators_compile_quickly(monkeypatch):
    monkeypatch.setattr(generation, "decoding_options", lambda rows: QUICKLY)


def generated(config, generator, given=None, *arguments, **options):
    params = generator.lay_out(lively_params(config))
    given = prompts(config) if given is None else given
    return generator.sequences(params, given, *arguments, **options).tolist()


def padded_with(token, given):
    inside_bt = jnp.arange(COLUMNS) < given.lengths_b[:, None]
    return dataclasses.replace(given, tokens_bt=jnp.where(inside_bt, given.tokens_bt, token))


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


# What the model is given.


def test_bidirectional_prompts():
    expected = greedy(DECODER, bidirectional_prompt=True)
    assert expected != greedy(DECODER)
    assert generated(DECODER, make_generator(DECODER, bidirectional_prompt=True)) == expected


def test_rows_continue_when_another_row_runs_out_of_positions():
    config = small(family="decoder", position="learned", max_length=COLUMNS + STEPS)
    fewer = dataclasses.replace(config, max_length=COLUMNS + STEPS - 2)
    params = jax.tree.map(jnp.asarray, lively_params(config))
    decoder = params["backbone"]["decoder"]
    table = {"embedding": decoder["position_embedding"]["embedding"][: fewer.max_length]}
    decoder = {**decoder, "position_embedding": table}
    params = {**params, "backbone": {**params["backbone"], "decoder": decoder}}
    generator = make_generator(fewer)
    tokens_bt = generator.sequences(generator.lay_out(params), prompts(fewer)).tolist()
    for row, (said, expected) in enumerate(zip(tokens_bt, greedy(config), strict=True)):
        # The last token that has a position of its own decides on the one behind it.
        certain = min(STEPS, fewer.max_length - LENGTHS[row] + 1)
        assert said[:certain] == expected[:certain]
        assert certain == STEPS or row == LENGTHS.index(COLUMNS)


def test_targets_that_begin_with_the_start_id_alone():
    given = prompts(ENCODER_DECODER, [[1]] * ROWS)
    expected = [plain.greedy(recomputed(ENCODER_DECODER, n, [1]), steps=STEPS) for n in range(ROWS)]
    assert_not_trivial(expected)
    assert generated(ENCODER_DECODER, make_generator(ENCODER_DECODER), given) == expected


def test_padding_content_does_not_change_the_output():
    config, given = ENCODER_DECODER, padded_with(7, prompts(ENCODER_DECODER))
    source_bs = jnp.where(given.source_segments_bs == 0, 7, given.source_bs)
    given = dataclasses.replace(given, source_bs=source_bs)
    assert generated(config, make_generator(config), given) == greedy(config)


# What it draws.


def test_tokens_depend_on_the_key_of_their_row_alone():
    generator = make_generator(DECODER, sampling=Sampling(temperature=0.5))
    first = generated(DECODER, generator, None, keys(ROWS))
    assert generated(DECODER, generator, None, keys(ROWS)) == first
    mixed = keys(ROWS).at[2].set(keys(ROWS, seed=1)[2])
    other = generated(DECODER, generator, None, mixed)
    assert [a == b for a, b in zip(first, other, strict=True)] == [True, True, False, True]
    # Another prompt beside it changes nothing either.
    starts = [STARTS[0], STARTS[0], STARTS[2], STARTS[3]]
    other = generated(DECODER, generator, prompts(DECODER, starts), keys(ROWS))
    assert [a == b for a, b in zip(first, other, strict=True)] == [True, False, True, True]


def test_outputs_of_a_prompt_are_adjacent():
    for config in (DECODER, ENCODER_DECODER):
        generator = make_generator(config, sampling=Sampling(temperature=0.5))
        together = generated(config, generator, None, keys(2 * ROWS), outputs=2)
        for number in range(2):
            alone = generated(config, generator, None, keys(2 * ROWS)[number::2])
            assert together[number::2] == alone
        assert together[0::2] != together[1::2]


def test_a_penalty_counts_the_tokens_of_the_prompt_and_not_its_padding():
    def penalised(row):
        def next_logits(sequences):
            logits_mv = recomputed(DECODER, row)(sequences).copy()
            for logits_v, tokens in zip(logits_mv, sequences, strict=True):
                for token in {*STARTS[row], *tokens}:
                    logits_v[token] *= 2 if logits_v[token] < 0 else 1 / 2
            return logits_mv

        return next_logits

    expected = [plain.greedy(penalised(row), steps=STEPS) for row in range(ROWS)]
    assert expected != greedy(DECODER)
    # The shortest prompt is padded with the very token that comes behind it.
    given = padded_with(expected[LENGTHS.index(1)][0], prompts(DECODER))
    generator = make_generator(DECODER, sampling=Sampling(repetition_penalty=2.0))
    assert generated(DECODER, generator, given) == expected


# How it goes about it.


def test_every_piece_of_a_stream_extends_the_last():
    generator = make_generator(DECODER, sampling=Sampling(temperature=0.5))
    params, given = generator.lay_out(lively_params(DECODER)), prompts(DECODER)
    complete = generator.sequences(params, given, keys(ROWS)).tolist()
    pieces = [p.tolist() for p in generator.stream(params, given, keys(ROWS), every=4)]
    assert pieces == [[[*row[:4], PAD, PAD] for row in complete], complete]


def test_a_stream_is_over_when_every_row_has_ended():
    rows = greedy(DECODER)
    generator = make_generator(DECODER, ends=Ends(NEVER, PAD, tuple({(row[1],) for row in rows})))
    params, given = generator.lay_out(lively_params(DECODER)), prompts(DECODER)
    *_, last = pieces = [p.tolist() for p in generator.stream(params, given, every=2)]
    assert len(pieces) == 1 and all(row[2:] == [PAD] * (STEPS - 2) for row in last)


def test_banned_tokens_are_never_generated():
    """The greedy choice is the likeliest of the other tokens; beam search finds none of them."""
    rows = greedy(DECODER)
    banned = tuple({row[0] for row in rows})
    generator = make_generator(DECODER, ends=Ends(NEVER, PAD, (), banned))
    params, given = generator.lay_out(lively_params(DECODER)), prompts(DECODER)
    tokens_bt = np.asarray(generator.sequences(params, given))
    assert not np.isin(tokens_bt, banned).any() and np.isin(rows, banned).any()
    logits_bv, _ = generator._prefill(params, given, STEPS + 9, keep_tokens=False)
    allowed_bv = np.delete(np.asarray(logits_bv), banned, axis=1)
    names = np.delete(np.arange(logits_bv.shape[1]), banned)
    assert tokens_bt[:, 0].tolist() == names[allowed_bv.argmax(axis=1)].tolist()
    beams = generator.search(params, given, beams=2, alpha=0.6)
    assert not np.isin(beams.tokens_bnt, banned).any()


def test_beam_search_refuses_ends_of_several_tokens():
    generator = make_generator(DECODER, ends=Ends(NEVER, PAD, ((3,), (4, 5))))
    params = generator.lay_out(lively_params(DECODER))
    with pytest.raises(ConfigError, match=r"ends at single tokens, not .* such as \(4, 5\)"):
        generator.search(params, prompts(DECODER), beams=2, alpha=0.6)


def test_nothing_compiles_again_for_other_prompts_of_the_same_padded_length(monkeypatch):
    monkeypatch.undo()  # compiled as in earnest
    compiled = []

    def listen(event, duration, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    generator = make_generator.__wrapped__(ENCODER_DECODER)  # one that has compiled nothing
    params = generator.lay_out(lively_params(ENCODER_DECODER))
    others = prompts(ENCODER_DECODER, STARTS[::-1])
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for given, alpha in ((prompts(ENCODER_DECODER), 0.6), (others, 1.0)):
            compiled.clear()
            generator.sequences(params, given)
            list(generator.stream(params, given, every=2))
            generator.search(params, given, beams=2, alpha=alpha)
            if given is not others:
                assert len(compiled) >= 3, "the first time, something must compile"
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("config", [DECODER, ENCODER_DECODER], ids=lambda config: config.family)
def test_the_order_of_matrices_changes_no_token(config, monkeypatch):
    for order in get_args(Order):
        monkeypatch.setattr(generation, "decoding_order", lambda rows, order=order: order)
        assert generated(config, make_generator.__wrapped__(config)) == greedy(config), order


@pytest.mark.parametrize("slots", [0, 9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_of_the_cache(slots, dtype):
    for config in (DECODER, ENCODER_DECODER):
        config = dataclasses.replace(config, dtype=dtype)
        generator = make_generator(config, slots=slots)
        params = generator.lay_out(lively_params(config))
        progress = generator._begin.eval_shape(params, prompts(config), outputs=3)
        itemsize = jnp.dtype(dtype).itemsize
        token = 2 * config.decoder_layers * config.kv_heads * config.head_size * itemsize
        source = COLUMNS if config.family == "encoder_decoder" else 0
        expected = 3 * ROWS * token * ((slots or COLUMNS + STEPS) + source)
        layers = jax.tree.leaves(progress.cache.layers)
        assert sum(leaf.size * leaf.dtype.itemsize for leaf in layers) == expected


def test_the_source_is_read_once():
    """Decode steps contain nothing of the encoder."""
    config = ENCODER_DECODER
    generator = make_generator(config)
    params, given = generator.lay_out(lively_params(config)), prompts(config)

    def destroyed(path, leaf):
        names = {getattr(entry, "key", None) for entry in path}
        reads_source = "cross_attention" in names and names & {"key", "value"}
        return leaf * jnp.nan if reads_source or "encoder" in names else leaf

    broken = jax.tree.map_with_path(destroyed, params)
    progress = generator._begin(params, given, outputs=1)
    rest = given.lengths_b, given.source_segments_bs, None
    assert generator._advance(broken, progress, *rest, until=STEPS).tokens_bt.tolist() == (
        greedy(config)
    )
    assert np.isnan(generator._begin(broken, given, outputs=1).logits_bv).all()
