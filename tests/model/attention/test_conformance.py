"""Every kind of attention x every feature: the result is right, or the config is refused.

`python -m tests.model.attention.test_conformance` writes the table of docs/attention.md, in which
each of these tests is a cell.
"""

import dataclasses
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from experiment import sections
from experiment.schema import ConfigError
from model.attention import FEATURES, KINDS, additive, banded
from model.attention.dot_attention import QKV
from model.attention.interface import AttentionContext, AttentionInputs
from model.attention.performer import fixed_directions
from model.config import TransformerConfig
from model.masks import MaskSpec, SequenceInfo
from model.positions import ScoreBias, alibi_slopes
from tests.model.attention.oracle import Rows, explicit, masked_average
from tests.model.examples import left_padded, text_logits, tokens
from tests.model.feature_table import DOCS, markdown_table, with_table
from tests.model.test_kv_cache import COLUMNS, assert_same_at_real_tokens, decode_in_chunks
from tests.tiny import quick_jit, tiny_config

B, T, H, G, K = 2, 26, 4, 2, 8
SCALE, RATE, CAP = K**-0.5, 0.3, 1.5
SETTINGS = dict(
    attention_window=5, attention_dilation=2, attention_chunk=6, attention_overlap=2,
    attention_memory=8, attention_features=12, global_limit=4, head_size=K,
)  # fmt: skip
EXACT = dict(rtol=0, atol=1e-5)
BFLOAT16 = dict(rtol=0.05, atol=0.06)  # 8 bits of mantissa, in inputs, weights and outputs

