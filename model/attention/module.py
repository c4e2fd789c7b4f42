"""The attention module: projects to heads, calls an attention kind, projects back."""

import dataclasses
import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.attention import KINDS, pattern_of
from model.attention.attention_weights import (
    CAPTURE,
    PERTURBATIONS,
    Attend,
    attend_with_weights,
    captures,
)
from model.attention.dot_attention import QKV, explicit_bias
from model.attention.interface import AttentionContext, AttentionInputs, KeyValues
from model.attention.relative_bias import RelativeBias
from model.config import TransformerConfig
from model.layers import Dense, Norm, apply_together
from model.masks import MaskSpec
from model.positions import (
    ScoreBias,
    rope,
    rope_attention_factor,
    rope_frequencies,
    sinusoidal,
)
from model.sharding import constrain


@flax.struct.dataclass
class LayerCache:
    """The cache of one block."""

    self_attention: object  # its type depends on the attention kind
    cross_attention: KeyValues | None = None  # of the source, if there is one


class Attention(nn.Module):
    """Self-attention, or cross-attention to a source."""

    config: TransformerConfig
    kind: str
    deterministic: bool
    cross: bool = False
    rope: bool = True  # whether model.position=rope applies

    def setup(self):
        config = self.config
        dense = functools.partial(Dense, config, matmul=config.matmul, bias=config.has_qkv_bias)
        query = ((config.heads, config.head_size), ("width", "heads", "head_size"))
        key = ((config.kv_heads, config.head_size), ("width", "kv_heads", "head_size"))
        # Without the division by sqrt(K), the queries' init is smaller by that factor (as in T5).
        self.query = dense(*query, init_scale=config.query_init_scale)
        if not config.share_qk:
            self.key = dense(*key)
        self.value = dense(*key)
        out_axes, out_bias = ("heads", "head_size", "width"), config.has_attention_out_bias
        self.out = dense((config.width,), out_axes, inputs=2, bias=out_bias)
        if config.qk_norm != "none":
            self.query_norm, self.key_norm = self._qk_norm("heads"), self._qk_norm("kv_heads")
        if not self.cross:
            for prefix in self._extra_prefixes():
                setattr(self, f"{prefix}_query", dense(*query))
                if not config.share_qk:
                    setattr(self, f"{prefix}_key", dense(*key))
                setattr(self, f"{prefix}_value", dense(*key))
        if self._has_own_bias:
            self.relative_bias = RelativeBias(config, bidirectional=True)
        self.sinks = None
        if config.attention_sinks and not self.cross:
            self.sinks = self.param(
                "sinks",
                nn.with_logical_partitioning(nn.initializers.zeros, ("heads",)),
                (config.heads,),
                jnp.dtype(config.param_dtype),
            )
        self.score_vector = None
        if config.has_score_vector:
            std = config.init_std or config.head_size**-0.5
            self.score_vector = self._vector_of_heads("score_vector", nn.initializers.normal(std))
        if config.position == "transformer_xl" and not self.cross:
            self.distance_key = dense(*query, bias=False)
            self.content_bias = self._vector_of_heads("content_bias")
            self.distance_bias = self._vector_of_heads("distance_bias")

    def __call__(
        self, x_btd: Array, context: AttentionContext, cache: LayerCache | None = None
    ) -> tuple[Array, LayerCache | None]:
        """Attends without a cache (training) or with one (decoding).

        Args:
          x_btd: hidden states, (B, T, D).
          context: what all layers share.
          cache: the cache of this layer, or None.

        Returns:
          The output, (B, T, D), and the cache with the new tokens.
        """
        if self.cross:
            return self._cross_attention(x_btd, context, cache)
        if self.is_initializing():
            self._declare_extra(x_btd.shape[-1:])
        kind = KINDS[self.kind]
        mask_spec = kind.mask_spec(self.config, context.mask_spec)
        project = functools.partial(self._project, x_btd, context)
        qkv = project()
        inputs = functools.partial(self._inputs, context, qkv, mask_spec, project=project)
        if cache is None:
            bias = self._bias(context, distances=self._distance_count(x_btd.shape[1]))
            y_bthk = self._attend(kind.attend, inputs(bias=bias, **self._dropout()))
            return self.out(y_bthk), None
        bias_bhts = context.bias_bhts
        if self._has_own_bias:
            spec = context.mask_spec
            positions = spec.queries.positions_bt, spec.keys.positions_bt
            bias_bhts = self._bias(context, distances=0)(None, *positions)
        if self.config.position == "transformer_xl":
            bias = self._bias(context, distances=context.mask_b1ts.shape[3])
            scale = self.config.score_scale
            bias_bhts = explicit_bias(bias, qkv.q_bthk, context.mask_spec, scale)
        y_bthk, new = kind.decode(inputs(bias_bhts=bias_bhts), cache.self_attention)
        return self.out(y_bthk), cache.replace(self_attention=new)

    def _cross_attention(
        self, x_btd: Array, context: AttentionContext, cache: LayerCache | None
    ) -> tuple[Array, LayerCache | None]:
        """Attends to the source of the context, or to the cached source if there is none."""
        kind = KINDS[self.kind]
        q_bthk = self._normed(self.query(x_btd), "query")
        q_bthk = constrain(q_bthk, "batch", "length", "heads", None)
        inputs = functools.partial(self._inputs, context, mask_spec=context.cross_mask_spec)
        if context.source_bsd is None:
            y_bthk = kind.cross_decode(inputs(QKV(q_bthk, None, None)), cache.cross_attention)
            return self.out(y_bthk), cache
        k_bsgk, v_bsgk = apply_together(context.source_bsd, *self._projections()[-2:])
        k_bsgk = self._normed(k_bsgk, "key")
        qkv = QKV(q_bthk, k_bsgk, v_bsgk)
        y_bthk = self._attend(kind.cross_attend, inputs(qkv, **self._dropout()))
        if cache is not None:
            cache = cache.replace(cross_attention=KeyValues.of(k_bsgk, v_bsgk))
        return self.out(y_bthk), cache

    def _attend(self, attend: Attend, inputs: AttentionInputs) -> Array:
        """Runs a kind's pass, and captures its weights if the caller asks for them."""
        if not captures(self):
            return attend(inputs)
        perturbation_bhts = self.get_variable(PERTURBATIONS, "weights")
        y_bthk, weights_bhts = attend_with_weights(attend, inputs, perturbation_bhts)
        visible_b1ts = jnp.broadcast_to(
            inputs.mask_spec.mask_b1ts(), (len(y_bthk), 1, *weights_bhts.shape[2:])
        )
        self.put_variable(CAPTURE, "weights", weights_bhts)
        self.put_variable(CAPTURE, "visible", visible_b1ts[:, 0])
        self.put_variable(CAPTURE, "output", y_bthk)
        return y_bthk

    def _inputs(
        self, context: AttentionContext, qkv: QKV, mask_spec: MaskSpec, **options
    ) -> AttentionInputs:
        shared = context.shared.get(self.kind)
        scale = self.config.score_scale
        return AttentionInputs(
            self.config,
            qkv,
            context,
            mask_spec,
            scale=scale,
            cap=self.config.score_cap,
            shared=shared,
            score_vector_hk=self.score_vector,
            sinks_h=self.sinks,
            **options,
        )

    def _project(
        self,
        x_btd: Array,
        context: AttentionContext,
        prefix: str = "",
        *,
        stop_gradient: bool = False,
    ) -> QKV:
        """Computes queries, keys and values of x, with rotary positions if configured."""
        if stop_gradient:
            x_btd = jax.lax.stop_gradient(x_btd)
        q_bthk, *k_bsgk, v_bsgk = apply_together(x_btd, *self._projections(prefix))
        k_bsgk = q_bthk if self.config.share_qk else k_bsgk[0]
        q_bthk, k_bsgk = self._normed(q_bthk, "query"), self._normed(k_bsgk, "key")
        if self.rope and context.rope_positions_bt is not None:
            local = KINDS[self.kind].locality(self.config) is not None
            frequencies = rope_frequencies(self.config, local=local)
            factor = rope_attention_factor(self.config, local=local)
            q_bthk = rope(q_bthk, context.rope_positions_bt, frequencies, factor)
            k_bsgk = rope(k_bsgk, context.rope_positions_bt, frequencies, factor)
        if self.config.position == "transformer_xl":
            q_bthk += self.content_bias.astype(q_bthk.dtype)
        return QKV(constrain(q_bthk, "batch", "length", "heads", None), k_bsgk, v_bsgk)

    def _qk_norm(self, heads: str) -> Norm:
        """Returns the norm of queries or keys; `heads` names their axis of heads."""
        match self.config.qk_norm:
            case "head":
                return Norm(self.config, ("head_size",), bias=False)
            case "heads":
                return Norm(self.config, (heads, "head_size"), bias=False)
        return Norm(self.config, (heads, "head_size"), over=2, bias=False)

    def _normed(self, x: Array, name: str) -> Array:
        """Returns queries or keys, normalised as model.qk_norm says."""
        return x if self.config.qk_norm == "none" else getattr(self, f"{name}_norm")(x)

    def _projections(self, prefix: str = "") -> tuple[Dense, ...]:
        """Returns the layers of queries, keys and values; with share_qk, the first is of both."""
        names = ("query", "value") if self.config.share_qk else ("query", "key", "value")
        return tuple(getattr(self, f"{prefix}_{name}" if prefix else name) for name in names)

    def _extra_prefixes(self) -> list[str]:
        """Prefixes of all kinds in the pattern: all layers have the same parameters."""
        kinds = dict.fromkeys(pattern_of(self.config.attention))
        return list(dict.fromkeys(prefix for kind in kinds for prefix in KINDS[kind].extra_qkv))

    def _declare_extra(self, in_shape: tuple[int, ...]) -> None:
        for prefix in self._extra_prefixes():
            for layer in self._projections(prefix):
                layer.weights(in_shape)

    def _bias(self, context: AttentionContext, distances: int) -> ScoreBias | None:
        """Returns the bias of the scores, for keys fewer than `distances` positions back."""
        if self._has_own_bias:
            return dataclasses.replace(
                self.relative_bias(), bidirectional=not context.mask_spec.causal
            )
        if self.config.position != "transformer_xl":
            return context.bias
        waves = sinusoidal(jnp.arange(distances)[None], self.config.width)
        return ScoreBias(
            "transformer_xl",
            self.distance_key(waves)[0],
            # Queries already contain content_bias; this replaces it by distance_bias.
            shift_hk=(self.distance_bias - self.content_bias) * self.config.score_scale,
        )

    @property
    def _has_own_bias(self) -> bool:
        """Whether this layer has a bias of relative positions that others do not share."""
        config = self.config
        return config.has_relative_bias and config.own_relative_bias and not self.cross

    def _distance_count(self, length: int) -> int:
        """Returns the number of distances from a query to its visible keys, including 0."""
        locality = KINDS[self.kind].locality(self.config)
        return length if locality is None else min(locality.reach[0] + 1, length)

    def _dropout(self) -> dict:
        if self.deterministic or not self.config.dropout_attention:
            return {}
        return dict(
            dropout_rate=self.config.dropout_attention, dropout_key=self.make_rng("dropout")
        )

    def _vector_of_heads(self, name: str, init=nn.initializers.zeros) -> Array:
        return self.param(
            name,
            nn.with_logical_partitioning(init, ("heads", "head_size")),
            (self.config.heads, self.config.head_size),
            jnp.dtype(self.config.param_dtype),
        )
