"""Exact softmax attention in blocks, with memory linear in the length.

Queries and keys are cut into blocks, and scores exist only for one pair of blocks at a time. The
forward pass keeps a running maximum and sum for each query (online softmax). The backward pass
recomputes the scores. Pairs of blocks in which no query sees a key are skipped.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.block_visibility import visible_pairs
from model.attention.dot_attention import NEVER, attended, soft_cap
from model.dropout import dropout
from model.masks import Locality, MaskSpec, SequenceInfo
from model.positions import ScoreBias

# The initial maximum. It is above NEVER, so exp(NEVER - maximum) is 0 before any key is visible.
LOWEST = NEVER / 2
# The scores of a pair of blocks should fit into a CPU's caches; larger blocks were slower.
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class BlockwiseOptions:
    """Static options."""

    scale: float
    cap: float
    dropout_rate: float
    queries: int  # per block
    keys: int  # per block

    @staticmethod
    def of(
        q_bthk: Array, k_bsgk: Array, scale: float, cap: float, dropout_rate: float, block: int
    ) -> "BlockwiseOptions":
        sizes = min(block, q_bthk.shape[1]), min(block, k_bsgk.shape[1])
        return BlockwiseOptions(scale, cap, dropout_rate, *sizes)


def blockwise_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    *,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    sinks_h: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """Equals `dot_attention` with `mask_spec.mask_b1ts()` and the explicit bias, (B, T, H, K)."""
    options = BlockwiseOptions.of(q_bthk, k_bsgk, scale, cap, dropout_rate, block)
    return _attention(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h):
    return _forward(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h)[0]


def _forward(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h):
    given = q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key
    schedule = BlockSchedule.of(options, *given)
    softmax = forward_over_blocks(schedule, empty_softmax(schedule, sinks_h))
    y_bthk, log_sum_ibht = map(attended, softmax.result(q_bthk.shape[1], v_bsgk.dtype))
    return y_bthk, (*given, sinks_h, y_bthk, log_sum_ibht)


def _backward(options, residuals, dy_bthk):
    *given, sinks_h, y_bthk, log_sum_ibht = residuals
    schedule = BlockSchedule.of(options, *given)
    forward = ForwardResult.of(options, y_bthk, log_sum_ibht, dy_bthk)
    gradients = backward_over_blocks(schedule, forward, zero_gradients(schedule))
    return *gradients.to(options, *given), None, forward.gradient_of_sinks(sinks_h)


_attention.defvjp(_forward, _backward)


class OnlineSoftmax(NamedTuple):
    """The online-softmax state of all queries after the keys visited so far."""

    y_ibhtk: Array  # weighted sum of values, not divided by the total
    largest_ibht: Array  # largest score
    total_ibht: Array

    def result(self, queries: int, dtype) -> tuple[Array, Array]:
        """Returns the output (B, T, H, K) and the log-sum-exp of the scores (I, B, H, T)."""
        # A query without visible keys gets zeros, and no weights in the backward pass.
        has_keys_ibht = self.total_ibht > 0
        total_ibht = jnp.where(has_keys_ibht, self.total_ibht, 1.0)
        log_sum_ibht = jnp.where(has_keys_ibht, self.largest_ibht + jnp.log(total_ibht), 0.0)
        y_ibhtk = self.y_ibhtk / total_ibht[..., None]
        return _joined_queries(y_ibhtk, queries).astype(dtype), log_sum_ibht


def empty_softmax(schedule: "BlockSchedule", sinks_h: Array | None = None) -> OnlineSoftmax:
    """Returns the state before the first key; a sink is like a key whose value is zero."""
    heads = schedule.q_ibhtk.shape[:-1]
    largest_ibht, total_ibht = jnp.full(heads, LOWEST, jnp.float32), jnp.zeros(heads, jnp.float32)
    if sinks_h is not None:
        largest_ibht = jnp.broadcast_to(sinks_h.astype(jnp.float32)[:, None], heads)
        total_ibht = jnp.ones(heads, jnp.float32)
    y_ibhtk = jnp.zeros((*heads, schedule.v_jbgks.shape[3]), jnp.float32)
    return OnlineSoftmax(y_ibhtk, largest_ibht, total_ibht)


def forward_over_blocks(schedule: "BlockSchedule", softmax: OnlineSoftmax) -> OnlineSoftmax:
    """Updates the softmax state with all visible pairs of blocks."""

    def visit(number, softmax):
        pair = schedule.pair(number)
        scores_bhts = pair.scores(pair.scores_of(pair.q_bhtk, pair.k_bgks))
        before_bht = softmax.largest_ibht[pair.i]
        largest_bht = jnp.maximum(before_bht, scores_bhts.max(axis=-1))
        shrink_bht = jnp.exp(before_bht - largest_bht)
        weights_bhts = jnp.exp(scores_bhts - largest_bht[..., None])
        total_bht = softmax.total_ibht[pair.i] * shrink_bht + weights_bhts.sum(axis=-1)
        if schedule.dropout_rate:
            weights_bhts *= pair.dropout_mask()
        y_bhtk = pair.times(weights_bhts, pair.v_bgks)
        y_bhtk += softmax.y_ibhtk[pair.i] * shrink_bht[..., None]
        return OnlineSoftmax(
            softmax.y_ibhtk.at[pair.i].set(y_bhtk),
            softmax.largest_ibht.at[pair.i].set(largest_bht),
            softmax.total_ibht.at[pair.i].set(total_bht),
        )

    return jax.lax.fori_loop(0, schedule.count, visit, softmax)


class ForwardResult(NamedTuple):
    """What the backward pass needs for each query besides the scores."""

    dy_ibhtk: Array
    mean_ibht: Array  # sum of dy * y: the weighted mean of the weights' gradients
    log_sum_ibht: Array

    @staticmethod
    def of(
        options: BlockwiseOptions, y_bthk: Array, log_sum_ibht: Array, dy_bthk: Array
    ) -> "ForwardResult":
        mean_bth1 = (dy_bthk.astype(jnp.float32) * y_bthk.astype(jnp.float32)).sum(
            axis=-1, keepdims=True
        )
        dy_ibhtk, mean_ibht1 = (
            _blocks_of_queries(x, options.queries) for x in (dy_bthk, mean_bth1)
        )
        return ForwardResult(dy_ibhtk, mean_ibht1[..., 0], log_sum_ibht)

    def gradient_of_sinks(self, sinks_h: Array | None) -> Array | None:
        """Returns the gradient of the sinks, whose values are zeros; None without sinks."""
        if sinks_h is None:
            return None
        weights_ibht = jnp.exp(sinks_h.astype(jnp.float32)[:, None] - self.log_sum_ibht)
        return -(weights_ibht * self.mean_ibht).sum(axis=(0, 1, 3)).astype(sinks_h.dtype)


class Gradients(NamedTuple):
    """Partial sums of the gradients."""

    dq_ibhtk: Array
    dk_jbgks: Array
    dv_jbgks: Array
    dtable: Array | None  # of the bias

    def to(
        self, options: BlockwiseOptions, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key
    ) -> tuple:
        """Returns the gradients of the arguments of `BlockSchedule.of`, up to the bias."""
        dq_bthk = _joined_queries(self.dq_ibhtk, q_bthk.shape[1]) * options.scale
        return (
            dq_bthk.astype(q_bthk.dtype),
            _joined_keys(self.dk_jbgks, k_bsgk.shape[1]).astype(k_bsgk.dtype),
            _joined_keys(self.dv_jbgks, v_bsgk.shape[1]).astype(v_bsgk.dtype),
            None,
            None if bias is None else dataclasses.replace(bias, table=self.dtable),
        )


def zero_gradients(schedule: "BlockSchedule") -> Gradients:
    """Returns the sums before the first pair of blocks."""
    return Gradients(
        jnp.zeros(schedule.q_ibhtk.shape, jnp.float32),
        jnp.zeros(schedule.k_jbgks.shape, jnp.float32),
        jnp.zeros(schedule.v_jbgks.shape, jnp.float32),
        None if schedule.bias is None else jnp.zeros_like(schedule.bias.table),
    )


def backward_over_blocks(
    schedule: "BlockSchedule", forward: ForwardResult, gradients: Gradients
) -> Gradients:
    """Adds the gradients of all visible pairs of blocks."""

    def visit(number, gradients):
        pair = schedule.pair(number)
        dy_bhtk = forward.dy_ibhtk[pair.i]
        products_bhts = pair.scores_of(pair.q_bhtk, pair.k_bgks)
        scores_bhts = pair.scores(products_bhts)
        weights_bhts = jnp.exp(scores_bhts - forward.log_sum_ibht[pair.i][..., None])
        dweights_bhts = pair.scores_of(dy_bhtk, pair.v_bgks)
        dropped_bhts = weights_bhts
        if schedule.dropout_rate:
            dropout_bhts = pair.dropout_mask()
            dropped_bhts = weights_bhts * dropout_bhts
            dweights_bhts *= dropout_bhts
        dscores_bhts = weights_bhts * (dweights_bhts - forward.mean_ibht[pair.i][..., None])
        dv_bgks = pair.summed(dy_bhtk, dropped_bhts)
        dtable = gradients.dtable
        if schedule.bias is not None:
            dtable += pair.gradient_of_table(dscores_bhts)
        if schedule.cap:  # the derivative of the cap; the bias is added after it
            dscores_bhts *= 1 - jnp.square(jnp.tanh(products_bhts / schedule.cap))
        dk_bgks = pair.summed(pair.q_bhtk, dscores_bhts)
        dq_bhtk = pair.times(dscores_bhts, pair.k_bgks)
        return Gradients(
            gradients.dq_ibhtk.at[pair.i].add(dq_bhtk),
            gradients.dk_jbgks.at[pair.j].add(dk_bgks),
            gradients.dv_jbgks.at[pair.j].add(dv_bgks),
            dtable,
        )

    return jax.lax.fori_loop(0, schedule.count, visit, gradients)


class Pair(NamedTuple):
    """A block of queries and a block of keys.

    With this order of axes, no matmul of the forward or backward pass transposes scores. Query
    heads that share a key/value head are treated as more queries of that head.
    """

    i: Array
    j: Array
    q_bhtk: Array  # scaled
    k_bgks: Array
    v_bgks: Array
    mask_spec: MaskSpec
    bias: ScoreBias | None
    cap: float
    dropout_rate: float
    dropout_key: Array | None

    def scores(self, products_bhts: Array) -> Array:
        """Returns the scores that softmax takes, from the products of queries and keys."""
        scores_bhts = soft_cap(products_bhts, self.cap)
        if self.bias is not None:
            scores_bhts += self._bias_bhts(self.bias.table)
        return jnp.where(self.mask_spec.mask_b1ts(), scores_bhts, NEVER)

    def scores_of(self, q_bhtk: Array, k_bgks: Array) -> Array:
        """Returns q k^T, (B, H, T, S)."""
        q_bgqk = self._by_group(q_bhtk)
        scores_bgqs = _einsum("bgqk,bgks->bgqs", q_bgqk, k_bgks)
        return scores_bgqs.reshape(*q_bhtk.shape[:-1], -1)

    def times(self, weights_bhts: Array, v_bgks: Array) -> Array:
        """Returns the weighted sums of values, (B, H, T, K)."""
        weights_bgqs = self._by_group(weights_bhts.astype(v_bgks.dtype))
        y_bgqk = _einsum("bgqs,bgks->bgqk", weights_bgqs, v_bgks)
        return y_bgqk.reshape(*weights_bhts.shape[:-1], -1)

    def summed(self, q_bhtk: Array, weights_bhts: Array) -> Array:
        """Sums the queries' vectors with their weights, for each key: (B, G, K, S)."""
        weights_bgqs = self._by_group(weights_bhts.astype(q_bhtk.dtype))
        return _einsum("bgqk,bgqs->bgks", self._by_group(q_bhtk), weights_bgqs)

    def dropout_mask(self) -> Array:
        """The factors of dropout, (B, H, T, S); the same in the forward and backward pass."""
        shape = *self.q_bhtk.shape[:-1], self.k_bgks.shape[-1]
        key = jax.random.fold_in(jax.random.fold_in(self.dropout_key, self.i), self.j)
        return dropout(jnp.ones(shape, jnp.float32), self.dropout_rate, key)

    def gradient_of_table(self, dscores_bhts: Array) -> Array:
        bias_bhts, transposed = jax.vjp(self._bias_bhts, self.bias.table)
        if len(bias_bhts) < len(dscores_bhts):
            dscores_bhts = dscores_bhts.sum(axis=0, keepdims=True)
        return transposed(dscores_bhts)[0]

    def _bias_bhts(self, table: Array) -> Array:
        queries, keys = self.mask_spec.queries, self.mask_spec.keys
        bias = dataclasses.replace(self.bias, table=table)
        return bias(None, queries.positions_bt, keys.positions_bt)

    def _by_group(self, x: Array) -> Array:
        batch, groups = self.k_bgks.shape[:2]
        return x.reshape(batch, groups, -1, x.shape[-1])