cells = [
    pytest.param(kind, feature, id=f"{kind}-{feature}") for kind in KINDS for feature in FEATURES
]


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Small blocks, so that even short rows have several: kinds go wrong at block borders."""
    monkeypatch.setattr(banded, "SMALLEST_BLOCK", 3)
    monkeypatch.setattr(additive, "LARGEST", 5 * B * T * H * K)  # five queries


@dataclasses.dataclass(frozen=True)
class Case:
    """One cell of the table: the input arrays and the mask."""

    kind: str
    config: TransformerConfig
    rows: Rows
    causal: bool
    arrays: dict[str, jnp.ndarray]  # what has a gradient, by name
    bias: str = ""
    dropout: bool = False
    cap: float = 0.0

    @property
    def mask_spec(self) -> MaskSpec:
        # Some are global whatever the kind, as in a pattern: it is a longformer's business alone.
        sequence_info = SequenceInfo(
            jnp.asarray(self.rows.positions),
            jnp.asarray(self.rows.segments),
            global_bt=jnp.asarray(self.rows.is_global),
        )
        if self.rows.prefix.any():
            sequence_info = dataclasses.replace(
                sequence_info, prefix_bt=jnp.asarray(self.rows.prefix)
            )
        return MaskSpec(sequence_info, sequence_info, self.causal)

    def score_bias(self, arrays: dict) -> ScoreBias | None:
        match self.bias:
            case "t5_bias":
                return ScoreBias(
                    "t5_bias", arrays["bias"], bidirectional=not self.causal, max_distance=12
                )
            case "alibi":
                return ScoreBias("alibi", jnp.asarray(alibi_slopes(H)))
            case "transformer_xl":
                return ScoreBias("transformer_xl", arrays["bias"], shift_hk=arrays["shift"])

    def heads(self, arrays: dict, prefix: str = "") -> QKV | None:
        names = [prefix + name for name in "qkv"]
        return QKV(*(arrays[name] for name in names)) if names[0] in arrays else None

    def ours(self, arrays: dict):
        kind = KINDS[self.kind]
        mask_spec = kind.mask_spec(self.config, self.mask_spec)

        def project(prefix: str = "old", *, stop_gradient: bool = False) -> QKV:
            assert stop_gradient == (prefix == "old")
            return self.heads(arrays, f"{prefix}_")

        inputs = AttentionInputs(
            self.config, self.heads(arrays), AttentionContext(self.mask_spec), mask_spec,
            scale=SCALE, cap=self.cap, bias=self.score_bias(arrays), project=project,
            shared=kind.shared(self.config, lambda: None),
            dropout_rate=RATE if self.dropout else 0.0, dropout_key=jax.random.key(5),
            score_vector_hk=arrays.get("vector"), sinks_h=arrays.get("sinks"),
        )  # fmt: skip
        return kind.attend(inputs)

    def theirs(self, arrays: dict, keep_bhts=1.0):
        bias_bhts, bias = 0.0, self.score_bias(arrays)
        if bias is not None:
            positions_bt = jnp.asarray(self.rows.positions)
            bias_bhts = bias(arrays["q"].astype(jnp.float32) * SCALE, positions_bt, positions_bt)
        return explicit(
            self.kind, self.config, self.heads(arrays), self.rows,
            causal=self.causal, scale=SCALE, bias_bhts=bias_bhts, keep_bhts=keep_bhts, cap=self.cap,
            global_qkv=self.heads(arrays, "global_"), memory_qkv=self.heads(arrays, "old_"),
            feature_map=formula_of_features(self.kind, self.config), vector_hk=arrays.get("vector"),
            sinks_h=arrays.get("sinks"),
        )  # fmt: skip


def formula_of_features(kind: str, config: TransformerConfig):
    """The feature map of a linear kind, by its formula; None for the others."""
    match kind:
        case "linear":
            return lambda x: jnp.where(x > 0, x + 1, jnp.exp(x))
        case "performer":
            directions_mk = fixed_directions(config.attention_features, K)
            return lambda x: jnp.exp(
                SCALE**0.5 * x @ directions_mk.T - SCALE * (x**2).sum(-1, keepdims=True) / 2
            )
    return None


def rows_for(feature: str, seed: int) -> Rows:
    """One long text a row; with padding at both ends; or several texts."""
    positions, segments = np.zeros((2, B, T), np.int32)
    lengths = {"segments": [[9, 1, 14], [3, 19]], "padding": [[21], [T]]}
    first = 2 if feature == "padding" else 0
    for r, examples in enumerate(lengths.get(feature, [[T], [T]])):
        column = first if r == 0 else 0
        for segment, length in enumerate(examples, start=1):
            positions[r, column : column + length] = np.arange(length)
            segments[r, column : column + length] = segment
            column += length
    rng = np.random.default_rng(seed)
    is_global = (positions == 0) | ((positions > 2) & (rng.random((B, T)) < 0.05))
    # The second half of the texts cannot be a prefix, else there would be no causality left.
    prefix = (positions < np.array([[7], [11]])) & (feature == "prefix")
    return Rows(positions, segments, prefix & (segments > 0), is_global & (segments > 0))


def case(kind: str, feature: str, bias: str = "") -> Case:
    seed = zlib.crc32(f"{kind} {feature}".encode())
    rng = np.random.default_rng(seed)
    dtype = jnp.bfloat16 if feature == "bfloat16" else jnp.float32
    groups = G if feature == "grouped" else H
    size = T if feature == "dropout" else K  # so that values can be one-hot
    two_sided = feature == "two_sided"
    if feature not in ("causal", "prefix", "relative", "cached"):
        two_sided |= seed % 2 == 0 and "two_sided" not in KINDS[kind].refused

    def draw(*shape, dtype=dtype):
        return jnp.asarray(rng.normal(size=shape), dtype)

    arrays = {}
    prefixes = [f"{prefix}_" for prefix in KINDS[kind].extra_qkv]
    for prefix in ("", *prefixes, *(["old_"] if KINDS[kind].uses_memory else [])):
        shapes = dict(q=(B, T, H, size), k=(B, T, groups, size), v=(B, T, groups, size))
        arrays |= {prefix + name: draw(*shape) for name, shape in shapes.items()}
    if KINDS[kind].score_vector:
        arrays["vector"] = draw(H, size)
    if feature == "sinks":
        arrays["sinks"] = draw(H)
    if bias == "t5_bias":
        arrays["bias"] = draw(8, H)
    if bias == "transformer_xl":
        arrays |= dict(bias=draw(T, H, K), shift=draw(H, K))
    return Case(
        kind, tiny_config(family="decoder", attention=kind, **SETTINGS), rows_for(feature, seed),
        causal=not two_sided, arrays=arrays, bias=bias, dropout=feature == "dropout",
        cap=CAP if feature == "cap" else 0.0,
    )  # fmt: skip


def output_and_gradients(function, arrays: dict, rows: Rows, seed: int = 0):
    """The output and gradients of real tokens, with random weights."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(B, T, H, 1)) * (rows.segments > 0)[:, :, None, None]

    def total(arrays):
        y = function(arrays).astype(jnp.float32)
        return (y * weights).sum(), y

    (_, y), gradients = quick_jit(jax.value_and_grad(total, has_aux=True))(arrays)
    return {"output": y, **{f"gradient of {name}": slope for name, slope in gradients.items()}}


