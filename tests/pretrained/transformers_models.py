"""Small random models of transformers, saved with what they answer. Importing imports no torch.

Every weight is drawn, biases and norms included, so that nothing is right by being zero or one.
They compute in float64, so that differences are our own rounding. A directory then holds

    config.json, model.safetensors        as transformers saves them
    expected.safetensors                  inputs and outputs; targets are -1 where nothing counts
    gradients/                            of the loss, as if they were the weights
"""

import dataclasses
import functools
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

LENGTHS, SOURCE_LENGTHS = (12, 7, 1), (5, 11, 2)
VOCABULARY = 23


@functools.cache
def oracle():
    """torch and transformers, imported late: most runs deselect what needs them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return torch, transformers


@dataclasses.dataclass(frozen=True)
class Example:
    """Builds a model with sizes drawn by a generator."""

    build: Callable  # (transformers, draw) -> model
    inputs: Callable  # (rng, config) -> arrays by the names of their arguments
    outputs: Mapping[str, str]  # our name -> their attribute


class Draw:
    """Sizes at random: small, unequal, and such that heads divide the width."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def __call__(self, *choices):
        return choices[self._rng.integers(len(choices))]

    def bert(self, **more):
        heads = self(2, 3)
        return dict(
            vocab_size=VOCABULARY, hidden_size=heads * self(4, 6), num_attention_heads=heads,
            num_hidden_layers=self(1, 2), intermediate_size=self(20, 26),
            max_position_embeddings=self(16, 19),
            **{"hidden_act": self("gelu", "relu", "gelu_new"), **more},
        )  # fmt: skip

    def bart(self, **more):
        heads = self(2, 3)
        sizes = dict(attention_heads=heads, ffn_dim=self(20, 26))
        both = {f"{stack}_{k}": v for stack in ("encoder", "decoder") for k, v in sizes.items()}
        return dict(
            vocab_size=VOCABULARY, d_model=heads * self(4, 6), encoder_layers=self(1, 2),
            decoder_layers=self(1, 2), max_position_embeddings=self(16, 19),
            activation_function=self("gelu", "relu", "swish"), **both,
            pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **more,
        )  # fmt: skip

    def t5(self, **more):
        return dict(
            vocab_size=VOCABULARY, d_model=self(10, 12), d_kv=self(3, 4), num_heads=self(2, 3),
            d_ff=self(18, 22), num_layers=self(1, 2), num_decoder_layers=self(1, 2),
            # So few buckets that these lengths reach the logarithmic ones, and the last.
            relative_attention_num_buckets=8, relative_attention_max_distance=self(9, 10),
            **more,
        )  # fmt: skip

    def llama(self, rope: dict, **more):
        # A head size that is not width / heads, and maybe groups of two query heads.
        return dict(
            vocab_size=VOCABULARY, hidden_size=self(12, 16), num_attention_heads=4,
            num_key_value_heads=self(1, 2, 4), head_dim=self(4, 6), intermediate_size=self(18, 22),
            num_hidden_layers=self(1, 2), max_position_embeddings=self(32, 64), rms_norm_eps=1e-5,
            rope_parameters=dict(rope_theta=float(self(500, 900)), **rope),
            pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
        )  # fmt: skip

    def vit(self, **more):
        heads = self(2, 3)
        return dict(
            hidden_size=heads * self(4, 6), num_attention_heads=heads,
            num_hidden_layers=self(1, 2), intermediate_size=self(20, 26), image_size=12,
            patch_size=self(4, 6), num_channels=self(1, 3), hidden_act=self("gelu", "relu"),
            **more,
        )  # fmt: skip


