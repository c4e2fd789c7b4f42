"""A new kind of attention is one file and one line in the table: nothing else names a kind.

The kind below sees the keys at even positions, and its query's own. With the table alone changed,
it passes config validation, trains, decodes from a cache, counts its FLOPs and passes its
row of the conformance matrix.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiment.schema import ConfigError
from model.attention import FEATURES, KINDS
from model.attention.dot_attention import dot_attention, explicit_bias
from model.attention.interface import AttentionKind
from model.heads import LanguageModel
from model.masks import Locality
from tests.model.attention import test_conformance as conformance
from tests.model.examples import left_padded, text_logits, text_params, tokens
from tests.model.test_kv_cache import COLUMNS, assert_same_at_real_tokens, decode_in_chunks
from tests.tiny import tiny_config
from training.flops import forward_flops


@dataclasses.dataclass(frozen=True)
class EvenPositions(Locality):
    stride: int = 2

    def __call__(self, query_positions, key_positions):
        return (key_positions % self.stride == 0) | (key_positions == query_positions)

    @property
    def reach(self):
        return 10**9, 10**9


class Even(AttentionKind):
    name = "even"
    description = "keys at even positions, and the query's own"
    refused = {"relative": "it is a toy"}  # noqa: RUF012
    options = {"stride": 2}  # noqa: RUF012

    def locality(self, config):
        return EvenPositions(stride=config.attention_option("stride"))

    def attend(self, inputs):
        bias_bhts = None
        if inputs.bias is not None:
            bias_bhts = explicit_bias(
                inputs.bias, inputs.qkv.q_bthk, inputs.mask_spec, inputs.scale
            )
        mask_b1ts = inputs.mask_spec.mask_b1ts()
        return dot_attention(
            *inputs.qkv, mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, **inputs.softmax_options
        )

    def pairs(self, config, length, *, causal):
        positions = np.arange(length)
        visible = self.locality(config)(positions[:, None], positions)
        return int((visible & (positions[:, None] >= positions if causal else True)).sum())


@pytest.fixture(autouse=True)
def even(monkeypatch):
    monkeypatch.setitem(KINDS, Even.name, Even())


def decoder(**changes):
    return tiny_config(**{"family": "decoder", "position": "rope", "attention": "even"} | changes)


def test_the_config_accepts_it_and_what_it_cannot_do_is_refused():
    assert decoder().attention == "even"
    with pytest.raises(
        ConfigError, match=r"model\.attention=even does not go with .*: it is a toy"
    ):
        decoder(position="transformer_xl")
    with pytest.raises(ConfigError, match="Did you mean 'even'"):
        decoder(attention="evn")


def test_options_of_a_new_kind_are_checked_by_name():
    assert decoder().attention_option("stride") == 2
    assert decoder(attention_options=(("stride", 3),)).attention_option("stride") == 3
    with pytest.raises(
        ConfigError, match=r"'strid' is not an option of even.*Did you mean 'stride'"
    ):
        decoder(attention_options=(("strid", 3),))
    with pytest.raises(ConfigError, match="'stride' is not an option of dot"):
        decoder(attention="dot", attention_options=(("stride", 3),))


def test_a_masked_key_gets_no_gradient_and_a_visible_one_does():
    length = 8
    config = decoder(decoder_layers=1, tie_output=False)
    params = text_params(config)
    table = params["backbone"]["token_embedding"]["embedding"]

    def last_logit(table):
        backbone = {**params["backbone"], "token_embedding": {"embedding": table}}
        tokens_bt = jnp.arange(length)[None]  # each another, so that a row is a position
        logits = LanguageModel(config).apply(
            {"params": {**params, "backbone": backbone}}, tokens_bt
        )
        return logits[0, -1, 9]

    slope = np.abs(jax.grad(last_logit)(table))[:length].max(axis=1)
    assert (slope > 0).tolist() == [True, False] * 3 + [True, True]


def test_cached_decoding_equals_the_training_pass():
    config = decoder(kv_heads=2, attention="even,dot")
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 1, 5))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


def test_flops_of_a_new_kind_follow_its_visible_pairs():
    everything, even = decoder(attention="dot"), decoder()
    length = 10
    pairs = sum(1 for t in range(length) for s in range(t + 1) if s % 2 == 0 or s == t)
    all_pairs = length * (length + 1) // 2
    less = forward_flops(everything, "causal_lm", length) - forward_flops(even, "causal_lm", length)
    per_pair = 2 * 2 * even.heads * even.head_size * even.decoder_layers
    assert less == (all_pairs - pairs) * per_pair


@pytest.mark.parametrize("feature", FEATURES)
def test_a_new_kind_passes_the_conformance_matrix(feature):
    conformance.test_cell("even", feature)


def test_a_new_kind_has_a_row_in_the_docs_table():
    assert "| `even` | yes" in conformance.table()