def assert_right(case: Case, tolerance: dict, keep_bhts=1.0) -> None:
    found = output_and_gradients(case.ours, case.arrays, case.rows)
    exact = {name: x.astype(jnp.float32) for name, x in case.arrays.items()}
    expected = output_and_gradients(lambda arrays: case.theirs(arrays, keep_bhts), exact, case.rows)
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(
            found[name].astype(jnp.float32), array, **tolerance, err_msg=f"{case.kind}: {name}"
        )
        if name not in ("gradient of old_q",):
            assert np.abs(array).max() > 1e-3, f"{name} is nothing, so nothing was compared"


def refused_config(kind: str, feature: str) -> None:
    """Builds the cell's config through the usual validation."""
    reason = re.escape(f"model.attention={kind} does not go with {FEATURES[feature]}")
    changes = {
        "two_sided": [dict(family="encoder"), dict(family="encoder_decoder")],
        "cross": [dict(family="encoder_decoder")],
        "dropout": [dict(family="decoder", dropout_attention=0.1)],
        "bias": [dict(family="decoder", position=position) for position in ("alibi", "t5_bias")],
        "relative": [dict(family="decoder", position="transformer_xl")],
        "cap": [dict(family="decoder", position="rope", score_cap=30.0)],
        "sinks": [dict(family="decoder", position="rope", attention_sinks=True)],
    }
    if feature == "prefix":
        config = default.get_config()
        config.model.update(dict(family="decoder", position="rope", attention=kind))
        config.task.objective = "prefix_lm"
        with pytest.raises(ConfigError, match=reason):
            sections.from_mapping(config.to_dict())
        changes["prefix"] = []
    for changed in changes[feature]:
        with pytest.raises(ConfigError, match=reason):
            tiny_config(attention=kind, **changed)


def check_cross(kind: str) -> None:
    """Two packed examples a row, with other lengths in the source; one has no source."""
    rng = np.random.default_rng(0)
    source = 31
    target_segments, source_segments = np.zeros((B, T), np.int32), np.zeros((B, source), np.int32)
    target_segments[:, :9], target_segments[:, 9:20], target_segments[1, 20:] = 1, 2, 3
    source_segments[:, :17], source_segments[0, 17:25] = 1, 2
    source_segments[1, 17:] = 3
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    arrays = dict(q=draw(B, T, H, K), k=draw(B, source, G, K), v=draw(B, source, G, K))
    if KINDS[kind].score_vector:
        arrays["vector"] = draw(H, K)
    sides = [
        SequenceInfo(jnp.arange(x.shape[1])[None], jnp.asarray(x))
        for x in (target_segments, source_segments)
    ]
    config = tiny_config(family="encoder_decoder", attention=kind, **SETTINGS)
    mask = target_segments[:, None, :, None] == source_segments[:, None, None]
    mask = mask & (source_segments != 0)[:, None, None]
    features = formula_of_features(kind, config)

    def ours(arrays):
        mask_spec = MaskSpec(*sides, causal=False)
        inputs = AttentionInputs(
            config, QKV(*(arrays[name] for name in "qkv")), AttentionContext(mask_spec), mask_spec,
            scale=SCALE, shared=KINDS[kind].shared(config, lambda: None),
            score_vector_hk=arrays.get("vector"),
        )  # fmt: skip
        return KINDS[kind].cross_attend(inputs)

    def theirs(arrays):
        qkv = QKV(*(arrays[name] for name in "qkv"))
        return masked_average(qkv, mask, SCALE, features, arrays.get("vector"))

    rows = dataclasses.replace(rows_for("", 0), segments=target_segments)
    found, expected = (output_and_gradients(f, arrays, rows) for f in (ours, theirs))
    assert not np.asarray(expected["output"])[1, 9:20].any()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, **EXACT, err_msg=name)


