"""GPT-2: a pre-norm decoder with learned positions. Its kernels are (inputs, outputs), as ours."""

from pretrained.architecture import (
    ACTIVATIONS,
    REQUIRED,
    Architecture,
    Head,
    heads_of,
    require_plain_heads,
    their_activation,
)
from pretrained.decoder_parts import require_last_token
from pretrained.layouts import At, below


def table(model, head, ids):
    """Our modules, each with the place of its tensors in GPT-2's files."""
    del model, head, ids
    return {
        "backbone/token_embedding": "transformer.wte",
        "backbone/decoder/position_embedding": "transformer.wpe",
        **below(
            "backbone/decoder/blocks",
            "transformer.h.{layer}",
            {
                "self_attention_norm": "ln_1",
                "self_attention/query": At("attn.c_attn", untransposed=True, part=(0, 3)),
                "self_attention/key": At("attn.c_attn", untransposed=True, part=(1, 3)),
                "self_attention/value": At("attn.c_attn", untransposed=True, part=(2, 3)),
                "self_attention/out": At("attn.c_proj", untransposed=True),
                "feed_forward_norm": "ln_2",
                "feed_forward/in": At("mlp.c_fc", untransposed=True),
                "feed_forward/out": At("mlp.c_proj", untransposed=True),
            },
        ),
        "backbone/decoder/final_norm": "transformer.ln_f",
        "classes": "score",
    }


def read_more(config, shapes, head):
    """Our `model` keys of GPT-2, beyond those that are only renamed."""
    del shapes
    sizes = heads_of(config, "n_embd", "n_head")
    return dict(
        **sizes,
        feed_forward=config.get("n_inner", 4 * sizes["width"]),
        activation=config.translate("activation_function", ACTIVATIONS, "gelu_new"),
        encoder_layers=0,
        pooling="last",
        class_bias=not head.reads_texts,
    )


def write_more(model, head, ids):
    """GPT-2's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    require_last_token(model, head)
    return dict(
        n_embd=model.width,
        n_head=model.heads,
        n_inner=model.feed_forward,
        activation_function=their_activation(model.activation),
    )


GPT2 = Architecture(
    model_type="gpt2",
    # A base model lacks only the output layer, whose weights are the embeddings.
    heads={
        "GPT2LMHeadModel": Head("causal_lm"), "GPT2Model": Head("causal_lm"),
        "GPT2ForSequenceClassification": Head("classify_text"),
    },
    style=dict(
        family="decoder", input="tokens", position="learned", token_types=0,
        embedding_scale=False, embedding_norm=False, tie_output=True, output_scale=False,
        output_bias=False, norm="layernorm", norm_placement="pre", bias=True,
        attention_scale=True,
    ),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("n_layer", REQUIRED),
        max_length=("n_positions", REQUIRED),
        norm_epsilon=("layer_norm_epsilon", 1e-5),
        init_std=("initializer_range", 0.02),
        dropout_embedding=("embd_pdrop", 0.1),
        dropout_residual=("resid_pdrop", 0.1),
        dropout_attention=("attn_pdrop", 0.1),
    ),
    required_values=dict(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    ),
    aliases=dict(
        hidden_size="n_embd", max_position_embeddings="n_positions",
        num_attention_heads="n_head", num_hidden_layers="n_layer",
    ),
    # The summary_* keys belong to another head. Upcasting computes the same in a wider dtype.
    harmless=frozenset(
        (
            "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn",
            "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
            "summary_type", "summary_use_proj", "is_decoder",
        )
    ),
    neutral=dict(is_causal=(True,)),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset(("class_bias",)),
    base="transformer.",
    derived=(r"h\.\d+\.attn\.(masked_)?bias$",),
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    generates=True,
)  # fmt: skip