def padded(rng, lengths):
    """Tokens and their mask; 0 is padding, and never a real token."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return rng.integers(3, VOCABULARY, mask.shape) * mask, mask


def text(rng, config):
    tokens, mask = padded(rng, LENGTHS)
    tokens[mask == 0] = config.pad_token_id or 0
    given = dict(input_ids=tokens, attention_mask=mask)
    if getattr(config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = (np.arange(tokens.shape[1]) >= 4) * mask
    return given


def masked_text(rng, config):
    """Masks in rows of several lengths, and a row without any."""
    given = text(rng, config)
    tokens, mask = given["input_ids"], given["attention_mask"]
    masked = (rng.random(tokens.shape) < 0.4) & (mask == 1)
    masked[:, 0] = False
    masked[0, 1], masked[1] = True, False
    tokens[masked] = config.mask_token_id
    return given


def long_text(rng, config):
    """Distances beyond the exact buckets of 32."""
    tokens, mask = padded(rng, (30, 7))
    return dict(input_ids=np.where(mask == 0, config.pad_token_id, tokens), attention_mask=mask)


def without_padding(rng, config):
    """Rows of one length: transformers' padding sees no key in a window, and becomes NaN."""
    tokens, mask = padded(rng, LENGTHS[:1] * len(LENGTHS))
    return dict(input_ids=tokens, attention_mask=mask)


def left_padded(rng, config):
    tokens, mask = (np.ascontiguousarray(array[:, ::-1]) for array in padded(rng, LENGTHS))
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return dict(input_ids=tokens, attention_mask=mask, position_ids=positions)


def two_sides(rng, config):
    source, source_mask = padded(rng, SOURCE_LENGTHS)
    tokens, mask = padded(rng, LENGTHS)
    return dict(
        input_ids=source, attention_mask=source_mask,
        decoder_input_ids=tokens, decoder_attention_mask=mask,
    )  # fmt: skip


def images(rng, config):
    size = (len(LENGTHS), config.num_channels, config.image_size, config.image_size)
    return dict(pixel_values=rng.normal(size=size).astype(np.float32))


LLAMA3 = dict(
    rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
    original_max_position_embeddings=40,
)  # fmt: skip


def untied(model):
    """transformers 5 ties T5 at construction whatever its config says; v1.1's weights are two."""
    torch, _ = oracle()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def bert(kind, **more):
    return lambda hf, draw: getattr(hf, kind)(hf.BertConfig(**draw.bert(type_vocab_size=2, **more)))


def like_roberta(prefix, kind, **more):
    return lambda hf, draw: getattr(hf, f"{prefix}{kind}")(
        getattr(hf, f"{prefix}Config")(**draw.bert(type_vocab_size=1, pad_token_id=1, **more))
    )


def modernbert(kind, layers, **more):
    def build(hf, draw):
        sizes = draw.bert(**more)
        del sizes["hidden_act"]
        chosen = dict(
            hidden_activation=draw("gelu", "relu"), num_hidden_layers=layers, local_attention=4,
            global_rope_theta=float(draw(500, 900)), local_rope_theta=float(draw(50, 90)),
            pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        )  # fmt: skip
        if kind == "ForMaskedLM":
            chosen["classifier_activation"] = chosen["hidden_activation"]
        return getattr(hf, f"ModernBert{kind}")(hf.ModernBertConfig(**{**sizes, **chosen}))

    return build


def electra(kind, **more):
    def build(hf, draw):
        sizes = draw.bert(type_vocab_size=2, embedding_size=draw(6, 7), **more)
        return getattr(hf, f"Electra{kind}")(hf.ElectraConfig(**sizes))

    return build


def albert(kind, **more):
    def build(hf, draw):
        sizes = draw.bert(embedding_size=draw(6, 7), num_hidden_groups=draw(1, 2), **more)
        sizes |= dict(num_hidden_layers=4, hidden_act=draw("gelu", "relu", "gelu_new"))
        return getattr(hf, f"Albert{kind}")(hf.AlbertConfig(**sizes))

    return build


def mpnet(kind, **more):
    return lambda hf, draw: getattr(hf, f"MPNet{kind}")(
        hf.MPNetConfig(**{**draw.bert(**more), "max_position_embeddings": draw(36, 40)})
    )


def esm(kind, **more):
    def build(hf, draw):
        sizes = draw.bert(pad_token_id=1, mask_token_id=3, token_dropout=True, **more)
        del sizes["hidden_act"]
        return getattr(hf, f"Esm{kind}")(hf.EsmConfig(**sizes))

    return build