class BlockSchedule(NamedTuple):
    """Inputs in blocks, and the pairs of blocks to visit."""

    q_ibhtk: Array
    k_jbgks: Array
    v_jbgks: Array
    queries: SequenceInfo  # (I, B, T)
    keys: SequenceInfo  # (J, B, S)
    pairs: Array  # indices i * J + j; the first `count` are visited
    count: Array
    causal: bool
    locality: Locality | None
    bias: ScoreBias | None
    cap: float
    dropout_rate: float
    dropout_key: Array | None

    @staticmethod
    def of(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key) -> "BlockSchedule":
        queries = _blocks_of_info(mask_spec.queries, options.queries)
        keys = _blocks_of_info(mask_spec.keys, options.keys)
        visited = visible_pairs(queries, keys, mask_spec.causal, mask_spec.locality).reshape(-1)
        q_bthk = q_bthk * jnp.asarray(options.scale, q_bthk.dtype)
        return BlockSchedule(
            _blocks_of_queries(q_bthk, options.queries),
            _blocks_of_keys(k_bsgk, options.keys),
            _blocks_of_keys(v_bsgk, options.keys),
            queries,
            keys,
            jnp.nonzero(visited, size=visited.size, fill_value=0)[0],
            visited.sum(),
            mask_spec.causal,
            mask_spec.locality,
            bias,
            options.cap,
            options.dropout_rate,
            dropout_key,
        )

    def pair(self, number: Array) -> Pair:
        i, j = jnp.divmod(self.pairs[number], len(self.k_jbgks))
        info_i, info_j = (
            jax.tree.map(lambda x, n=n: x[n], info)
            for info, n in ((self.queries, i), (self.keys, j))
        )
        return Pair(
            i,
            j,
            self.q_ibhtk[i],
            self.k_jbgks[j],
            self.v_jbgks[j],
            MaskSpec(info_i, info_j, self.causal, self.locality),
            self.bias,
            self.cap,
            self.dropout_rate,
            self.dropout_key,
        )


