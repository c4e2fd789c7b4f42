"""The Stack that runs over blocks: a scan in training, an unrolled loop in decoding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from model.attention import KINDS, pattern_of
from model.attention.attention_weights import CAPTURE, PERTURBATIONS, captures
from model.attention.dot_attention import SAVED_ATTENTION
from model.attention.interface import AttentionContext, AttentionKind
from model.attention.module import LayerCache
from model.attention.relative_bias import RelativeBias
from model.block import Block
from model.config import LayerKind, TransformerConfig
from model.context_vector import ContextVector
from model.interpolation import grid_weights
from model.kv_cache import Cache, add_tokens, require_token_slots
from model.layers import SAVED_MATMULS, Dense, Dropout, Embedding, Norm
from model.masks import (
    PADDING,
    MaskSpec,
    SequenceInfo,
    positions_or_default,
    segments_or_default,
)
from model.mixed_precision import add_bias
from model.mixers import ATTENTION
from model.positions import ScoreBias, alibi_slopes, sinusoidal
from model.routing import ROUTER
from model.sharding import gather_residual, platform, split_residual


class Stack(nn.Module):
    """From embedded tokens to hidden states: positions, blocks, final norm.

    Parameters of the blocks are stacked on a leading axis of layers, whether the scan over layers
    is unrolled or not. With model.layer_groups, it is an axis of groups, whose layers share them.
    """

    config: TransformerConfig
    layers: int
    causal: bool
    cross: bool = False

    @nn.compact
    def __call__(
        self,
        x_btd: Array,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        *,
        prefix_bt: Array | None = None,
        global_bt: Array | None = None,
        source_bsd: Array | None = None,
        source_segments_bs: Array | None = None,
        cache: Cache | None = None,
        visible_bts: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Cache | None]:
        config = self.config
        if prefix_bt is not None:
            for reason in config.refusals("prefix"):
                raise ValueError(reason)
        positions_are_columns = positions_bt is None and cache is None
        positions_bt = positions_or_default(positions_bt, x_btd)
        segments_bt = segments_or_default(segments_bt, x_btd)
        if config.has_global_tokens:
            if global_bt is None:
                global_bt = positions_bt == 0
            global_bt = global_bt & (segments_bt != PADDING)
        queries = keys = SequenceInfo(positions_bt, segments_bt, prefix_bt, global_bt)
        cache_slot = None
        if cache is not None:
            if visible_bts is not None or cache.index.ndim:
                require_token_slots(cache)
            cache_slot = cache.index % cache.segments_bs.shape[1]
            cache, keys = add_tokens(cache, queries, cache_slot)

        mask_spec = MaskSpec(
            queries, keys, self.causal, positions_are_columns=positions_are_columns
        )
        context = AttentionContext(
            mask_spec=mask_spec,
            bias=self._bias(),
            rope_positions_bt=positions_bt if config.position == "rope" else None,
            cache_slot=cache_slot,
            shared=self._shared(),
        )
        if cache is not None or any(kind.reads_explicit_mask for kind in self._kinds()):
            mask_b1ts, bias_bhts = mask_spec.mask_b1ts(), None
            if visible_bts is not None:
                mask_b1ts &= visible_bts[:, None]
            if context.bias is not None:
                bias_bhts = context.bias(None, queries.positions_bt, keys.positions_bt)
            context = context.replace(mask_b1ts=mask_b1ts, bias_bhts=bias_bhts)
            if visible_bts is not None and config.mixer != ATTENTION:
                context = context.replace(parents_bt=_newest_visible(mask_spec, mask_b1ts))
        if self.cross:
            positions_bs = positions_or_default(None, source_segments_bs)
            source = SequenceInfo(positions_bs, source_segments_bs)
            cross_mask_spec = MaskSpec(queries, source, causal=False)
            context = context.replace(source_bsd=source_bsd, cross_mask_spec=cross_mask_spec)

        x_btd = self._embed(x_btd, positions_bt, deterministic)
        if self.cross and config.has_context_vector:
            if source_bsd is None:
                source_bsd = cache.source_bsd
            x_btd += ContextVector(config, name="context_vector")(source_bsd, cross_mask_spec)
            cache = cache and cache.replace(source_bsd=source_bsd)
        if captures(self):
            self.put_variable(CAPTURE, "embedded", x_btd)
        x_btd, layer_caches = self._blocks(x_btd, context, cache and cache.layers, deterministic)
        if config.has_final_norm:
            x_btd = Norm(config, name="final_norm")(x_btd)
        x_btd = gather_residual(x_btd)
        if cache is not None:
            cache = cache.replace(layers=layer_caches, index=cache.index + x_btd.shape[1])
        return x_btd, cache

    def _embed(self, x_btd: Array, positions_bt: Array, deterministic: bool) -> Array:
        """Adds absolute positions; applies norm and dropout as configured."""
        config = self.config
        if config.position == "sinusoidal":
            waves_btd = sinusoidal(
                positions_bt + config.sinusoidal_offset,
                config.embedding_width,
                config.sinusoidal_variant,
            )
            x_btd += (config.sinusoidal_scale * waves_btd).astype(x_btd.dtype)
        elif config.position == "learned":
            table = Embedding(config, config.max_length, "positions", name="position_embedding")
            # In a batch, finished rows go on past max_length while others still decode.
            places_bt = jnp.minimum(positions_bt, config.max_length - 1)
            if config.position_image_size:
                x_btd = add_bias(x_btd, self._interpolated(table))
            else:
                x_btd = add_bias(x_btd, table(places_bt, config.param_dtype))
        if config.embedding_norm:
            x_btd = Norm(config, name="embedding_norm")(x_btd)
        x_btd = Dropout(config.dropout_embedding, deterministic)(x_btd)
        if config.embedding_size:
            projection = Dense(
                config, (config.width,), ("width", "mixed"), bias=True, name="embedding_projection"
            )
            x_btd = projection(x_btd)
        return split_residual(x_btd)

    def _interpolated(self, table: Embedding) -> Array:
        """Returns the positions (1, T, D) of images, from those of images of another size."""
        config = self.config
        rows_1zd = table(jnp.arange(config.position_rows)[None], config.param_dtype)
        first_1td, grid_1zd = jnp.split(rows_1zd, [config.leading_tokens], axis=1)
        sizes = (config.image_size, config.position_image_size)
        weights_tz = grid_weights(*(size // config.patch_size for size in sizes))
        grid_32 = grid_1zd.astype(jnp.float32)
        grid_1td = jnp.einsum("tz,bzd->btd", weights_tz, grid_32, precision="highest")
        return jnp.concatenate([first_1td, grid_1td.astype(first_1td.dtype)], axis=1)

    def _bias(self) -> ScoreBias | None:
        """Returns the bias of relative positions that all layers share."""
        if self.config.position == "alibi":
            return ScoreBias("alibi", jnp.asarray(alibi_slopes(self.config.heads)))
        if self.config.has_relative_bias and not self.config.own_relative_bias:
            return RelativeBias(self.config, not self.causal, name="relative_bias")()
        return None

    def _kinds(self) -> list[AttentionKind]:
        return [KINDS[name] for name in dict.fromkeys(pattern_of(self.config.attention))]

    def _shared(self) -> dict[str, Any]:
        """Returns the values that attention kinds compute once for all layers, by kind."""

        def rng() -> Array | None:
            return self.make_rng("features") if self.has_rng("features") else None

        shared = {kind.name: kind.shared(self.config, rng) for kind in self._kinds()}
        return {name: value for name, value in shared.items() if value is not None}

    def _blocks(
        self,
        x_btd: Array,
        context: AttentionContext,
        caches: tuple[LayerCache, ...] | None,
        deterministic: bool,
    ) -> tuple[Array, tuple[LayerCache, ...] | None]:
        """Applies all blocks, without caches or with one for each.

        Parameters are stacked on one axis of layers for every pattern of attention kinds, so that
        the pattern of a trained model can be changed.
        """
        config = self.config
        has_one_kind = len(set(config.layer_pattern)) == 1 and config.first_norm
        has_one_kind &= not config.layer_groups
        if caches is None and (has_one_kind or self.is_initializing()):
            # Keep nn.scan: it draws other dropout masks than the code below, and a resumed run must
            # draw the same masks as before.
            return self._scanned(x_btd, context, deterministic), None

        mutable = [CAPTURE] if captures(self) else []
        if config.experts and self.is_mutable_collection(ROUTER):
            mutable.append(ROUTER)

        def layer(x_btd: Array, kind: LayerKind, variables: dict, key: Array | None, cache=None):
            block = Block(*self._block_fields(kind, deterministic), parent=None)
            rngs = {} if key is None else {"dropout": key}
            return block.apply(variables, x_btd, cache, context, rngs=rngs, mutable=mutable)

        params = self.get_variable("params", "blocks")
        if caches is None:
            keys = (
                None if deterministic else jax.random.split(self.make_rng("dropout"), self.layers)
            )
            variables = {"params": params}
            if config.layer_groups:  # one copy of the parameters, however many layers read it
                groups = jnp.arange(self.layers) * config.layer_groups // self.layers
                layer, variables = _of_groups(layer, params), {"params": groups}
            if self.has_variable(PERTURBATIONS, "blocks"):
                variables[PERTURBATIONS] = self.get_variable(PERTURBATIONS, "blocks")
            return self._scanned_pattern(layer, x_btd, variables, keys), None
        # Each layer has its own arrays, which a loop over tokens can update in place.
        if LAYER.format(0) not in params:
            params = by_layer(params, self.layers)
        new_caches = []
        for number, cache in enumerate(caches):
            kind = config.layer_kind(number)
            variables = {"params": params[LAYER.format(number)]}
            (x_btd, new), _ = layer(x_btd, kind, variables, None, cache)
            new_caches.append(new)
        return x_btd, tuple(new_caches)

    def _scanned(self, x_btd: Array, context: AttentionContext, deterministic: bool) -> Array:
        """Scans blocks of one kind.

        In a mixed pattern, or with groups of layers, this only initialises parameters.
        """
        block, remat = Block, self.config.remat
        if remat != "none":
            # A scan already prevents common-subexpression elimination.
            block = nn.remat(Block, policy=_saved_by(remat), prevent_cse=False)
        config = self.config
        rates = config.dropout_attention, config.dropout_residual, config.dropout_feed_forward
        has_dropout = not deterministic and any(rates)
        scanned = nn.scan(
            block,
            variable_axes={"params": 0, CAPTURE: 0, PERTURBATIONS: 0, ROUTER: 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, nn.broadcast),
            length=self.config.layer_groups or self.layers,
            unroll=self._unrolled_layers(),
            metadata_params={nn.PARTITION_NAME: "layers"},
            # The check traces every block once more, for nothing: no block broadcasts an output. It
            # counts as a draw of random numbers, so where they are drawn, older runs need it.
            check_constancy_invariants=self.is_initializing() or has_dropout,
        )
        fields = self._block_fields(self.config.layer_kind(0), deterministic)
        blocks = scanned(*fields, name="blocks")
        return blocks(x_btd, None, context)[0]

    def _scanned_pattern(self, layer, x_btd: Array, variables: dict, keys: Array | None) -> Array:
        """Applies layers of several kinds: a scan over repetitions of the pattern.

        A first layer that differs (model.first_norm) comes before the scan.
        """
        first, period = 0 if self.config.first_norm else 1, len(self.config.layer_pattern)
        repeated = (self.layers - first) // period * period

        def block(x_btd: Array, kind: LayerKind, variables: dict, key: Array | None):
            (x_btd, _), captured = layer(x_btd, kind, variables, key)
            return x_btd, captured

        if self.config.remat != "none":
            policy = _saved_by(self.config.remat)
            block = jax.checkpoint(block, policy=policy, prevent_cse=False, static_argnums=1)

        def some_layers(x_btd: Array, given: tuple, start: int = first) -> tuple[Array, dict]:
            captured = []
            for n in range(len(jax.tree.leaves(given)[0])):
                variables, key = jax.tree.map(lambda leaf, n=n: leaf[n], given)
                x_btd, new = block(x_btd, self.config.layer_kind(start + n), variables, key)
                captured.append(new)
            return x_btd, jax.tree.map(lambda *each: jnp.stack(each), *captured)

        def part(start: int, stop: int) -> tuple:
            return jax.tree.map(lambda leaf: leaf[start:stop], (variables, keys))

        end, before = first + repeated, []
        if first:
            x_btd, new = some_layers(x_btd, part(0, first), 0)
            before.append(new)
        groups = jax.tree.map(
            lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), part(first, end)
        )
        unroll = -(-self._unrolled_layers() // period)
        x_btd, captured = jax.lax.scan(some_layers, x_btd, groups, unroll=unroll)
        captured = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), captured)
        after = []
        if end < self.layers:
            x_btd, new = some_layers(x_btd, part(end, self.layers), end)
            after.append(new)
        if before or after:
            parts = *before, captured, *after
            captured = jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
        for collection, values in captured.items():
            self.put_variable(collection, "blocks", values)
        return x_btd

    def _block_fields(self, kind: LayerKind, deterministic: bool) -> tuple:
        cross = self.cross and self.config.has_cross_attention
        return self.config, kind.attention, cross, deterministic, *kind[1:]

    def _unrolled_layers(self) -> int:
        # XLA's CPU backend copies the values that a loop carries, so the loop is unrolled there.
        # With remat it is not: without a loop, the compiler keeps values that it should recompute.
        unroll_all = platform() == "cpu" and self.config.remat == "none"
        return min(self.config.unroll or (self.layers if unroll_all else 1), self.layers)


def _of_groups(layer, params: dict):
    """Returns the function `layer` for variables that name the group of layers, not parameters."""

    def of_group(x_btd: Array, kind: LayerKind, variables: dict, key: Array | None):
        own = jax.tree.map(lambda leaf: leaf[variables["params"]], params)
        return layer(x_btd, kind, {**variables, "params": own}, key)

    return of_group


def _newest_visible(mask_spec: MaskSpec, mask_b1ts: Array) -> Array:
    """Returns the slot of the token before each token, among those that it sees, (B, T)."""
    positions_bt1 = mask_spec.queries.positions_bt[:, :, None]
    positions_b1s = mask_spec.keys.positions_bt[:, None]
    is_before_bts = mask_b1ts[:, 0] & (positions_b1s < positions_bt1)
    return jnp.where(is_before_bts, positions_b1s, -1).argmax(axis=-1)


def _saved_by(remat: str):
    """Returns the policy: which values the forward pass saves besides the inputs of blocks."""
    match remat:
        case "dots":
            # The output of attention is a matmul's too, and dear to compute again.
            return jax.checkpoint_policies.save_only_these_names(SAVED_MATMULS, SAVED_ATTENTION)
        case "save_attention":
            return jax.checkpoint_policies.save_only_these_names(SAVED_ATTENTION)
    return None


LAYER = "layer_{}"


def by_layer(stacked: dict, layers: int) -> dict:
    """Splits parameters (L, ...) of blocks, or (groups, ...), into one tree for each layer."""
    return {
        LAYER.format(number): jax.tree.map(
            lambda leaf, n=number: leaf[n * len(leaf) // layers], stacked
        )
        for number in range(layers)
    }