def distilbert(kind, **more):
    def build(hf, draw):
        heads = draw(2, 3)
        return getattr(hf, kind)(
            hf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=heads * draw(4, 6), n_heads=heads, n_layers=draw(1, 2),
                hidden_dim=draw(20, 26), max_position_embeddings=draw(16, 19),
                activation=draw("gelu", "relu"), **more,
            )
        )  # fmt: skip

    return build


def gpt2(kind, **more):
    def build(hf, draw):
        heads = draw(2, 3)
        return getattr(hf, f"GPT2{kind}")(
            hf.GPT2Config(
                vocab_size=VOCABULARY, n_embd=heads * draw(4, 6), n_head=heads,
                n_layer=draw(1, 2), n_inner=draw(None, 22), n_positions=draw(16, 19),
                activation_function=draw("gelu_new", "gelu", "relu"),
                bos_token_id=1, eos_token_id=1, **more,
            )
        )  # fmt: skip

    return build


def llama(rope, **more):
    return lambda hf, draw: hf.LlamaForCausalLM(hf.LlamaConfig(**draw.llama(rope, **more)))


def like_llama(kind, rope=None, head="ForCausalLM", **more):
    """A relative of Llama: `kind` is the start of its classes' names."""

    def build(hf, draw):
        sizes = draw.llama(rope or dict(rope_type="default"))
        chosen = {key: draw(*sorted(v)) if isinstance(v, set) else v for key, v in more.items()}
        given = {key: v for key, v in {**sizes, **chosen}.items() if v is not None}
        config = getattr(hf, f"{kind}Config")(**given)
        return getattr(hf, f"{kind}{head}")(config)

    return build


def falcon(head="ForCausalLM", **more):
    def build(hf, draw):
        chosen = {key: draw(*sorted(v)) if isinstance(v, set) else v for key, v in more.items()}
        sizes = dict(
            vocab_size=VOCABULARY, hidden_size=4 * draw(4, 6), num_attention_heads=4,
            num_kv_heads=2, num_hidden_layers=draw(1, 2), ffn_hidden_size=draw(18, 22),
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        return getattr(hf, f"Falcon{head}")(hf.FalconConfig(**sizes, **chosen))

    return build


def opt(hf, draw, head="ForCausalLM", **more):
    heads = draw(2, 3)
    config = hf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=heads * draw(4, 6), num_attention_heads=heads,
        num_hidden_layers=draw(1, 2), ffn_dim=draw(18, 22), max_position_embeddings=draw(16, 19),
        activation_function=draw("relu", "gelu"), pad_token_id=0, bos_token_id=1, eos_token_id=2,
        **more,
    )  # fmt: skip
    return getattr(hf, f"OPT{head}")(config)


def gemma3(hf, draw, kind="Gemma3ForCausalLM", **more):
    ropes = dict(
        full_attention=dict(rope_type="linear", factor=2.0, rope_theta=700.0),
        sliding_attention=dict(rope_type="default", rope_theta=90.0),
    )
    sizes = draw.llama({}) | dict(rope_parameters=ropes, num_hidden_layers=3)
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    config = hf.Gemma3TextConfig(
        **sizes, layer_types=types, sliding_window=draw(3, 5), query_pre_attn_scalar=draw(7, 9),
        **more,
    )  # fmt: skip
    return getattr(hf, kind)(config)


def t5(feed_forward, tied):
    def build(hf, draw):
        config = hf.T5Config(
            **draw.t5(feed_forward_proj=feed_forward, tie_word_embeddings=tied),
        )
        model = hf.T5ForConditionalGeneration(config)
        return model if tied else untied(model)

    return build


def mt5(hf, draw):
    config = hf.MT5Config(**draw.t5(feed_forward_proj="gated-gelu"))
    return untied(hf.MT5ForConditionalGeneration(config))


def marian(hf, draw):
    return hf.MarianMTModel(hf.MarianConfig(**draw.bart(scale_embedding=draw(True, False))))


def like_bart(kind, head="Model", **more):
    def build(hf, draw):
        sizes = draw.bart(scale_embedding=draw(True, False)) | more
        return getattr(hf, f"{kind}{head}")(getattr(hf, f"{kind}Config")(**sizes))

    return build


