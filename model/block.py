"""One layer of a stack: self-attention or a token mixer, cross-attention, feed-forward."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from model.attention.attention_weights import CAPTURE, captures
from model.attention.interface import AttentionContext
from model.attention.module import Attention, LayerCache
from model.config import TransformerConfig
from model.experts import ExpertFeedForward
from model.layers import Dropout, FeedForward, LayerScale, Norm
from model.mixers import ATTENTION
from model.mixers.token_mixer import TokenMixer
from model.sharding import gather_residual, split_residual

Sublayer = Callable[[Array], tuple[Array, LayerCache | None]]


class Block(nn.Module):
    """Self-attention or a token mixer, cross-attention if there is a source, and feed-forward."""

    config: TransformerConfig
    kind: str  # of attention
    cross: bool
    deterministic: bool
    variant: int = 0  # of the token mixer
    rope: bool = True  # whether model.position=rope applies
    norm: bool = True  # whether the input of what mixes tokens is normalised

    @nn.compact
    def __call__(
        self, x_btd: Array, cache: LayerCache | None, context: AttentionContext
    ) -> tuple[Array, LayerCache | None]:
        config, is_decoding = self.config, cache is not None
        attention = functools.partial(
            Attention, config, self.kind, self.deterministic, rope=self.rope
        )

        def self_attention(y_btd):
            return attention(name="self_attention")(y_btd, context, cache)

        def token_mixer(y_btd):
            mixer = TokenMixer(config, self.variant, name="mixer")
            y_btd, new = mixer(y_btd, context, cache and cache.self_attention)
            return y_btd, cache and cache.replace(self_attention=new)

        def cross_attention(y_btd):
            return attention(cross=True, name="cross_attention")(y_btd, context, cache)

        def feed_forward(y_btd):
            if config.experts:
                layer = ExpertFeedForward(config, self.deterministic, name="feed_forward")
                segments_bt = context.mask_spec.queries.segments_bt
                return layer(y_btd, segments_bt, decoding=is_decoding), None
            return FeedForward(config, self.deterministic, name="feed_forward")(y_btd), None

        mixer, norm_name = self_attention, "self_attention_norm"
        if config.mixer != ATTENTION:
            mixer, norm_name = token_mixer, "mixer_norm"
        if config.parallel_residual != "none":
            x_btd, cache = self._parallel(x_btd, mixer, norm_name, feed_forward)
        else:
            x_btd, cache = self._residual(x_btd, mixer, norm_name, normed=self.norm)
            if self.cross:
                x_btd, cache = self._residual(x_btd, cross_attention, "cross_attention_norm")
            if config.feed_forward_kind != "none":
                x_btd, _ = self._residual(x_btd, feed_forward, "feed_forward_norm")
        if captures(self):
            self.put_variable(CAPTURE, "hidden", x_btd)
        return x_btd, cache

    def _residual(self, x_btd: Array, sublayer: Sublayer, norm_name: str, *, normed: bool = True):
        """Returns x + sublayer(x), normalised where model.norm_placement says, and the cache.

        Without residual connections, x is not added. `normed=False` leaves out a norm of the input.
        """
        config = self.config
        norm = Norm(config, name=norm_name)
        if not normed and self.is_initializing():
            norm(x_btd)  # declares it: the layers' parameters are stacked
        y_btd = norm(x_btd) if config.norms_input and normed else x_btd
        y_btd, new_cache = sublayer(gather_residual(y_btd))
        y_btd = split_residual(y_btd)
        if config.norm_placement == "sandwich":
            y_btd = Norm(config, name=f"{norm_name}_after")(y_btd)
        elif config.norms_output:
            y_btd = norm(y_btd)
        y_btd = self._added(y_btd, norm_name)
        x_btd = split_residual(x_btd + y_btd if config.residual else y_btd)
        return norm(x_btd) if config.norm_placement == "post" else x_btd, new_cache

    def _parallel(
        self, x_btd: Array, mixer: Sublayer, norm_name: str, feed_forward: Sublayer
    ) -> tuple[Array, LayerCache | None]:
        """Returns x + mixer(norm(x)) + feed_forward(norm(x)), and the mixer's cache."""
        mixer_input = other_input = gather_residual(Norm(self.config, name=norm_name)(x_btd))
        if self.config.parallel_residual == "two_norms":
            other_input = gather_residual(Norm(self.config, name="feed_forward_norm")(x_btd))
        y_btd, cache = mixer(mixer_input)
        other_btd, _ = feed_forward(other_input)
        added_btd = self._added(y_btd, norm_name)
        x_btd = x_btd + added_btd + self._added(other_btd, "feed_forward_norm")
        return split_residual(x_btd), cache

    def _added(self, y_btd: Array, norm_name: str) -> Array:
        """Returns what a sublayer adds to the residual stream: its output after dropout."""
        if self.config.layer_scale:
            name = norm_name.removesuffix("norm") + "scale"
            y_btd = LayerScale(self.config, name=name)(y_btd)
        y_btd = Dropout(self.config.dropout_residual, self.deterministic)(y_btd)
        multiplier = self.config.residual_multiplier
        return y_btd if multiplier == 1 else y_btd * jnp.asarray(multiplier, y_btd.dtype)