def _einsum(axes: str, one: Array, other: Array) -> Array:
    return jnp.einsum(axes, one, other, preferred_element_type=jnp.float32)


def _blocks(x: Array, block: int) -> Array:
    """(B, T, ...) as (I, B, block, ...), padded with zeros; segment 0 is padding."""
    count = -(-x.shape[1] // block)
    x = jnp.pad(x, ((0, 0), (0, count * block - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(len(x), count, block, *x.shape[2:]), 1, 0)


def _blocks_of_info(info: SequenceInfo, block: int) -> SequenceInfo:
    return jax.tree.map(lambda x: _blocks(x, block), info)


def _blocks_of_queries(x_bthk: Array, block: int) -> Array:
    return jnp.moveaxis(_blocks(x_bthk, block), 2, 3)


def _blocks_of_keys(x_bsgk: Array, block: int) -> Array:
    return jnp.moveaxis(_blocks(x_bsgk, block), 2, 4)


def _joined_queries(x_ibhtk: Array, length: int) -> Array:
    return _joined(jnp.moveaxis(x_ibhtk, 3, 2), length)


def _joined_keys(x_jbgks: Array, length: int) -> Array:
    return _joined(jnp.moveaxis(x_jbgks, 4, 2), length)


def _joined(x: Array, length: int) -> Array:
    """The reverse of `_blocks`."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])[:, :length]
