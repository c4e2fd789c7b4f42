"""OPT: a pre-norm decoder with learned positions, two unused ones before them."""

from pretrained.architecture import ACTIVATIONS, REQUIRED, heads_of
from pretrained.decoder_parts import ConfigPart, activation_part, decoder
from pretrained.gpt_neox import write_plain_heads
from pretrained.layouts import At, below

ROWS_BEFORE = 2


def table(model, head, ids):
    """Our modules, each with the place of its tensors in OPT's files."""
    del model, head, ids
    return {
        "backbone/token_embedding": "model.decoder.embed_tokens",
        "backbone/decoder/position_embedding": At(
            "model.decoder.embed_positions", rows_before=ROWS_BEFORE
        ),
        **below(
            "backbone/decoder/blocks",
            "model.decoder.layers.{layer}",
            {
                "self_attention_norm": "self_attn_layer_norm",
                "self_attention/query": "self_attn.q_proj",
                "self_attention/key": "self_attn.k_proj",
                "self_attention/value": "self_attn.v_proj",
                "self_attention/out": "self_attn.out_proj",
                "feed_forward_norm": "final_layer_norm",
                "feed_forward/in": "fc1",
                "feed_forward/out": "fc2",
            },
        ),
        "backbone/decoder/final_norm": "model.decoder.final_layer_norm",
        "classes": "score",
    }


def read_heads(config):
    """Sizes of heads; embeddings of another width are refused."""
    sizes = heads_of(config, "hidden_size", "num_attention_heads")
    if (width := config.get("word_embed_proj_dim", sizes["width"])) != sizes["width"]:
        config.refuse("word_embed_proj_dim", width, f"only hidden_size={sizes['width']} is")
    return sizes


OPT = decoder(
    "opt",
    "OPTForCausalLM",
    (
        ConfigPart(("width", "heads", "kv_heads", "head_size"), read_heads, write_plain_heads),
        activation_part("activation_function", "relu", ACTIVATIONS),
    ),
    style=dict(
        position="learned", embedding_scale=False, norm="layernorm", norm_placement="pre",
        norm_epsilon=1e-5, bias=True, tie_output=True,
    ),
    dropout=("attention", "residual"),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("ffn_dim", REQUIRED),
        max_length=("max_position_embeddings", REQUIRED),
        init_std=("init_std", 0.02),
        dropout_attention=("attention_dropout", 0.0),
        dropout_residual=("dropout", 0.1),
    ),
    required_values=dict(
        do_layer_norm_before=True, enable_bias=True, layer_norm_elementwise_affine=True,
        tie_word_embeddings=True, _remove_final_layer_norm=False,
    ),
    harmless=frozenset(("layerdrop", "activation_dropout")),
    table=table,
    base="model.",
    copies=(("lm_head.weight", "model.decoder.embed_tokens.weight"),),
    classifier="OPTForSequenceClassification",
)  # fmt: skip
