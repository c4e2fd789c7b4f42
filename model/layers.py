"""Layers other than attention: dense, norm, embeddings, dropout, feed-forward."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from model.config import TransformerConfig
from model.dropout import dropout
from model.mixed_precision import add_bias, embed, keep_inputs, matmul
from model.quantization import quantized_matmul
from model.sharding import constrain, is_sharded, split_residual

# model.remat=dots saves the arrays of this name for the backward pass. jax's own policies do not
# see matmuls inside functions with custom gradients, so the results of matmuls are named.
SAVED_MATMULS = "multiplied"


def kernel_init(std: float, inputs: int, scale: float = 1.0) -> nn.initializers.Initializer:
    """Returns a normal initializer with deviation `std`; if that is 0, one scaled by the fan-in.

    The fan-in is the size of the kernel's first `inputs` axes.
    """
    if std:
        return nn.initializers.normal(std)

    def init(key, shape, dtype):
        axes = range(len(shape))
        return nn.initializers.variance_scaling(
            scale, "fan_in", "truncated_normal", in_axis=axes[:inputs], out_axis=axes[inputs:]
        )(key, shape, dtype)

    return init


def kernel_role(axes: tuple[str, ...]) -> str:
    """Returns the side of a kernel that does not grow with the width, "input" or "output"; if both
    sides grow, "hidden".
    """
    if axes[0] == "patch":
        return "input"
    return "output" if axes[-1] in ("vocab", "classes") else "hidden"


class Dense(nn.Module):
    """A linear map from the last `inputs` axes of x to axes of sizes `features`.

    `axes` names all axes of the kernel, the contracted ones first.
    """

    config: TransformerConfig
    features: tuple[int, ...]
    axes: tuple[str, ...]
    inputs: int = 1
    bias: bool | None = None  # None: as in the config
    init_scale: float = 1.0
    matmul: str = "float"  # blocks pass config.matmul; other layers are never quantized

    @nn.compact
    def weights(self, in_shape: tuple[int, ...]) -> tuple[Array, Array | None]:
        """Returns the kernel as a matrix and the bias as a vector or None, in the stored type."""
        config, role = self.config, kernel_role(self.axes)
        # muP: the deviation of output layers is that of the base width; that of hidden ones falls.
        times = config.width_multiplier
        std = config.init_std * times**-0.5 if role == "hidden" else config.init_std
        scale = self.init_scale * times if role == "output" else self.init_scale
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(kernel_init(std, self.inputs, scale), self.axes),
            (*in_shape, *self.features),
            jnp.dtype(config.param_dtype),
        )
        kernel_2d = kernel.reshape(math.prod(in_shape), -1)
        if not (config.bias if self.bias is None else self.bias):
            return kernel_2d, None
        bias = self.param(
            "bias",
            nn.with_logical_partitioning(nn.initializers.zeros, self.axes[self.inputs :]),
            self.features,
            jnp.dtype(config.param_dtype),
        )
        return kernel_2d, bias.reshape(-1)

    def __call__(self, x: Array) -> Array:
        batch_shape, in_shape = x.shape[: -self.inputs], x.shape[-self.inputs :]
        if kernel_role(self.axes) == "output":
            x = output_multiplied(self.config, x)
        x = x.astype(self.config.dtype).reshape(*batch_shape, math.prod(in_shape))
        y = _affine(x, *self.weights(in_shape), self.multiply)
        return y.reshape(*batch_shape, *self.features)

    def multiply(self, x: Array, kernel_2d: Array) -> Array:
        """Returns x @ kernel. Decoding on CPUs replaces this method, for another weight layout."""
        if self.matmul != "float":
            return quantized_matmul(x, kernel_2d, self.matmul)
        return matmul(x, kernel_2d)


def output_multiplied(config: TransformerConfig, x: Array) -> Array:
    """Returns the input of an output layer, divided by muP's width multiplier."""
    times = config.width_multiplier
    return x if times == 1 else x * jnp.asarray(1 / times, x.dtype)


def _affine(x: Array, kernel_2d: Array, bias: Array | None, multiply=matmul) -> Array:
    # With one flat axis of rows, the kernel's gradient is a plain matmul, which is faster on CPUs.
    # On a mesh, batch and length stay separate, because each may be sharded.
    rows = x.shape[:-1] if is_sharded() else (math.prod(x.shape[:-1]),)
    y = checkpoint_name(multiply(x.reshape(*rows, -1), kernel_2d), SAVED_MATMULS)
    if bias is not None:
        y = add_bias(y, bias)
    return y.reshape(*x.shape[:-1], -1)


