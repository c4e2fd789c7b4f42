"""DINOv2: a ViT with layer scale, whose classifier reads the class token and the mean patch."""

from pretrained import vit
from pretrained.architecture import (
    ACTIVATIONS,
    REQUIRED,
    Architecture,
    Head,
    MisfitError,
    heads_of,
    require_plain_heads,
    their_activation,
)
from pretrained.layouts import At, below

MOST_RATIO = 64  # the largest mlp_ratio that an export tries


def table(model, head, ids):
    """Our modules, each with the place of its tensors in DINOv2's files."""
    del head, ids
    names = {"feed_forward/in": "mlp.fc1", "feed_forward/out": "mlp.fc2"}
    if model.activation == "swiglu":
        names = {
            "feed_forward/gate": At("mlp.weights_in", part=(0, 2)),
            "feed_forward/in": At("mlp.weights_in", part=(1, 2)),
            "feed_forward/out": "mlp.weights_out",
        }
    return {
        **vit.embeddings(model, "dinov2"),
        **below(
            "backbone/encoder/blocks",
            "dinov2.encoder.layer.{layer}",
            {
                "self_attention_norm": "norm1",
                "self_attention/query": "attention.attention.query",
                "self_attention/key": "attention.attention.key",
                "self_attention/value": "attention.attention.value",
                "self_attention/out": "attention.output.dense",
                "self_attention_scale": At("layer_scale1.lambda1", is_tensor=True),
                "feed_forward_norm": "norm2",
                **names,
                "feed_forward_scale": At("layer_scale2.lambda1", is_tensor=True),
            },
        ),
        "backbone/encoder/final_norm": "dinov2.layernorm",
        "classes": "classifier",
    }


def _feed_forward(width: int, ratio: int, *, is_gated: bool) -> int:
    """The inner width; a gated layer has two thirds of it, rounded up to a multiple of 8."""
    inner = int(width * ratio)
    return (int(inner * 2 / 3) + 7) // 8 * 8 if is_gated else inner


def read_more(config, shapes, head):
    """Our `model` keys of DINOv2, beyond those that are only renamed."""
    sizes = heads_of(config, "hidden_size", "num_attention_heads")
    is_gated = config.get("use_swiglu_ffn", False)
    activation = config.translate("hidden_act", ACTIVATIONS, "gelu")
    ratio = config.get("mlp_ratio", 4)
    scale = config.get("layerscale_value", 1.0)
    if ratio < 1:
        config.refuse("mlp_ratio", ratio, "it must be at least 1")
    if scale <= 0:
        config.refuse("layerscale_value", scale, "it must be above 0")
    return dict(
        **sizes,
        **vit.read_image(config, shapes, leading=1, default_patch=14),
        feed_forward=_feed_forward(sizes["width"], ratio, is_gated=is_gated),
        activation="swiglu" if is_gated else activation,
        layer_scale=float(scale),
        pooling="first_mean" if head.objective == "classify_images" else "first",
        decoder_layers=0,
    )


def write_more(model, head, ids):
    """DINOv2's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    is_gated = model.activation == "swiglu"
    pooling = "first_mean" if head.objective == "classify_images" else "first"
    if model.pooling != pooling:
        raise MisfitError(f"needs model.pooling={pooling}")
    if not model.layer_scale:
        raise MisfitError("needs a model.layer_scale above 0")
    sizes = {_feed_forward(model.width, n, is_gated=is_gated): n for n in range(1, MOST_RATIO)}
    if model.feed_forward not in sizes:
        raise MisfitError(
            f"model.feed_forward={model.feed_forward} is not model.width={model.width} times a "
            "whole number" + (", two thirds of it" if is_gated else "")
        )
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_act="gelu" if is_gated else their_activation(model.activation),
        use_swiglu_ffn=is_gated,
        mlp_ratio=sizes[model.feed_forward],
        layerscale_value=model.layer_scale,
        image_size=model.position_image_size or model.image_size,
        patch_size=model.patch_size,
        qkv_bias=True,
        use_mask_token=False,  # which only their pre-training reads
    )


DINOV2 = Architecture(
    model_type="dinov2",
    heads={"Dinov2ForImageClassification": Head("classify_images"), "Dinov2Model": Head("embed")},
    style={key: value for key, value in vit.VIT.style.items() if key != "pooling"}
    | dict(pooler=False),
    keys=dict(
        encoder_layers=("num_hidden_layers", REQUIRED),
        image_channels=("num_channels", 3),
        norm_epsilon=("layer_norm_eps", 1e-6),
        init_std=("initializer_range", 0.02),
        dropout_embedding=("hidden_dropout_prob", 0.0),
        dropout_attention=("attention_probs_dropout_prob", 0.0),
    ),
    required_values=dict(drop_path_rate=0.0),
    # Of the backbone of other models, and of their pre-training.
    harmless=frozenset(
        (
            "apply_layernorm", "reshape_hidden_states", "out_features", "out_indices",
            "stage_names", "use_mask_token", "tie_word_embeddings",
        )
    ),
    absent_at=dict(qkv_bias=(False, r"attention\.attention\.(query|key|value)\.bias$")),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset(("layer_scale", "position_image_size")),
    used_rows=vit.used_rows,
    interpolates=True,
    base="dinov2.",
    derived=(r"embeddings\.mask_token$",),
)  # fmt: skip
