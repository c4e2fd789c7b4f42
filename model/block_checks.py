"""Checks of keys that change a block: norms, biases, multipliers, and the scaling of RoPE."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from model.attention import KINDS, pattern_of

if TYPE_CHECKING:
    from model.config import TransformerConfig

SCALINGS = ("linear", "ntk", "llama3", "yarn", "longrope")
# Keys that only model.position=rope reads, and the values that ask for nothing.
ROPE_KEYS = dict(rope_scaling="default", rope_local_theta=0.0, rope_fraction=1.0, rope_layers=())


def rope_problems(config: "TransformerConfig") -> Iterator[str]:
    """Yields what is wrong with the keys of rotary positions."""
    head_size = config.head_size or config.width // config.heads
    for key, off in ROPE_KEYS.items():
        if (value := getattr(config, key)) != off and config.position != "rope":
            yield (
                f"model.{key}={value} needs model.position=rope, not {config.position}; "
                f"set it to {off}"
            )
    rotated = int(head_size * config.rope_fraction)
    if config.rope_fraction != 1 and (rotated % 2 or not rotated):
        yield (
            f"model.rope_fraction={config.rope_fraction:g} of the head size {head_size} is "
            f"{rotated} columns; rope rotates pairs, so choose one that gives an even number"
        )
    if config.rope_scaling == "default" and config.rope_factor != 1:
        yield (
            f"model.rope_factor={config.rope_factor:g} does nothing with "
            f"model.rope_scaling=default; choose {', '.join(SCALINGS)}, or set it to 1"
        )
    if config.rope_scaling == "ntk" and rotated <= 2:
        yield (
            "model.rope_scaling=ntk slows down all pairs of columns but the first, so the head "
            f"size must be at least 4, not {rotated}; set model.head_size"
        )
    ramps = config.rope_scaling in ("llama3", "yarn")
    if ramps and config.rope_low_frequency >= config.rope_high_frequency:
        yield (
            f"model.rope_low_frequency={config.rope_low_frequency:g} must be below "
            f"model.rope_high_frequency={config.rope_high_frequency:g}"
        )
    if config.rope_scaling == "yarn" and config.rope_theta <= 1:
        yield f"model.rope_scaling=yarn needs a model.rope_theta above 1, not {config.rope_theta:g}"
    if not config.rope_truncate and config.rope_scaling != "yarn":
        yield (
            "model.rope_truncate=False is for model.rope_scaling=yarn, not "
            f"{config.rope_scaling}; set it to True"
        )
    if config.rope_attention_factor and config.rope_scaling not in ("yarn", "longrope"):
        yield (
            f"model.rope_attention_factor={config.rope_attention_factor:g} does nothing with "
            f"model.rope_scaling={config.rope_scaling}; choose yarn or longrope, or set it to 0"
        )
    yield from _longrope_problems(config, rotated // 2)
    if config.rope_local_theta and all(
        KINDS[kind].locality(config) is None
        for kind in pattern_of(config.attention)
        if kind in KINDS
    ):
        yield (
            f"model.rope_local_theta={config.rope_local_theta:g} is for layers that see only near "
            f"keys, and model.attention={config.attention} has none; set it to 0"
        )


def _longrope_problems(config: "TransformerConfig", pairs: int) -> Iterator[str]:
    for key in ("rope_short_factors", "rope_long_factors"):
        count = len(getattr(config, key))
        if config.rope_scaling == "longrope" and count != pairs:
            yield f"model.{key} has {count} numbers, but rope rotates {pairs} pairs of columns"
        if config.rope_scaling != "longrope" and count:
            yield (
                f"model.{key} does nothing with model.rope_scaling={config.rope_scaling}; "
                "choose longrope, or set it to ()"
            )
    if config.rope_scaling == "longrope" and config.rope_original_length < 2:
        yield "model.rope_original_length=1 must be at least 2 with model.rope_scaling=longrope"


def block_problems(config: "TransformerConfig") -> Iterator[str]:
    """Yields what is wrong with the norms, biases and multipliers of a block."""
    if config.bias and config.attention_bias != "default":
        yield (
            f"model.attention_bias={config.attention_bias} does nothing with model.bias=True, "
            "which has all biases; set model.bias=False, or model.attention_bias=default"
        )
    if config.norm_bias and (config.bias or config.norm != "layernorm"):
        yield (
            "model.norm_bias=True adds the bias that model.bias=False takes from layernorm, but "
            f"model.bias={config.bias} and model.norm={config.norm}; set it to False"
        )
    if config.activation_limit != 7 and config.activation != "swiglu_clamped":
        yield (
            f"model.activation_limit={config.activation_limit:g} is for model.activation="
            f"swiglu_clamped, not {config.activation}; set it to 7.0"
        )
    if config.norm == "none":
        for key, off in (("qk_norm", "none"), ("norm_zero_centered", False)):
            if (value := getattr(config, key)) != off:
                yield f"model.{key}={value} needs a norm, but model.norm=none; set it to {off}"
    if not config.first_norm and (config.norm_placement != "pre" or _is_parallel(config)):
        yield (
            "model.first_norm=False leaves out the first norm of model.norm_placement=pre with "
            "model.parallel_residual=none; set it to True"
        )
    if config.pooler_norm and not config.pooler:
        yield "model.pooler_norm=True needs model.pooler=True, the layer that it follows"
    if config.qk_norm != "none" and config.share_qk:
        yield (
            f"model.qk_norm={config.qk_norm} gives queries and keys different scales, which "
            "model.share_qk=True rules out; set one of them to its default"
        )
    if config.attention_multiplier and not config.attention_scale:
        yield (
            f"model.attention_multiplier={config.attention_multiplier:g} takes the place of the "
            "division by sqrt(head_size); set model.attention_scale=True, or it to 0"
        )
    if config.residual_multiplier != 1 and not config.residual:
        yield (
            f"model.residual_multiplier={config.residual_multiplier:g} is for residual "
            "connections, and model.residual=False has none; set it to 1"
        )
    if config.layer_scale and not config.residual:
        yield (
            f"model.layer_scale={config.layer_scale:g} is for residual connections, and "
            "model.residual=False has none; set it to 0"
        )
    if config.embedding_multiplier != 1 and config.input == "patches":
        yield (
            f"model.embedding_multiplier={config.embedding_multiplier:g} scales token embeddings "
            "and needs model.input=tokens; set it to 1"
        )
    if config.parametrization == "mup":
        for key, off in dict(
            attention_multiplier=0.0, residual_multiplier=1.0, embedding_size=0
        ).items():
            if (value := getattr(config, key)) != off:
                yield (
                    f"model.{key}={value:g} has no rule in model.parametrization=mup; "
                    f"set it to {off:g}"
                )
    yield from _parallel_problems(config)
    yield from _expert_problems(config)


def _is_parallel(config: "TransformerConfig") -> bool:
    return config.parallel_residual != "none"


def _parallel_problems(config: "TransformerConfig") -> Iterator[str]:
    if not _is_parallel(config):
        return
    given = f"model.parallel_residual={config.parallel_residual}"
    if config.norm_placement != "pre":
        yield (
            f"{given} normalises what both layers read, so it needs model.norm_placement=pre, not "
            f"{config.norm_placement}"
        )
    if config.has_cross_attention:
        yield f"{given} has no place for cross-attention; set it to none, or model.family=decoder"
    if config.feed_forward_kind == "none" or not config.residual:
        yield (
            f"{given} adds attention and the feed-forward layer to their input; "
            "set model.feed_forward_kind=mlp and model.residual=True, or it to none"
        )


# Keys that only experts read, and the values that ask for nothing.
EXPERT_KEYS = dict(
    shared_experts=0, router_scores="softmax", router_renormalise=True, expert_capacity=0.0,
    router_z_loss=0.0, router_bias=False,
)  # fmt: skip


def _expert_problems(config: "TransformerConfig") -> Iterator[str]:
    if not config.experts:
        for key, off in EXPERT_KEYS.items():
            if (value := getattr(config, key)) != off:
                yield (
                    f"model.{key}={value} needs experts, but model.experts=0; set that to the "
                    f"number of experts, or it to {off}"
                )
        return
    given = f"model.experts={config.experts}"
    if config.experts_per_token > config.experts:
        yield (
            f"model.experts_per_token={config.experts_per_token} exceeds {given}; set it to "
            f"{config.experts} or less"
        )
    # (With one expert in all, there is nothing to learn.)
    if config.experts_per_token == 1 < config.experts and config.router_renormalise:
        yield (
            "model.router_renormalise=True makes the weight of a token's only expert 1, whatever "
            "its score, so the router learns nothing from the loss; set it to False, or "
            "model.experts_per_token to 2. Published models like this are not imported"
        )
    if config.feed_forward_kind != "mlp":
        yield (
            f"{given} are mlps, not model.feed_forward_kind={config.feed_forward_kind}; set that "
            "to mlp, or model.experts to 0"
        )
    if config.dropout_feed_forward:
        yield (
            f"model.dropout_feed_forward={config.dropout_feed_forward:g} is for a layer without "
            f"experts, but {given}; set it to 0"
        )
    if config.matmul != "float":
        yield (
            f"model.matmul={config.matmul} has no products by expert, but {given}; set it to "
            "float, or model.experts to 0"
        )
    if config.parametrization == "mup":
        yield (
            f"model.parametrization=mup has no settled rule for {given}; set that to 0, or "
            "model.parametrization=standard"
        )