def apply_together(x: Array, *layers: Dense) -> list[Array]:
    """Applies each layer to x, with one larger matmul where that is faster.

    Layers are applied separately with few rows, as in decoding, where concatenating the kernels
    costs more than the matmul; on a mesh, where the joint output would have to be resharded; and
    in 8 bits, where the layers' gradients would share scales, so that a mesh would train
    differently from one device.
    """
    is_quantized = layers[0].matmul != "float"
    if is_sharded() or is_quantized or math.prod(x.shape[:-1]) < x.shape[-1]:
        return [layer(x) for layer in layers]
    kernels, biases = zip(*(layer.weights(x.shape[-1:]) for layer in layers), strict=True)
    bias = None if biases[0] is None else jnp.concatenate(biases)  # all have one, or none
    x = x.astype(layers[0].config.dtype)
    y = _affine(x, jnp.concatenate(kernels, axis=1), bias)
    ends = list(itertools.accumulate(kernel.shape[1] for kernel in kernels))
    parts = jnp.split(y, ends[:-1], axis=-1)
    return [
        part.reshape(*x.shape[:-1], *layer.features)
        for part, layer in zip(parts, layers, strict=True)
    ]


class Norm(nn.Module):
    """LayerNorm or RMSNorm, computed in float32; or no change ("none")."""

    config: TransformerConfig
    # Names of the scale's axes, which are the last axes of x. Not "width": a vector is too small to
    # be worth sharding.
    axes: tuple[str, ...] = ("hidden",)
    over: int = 1  # how many of the last axes of x are normalised together
    bias: bool | None = None  # None: as in the config

    @nn.compact
    def __call__(self, x: Array) -> Array:
        config = self.config
        if config.norm == "none":
            return x.astype(config.dtype)
        shape, bias = x.shape[-len(self.axes) :], None
        init = nn.initializers.zeros if config.norm_zero_centered else nn.initializers.ones
        scale = self._parameter("scale", init, shape)
        has_bias = config.bias or config.norm_bias if self.bias is None else self.bias
        if config.norm == "layernorm" and has_bias:
            bias = self._parameter("bias", nn.initializers.zeros, shape)
        return keep_inputs(functools.partial(_normed, config, self.over), x, scale, bias)

    def _parameter(self, name: str, init, shape: tuple[int, ...]) -> Array:
        dtype = jnp.dtype(self.config.param_dtype)
        value = self.param(name, nn.with_logical_partitioning(init, self.axes), shape, dtype)
        return value.astype(jnp.float32)


def _normed(
    config: TransformerConfig, count: int, x: Array, scale: Array, bias: Array | None
) -> Array:
    """Returns x, normalised over its last `count` axes."""
    x_32, over = x.astype(jnp.float32), tuple(range(-count, 0))
    if config.norm == "layernorm":
        x_32 -= x_32.mean(axis=over, keepdims=True)
    mean_square = jnp.square(x_32).mean(axis=over, keepdims=True)
    y = x_32 * jax.lax.rsqrt(mean_square + config.norm_epsilon)
    y *= 1 + scale if config.norm_zero_centered else scale
    if bias is not None:
        y += bias
    return y.astype(config.dtype)


