"""Models of transformers, built to the sizes of our configs. Importing this imports no torch."""

import jax

from model.config import TransformerConfig
from pretrained import layouts
from pretrained.architecture import Architecture, Specials
from tests.pretrained.transformers_models import oracle


def to_ours(architecture: Architecture, config: TransformerConfig, shapes, weights):
    """Our parameters of these shapes, and the names of the weights that found no place in them."""
    (head, *_) = architecture.heads.values()
    by_path = {_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}
    table = architecture.table(config, head, Specials())
    ours, unused = layouts.to_ours(by_path, table, weights)
    return jax.tree.map_with_path(lambda path, _: ours[_path(path)], shapes), unused


def _path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def gpt2(config: TransformerConfig):
    _, hf = oracle()
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=config.vocab_size, n_embd=config.width, n_layer=config.decoder_layers,
            n_head=config.heads, n_inner=config.feed_forward, n_positions=config.max_length,
            layer_norm_epsilon=config.norm_epsilon, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def t5(config: TransformerConfig, feed_forward: str):
    torch, hf = oracle()
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=config.vocab_size, d_model=config.width, d_kv=config.head_size,
            d_ff=config.feed_forward, num_layers=config.encoder_layers,
            num_decoder_layers=config.decoder_layers, num_heads=config.heads,
            relative_attention_num_buckets=config.relative_buckets,
            relative_attention_max_distance=config.relative_max_distance,
            layer_norm_epsilon=config.norm_epsilon, feed_forward_proj=feed_forward,
            tie_word_embeddings=config.tie_output,
        )
    )  # fmt: skip
    if not config.tie_output:
        # transformers 5 ties at construction whatever its config says; v1.1's weights are two.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def marian(config: TransformerConfig, activation: str):
    _, hf = oracle()
    sizes = {
        f"{stack}_{key}": value
        for stack, layers in (
            ("encoder", config.encoder_layers),
            ("decoder", config.decoder_layers),
        )
        for key, value in dict(
            layers=layers, attention_heads=config.heads, ffn_dim=config.feed_forward
        ).items()
    }
    return hf.MarianMTModel(
        hf.MarianConfig(
            vocab_size=config.vocab_size, d_model=config.width, **sizes,
            max_position_embeddings=config.max_length, activation_function=activation,
            scale_embedding=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        )
    )  # fmt: skip
