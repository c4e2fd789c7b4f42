"""Models without one of their parts compute what NumPy computes from the formulas."""

import dataclasses
import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiment.schema import ConfigError
from model.attention import KINDS
from model.attention.attention_weights import CAPTURE
from model.heads import LanguageModel
from pretrained.architecture import Head, Specials
from pretrained.published import describe
from tests.model.examples import text_arguments, text_logits, text_params, unpadded
from tests.model.test_kv_cache import decode_in_chunks
from tests.tiny import quick_jit, tiny_config
from tests.training.examples import TASK
from visualization.captured_pass import lens_logits

ROWS, COLUMNS = 3, 12
TARGET, SOURCE = unpadded(ROWS, COLUMNS, seed=0), unpadded(ROWS, COLUMNS, seed=9)
ABLATIONS = {
    "residual": dict(residual=False),
    "residual, post-norm": dict(residual=False, norm_placement="post"),
    "norm": dict(norm="none"),
    "linear feed-forward": dict(feed_forward_kind="linear"),
    "linear feed-forward without its gate": dict(feed_forward_kind="linear", activation="swiglu"),
    "feed-forward": dict(feed_forward_kind="none"),
    "key projection": dict(share_qk=True),
    "score scale": dict(attention_scale=False, attention_scale_init=False),
}
EVERYTHING = dict(
    residual=False, norm="none", feed_forward_kind="none", share_qk=True, attention_scale=False
)
DECODERS = {"all": EVERYTHING, "no residual": dict(residual=False, share_qk=True)}


def dense(params, x, inputs=1):
    y = np.tensordot(x, params["kernel"], axes=inputs)
    return y + params["bias"] if "bias" in params else y


def norm(config, params, x):
    if config.norm == "none":
        assert params is None, "a model without norms has no parameters of norms"
        return x
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + config.norm_epsilon)
    return x * params["scale"] + params["bias"]


def attention(config, params, x_td, y_sd, causal):
    assert ("key" in params) != config.share_qk
    q_thk = dense(params["query"], x_td)
    k_shk = dense(params["query" if config.share_qk else "key"], y_sd)
    scores_hts = np.einsum("thk,shk->hts", q_thk, k_shk)
    if config.attention_scale:
        scores_hts /= np.sqrt(config.head_size)
    if causal:
        hidden = np.triu(np.ones(scores_hts.shape[1:], bool), 1)
        scores_hts = np.where(hidden, -np.inf, scores_hts)
    weights_hts = np.exp(scores_hts - scores_hts.max(axis=-1, keepdims=True))
    weights_hts /= weights_hts.sum(axis=-1, keepdims=True)
    y_thk = np.einsum("hts,shk->thk", weights_hts, dense(params["value"], y_sd))
    return dense(params["out"], y_thk, inputs=2)


def feed_forward(config, params, x):
    assert "gate" not in params
    hidden = dense(params["in"], x)
    if config.feed_forward_kind == "mlp":
        hidden = np.maximum(hidden, 0)
    return dense(params["out"], hidden)


def stack(config, params, x, layers, source=None, causal=False):
    """A stack of blocks on one row, (T, D)."""

    def sublayer(x, name, function):
        norm_params = block.get(f"{name}_norm")
        pre = config.norm_placement == "pre"
        y = function(block[name], norm(config, norm_params, x) if pre else x)
        x = x + y if config.residual else y
        return x if pre else norm(config, norm_params, x)

    for layer in range(layers):
        block = jax.tree.map(lambda leaf, n=layer: np.asarray(leaf[n], float), params["blocks"])
        x = sublayer(x, "self_attention", lambda p, y: attention(config, p, y, y, causal=causal))
        if source is not None:
            x = sublayer(
                x, "cross_attention", lambda p, y: attention(config, p, y, source, causal=False)
            )
        if config.feed_forward_kind == "none":
            assert not [name for name in block if name.startswith("feed_forward")]
        else:
            x = sublayer(x, "feed_forward", functools.partial(feed_forward, config))
    if config.norm_placement == "pre":
        final = params.get("final_norm")
        final = final and {name: np.asarray(leaf, float) for name, leaf in final.items()}
        x = norm(config, final, x)
    return x


def reference(config, params):
    """Logits (B, T, V) of an encoder-decoder, a decoder or a masked language model."""
    backbone = params["backbone"]
    table = np.asarray(backbone["token_embedding"]["embedding"], float)
    rows = []
    for target, source in zip(TARGET.inputs, SOURCE.inputs, strict=True):
        encoded = None
        if config.has_encoder:
            ids = source if config.has_decoder else target
            encoded = stack(config, backbone["encoder"], table[ids], config.encoder_layers)
        if config.has_decoder:
            hidden = stack(
                config, backbone["decoder"], table[target], config.decoder_layers, encoded,
                causal=True,
            )  # fmt: skip
        else:
            hidden = np.maximum(dense(params["transform"], encoded), 0)
            hidden = norm(config, params.get("transform_norm"), hidden)
        rows.append(hidden @ table.T)
    return np.stack(rows)


def batch_of(config):
    return (TARGET, SOURCE) if config.family == "encoder_decoder" else (TARGET,)


CASES = [("encoder_decoder", name) for name in ABLATIONS]
CASES += [("encoder", "everything"), ("decoder", "everything")]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_model_is_the_formula_without_the_part(family, name):
    ablation = ABLATIONS.get(name, EVERYTHING)
    config = tiny_config(family=family, position="none", **ablation)
    expected = reference(config, text_params(config))
    np.testing.assert_allclose(
        text_logits(config, *batch_of(config)), expected, rtol=1e-4, atol=1e-4 * abs(expected).max()
    )


