"""One block done by hand: "Buy milk and" goes in, "eggs" comes out.

Two numbers a token, one causal head, three hidden units, LayerNorm after each residual. Every
step is computed by the modules themselves, with the weights of the example put into them.

The notes this example comes from print [0, 1] as the feed-forward's first row. By hand: the row
[-1, 1] times W1 is [-1, 1, 2], which ReLU turns into [0, 1, 2], and times W2 that is
1 * [0, 1] + 2 * [1, -1] = [2, -1]. The notes had lost the third hidden unit.
"""

import jax.numpy as jnp
import numpy as np

from model.attention.dot_attention import dot_attention
from model.attention.interface import AttentionContext
from model.attention.module import Attention
from model.heads import LanguageModel
from model.layers import FeedForward, Norm
from model.masks import MaskSpec, SequenceInfo
from model.stack import Block
from tests.tiny import tiny_config

CONFIG = tiny_config(
    family="decoder", position="none", norm_placement="post", activation="relu", tie_output=False,
    width=2, heads=1, decoder_layers=1, feed_forward=3, vocab_size=3, bias=False,
    norm_epsilon=1e-12,  # two entries normalise to -1 and 1, up to epsilon
)  # fmt: skip
BUY_MILK_AND = np.array([[0, 1, 2]], np.int32)
ANSWERS = ("eggs", "bread", "now")

X = jnp.array([[[0.1, 1.0], [1.1, 0.0], [0.5, 0.7]]])
W_V = jnp.diag(jnp.array([2.0, 1.0]))
W1 = jnp.array([[1.0, 0.0, -1.0], [0.0, 1.0, 1.0]])
W2 = jnp.array([[1.0, 0.5], [0.0, 1.0], [1.0, -1.0]])
W_OUT = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])

# Rounded from exact decimal arithmetic; the notes print a few of these one off in the last place.
ATTENTION = [[1, 0, 0], [0.3148, 0.6852, 0], [0.3495, 0.3034, 0.3471]]
CONTEXT = [[0.2, 1.0], [1.5704, 0.3148], [1.0845, 0.5925]]
Z = [[-1, 1], [1, -1], [1, -1]]
FEED_FORWARD = [[2, -1], [1, 0.5], [1, 0.5]]
HIDDEN = [[1, -1], [1, -1], [1, -1]]


def attention_params():
    identity = jnp.eye(2).reshape(2, 1, 2)
    return {
        "query": {"kernel": identity},
        "key": {"kernel": identity},
        "value": {"kernel": W_V.reshape(2, 1, 2)},
        "out": {"kernel": jnp.eye(2).reshape(1, 2, 2)},
    }


def block_params():
    return {
        "self_attention": attention_params(),
        "self_attention_norm": {"scale": jnp.ones(2)},
        "feed_forward": {"in": {"kernel": W1}, "out": {"kernel": W2}},
        "feed_forward_norm": {"scale": jnp.ones(2)},
    }


def language_model_params():
    return {
        "backbone": {
            "token_embedding": {"embedding": X[0]},
            "decoder": {"blocks": stacked(block_params())},
        },
        "vocabulary": {"output": {"kernel": W_OUT.T}},
    }


def stacked(tree):
    return {k: stacked(v) if isinstance(v, dict) else v[None] for k, v in tree.items()}


TOKENS = SequenceInfo(jnp.arange(3)[None], jnp.ones((1, 3), jnp.int32))
MASK_SPEC = MaskSpec(TOKENS, TOKENS, causal=True)
ATTENTION_CONTEXT = AttentionContext(MASK_SPEC, mask_b1ts=MASK_SPEC.mask_b1ts())


def assert_to_4_decimals(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.5001e-4)


def test_attention_weights():
    # With one-hot values, what comes out of the attention is the weights themselves.
    weights = dot_attention(
        X[:, :, None], X[:, :, None], jnp.eye(3)[None, :, None],
        mask_b1ts=MASK_SPEC.mask_b1ts(), scale=2**-0.5,
    )  # fmt: skip
    assert_to_4_decimals(weights[0, :, 0], ATTENTION)


def test_context():
    attention = Attention(CONFIG, "dot", deterministic=True)
    context, _ = attention.apply({"params": attention_params()}, X, ATTENTION_CONTEXT)
    assert_to_4_decimals(context[0], CONTEXT)


def test_residual_and_norm():
    z = Norm(CONFIG).apply({"params": {"scale": jnp.ones(2)}}, X[0] + jnp.array(CONTEXT))
    assert_to_4_decimals(z, Z)


def test_feed_forward():
    feed_forward = FeedForward(CONFIG, deterministic=True)
    params = block_params()["feed_forward"]
    assert_to_4_decimals(
        feed_forward.apply({"params": params}, jnp.array([Z], jnp.float32))[0], FEED_FORWARD
    )


def test_block():
    block = Block(CONFIG, "dot", cross=False, deterministic=True)
    hidden, _ = block.apply({"params": block_params()}, X, None, ATTENTION_CONTEXT)
    assert_to_4_decimals(hidden[0], HIDDEN)


def test_language_model_says_eggs():
    logits = LanguageModel(CONFIG).apply({"params": language_model_params()}, BUY_MILK_AND)
    assert_to_4_decimals(logits[0, -1], [1, -1, -2])
    assert ANSWERS[int(logits[0, -1].argmax())] == "eggs"
