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


def roberta(kind, **more):
    return lambda hf, draw: getattr(hf, kind)(
        hf.RobertaConfig(**draw.bert(type_vocab_size=1, pad_token_id=1, **more))
    )


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


def gpt2(hf, draw):
    heads = draw(2, 3)
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=heads * draw(4, 6), n_head=heads, n_layer=draw(1, 2),
            n_inner=draw(None, 22), n_positions=draw(16, 19), bos_token_id=1, eos_token_id=1,
            activation_function=draw("gelu_new", "gelu", "relu"),
        )
    )  # fmt: skip


def llama(rope, **more):
    return lambda hf, draw: hf.LlamaForCausalLM(hf.LlamaConfig(**draw.llama(rope, **more)))


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


def bart(hf, draw):
    config = hf.BartConfig(**draw.bart(scale_embedding=draw(True, False), forced_eos_token_id=1))
    return hf.BartForConditionalGeneration(config)


def vit(kind, **more):
    return lambda hf, draw: getattr(hf, kind)(hf.ViTConfig(**draw.vit(**more)))


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
    "roberta_masked_lm": Example(roberta("RobertaForMaskedLM", hidden_act="gelu"), text, ANSWERED),
    "roberta_classifier": Example(
        roberta("RobertaForSequenceClassification", **LABELLED),
        text,
        ANSWERED,
    ),
    "distilbert_masked_lm": Example(
        distilbert("DistilBertForMaskedLM"), text, ANSWERED
    ),
    "distilbert_classifier": Example(
        distilbert("DistilBertForSequenceClassification", **LABELLED),
        text,
        ANSWERED,
    ),
    "gpt2": Example(gpt2, text, DECODED),
    "llama": Example(llama(dict(rope_type="default"), tie_word_embeddings=False), text, DECODED),
    "llama_linear": Example(
        llama(dict(rope_type="linear", factor=3.0), tie_word_embeddings=True), text, DECODED
    ),
    "llama3": Example(llama(LLAMA3, tie_word_embeddings=True), left_padded, DECODED),
    "t5": Example(t5("relu", tied=True), two_sides, BOTH),
    "t5_v1_1": Example(t5("gated-gelu", tied=False), two_sides, BOTH),
    "mt5": Example(mt5, two_sides, BOTH),
    "vit_base": Example(
        vit("ViTModel"), images, dict(encoder="last_hidden_state", embedding="pooler_output")
    ),
    "vit_classifier": Example(
        vit("ViTForImageClassification", **LABELLED), images, dict(logits="logits")
    ),
    "marian": Example(marian, two_sides, BOTH),
    "bart": Example(bart, two_sides, BOTH),
}  # fmt: skip


def learned(model) -> dict:
    """Every weight by name, a tied one once; fixed sinusoids are not among them."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if hasattr(model, "final_logits_bias"):
        weights["final_logits_bias"] = model.final_logits_bias.requires_grad_()
    return weights


def randomize(model, seed: int):
    torch, _ = oracle()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in learned(model).items():
            centre = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
            weight.copy_(centre + 0.2 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def save(name: str, seed: int, directory: Path) -> None:
    torch, hf = oracle()
    example = EXAMPLES[name]
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
    shutil.copy(directory / "config.json", directory / "gradients")
    of_weights = {
        name: np.zeros(weights[name].shape, np.float32) if gradient is None else as_float(gradient)
        for name, gradient in zip(weights, gradients, strict=True)
    }
    save_file(of_weights, directory / "gradients" / "model.safetensors")


def answers(model, inputs, outputs) -> dict:
    torch, _ = oracle()
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


def targets_of(inputs, found, seed: int) -> dict[str, np.ndarray]:
    """A class for every answer that counts: of logits, or else of the embedding's columns."""
    rng = np.random.default_rng(seed + 1)
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    targets = {}
    for name in found.keys() & {"logits", "next_sentence", "embedding"}:
        drawn = rng.integers(found[name].shape[-1], size=tuple(found[name].shape[:-1]))
        targets[name] = np.where(mask != 0, drawn, -1) if drawn.ndim == 2 else drawn
    return targets