@pytest.mark.parametrize("name", DECODERS)
def test_cached_decoding_equals_a_full_pass(name):
    config = tiny_config(family="encoder_decoder", position="rope", **DECODERS[name])
    cached = decode_in_chunks(config, TARGET, SOURCE)
    full = text_logits(config, TARGET, SOURCE)
    np.testing.assert_allclose(cached, full, rtol=0, atol=1e-5 * max(1, abs(full).max()))


@pytest.mark.parametrize(
    "position, kinds",
    [("rope", [kind for kind in KINDS if kind != "additive"]), ("sinusoidal", ["additive"])],
)
def test_every_attention_kind_shares_queries_and_keys(position, kinds):
    """As if the key projection were a copy of the query projection; also with a cache."""
    sizes = dict(
        family="decoder", position=position, attention=",".join(kinds), decoder_layers=len(kinds),
        attention_window=4, attention_chunk=4, attention_overlap=1, attention_memory=2,
    )  # fmt: skip
    config, usual = tiny_config(**sizes, share_qk=True), tiny_config(**sizes)
    params = text_params(config)
    blocks = params["backbone"]["decoder"]["blocks"]
    queries = {n: p for n, p in blocks["self_attention"].items() if n.endswith("query")}
    assert len(queries) == (2 if "longformer" in kinds else 1)  # longformer has another set
    keys = {name.replace("query", "key"): p for name, p in queries.items()}
    copied = {**blocks, "self_attention": blocks["self_attention"] | keys}
    decoder = {**params["backbone"]["decoder"], "blocks": copied}
    usual_params = {**params, "backbone": {**params["backbone"], "decoder": decoder}}
    assert jax.tree.structure(usual_params) == jax.tree.structure(dict(text_params(usual)))
    full = text_logits(config, TARGET)
    np.testing.assert_allclose(full, text_logits(usual, TARGET, params=usual_params), atol=1e-5)
    cached = decode_in_chunks(config, TARGET)
    np.testing.assert_allclose(cached, full, rtol=0, atol=1e-4)


def test_unrolling_and_remat_change_no_gradient():
    inputs, options = text_arguments(TARGET, SOURCE)
    same = dict(EVERYTHING, family="encoder_decoder", norm="layernorm")

    def gradients(config):
        def loss(params):
            logits = LanguageModel(config).apply({"params": params}, *inputs, **options)
            return jnp.square(logits).mean()

        return quick_jit(jax.grad(loss))(text_params(tiny_config(**same)))

    expected = gradients(tiny_config(**same))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, expected, gradients(tiny_config(**same, remat="full", unroll=2)))


def test_attention_weights_are_captured():
    config = tiny_config(family="decoder", position="none", **EVERYTHING)
    params = text_params(config)
    inputs, options = text_arguments(TARGET)
    logits, captured = LanguageModel(config).apply(
        {"params": params}, *inputs, **options, mutable=[CAPTURE]
    )
    blocks = captured[CAPTURE]["backbone"]["decoder"]["blocks"]
    weights_lbhts = np.asarray(blocks["self_attention"]["weights"])
    np.testing.assert_allclose(weights_lbhts.sum(axis=-1), 1, atol=1e-5)
    # Without norms, the last hidden state is what the logit lens gives to the output layer.
    run = SimpleNamespace(
        model_config=config,
        model=LanguageModel(config),
        experiment=SimpleNamespace(task=dataclasses.replace(TASK, objective="causal_lm")),
    )
    batch = dict(inputs=TARGET.inputs)
    found = lens_logits(run, params, batch, "decoder", blocks["hidden"][-1])
    np.testing.assert_allclose(found, logits, atol=1e-5)


def test_the_score_scale_moves_into_the_init_or_is_gone():
    """Without the scale, a score has K times the variance of a query times that of a key."""
    size = tiny_config().head_size
    for shared in (False, True):
        small = tiny_config(attention_scale=False, share_qk=shared).query_init_scale
        assert small ** (2 if shared else 1) == pytest.approx(1 / size)
        plain = dict(attention_scale=False, attention_scale_init=False, share_qk=shared)
        assert tiny_config(**plain).query_init_scale == tiny_config().query_init_scale == 1

    config = tiny_config(family="decoder", decoder_layers=1, attention_scale=False, share_qk=True)
    column = np.zeros((1, 1), np.int32)
    init = quick_jit(lambda key: nn.unbox(LanguageModel(config).init(key, column)))
    blocks = init(jax.random.key(0))["params"]["backbone"]["decoder"]["blocks"]
    variance = np.var(blocks["self_attention"]["query"]["kernel"])
    np.testing.assert_allclose(variance, size**-0.5 / config.width, rtol=0.2)


@pytest.mark.parametrize(
    ("ablation", "reason"),
    [
        (dict(residual=False), "model.residual=False (needs True)"),
        (dict(share_qk=True), "model.share_qk=True (needs False)"),
        (dict(feed_forward_kind="linear"), "model.feed_forward_kind=linear (needs mlp)"),
        (dict(norm="none"), "model.norm=none (needs layernorm or rmsnorm)"),
    ],
    ids=str,
)
def test_no_published_architecture_can_hold_an_ablation(ablation, reason):
    with pytest.raises(ConfigError, match="no published architecture can hold") as refusal:
        describe(tiny_config(family="decoder", **ablation), Head("causal_lm"), (), Specials())
    assert reason in str(refusal.value)
