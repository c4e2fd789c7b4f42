"""GPT-NeoX (Pythia) and Falcon: queries, keys and values of a head are rows of one tensor.

Their outputs are groups of heads: the queries that share a key, then that key and its value. In
GPT-NeoX a group has one query.
"""

from pretrained.architecture import (
    ACTIVATIONS,
    REQUIRED,
    MisfitError,
    heads_of,
    require_plain_heads,
)
from pretrained.decoder_parts import ConfigPart, activation_part, bool_part, decoder, tied_part
from pretrained.layouts import At, below
from pretrained.rope_keys import rope_part


def fused_table(model, base: str, attention: str, norms: dict[str, str], names: dict[str, str]):
    """The table of both; `names` are those of the layers outside of the blocks."""
    queries = model.heads // model.kv_heads
    starts = dict(query=0, key=queries, value=queries + 1)
    return names | below(
        "backbone/decoder/blocks",
        f"{base}.{{layer}}",
        {
            **norms,
            **{
                f"self_attention/{name}": At(
                    f"{attention}.query_key_value", by_group=(model.kv_heads, start, queries + 2)
                )
                for name, start in starts.items()
            },
            "self_attention/out": f"{attention}.dense",
            "feed_forward/in": "mlp.dense_h_to_4h",
            "feed_forward/out": "mlp.dense_4h_to_h",
        },
    )


def neox_table(model, head, ids):
    """Our modules, each with the place of its tensors in GPT-NeoX' files."""
    del head, ids
    norms = {
        "self_attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    }
    names = {
        "backbone/token_embedding": "gpt_neox.embed_in",
        "backbone/decoder/final_norm": "gpt_neox.final_layer_norm",
        "vocabulary/output": "embed_out",
        "classes": "score",
    }
    return fused_table(model, "gpt_neox.layers", "attention", norms, names)


def write_plain_heads(model):
    """Their sizes of heads, which share no keys."""
    require_plain_heads(model)
    return dict(hidden_size=model.width, num_attention_heads=model.heads)


def read_neox_dropout(config):
    """One rate for embeddings and layers."""
    rate = config.get("hidden_dropout", 0.0)
    return dict(dropout_embedding=rate, dropout_residual=rate)


def write_neox_dropout(model):
    """Their one rate; raises MisfitError for two."""
    if model.dropout_embedding != model.dropout_residual:
        raise MisfitError("needs model.dropout_embedding = model.dropout_residual")
    return dict(hidden_dropout=model.dropout_residual)


GPT_NEOX = decoder(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    (
        ConfigPart(
            ("width", "heads", "kv_heads", "head_size"),
            lambda config: heads_of(config, "hidden_size", "num_attention_heads"),
            write_plain_heads,
        ),
        rope_part(theta="rotary_emb_base", fraction="rotary_pct", default_fraction=0.25),
        bool_part("parallel_residual", "use_parallel_residual", True, ("none", "two_norms")),
        activation_part("hidden_act", "gelu", ACTIVATIONS),
        ConfigPart(
            ("dropout_embedding", "dropout_residual"), read_neox_dropout, write_neox_dropout
        ),
        tied_part(False),
    ),
    style=dict(
        position="rope", embedding_scale=False, norm="layernorm", norm_placement="pre", bias=True
    ),
    dropout=("attention", "embedding", "residual"),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("intermediate_size", REQUIRED),
        max_length=("max_position_embeddings", 2048),
        norm_epsilon=("layer_norm_eps", 1e-5),
        init_std=("initializer_range", 0.02),
        dropout_attention=("attention_dropout", 0.0),
    ),
    required_values=dict(attention_bias=True),
    harmless=frozenset(("is_decoder",)),
    table=neox_table,
    renames=((r"^lm_head\.", "embed_out."),),
    derived=(r"rotary_emb\.inv_freq$", r"attention\.(masked_)?bias$"),
    copies=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
    classifier="GPTNeoXForSequenceClassification",
)


