"""Where each of our parameters is found in a published model: our module <- their module.

Leaf names follow from the kind: `kernel`, `scale` and `embedding` are their `weight`, `bias` is
their `bias`. A linear map is stored transposed there and, in ours, reshaped to heads; what is one
tensor a layer there is stacked over layers here.
"""

from collections.abc import Mapping

import jax
import numpy as np

LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}


def _below(ours: str, theirs: str, modules: Mapping[str, str]) -> dict[str, str]:
    return {f"{ours}/{a}": f"{theirs}.{b}" for a, b in modules.items()}


BERT_ENCODER = {
    "backbone/token_embedding": "bert.embeddings.word_embeddings",
    "backbone/token_type_embedding": "bert.embeddings.token_type_embeddings",
    "backbone/encoder/position_embedding": "bert.embeddings.position_embeddings",
    "backbone/encoder/embedding_norm": "bert.embeddings.LayerNorm",
    **_below(
        "backbone/encoder/blocks",
        "bert.encoder.layer.{layer}",
        {
            "self_attention/query": "attention.self.query",
            "self_attention/key": "attention.self.key",
            "self_attention/value": "attention.self.value",
            "self_attention/out": "attention.output.dense",
            "self_attention_norm": "attention.output.LayerNorm",
            "feed_forward/in": "intermediate.dense",
            "feed_forward/out": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        },
    ),
    "pool/dense": "bert.pooler.dense",
}
BERT_PRETRAINING = BERT_ENCODER | {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "vocabulary": "cls.predictions",
    "next_sentence": "cls.seq_relationship",
}
BERT_CLASSIFIER = BERT_ENCODER | {"classes": "classifier"}

GPT2 = {
    "backbone/token_embedding": "transformer.wte",
    "backbone/decoder/position_embedding": "transformer.wpe",
    **_below(
        "backbone/decoder/blocks",
        "transformer.h.{layer}",
        {
            "self_attention_norm": "ln_1",
            # One matrix there; `gpt2_as_linear` cuts it.
            "self_attention/query": "attn.c_attn.query",
            "self_attention/key": "attn.c_attn.key",
            "self_attention/value": "attn.c_attn.value",
            "self_attention/out": "attn.c_proj",
            "feed_forward_norm": "ln_2",
            "feed_forward/in": "mlp.c_fc",
            "feed_forward/out": "mlp.c_proj",
        },
    ),
    "backbone/decoder/final_norm": "transformer.ln_f",
}

LLAMA = {
    "backbone/token_embedding": "model.embed_tokens",
    **_below(
        "backbone/decoder/blocks",
        "model.layers.{layer}",
        {
            "self_attention_norm": "input_layernorm",
            "self_attention/query": "self_attn.q_proj",
            "self_attention/key": "self_attn.k_proj",
            "self_attention/value": "self_attn.v_proj",
            "self_attention/out": "self_attn.o_proj",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward/gate": "mlp.gate_proj",
            "feed_forward/in": "mlp.up_proj",
            "feed_forward/out": "mlp.down_proj",
        },
    ),
    "backbone/decoder/final_norm": "model.norm",
    "vocabulary/output": "lm_head",
}


def _t5_stack(side: str, feed_forward: Mapping[str, str]) -> dict[str, str]:
    def attention(ours, theirs):
        names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        return _below(ours, theirs, names)

    last = 2 if side == "decoder" else 1  # sublayers are numbered, and a decoder has one more
    modules = {
        "self_attention_norm": "layer.0.layer_norm",
        **attention("self_attention", "layer.0.SelfAttention"),
        "feed_forward_norm": f"layer.{last}.layer_norm",
        **_below("feed_forward", f"layer.{last}.DenseReluDense", feed_forward),
    }
    if side == "decoder":
        modules["cross_attention_norm"] = "layer.1.layer_norm"
        modules |= attention("cross_attention", "layer.1.EncDecAttention")
    first_bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return {
        f"backbone/{side}/relative_bias": first_bias,
        f"backbone/{side}/final_norm": f"{side}.final_layer_norm",
        **_below(f"backbone/{side}/blocks", f"{side}.block.{{layer}}", modules),
    }