def check_cached(kind: str, **more) -> None:
    """Prompts of mixed lengths, padded on the left, then pieces of all sizes.

    The second layer has global tokens, which are none to the first.
    """
    small = dict(attention_window=3, attention_dilation=2, attention_chunk=4, attention_overlap=1,
                 attention_memory=3, global_limit=2)  # fmt: skip
    options = dict(
        family="decoder", position="alibi" if KINDS[kind].score_vector else "rope", kv_heads=2,
        attention=f"{kind},longformer", score_cap=0.0 if "cap" in KINDS[kind].refused else CAP,
        qk_norm="head", **small,
    )  # fmt: skip
    config = tiny_config(**options | more)
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 1, 5))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


def check_dropout(kind: str) -> None:
    """With one-hot values the output is the weights, which shows what was dropped."""
    dropped = case(kind, "dropout")
    one_hot = jnp.broadcast_to(jnp.eye(T)[None, :, None], (B, T, H, T))
    shown = {n: one_hot if n.endswith("v") else x for n, x in dropped.arrays.items()}
    with_all = dataclasses.replace(dropped, dropout=False).ours(shown)
    is_kept = np.moveaxis(np.asarray(dropped.ours(shown) / jnp.maximum(with_all, 1e-30)), 1, 2)
    there = np.moveaxis(np.asarray(with_all) > 1e-6, 1, 2)
    factors = is_kept[there]
    factor = 1 / (1 - RATE)
    is_zero, is_scaled = np.isclose(factors, 0, atol=1e-3), np.isclose(factors, factor, rtol=1e-2)
    assert is_zero.sum() + is_scaled.sum() == factors.size
    share = is_scaled.mean()
    draws = factors.size if kind != "hierarchical" else factors.size / SETTINGS["attention_chunk"]
    assert abs(share - (1 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / draws)
    keep_bhts = np.where(there & (is_kept > 0.5), factor, 0.0).astype(np.float32)
    assert_right(dropped, dict(rtol=0, atol=2e-4), keep_bhts)


@pytest.mark.parametrize(("kind", "feature"), cells)
def test_cell(kind, feature):
    if feature in KINDS[kind].refused:
        return refused_config(kind, feature)
    match feature:
        case "cross":
            check_cross(kind)
        case "cached":
            check_cached(kind)
        case "dropout":
            check_dropout(kind)
        case "bias":
            assert_right(case(kind, feature, "t5_bias"), EXACT)
            assert_right(case(kind, feature, "alibi"), EXACT)
        case "cap":  # with a bias too where there can be one: it is added to the capped scores
            bias = "" if "bias" in KINDS[kind].refused else "t5_bias"
            assert_right(case(kind, feature, bias), EXACT)
        case "sinks":  # longformer has none
            assert_right(case(kind, feature), EXACT)
            check_cached(kind, attention=kind, attention_sinks=True)
        case "relative":
            assert_right(case(kind, feature, "transformer_xl"), dict(rtol=0, atol=3e-5))
        case _:
            assert_right(case(kind, feature), BFLOAT16 if feature == "bfloat16" else EXACT)


DOCUMENT = DOCS / "attention.md"


def table() -> str:
    return markdown_table(FEATURES, {name: kind.refused for name, kind in KINDS.items()})


def test_the_document_has_this_table():
    text = DOCUMENT.read_text()
    assert text == with_table(text, table()), "run python -m tests.model.attention.test_conformance"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), table()))