class LayerScale(nn.Module):
    """A learned factor for each column of what a layer adds (arXiv:2103.17239)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_btd: Array) -> Array:
        init = nn.initializers.constant(self.config.layer_scale)
        scale_d = self.param(
            "scale",
            nn.with_logical_partitioning(init, ("hidden",)),
            x_btd.shape[-1:],
            jnp.dtype(self.config.param_dtype),
        )
        return x_btd * scale_d.astype(x_btd.dtype)


class Embedding(nn.Module):
    """A table of vectors (rows, D), for lookup by id, or transposed as an output layer."""

    config: TransformerConfig
    rows: int
    row_axis: str

    def setup(self):
        config = self.config
        std = config.init_std or config.base_width**-0.5
        self.embedding = self.param(
            "embedding",
            nn.with_logical_partitioning(nn.initializers.normal(std), (self.row_axis, "width")),
            (self.rows, config.embedding_width),
            jnp.dtype(config.param_dtype),
        )

    def __call__(self, ids: Array, dtype: str | None = None) -> Array:
        x_btd = embed(self.embedding, ids, dtype or self.config.dtype, self.row_axis)
        return split_residual(x_btd)

    def logits(self, x_btd: Array) -> Array:
        """Returns x times the transposed table, (B, T, rows)."""
        rows = x_btd.shape[:-1] if is_sharded() else (math.prod(x_btd.shape[:-1]),)
        y = self.multiply(x_btd.reshape(*rows, -1), self.embedding.T)
        return y.reshape(*x_btd.shape[:-1], self.rows)

    def multiply(self, x: Array, kernel_2d: Array) -> Array:
        """Like `Dense.multiply`."""
        return matmul(x, kernel_2d)


class PatchEmbedding(nn.Module):
    """Embeds patches of one or two axes, such as squares of an image, after a class token.

    The input is (B, steps, channels) or (B, rows, columns, channels). A patch has `patch_size`
    entries along each axis, and all channels.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        config, size = self.config, self.config.patch_size
        batch, *axes, channels = inputs.shape
        if config.input_mean:
            inputs = inputs - jnp.asarray(config.input_mean, inputs.dtype)
        if config.input_std:
            inputs = inputs / jnp.asarray(config.input_std, inputs.dtype)
        split = [part for axis in axes for part in (axis // size, size)]
        patches = inputs.reshape(batch, *split, channels)
        counts, sides = range(1, 2 * len(axes), 2), range(2, 2 * len(axes) + 1, 2)
        patches = patches.transpose(0, *counts, *sides, 2 * len(axes) + 1)
        patches_btp = patches.reshape(batch, -1, size ** len(axes) * channels)
        x_btd = Dense(config, (config.width,), ("patch", "width"), bias=True, name="projection")(
            patches_btp
        )
        if config.class_token:
            before = ["class_token"] + ["distillation_token"] * (config.distillation != "none")
            tokens = [Embedding(config, 1, "buckets", name=name) for name in before]
            id_bt = jnp.zeros((1, 1), jnp.int32)
            first = [jnp.broadcast_to(token(id_bt), x_btd[:, :1].shape) for token in tokens]
            x_btd = jnp.concatenate([*first, x_btd], axis=1)
        return x_btd


class Dropout(nn.Module):
    """Dropout with the rng "dropout", unless deterministic."""

    rate: float
    deterministic: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.deterministic or not self.rate:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


def activate(name: str, x: Array) -> Array:
    """Applies the nonlinearity of a feed-forward layer, or of its gate."""
    return keep_inputs(functools.partial(_activate, name), x)


def _activate(name: str, x: Array) -> Array:
    match name:
        case "relu" | "reglu":
            return jax.nn.relu(x)
        case "gelu" | "geglu":
            # Not jax.nn.gelu: its erfc costs twice as much, and differs only for large |x|.
            x_32 = x.astype(jnp.float32)
            return (0.5 * x_32 * (1 + jax.lax.erf(x_32 * math.sqrt(0.5)))).astype(x.dtype)
        case "gelu_tanh" | "geglu_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "silu" | "swiglu" | "swiglu_clamped":  # the last: outside of `gated`
            return jax.nn.silu(x)
    raise ValueError(f"unknown activation {name!r}")


GATED = ("reglu", "geglu", "geglu_tanh", "swiglu", "swiglu_clamped")
CLAMPED, CLAMPED_SLOPE = "swiglu_clamped", 1.702  # of gpt-oss; sigmoid(1.702 x) is close to gelu's


def gated(config: TransformerConfig, gate: Array, x: Array) -> Array:
    """Returns x times the activated gate, for the activations in GATED."""
    return keep_inputs(functools.partial(_gated, config), gate, x)


def _gated(config: TransformerConfig, gate: Array, x: Array) -> Array:
    if config.activation != CLAMPED:
        return x * _activate(config.activation, gate)
    limit = jnp.asarray(config.activation_limit, x.dtype)
    gate = jnp.minimum(gate, limit)
    gate *= jax.nn.sigmoid(jnp.asarray(CLAMPED_SLOPE, gate.dtype) * gate)
    return (jnp.clip(x, -limit, limit) + 1) * gate


class FeedForward(nn.Module):
    """Two dense layers with a nonlinearity between them; gated forms have a third layer.

    With model.feed_forward_kind=linear, there is no nonlinearity and no gate.
    """

    config: TransformerConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x_btd: Array) -> Array:
        config = self.config
        dense = functools.partial(Dense, config, matmul=config.matmul)
        inner = ((config.feed_forward,), ("width", "feed_forward"))
        if config.feed_forward_kind == "linear":
            hidden_btf = dense(*inner, name="in")(x_btd)
        elif config.activation in GATED:
            gate_btf, hidden_btf = apply_together(
                x_btd, dense(*inner, name="gate"), dense(*inner, name="in")
            )
            hidden_btf = gated(config, gate_btf, hidden_btf)
        else:
            hidden_btf = activate(config.activation, dense(*inner, name="in")(x_btd))
        hidden_btf = constrain(hidden_btf, "batch", "length", "feed_forward")
        hidden_btf = Dropout(config.dropout_feed_forward, self.deterministic)(hidden_btf)
        return dense((config.width,), ("feed_forward", "width"), name="out")(hidden_btf)
