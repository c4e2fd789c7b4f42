"""Kinds of attention in a whole model: patterns of kinds, memory, and global tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.interface import AttentionContext
from model.attention.module import Attention
from model.heads import LanguageModel
from model.masks import MaskSpec, SequenceInfo, up_to_first
from model.stack import Stack
from tests.model.examples import pack, text_arguments, text_logits, text_params, tokens, unpadded
from tests.tiny import quick_jit, tiny_config

COLUMNS = 20
PACKED = pack([tokens(6, 1), tokens(11, 2)], [tokens(17, 3)], columns=COLUMNS)
THREE_LAYERS = dict(encoder_layers=3, decoder_layers=3, position="rope")


@functools.cache
def value_and_gradients(config):
    inputs, options = text_arguments(PACKED)

    def loss(params):
        logits = LanguageModel(config).apply({"params": params}, *inputs, **options)
        return jnp.square(jnp.where((PACKED.segments > 0)[..., None], logits, 0)).mean()

    return quick_jit(jax.value_and_grad(loss))(text_params(config))


def assert_same(config, other):
    for one, two in zip(
        jax.tree.leaves(value_and_gradients(config)),
        jax.tree.leaves(value_and_gradients(other)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(unroll=3), dict(remat="full")], ids=str)
def test_a_pattern_of_exact_kinds_is_exact(options):
    plain = tiny_config(family="decoder", **THREE_LAYERS)
    mixed = tiny_config(family="decoder", attention="dot,flash", **THREE_LAYERS, **options)
    assert_same(mixed, plain)


def test_a_pattern_begins_anew():
    """With one layer alone of another kind, it matters which one; three make a whole period."""
    logits = {}
    for pattern in ("local,dot,dot", "dot,local,dot", "dot,dot,local", "local,dot,dot,chunked"):
        config = tiny_config(
            family="decoder", attention=pattern, attention_window=2, **THREE_LAYERS
        )
        assert [config.attention_kind(n) for n in (0, 1, 2)] == pattern.split(",")[:3]
        logits[pattern] = text_logits(config, PACKED)
    assert config.attention_kind(4) == "local"
    first, second, third, longer = logits.values()
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(second - third).max() > 1e-3
    np.testing.assert_allclose(longer, first, rtol=0, atol=1e-5)  # the fourth kind has no layer


@pytest.mark.parametrize("layers", [2, 3])  # a whole period, and one with a rest
def test_layers_of_a_pattern_drop_different_entries(layers):
    """Layer n adds 2^n to every entry, or nothing; if two dropped alike, fewer sums would occur."""
    config = tiny_config(
        family="decoder", attention="dot,flash", position="none",
        decoder_layers=layers, dropout_residual=0.5,
    )  # fmt: skip
    params = jax.tree.map(jnp.zeros_like, text_params(config)["backbone"]["decoder"])
    out = params["blocks"]["feed_forward"]["out"]
    out["bias"] += 2.0 ** jnp.arange(layers, dtype=jnp.float32)[:, None]
    params["final_norm"]["scale"] += 1
    x_btd = jnp.zeros((1, 40, config.width))
    y_btd, _ = Stack(config, layers, causal=True).apply(
        {"params": params}, x_btd, deterministic=False, rngs={"dropout": jax.random.key(0)}
    )
    # The final norm moves and stretches a token's entries, but equal ones stay equal.
    distinct_counts = [len(set(np.round(token, 3).tolist())) for token in np.asarray(y_btd[0])]
    assert max(distinct_counts) == 2**layers


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)], ids=str)
def test_transformer_xl_is_the_papers_formula(dtype, tolerance):
    """A score is (q + u) k + (q + v) W r, with r the waves of the distance, one after another."""
    config = tiny_config(family="decoder", position="transformer_xl", dtype=dtype)
    width, length = config.width, 7
    params = jax.tree.map(
        lambda leaf: leaf[0], text_params(config)["backbone"]["decoder"]["blocks"]["self_attention"]
    )
    x_btd = jnp.asarray(np.random.default_rng(0).normal(size=(1, length, width)), dtype)
    sequence_info = SequenceInfo(jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))
    module = Attention(config, "dot", deterministic=True)
    context = AttentionContext(mask_spec=MaskSpec(sequence_info, sequence_info, causal=True))
    found = module.apply({"params": params}, x_btd, context)[0][0]

    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x_td = np.asarray(x_btd[0], np.float64)
    q, k, v = (
        np.einsum("td,dhk->htk", x_td, exact[name]["kernel"]) + exact[name]["bias"][:, None]
        for name in ("query", "key", "value")
    )
    frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
    y_htk = np.zeros_like(v)
    for h in range(config.heads):
        for t in range(length):
            scores = []
            for s in range(t + 1):
                angles = (t - s) * frequencies
                wave = np.concatenate([np.sin(angles), np.cos(angles)])
                distance_key = wave @ exact["distance_key"]["kernel"][:, h]
                content = (q[h, t] + exact["content_bias"][h]) @ k[h, s]
                scores.append(content + (q[h, t] + exact["distance_bias"][h]) @ distance_key)
            weights = np.exp(np.array(scores) * config.head_size**-0.5)
            y_htk[h, t] = weights / weights.sum() @ v[h, : t + 1]
    expected = np.einsum("htk,hkd->td", y_htk, exact["out"]["kernel"]) + exact["out"]["bias"]
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "wide",
    [
        dict(attention="local", attention_window=COLUMNS),
        dict(attention="local", attention_window=10**9),  # farther than any memory
        dict(attention="chunked", attention_chunk=COLUMNS),
        dict(attention="chunked", attention_chunk=5, attention_overlap=COLUMNS),
        dict(attention="hierarchical", attention_chunk=COLUMNS),
        dict(attention="hierarchical", attention_chunk=10**9),
        dict(attention="recurrent", attention_chunk=4, attention_memory=COLUMNS),
    ],
    ids=str,
)
def test_sparse_kinds_with_a_wide_enough_window_are_exact(family, wide):
    if family == "encoder" and wide["attention"] == "recurrent":
        pytest.skip("recurrent is for decoders")
    exact = tiny_config(family=family, position="rope")
    sparse = tiny_config(family=family, position="rope", **wide)
    params = text_params(exact)
    for piece, other in zip(
        PACKED.pick(text_logits(sparse, PACKED, params=params)),
        PACKED.pick(text_logits(exact, PACKED, params=params)),
        strict=True,
    ):
        np.testing.assert_allclose(piece, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["recurrent", "chunked"])
def test_memory_is_visible_but_passes_no_gradient(kind):
    """The first chunk's embeddings get no gradient from the second chunk's outputs."""
    chunk = 5
    config = tiny_config(
        family="decoder", position="transformer_xl", attention=kind,
        attention_chunk=chunk, attention_memory=chunk, attention_overlap=chunk,
    )  # fmt: skip
    stack = Stack(config, layers=2, causal=True)
    rng = np.random.default_rng(0)
    x_btd, weights_btd, change_d = (
        jnp.asarray(rng.normal(size=(*rows, config.width)), jnp.float32)
        for rows in ((1, 2 * chunk), (1, chunk), ())
    )
    params = text_params(config)["backbone"]["decoder"]

    def second_chunk(x_btd):
        return (stack.apply({"params": params}, x_btd)[0][:, chunk:] * weights_btd).sum()

    gradient_btd = quick_jit(jax.grad(second_chunk))(x_btd)
    is_learned_through = bool(jnp.abs(gradient_btd[:, :chunk]).max() > 1e-6)
    assert is_learned_through == (kind == "chunked")
    assert jnp.abs(gradient_btd[:, chunk:]).max() > 1e-3
    changed = second_chunk(x_btd.at[:, 0].add(change_d)) - second_chunk(x_btd)
    assert jnp.abs(changed) > 1e-4  # it is seen all the same


def test_more_global_tokens_than_the_limit_change_nothing():
    few, many = (
        tiny_config(
            family="encoder", position="rope", attention="longformer", attention_window=2,
            global_tokens="separators", separator_id=3, global_limit=limit,
        )
        for limit in (2, 64)
    )  # fmt: skip
    params = text_params(many)
    inputs = np.where(np.arange(COLUMNS) % 4 == 1, 3, PACKED.inputs)  # five of them in a row
    rows = PACKED.__class__(inputs, PACKED.positions, PACKED.segments, PACKED.places)
    found = text_logits(few, rows, params=params)
    np.testing.assert_allclose(found, text_logits(many, rows, params=params), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "position", "reaches"),
    [("first", 0, True), ("first", 4, False), ("separators", 4, True), ("separators", 0, False)],
)
def test_global_tokens_reach_everywhere(rule, position, reaches):
    """One layer, a window of 1: only a global token can carry a change to the last one."""
    config = tiny_config(
        family="encoder", encoder_layers=1, attention="longformer", attention_window=1,
        global_tokens=rule, separator_id=16,
    )  # fmt: skip
    inputs = np.arange(12, dtype=np.int32)[None] % 16
    inputs[0, 4] = 16
    rows = pack([inputs[0]], columns=12)
    changed = rows.with_other((np.arange(12) == position)[None])
    difference = text_logits(config, rows)[0, 11] - text_logits(config, changed)[0, 11]
    assert (np.abs(difference).max() > 1e-4) == reaches


def test_the_question_ends_with_the_first_separator_of_its_segment():
    marked = jnp.array([[0, 0, 1, 0, 1, 0, 1, 0, 1, 0]], bool)
    positions = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0]])
    expected = [1, 1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert up_to_first(marked, positions)[0].astype(int).tolist() == expected


@pytest.mark.parametrize("kind", ["hierarchical", "recurrent"])
def test_kinds_without_prefix_support_refuse_a_prefix(kind):
    config = tiny_config(family="decoder", attention=kind)
    rows = unpadded(1, COLUMNS, seed=0)
    with pytest.raises(ValueError, match=f"model.attention={kind} does not go with"):
        text_logits(config, rows, prefix=np.ones((1, COLUMNS), np.int32))
