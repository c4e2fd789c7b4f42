"""Attention against the softmax formula written out, with everything that can be combined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.dot_attention import dot_attention
from model.attention.interface import AttentionContext
from model.attention.module import Attention
from model.dropout import dropout
from model.masks import MaskSpec, SequenceInfo
from tests.tiny import tiny_config

B, T, S, H, G, K = 2, 5, 7, 4, 2, 8
SCALE, RATE = 0.3, 0.4
BLIND = (1, 2)  # a query that may look at nothing


def arrays(dtype):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    mask = rng.random((B, 1, T, S)) < 0.7
    mask[BLIND[0], 0, BLIND[1]] = False
    bias = jnp.asarray(rng.normal(size=(B, H, T, S)), jnp.float32)
    return (draw(B, T, H, K), draw(B, S, G, K), draw(B, S, G, K)), jnp.asarray(mask), bias


def formula(q, k, v, mask, bias, key):
    """softmax(q k' * scale + bias) v, one head after another, all in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    heads = []
    for head in range(H):
        group = head // (H // G)
        scores = q[:, :, head] @ jnp.swapaxes(k[:, :, group], 1, 2) * SCALE + bias[:, head]
        heads.append(jax.nn.softmax(jnp.where(mask[:, 0], scores, -1e9), axis=-1))
    weights = jnp.where(mask, jnp.stack(heads, axis=1), 0)
    if key is not None:
        weights = dropout(weights, RATE, key)
    values = jnp.repeat(v, H // G, axis=2)
    return jnp.stack([weights[:, h] @ values[:, :, h] for h in range(H)], axis=2)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 3e-2)])
def test_output_and_gradients_follow_the_formula(dtype, tolerance, drop):
    qkv, mask, bias = arrays(dtype)
    key = jax.random.key(3) if drop else None
    probe = np.random.default_rng(1).normal(size=(B, T, H, K)).astype(np.float32)

    def ours(q, k, v, bias):
        options = dict(dropout_rate=RATE, dropout_key=key) if drop else {}
        return dot_attention(q, k, v, mask_b1ts=mask, bias_bhts=bias, scale=SCALE, **options)

    def theirs(q, k, v, bias):
        return formula(q, k, v, mask, bias, key)

    found, expected = ours(*qkv, bias), theirs(*qkv, bias)
    assert found.dtype == dtype
    assert not found[BLIND].any()
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=tolerance)
    gradients = [
        jax.grad(lambda *x, f=f: (f(*x).astype(jnp.float32) * probe).sum(), argnums=(0, 1, 2, 3))(
            *qkv, bias
        )
        for f in (ours, theirs)
    ]
    for name, one, other in zip("qkvb", *gradients, strict=True):
        np.testing.assert_allclose(
            one.astype(jnp.float32), other.astype(jnp.float32), atol=2 * tolerance, err_msg=name
        )


@pytest.mark.parametrize(("scaled", "factor"), [(True, 6**-0.5), (False, 1.0)])
def test_scores_are_scaled_by_the_size_of_a_head(scaled, factor):
    """Not by width / heads, which is 4 here and not the 6 columns that a head has."""
    config = tiny_config(
        family="decoder", width=16, heads=4, head_size=6, bias=False, position="none",
        attention_scale=scaled,
    )  # fmt: skip
    length = 5
    rng = np.random.default_rng(0)
    params = {
        name: {"kernel": rng.normal(size=shape).astype(np.float32)}
        for name, shape in dict(
            query=(16, 4, 6), key=(16, 4, 6), value=(16, 4, 6), out=(4, 6, 16)
        ).items()
    }
    x_td = 0.2 * rng.normal(size=(length, 16)).astype(np.float32)
    info = SequenceInfo(jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))
    context = AttentionContext(MaskSpec(info, info, causal=False))
    found, _ = Attention(config, "dot", deterministic=True).apply(
        {"params": params}, jnp.asarray(x_td[None]), context
    )
    q, k, v = (
        np.einsum("td,dhk->htk", x_td, params[n]["kernel"]) for n in ("query", "key", "value")
    )
    scores = np.exp(np.einsum("htk,hsk->hts", q, k) * factor)
    weights = scores / scores.sum(axis=-1, keepdims=True)
    expected = np.einsum("hts,hsk,hkd->td", weights, v, params["out"]["kernel"])
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)