def falcon_table(model, head, ids):
    """The norms' names depend on how many there are."""
    del head, ids
    norms = {
        "none": dict(
            self_attention_norm="input_layernorm", feed_forward_norm="post_attention_layernorm"
        ),
        "one_norm": dict(self_attention_norm="input_layernorm"),
        "two_norms": dict(self_attention_norm="ln_attn", feed_forward_norm="ln_mlp"),
    }
    names = {
        "backbone/token_embedding": "transformer.word_embeddings",
        "backbone/decoder/final_norm": "transformer.ln_f",
        "vocabulary/output": "lm_head",
        "classes": "score",
    }
    norms = norms[model.parallel_residual]
    return fused_table(model, "transformer.h", "self_attention", norms, names)


def read_falcon_block(config):
    """Heads and the order of layers, which depend on each other."""
    sizes = heads_of(config, "hidden_size", "num_attention_heads")
    is_new = config.get("new_decoder_architecture", False)
    is_parallel, is_single = config.get("parallel_attn", True), config.get("multi_query", True)
    norms = config.get("num_ln_in_parallel_attn", 2 if is_new else 1)
    groups = config.get("num_kv_heads", sizes["heads"])
    if norms not in ((1, 2) if is_new else (1,)):
        config.refuse("num_ln_in_parallel_attn", norms, "this decoder has another number")
    if is_new and not is_parallel:
        config.refuse("parallel_attn", False, "new_decoder_architecture=True has parallel layers")
    if not is_new:
        groups = 1 if is_single else sizes["heads"]
    order = ("one_norm" if norms == 1 else "two_norms") if is_parallel else "none"
    return sizes | dict(
        kv_heads=groups,
        parallel_residual=order,
        feed_forward=config.get("ffn_hidden_size", 4 * sizes["width"]),
    )


def write_falcon_block(model):
    """Their keys of the block: the old architecture where it can hold the model."""
    if model.head_size * model.heads != model.width:
        raise MisfitError("needs model.head_size=0: width / heads")
    order = model.parallel_residual
    is_new = order == "two_norms" or model.kv_heads not in (1, model.heads)
    if is_new and order == "none":
        raise MisfitError("needs model.kv_heads of 1 or model.heads, or model.parallel_residual")
    theirs = dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        ffn_hidden_size=model.feed_forward,
        new_decoder_architecture=is_new,
        parallel_attn=order != "none",
        multi_query=not is_new and model.kv_heads == 1,
    )
    if is_new:
        norms = 2 if order == "two_norms" else 1
        theirs |= dict(num_kv_heads=model.kv_heads, num_ln_in_parallel_attn=norms)
    return theirs


def read_falcon_bias(config):
    """Layernorm has a bias whatever the dense layers have."""
    bias = config.get("bias", False)
    return dict(bias=bias, norm_bias=not bias)


def write_falcon_bias(model):
    """Whether dense layers have a bias."""
    if not (model.bias or model.norm_bias):
        raise MisfitError("needs model.bias=True or model.norm_bias=True")
    return dict(bias=model.bias)


FALCON = decoder(
    "falcon",
    "FalconForCausalLM",
    (
        ConfigPart(
            ("width", "heads", "kv_heads", "head_size", "parallel_residual", "feed_forward"),
            read_falcon_block,
            write_falcon_block,
        ),
        ConfigPart(("bias", "norm_bias"), read_falcon_bias, write_falcon_bias),
        activation_part("activation", "gelu", ACTIVATIONS),
        rope_part(),
        tied_part(True),
    ),
    style=dict(position="rope", embedding_scale=False, norm="layernorm", norm_placement="pre"),
    dropout=("residual",),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("num_hidden_layers", REQUIRED),
        max_length=("max_position_embeddings", 2048),
        norm_epsilon=("layer_norm_epsilon", 1e-5),
        init_std=("initializer_range", 0.02),
        dropout_residual=("hidden_dropout", 0.0),
    ),
    # Their ALiBi is added before the scores are scaled.
    required_values=dict(alibi=False),
    harmless=frozenset(("attention_dropout",)),  # not applied without ALiBi
    table=falcon_table,
    copies=(("lm_head.weight", "transformer.word_embeddings.weight"),),
    classifier="FalconForSequenceClassification",
    derived=(r"rotary_emb\.inv_freq$",),
)