def _t5(feed_forward: Mapping[str, str]) -> dict[str, str]:
    return {
        "backbone/token_embedding": "shared",
        **_t5_stack("encoder", feed_forward),
        **_t5_stack("decoder", feed_forward),
    }


T5 = _t5({"in": "wi", "out": "wo"})
T5_V1_1 = _t5({"gate": "wi_0", "in": "wi_1", "out": "wo"}) | {"vocabulary/output": "lm_head"}

VIT = {
    "backbone/patch_embedding/projection": "vit.embeddings.patch_embeddings.projection",
    "backbone/patch_embedding/class_token": "vit.embeddings.cls_token",
    "backbone/encoder/position_embedding": "vit.embeddings.position_embeddings",
    **_below(
        "backbone/encoder/blocks",
        "vit.layers.{layer}",
        {
            "self_attention_norm": "layernorm_before",
            "self_attention/query": "attention.q_proj",
            "self_attention/key": "attention.k_proj",
            "self_attention/value": "attention.v_proj",
            "self_attention/out": "attention.o_proj",
            "feed_forward_norm": "layernorm_after",
            "feed_forward/in": "mlp.fc1",
            "feed_forward/out": "mlp.fc2",
        },
    ),
    "backbone/encoder/final_norm": "vit.layernorm",
    "classes": "classifier",
}


def _marian_stack(side: str) -> dict[str, str]:
    kinds = {"self_attention": "self_attn"}
    if side == "decoder":
        kinds["cross_attention"] = "encoder_attn"
    modules = {
        "feed_forward/in": "fc1",
        "feed_forward/out": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
    for ours, theirs in kinds.items():
        names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
        modules |= _below(ours, theirs, names)
        modules[f"{ours}_norm"] = f"{theirs}_layer_norm"
    return _below(f"backbone/{side}/blocks", f"model.{side}.layers.{{layer}}", modules)


MARIAN = {
    "backbone/token_embedding": "model.shared",
    **_marian_stack("encoder"),
    **_marian_stack("decoder"),
    "vocabulary": "final_logits_bias",
}


def gpt2_as_linear(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GPT-2 stores linear maps untransposed, and those of query, key and value as one."""
    result = {}
    for name, array in weights.items():
        if ".c_" in name and name.endswith("weight"):
            array = array.T
        if ".c_attn." in name:
            module, leaf = name.rsplit(".", 1)
            for part, piece in zip(("query", "key", "value"), np.split(array, 3), strict=True):
                result[f"{module}.{part}.{leaf}"] = piece
        else:
            result[name] = array
    return result


def vit_as_linear(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A convolution over patches is a linear map of their rows, columns and channels, in order."""
    name = "vit.embeddings.patch_embeddings.projection.weight"
    kernel = weights[name]
    return weights | {name: kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)}


def to_ours(shapes, table: Mapping[str, str], weights: Mapping[str, np.ndarray]):
    """Our parameters of these shapes, and the names of the weights that found no place in them."""
    unused = set(weights)

    def take(name: str, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        # Their modules have leaves, unless the parameter stands alone.
        name = name if name in weights else f"{name}.{LEAVES[leaf]}"
        unused.discard(name)
        array = weights[name].T if leaf == "kernel" else weights[name]
        return array.reshape(shape)

    def translate(path, leaf):
        *module, name = (key.key for key in path)
        theirs = table["/".join(module)]
        if "blocks" not in module:
            return take(theirs, name, leaf.shape)
        layers, *shape = leaf.shape
        return np.stack([take(theirs.format(layer=i), name, tuple(shape)) for i in range(layers)])

    return jax.tree_util.tree_map_with_path(translate, shapes), unused