def bart(hf, draw):
    config = hf.BartConfig(**draw.bart(scale_embedding=draw(True, False), forced_eos_token_id=1))
    return hf.BartForConditionalGeneration(config)


def t5_encoder(hf, draw):
    return hf.T5EncoderModel(hf.T5Config(**draw.t5(feed_forward_proj=draw("relu", "gated-gelu"))))


def umt5(hf, draw):
    return hf.UMT5ForConditionalGeneration(hf.UMT5Config(**draw.t5(feed_forward_proj="gated-gelu")))


def mbart(hf, draw):
    config = hf.MBartConfig(**draw.bart(scale_embedding=draw(True, False)))
    return hf.MBartForConditionalGeneration(config)


def pegasus(hf, draw):
    config = hf.PegasusConfig(**draw.bart(scale_embedding=draw(True, False)))
    return hf.PegasusForConditionalGeneration(config)


def vit(kind, **more):
    return lambda hf, draw: getattr(hf, kind)(hf.ViTConfig(**draw.vit(**more)))


def deit(kind, **more):
    return lambda hf, draw: getattr(hf, f"DeiT{kind}")(hf.DeiTConfig(**draw.vit(**more)))


def dinov2(kind, **more):
    def build(hf, draw):
        sizes = draw.vit(**more)
        del sizes["intermediate_size"]
        config = hf.Dinov2Config(**sizes, mlp_ratio=draw(2, 3), layerscale_value=draw(0.1, 1.0))
        return getattr(hf, f"Dinov2{kind}")(config)

    return build


YARN = dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=1.0
)
PLAIN_HEADS = dict(hidden_size={16, 24}, head_dim=None)
TWO_LAYERS = dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
LONGROPE = dict(
    rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[1.2, 4.0],
    partial_rotary_factor=0.75,
)  # fmt: skip
LIKE_LLAMA = {
    "llama_yarn": like_llama("Llama", YARN, attention_bias=True),
    "mistral": like_llama("Mistral", sliding_window={3, 5}),
    "qwen2": like_llama(
        "Qwen2", **PLAIN_HEADS, **TWO_LAYERS, use_sliding_window=True, sliding_window={3, 5}
    ),
    "qwen3": like_llama("Qwen3", tie_word_embeddings=True),
    "olmo2": like_llama("Olmo2", **PLAIN_HEADS),
    "granite": like_llama(
        "Granite", **PLAIN_HEADS, embedding_multiplier=3.0, residual_multiplier=0.7,
        attention_multiplier=0.3, logits_scaling=4.0,
    ),
    "smollm3": like_llama("SmolLM3", **PLAIN_HEADS, num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
    "phi3": like_llama(
        "Phi3", LONGROPE, hidden_size=24, head_dim=None, max_position_embeddings=64,
        original_max_position_embeddings=16,
    ),
    "gemma": like_llama("Gemma"),
    "gemma2": like_llama(
        "Gemma2", num_hidden_layers=3, sliding_window={3, 5}, query_pre_attn_scalar={7, 9},
        attn_logit_softcapping=1.5, final_logit_softcapping=2.0,
    ),
    "gemma3": gemma3,
    "gpt_neox": like_llama(
        "GPTNeoX", dict(rope_type="default", partial_rotary_factor=0.5), hidden_size={16, 32},
        num_key_value_heads=None, head_dim=None, use_parallel_residual={True, False},
        rms_norm_eps=None,
    ),
    "falcon": falcon(new_decoder_architecture=True),
    "falcon_7b": falcon(multi_query=True, bias={True, False}),
    "cohere": like_llama(
        "Cohere", **PLAIN_HEADS, use_qk_norm=True, logit_scale=0.3, attention_bias={True, False},
        rms_norm_eps=None,
    ),
    "stablelm": like_llama(
        "StableLm", dict(rope_type="default", partial_rotary_factor=0.5), hidden_size={16, 32},
        head_dim=None, use_qkv_bias={True, False}, use_parallel_residual={True, False},
        rms_norm_eps=None,
    ),
    "starcoder2": like_llama("Starcoder2", **PLAIN_HEADS, sliding_window={3, 5}, rms_norm_eps=None),
    "opt": opt,
    "mixtral": like_llama(
        "Mixtral", num_local_experts={3, 5}, num_experts_per_tok=2, sliding_window=4,
    ),
    "gpt_oss": like_llama(
        "GptOss", YARN | dict(truncate=False), num_hidden_layers={2, 3}, num_local_experts={3, 5},
        num_experts_per_tok=2, sliding_window={3, 5}, swiglu_limit={0.3, 0.5}, hidden_act="silu",
    ),
    "qwen3_moe": like_llama(
        "Qwen3Moe", num_experts=5, num_experts_per_tok={2, 3}, moe_intermediate_size={10, 14},
        norm_topk_prob={True, False}, attention_bias={True, False},
    ),
}  # fmt: skip

SPANS = dict(encoder="hidden_states.-1", start="start_logits", end="end_logits")
LABELS = ("no", "perhaps", "yes")
LABELLED = dict(id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)})
ENCODED = dict(encoder="hidden_states.-1")
ANSWERED = dict(ENCODED, logits="logits")
DECODED = dict(decoder="hidden_states.-1", logits="logits")
BOTH = dict(
    encoder="encoder_last_hidden_state", decoder="decoder_hidden_states.-1", logits="logits"
)

