"""Writes GGUF files as llama.cpp's converter does, with the package's own writer."""

import json

import gguf
import numpy as np
from safetensors.numpy import load_file

LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}


def metadata_of(config):
    """The metadata of a config.json, without the tokenizer."""
    kind = config["model_type"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    metadata = {f"{kind}.{key}": config[theirs] for key, theirs in SIZES.items()}
    rope = config["rope_parameters"]
    metadata |= {
        f"{kind}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{kind}.attention.key_length": head,
        f"{kind}.attention.value_length": head,
        f"{kind}.rope.dimension_count": head,
        f"{kind}.rope.freq_base": float(rope["rope_theta"]),
        "general.name": "made",
    }
    if rope["rope_type"] in ("linear", "yarn"):
        metadata |= {
            f"{kind}.rope.scaling.type": rope["rope_type"],
            f"{kind}.rope.scaling.factor": float(rope["factor"]),
        }
    if "original_max_position_embeddings" in rope:
        length = rope["original_max_position_embeddings"]
        metadata[f"{kind}.rope.scaling.original_context_length"] = length
    ids = {"bos": "bos", "eos": "eos", "padding": "pad"}
    for name, theirs in ids.items():
        if config.get(f"{theirs}_token_id") is not None:
            metadata[f"tokenizer.ggml.{name}_token_id"] = config[f"{theirs}_token_id"]
    return metadata


def tensors_of(directory, config):
    """The tensors of a directory of the hub under llama.cpp's names, with its order of rows."""
    found = {}
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    for name, tensor in load_file(directory / "model.safetensors").items():
        module, _, leaf = name.rpartition(".")
        block = ""
        if module.startswith("model.layers."):
            number, _, module = module.removeprefix("model.layers.").partition(".")
            block = f"blk.{number}."
        module = LLAMA[module]
        if config["model_type"] == "llama" and module in heads:
            count = config[heads[module]]
            halves = tensor.reshape(count, 2, len(tensor) // count // 2, -1)
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        found[f"{block}{module}.{leaf}"] = tensor
    return found


def byte_level_metadata(tokenizer, pre):
    """The tokenizer of a tokenizer.json (its JSON object), which is split as `pre` says."""
    vocab = tokenizer["model"]["vocab"] | {
        token["content"]: token["id"] for token in tokenizer["added_tokens"]
    }
    kinds = dict.fromkeys(vocab, gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        special = token["special"]
        kinds[token["content"]] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    texts = sorted(vocab, key=vocab.get)
    assert [vocab[text] for text in texts] == list(range(len(texts)))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [int(kinds[text]) for text in texts],
        "tokenizer.ggml.merges": merges,
    }


def letters_metadata(size):
    """A small byte-level tokenizer of `size` pieces: control tokens and single bytes."""
    alphabet = [chr(ord("!") + number) for number in range(size - 3)]
    tokens = ["<pad>", "<s>", "</s>", *alphabet]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * len(alphabet),
    }


def write_gguf(path, kind, metadata, tensors, quantise=None):
    """Writes a file; `quantise` is the type of all matrices, F32 by default.

    A tensor may also be (bytes, type): blocks that are already quantised.
    """
    made = gguf.GGUFWriter(path, kind)
    for key, value in metadata.items():
        match value:
            case bool():
                made.add_bool(key, value)
            case int():
                made.add_uint32(key, value)
            case float():
                made.add_float32(key, value)
            case str():
                made.add_string(key, value)
            case list() if value:
                made.add_array(key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            made.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        elif quantise is None or tensor.ndim < 2:
            made.add_tensor(name, tensor.astype(np.float32))
        else:
            data = gguf.quantize(tensor.astype(np.float32), quantise)
            made.add_tensor(name, data, raw_dtype=quantise)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


def gguf_of(directory, path, tokenizer=None, quantise=None, tensors=None, **changes):
    """Writes a directory of the hub as a GGUF file; `changes` replace metadata, or remove it.

    `tokenizer` is the tokenizer's metadata; in `changes`, two underscores stand for a full stop.
    """
    config = json.loads((directory / "config.json").read_text())
    metadata = metadata_of(config) | (tokenizer or letters_metadata(config["vocab_size"]))
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    found = tensors_of(directory, config) | (tensors or {})
    return write_gguf(path, config["model_type"], metadata, found, quantise)
