"""ViT and DeiT: pre-norm encoders of image patches with a class token; some have a pooler.

DeiT has a second learned token, which its teacher's classes are read from.
"""

import dataclasses
import re

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

POSITIONS = "backbone/encoder/position_embedding"


def embeddings(model, base):
    """The table of the embeddings and the tokens before the patches; `base` begins their names."""
    patch = (model.patch_size, model.patch_size, model.image_channels)
    tensors = {
        "backbone/patch_embedding/class_token": "cls_token",
        "backbone/patch_embedding/distillation_token": "distillation_token",
        POSITIONS: "position_embeddings",
    }
    return {
        "backbone/patch_embedding/projection": At(
            f"{base}.embeddings.patch_embeddings.projection", patch=patch
        ),
        **{
            ours: At(f"{base}.embeddings.{theirs}", is_tensor=True, leading_ones=1)
            for ours, theirs in tensors.items()
        },
    }


def table(model, head, ids, base="vit"):
    """Our modules, each with the place of its tensors in ViT's files."""
    del head, ids
    return {
        **embeddings(model, base),
        **below(
            "backbone/encoder/blocks",
            f"{base}.encoder.layer.{{layer}}",
            {
                "self_attention_norm": "layernorm_before",
                "self_attention/query": "attention.attention.query",
                "self_attention/key": "attention.attention.key",
                "self_attention/value": "attention.attention.value",
                "self_attention/out": "attention.output.dense",
                "feed_forward_norm": "layernorm_after",
                "feed_forward/in": "intermediate.dense",
                "feed_forward/out": "output.dense",
            },
        ),
        "backbone/encoder/final_norm": f"{base}.layernorm",
        "pool/dense": f"{base}.pooler.dense",
        "classes": "classifier",
    }


# transformers 5 has new module names in memory; its files have the old names.
_IN_A_LAYER = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "layernorm_before": "layernorm_before",
    "layernorm_after": "layernorm_after",
}
NEW_NAMES = tuple(
    (rf"(^|vit\.|deit\.)layers\.(\d+)\.{re.escape(new)}\.", rf"\1encoder.layer.\2.{old}.")
    for new, old in _IN_A_LAYER.items()
)


def read_image(config, shapes, leading, default_patch=16):
    """Our keys of image and patches; `leading` is the number of tokens before the patches."""
    squares = []
    for key, default in (("image_size", 224), ("patch_size", default_patch)):
        size = default if config.get(key) is None else config.get(key)
        if type(size) is not int or size < 1:
            config.refuse(key, size, "images and patches are squares: one positive number")
        squares.append(size)
    channels = config.get("num_channels")
    if channels is not None and (type(channels) is not int or channels < 1):
        config.refuse("num_channels", channels, "one positive number")
    image, patch = squares
    tokens = (image // patch) ** 2 + leading
    for name, shape in shapes.items():
        if name.endswith("embeddings.position_embeddings") and shape[1:2] != (tokens,):
            config.refuse("image_size", image, f"{name} has the shape {list(shape)}")
    return dict(image_size=image, patch_size=patch, max_length=tokens)


def read_more(config, shapes, head, leading=1):
    """Our `model` keys of ViT, beyond those that are only renamed."""
    sizes = heads_of(config, "hidden_size", "num_attention_heads")
    images = read_image(config, shapes, leading)
    pooler = head.objective == "embed" and any("pooler.dense" in name for name in shapes)
    if pooler:
        config.require("pooler_act", "tanh")
        config.require("pooler_output_size", sizes["width"])
    return dict(
        **sizes,
        **images,
        activation=config.translate("hidden_act", ACTIVATIONS, "gelu"),
        decoder_layers=0,
        pooler=pooler,
        pooler_activation="tanh",
    )


def write_more(model, head, ids):
    """ViT's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    if head.objective == "classify_images" and model.pooler:
        raise MisfitError("model.pooler=True, but classes are read from the hidden state")
    if model.pooler and model.pooler_activation != "tanh":
        raise MisfitError("model.pooler_activation=relu, but ViT's pooler has tanh")
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_act=their_activation(model.activation),
        image_size=model.image_size,
        patch_size=model.patch_size,
        qkv_bias=True,
    )


def used_rows(model):
    """The rows of the position table to export: up to the last patch, as a published ViT has."""
    return {f"{POSITIONS}/embedding": model.position_rows}


VIT = Architecture(
    model_type="vit",
    heads={"ViTForImageClassification": Head("classify_images"), "ViTModel": Head("embed")},
    style=dict(
        family="encoder", input="patches", position="learned", token_types=0,
        embedding_scale=False, embedding_norm=False, norm="layernorm", norm_placement="pre",
        bias=True, attention_scale=True, class_token=True, pooling="first",
    ),
    keys=dict(
        encoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("intermediate_size", REQUIRED),
        image_channels=("num_channels", 3),
        norm_epsilon=("layer_norm_eps", 1e-12),
        init_std=("initializer_range", 0.02),
        dropout_embedding=("hidden_dropout_prob", 0.0),
        dropout_residual=("hidden_dropout_prob", 0.0),
        dropout_attention=("attention_probs_dropout_prob", 0.0),
    ),
    required_values={},
    # read_more reads the pooler's keys if there is one; encoder_stride belongs to another head.
    harmless=frozenset(
        ("pooler_act", "pooler_output_size", "encoder_stride", "tie_word_embeddings")
    ),
    # Our layers have biases everywhere or nowhere, so missing biases are zeros.
    absent_at=dict(qkv_bias=(False, r"attention\.attention\.(query|key|value)\.bias$")),
    table=table,
    read_more=read_more,
    write_more=write_more,
    used_rows=used_rows,
    base="vit.",
    renames=NEW_NAMES,
)  # fmt: skip


def deit_table(model, head, ids):
    """Our modules, each with the place of its tensors in DeiT's files."""
    names = table(model, head, ids, base="deit")
    if model.distillation != "head":
        return names
    return names | {"classes": "cls_classifier", "distillation_classes": "distillation_classifier"}


def deit_read_more(config, shapes, head):
    """Our `model` keys of DeiT, beyond those that are only renamed."""
    return read_more(config, shapes, head, leading=2)


DEIT = dataclasses.replace(
    VIT,
    model_type="deit",
    heads={"DeiTForImageClassification": Head("classify_images"), "DeiTModel": Head("embed")},
    style=dict(VIT.style, distillation="token"),
    table=deit_table,
    read_more=deit_read_more,
    base="deit.",
    derived=(r"embeddings\.mask_token$",),
)
# Its logits are the mean of those of two classifiers.
DEIT_DISTILLED = dataclasses.replace(
    DEIT,
    heads={"DeiTForImageClassificationWithTeacher": Head("classify_images")},
    style=dict(VIT.style, distillation="head"),
)