EXAMPLES = {
    "bert_base": Example(
        bert("BertModel"), text, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "bert_masked_lm": Example(bert("BertForMaskedLM"), text, ANSWERED),
    "bert_pretraining": Example(
        bert("BertForPreTraining"),
        text,
        dict(ENCODED, logits="prediction_logits", next_sentence="seq_relationship_logits"),
    ),
    "bert_classifier": Example(
        bert("BertForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "roberta_masked_lm": Example(
        like_roberta("Roberta", "ForMaskedLM", hidden_act="gelu"), text, ANSWERED
    ),
    "roberta_classifier": Example(
        like_roberta("Roberta", "ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "bert_tokens": Example(bert("BertForTokenClassification", **LABELLED), text, ANSWERED),
    "bert_span": Example(bert("BertForQuestionAnswering"), without_padding, SPANS),
    "modernbert_span": Example(
        modernbert("ForQuestionAnswering", 2), without_padding, SPANS
    ),
    "roberta_regression": Example(
        like_roberta("Roberta", "ForSequenceClassification", num_labels=1), text, ANSWERED
    ),
    "xlm_roberta_tokens": Example(
        like_roberta("XLMRoberta", "ForTokenClassification", **LABELLED), text, ANSWERED
    ),
    "xlm_roberta_masked_lm": Example(
        like_roberta("XLMRoberta", "ForMaskedLM", hidden_act="gelu"), text, ANSWERED
    ),
    "camembert_classifier": Example(
        like_roberta("Camembert", "ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "modernbert_masked_lm": Example(modernbert("ForMaskedLM", 5), text, ANSWERED),
    "modernbert_tokens": Example(
        modernbert("ForTokenClassification", 2, **LABELLED), text, ANSWERED
    ),
    "modernbert_classifier": Example(
        modernbert(
            "ForSequenceClassification", 2, classifier_pooling="mean", norm_bias=True,
            classifier_bias=True, **LABELLED,
        ),
        text, ANSWERED,
    ),
    "electra_masked_lm": Example(electra("ForMaskedLM", hidden_act="gelu"), text, ANSWERED),
    "electra_classifier": Example(
        electra("ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "albert_base": Example(
        albert("Model"), text, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "albert_masked_lm": Example(albert("ForMaskedLM"), text, ANSWERED),
    "albert_classifier": Example(
        albert("ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "mpnet_base": Example(
        mpnet("Model"), long_text, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "mpnet_masked_lm": Example(mpnet("ForMaskedLM", hidden_act="gelu"), text, ANSWERED),
    "esm_masked_lm": Example(
        esm("ForMaskedLM", position_embedding_type="rotary"), masked_text, ANSWERED
    ),
    "esm_classifier": Example(
        esm("ForSequenceClassification", emb_layer_norm_before=True, **LABELLED),
        masked_text, ANSWERED,
    ),
    "distilbert_masked_lm": Example(
        distilbert("DistilBertForMaskedLM"), text, ANSWERED
    ),
    "distilbert_classifier": Example(
        distilbert("DistilBertForSequenceClassification", **LABELLED),
        text,
        ANSWERED,
    ),
    "gpt2": Example(gpt2("LMHeadModel"), text, DECODED),
    "gpt2_classifier": Example(
        gpt2("ForSequenceClassification", pad_token_id=0, **LABELLED), text, DECODED
    ),
    "qwen2_classifier": Example(
        like_llama("Qwen2", **PLAIN_HEADS, head="ForSequenceClassification", **LABELLED),
        text, DECODED,
    ),
    "llama": Example(llama(dict(rope_type="default"), tie_word_embeddings=False), text, DECODED),
    "llama_linear": Example(
        llama(dict(rope_type="linear", factor=3.0), tie_word_embeddings=True), text, DECODED
    ),
    "llama3": Example(llama(LLAMA3, tie_word_embeddings=True), left_padded, DECODED),
    **{name: Example(build, text, DECODED) for name, build in LIKE_LLAMA.items()},
    "gemma2": Example(LIKE_LLAMA["gemma2"], without_padding, DECODED),
    "t5": Example(t5("relu", tied=True), two_sides, BOTH),
    "t5_v1_1": Example(t5("gated-gelu", tied=False), two_sides, BOTH),
    "mt5": Example(mt5, two_sides, BOTH),
    "umt5": Example(umt5, two_sides, BOTH),
    "t5_encoder": Example(t5_encoder, text, dict(encoder="last_hidden_state")),
    "mbart": Example(mbart, two_sides, BOTH),
    "pegasus": Example(pegasus, two_sides, BOTH),
    # Padding has its own id: transformers gives no position to it, wherever it is.
    "m2m_100": Example(
        like_bart("M2M100", "ForConditionalGeneration", pad_token_id=2), two_sides, BOTH
    ),
    "vit_base": Example(
        vit("ViTModel"), images, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "vit_classifier": Example(
        vit("ViTForImageClassification", **LABELLED), images, dict(logits="logits")
    ),
    "deit_base": Example(
        deit("Model"), images, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "deit_classifier": Example(
        deit("ForImageClassificationWithTeacher", **LABELLED), images, dict(logits="logits")
    ),
    "dinov2_base": Example(
        dinov2("Model", use_swiglu_ffn=True), images,
        dict(encoder="last_hidden_state", embedding="pooler_output"),
    ),
    "dinov2_classifier": Example(
        dinov2("ForImageClassification", **LABELLED), images, dict(logits="logits")
    ),
    "marian": Example(marian, two_sides, BOTH),
    "bart": Example(bart, two_sides, BOTH),
}  # fmt: skip

CLASSIFIES = dict(head="ForSequenceClassification", **LABELLED)
STATES = dict(encoder="last_hidden_state")
# Further classes, by their names, which are only compared with transformers itself.
MORE_CLASSES = {
    f"{kind}ForSequenceClassification": Example(
        like_llama(kind, **CLASSIFIES, **sizes), text, DECODED
    )
    for kind, sizes in {
        "Llama": {}, "Mistral": dict(sliding_window=None), "Qwen3": {}, "Gemma": {},
        "Gemma2": dict(sliding_window=64), "SmolLM3": PLAIN_HEADS,
        "Phi3": dict(PLAIN_HEADS, sliding_window=None),
        "Starcoder2": dict(PLAIN_HEADS, sliding_window=None, rms_norm_eps=None),
        "Mixtral": dict(num_local_experts=3, num_experts_per_tok=2, sliding_window=None),
        "Qwen3Moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10),
        "GptOss": dict(num_local_experts=3, num_experts_per_tok=2, hidden_act="silu"),
    }.items()
} | {
    "StableLmForSequenceClassification": Example(
        like_llama(
            "StableLm", dict(rope_type="default", partial_rotary_factor=0.5), hidden_size=16,
            head_dim=None, rms_norm_eps=None, **CLASSIFIES,
        ),
        text, DECODED,
    ),
    "GPTNeoXForSequenceClassification": Example(
        like_llama(
            "GPTNeoX", dict(rope_type="default", partial_rotary_factor=0.5), hidden_size=16,
            num_key_value_heads=None, head_dim=None, rms_norm_eps=None, **CLASSIFIES,
        ),
        text, DECODED,
    ),
    "FalconForSequenceClassification": Example(
        falcon(new_decoder_architecture=True, **CLASSIFIES), text, DECODED
    ),
    "OPTForSequenceClassification": Example(
        functools.partial(opt, **CLASSIFIES), text, DECODED
    ),
    "Gemma3TextForSequenceClassification": Example(
        functools.partial(gemma3, kind="Gemma3TextForSequenceClassification", **LABELLED),
        text, DECODED,
    ),
    "DistilBertModel": Example(distilbert("DistilBertModel"), text, STATES),
    "ModernBertModel": Example(modernbert("Model", 2), text, STATES),
    "ElectraModel": Example(electra("Model"), text, STATES),
    "ElectraForPreTraining": Example(electra("ForPreTraining"), text, ENCODED),
    **{
        f"{kind}Model": Example(like_roberta(kind, "Model"), text, STATES)
        for kind in ("Roberta", "XLMRoberta", "Camembert")
    },
    **{
        f"{kind}ForTokenClassification": Example(
            like_roberta(kind, "ForTokenClassification", **LABELLED), text, ANSWERED
        )
        for kind in ("Roberta", "Camembert")
    },
    "CamembertForMaskedLM": Example(
        like_roberta("Camembert", "ForMaskedLM", hidden_act="gelu"), text, ANSWERED
    ),
    "GPT2Model": Example(gpt2("Model"), text, dict(decoder="last_hidden_state")),
    **{
        f"{kind}Model": Example(
            like_bart(kind, **more), two_sides,
            dict(encoder="encoder_last_hidden_state", decoder="last_hidden_state"),
        )
        for kind, more in dict(Bart={}, MBart={}, Pegasus={}, M2M100=dict(pad_token_id=2)).items()
    },
    "XLMRobertaForSequenceClassification": Example(
        like_roberta("XLMRoberta", "ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    "DistilBertForTokenClassification": Example(
        distilbert("DistilBertForTokenClassification", **LABELLED), text, ANSWERED
    ),
    "ElectraForTokenClassification": Example(
        electra("ForTokenClassification", **LABELLED), text, ANSWERED
    ),
    "MPNetForSequenceClassification": Example(
        mpnet("ForSequenceClassification", **LABELLED), text, ANSWERED
    ),
    **{
        f"{kind}ForQuestionAnswering": Example(
            like_roberta(kind, "ForQuestionAnswering"), without_padding, SPANS
        )
        for kind in ("Roberta", "XLMRoberta", "Camembert")
    },
    "DistilBertForQuestionAnswering": Example(
        distilbert("DistilBertForQuestionAnswering"), without_padding, SPANS
    ),
    "ElectraForQuestionAnswering": Example(
        electra("ForQuestionAnswering"), without_padding, SPANS
    ),
    "MPNetForQuestionAnswering": Example(
        mpnet("ForQuestionAnswering"), without_padding, SPANS
    ),
    "AlbertForQuestionAnswering": Example(
        albert("ForQuestionAnswering"), without_padding, SPANS
    ),
    "DeiTForImageClassification": Example(
        deit("ForImageClassification", **LABELLED), images, dict(logits="logits")
    ),
    "AlbertForTokenClassification": Example(
        albert("ForTokenClassification", **LABELLED), text, ANSWERED
    ),
    "AlbertForPreTraining": Example(
        albert("ForPreTraining"), text, dict(ENCODED, logits="prediction_logits")
    ),
    "EsmModel": Example(
        esm("Model", position_embedding_type="rotary"), masked_text,
        dict(encoder="last_hidden_state", embedding="pooler_output"),
    ),
    "EsmForTokenClassification": Example(
        esm("ForTokenClassification", position_embedding_type="rotary", **LABELLED),
        masked_text, ANSWERED,
    ),
    "MPNetForTokenClassification": Example(
        mpnet("ForTokenClassification", **LABELLED), text, ANSWERED
    ),
}  # fmt: skip
ALL_EXAMPLES = EXAMPLES | MORE_CLASSES


def learned(model) -> dict:
    """Every weight by name, a tied one once; fixed sinusoids are not among them."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for tied, name in model.all_tied_weights_keys.items():
        if name not in weights and tied in weights:  # some models list the output first
            weights[name] = weights.pop(tied)
    if hasattr(model, "final_logits_bias"):
        weights["final_logits_bias"] = model.final_logits_bias.requires_grad_()
    return weights


def multiply_one_by_one(model) -> None:
    """The default of a mixture of experts multiplies all at once, but nothing in float64."""
    if hasattr(model.config, "num_experts_per_tok"):
        model.config._experts_implementation = "eager"


def randomize(model, seed: int):
    torch, _ = oracle()
    multiply_one_by_one(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in learned(model).items():
            centre = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
            weight.copy_(centre + 0.2 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def save(name: str, seed: int, directory: Path) -> None:
    torch, hf = oracle()
    example = ALL_EXAMPLES[name]
    torch.manual_seed(seed)
    model = randomize(example.build(hf, Draw(seed)), seed)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    inputs = example.inputs(np.random.default_rng(seed), model.config)
    found = answers(model, inputs, example.outputs)
    targets = targets_of(inputs, found, seed)
    loss = sum(
        torch.nn.functional.cross_entropy(
            found[name].flatten(0, -2), torch.tensor(target).flatten(), ignore_index=-1
        )
        for name, target in targets.items()
    )
    loss = loss + sum((found[name] ** 2).mean() for name in scores_in(found))
    weights = learned(model)
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    as_float = lambda array: array.detach().float().numpy()  # noqa: E731
    expected = {f"input/{name}": array for name, array in inputs.items()}
    expected |= {f"target/{name}": array.astype(np.int64) for name, array in targets.items()}
    expected |= {f"output/{name}": as_float(array) for name, array in found.items()}
    expected["loss"] = as_float(loss)
    contiguous = {name: np.ascontiguousarray(array) for name, array in expected.items()}
    save_file(contiguous, directory / "expected.safetensors")
    (directory / "gradients").mkdir()
    if any(".experts." in name or ".layer_scale1." in name for name in weights):
        # In memory they have other names and shapes than in files.
        with torch.no_grad():
            for weight, gradient in zip(weights.values(), gradients, strict=True):
                weight.copy_(torch.zeros_like(weight) if gradient is None else gradient)
        model.float().save_pretrained(directory / "gradients")
        (directory / "gradients" / "generation_config.json").unlink(missing_ok=True)
        return
    shutil.copy(directory / "config.json", directory / "gradients")
    of_weights = {
        name: np.zeros(weights[name].shape, np.float32) if gradient is None else as_float(gradient)
        for name, gradient in zip(weights, gradients, strict=True)
    }
    save_file(of_weights, directory / "gradients" / "model.safetensors")


def answers(model, inputs, outputs) -> dict:
    torch, _ = oracle()
    multiply_one_by_one(model)
    given = {
        name: torch.tensor(array).to(model.dtype)
        if array.dtype.kind == "f"
        else torch.tensor(array)
        for name, array in inputs.items()
    }
    out = model(**given, output_hidden_states=True)
    found = {}
    for name, path in outputs.items():
        value = out
        for part in path.split("."):
            value = value[int(part)] if part.lstrip("-").isdecimal() else getattr(value, part)
        found[name] = value
    return found


def scores_in(found) -> list[str]:
    """Outputs of one number, which have no class: their squares are the loss."""
    return [name for name in ("logits",) if name in found and found[name].shape[-1] == 1]


def targets_of(inputs, found, seed: int) -> dict[str, np.ndarray]:
    """A class for every answer that counts: of logits, or else of the embedding's columns."""
    rng = np.random.default_rng(seed + 1)
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    targets = {}
    names = found.keys() & {"logits", "next_sentence", "embedding", "start", "end"}
    names = names or {"decoder" if "decoder" in found else "encoder"}
    for name in names - {*scores_in(found)}:
        drawn = rng.integers(found[name].shape[-1], size=tuple(found[name].shape[:-1]))
        targets[name] = np.where(mask != 0, drawn, -1) if drawn.ndim == 2 else drawn
    return targets
