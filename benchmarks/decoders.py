"""One model with the same random weights in three libraries: transformers, ours and CTranslate2.

`tokens()` of each decoder returns the new tokens, (B, T). No decoder can end early: the embeddings
of token 0, which is the end, and of Marian's padding are zeros. The table is also the output
kernel, so their logits are 0, far below the largest.
"""

import dataclasses
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from configs import architectures, default
from experiment import schema
from inference.decoding import Ends
from inference.generation import Generator, Prompts
from model.config import TransformerConfig
from model.heads import LanguageModel
from pretrained.architecture import Architecture
from pretrained.bart import MARIAN
from pretrained.gpt2 import GPT2
from pretrained.llama import LLAMA
from tests.model.published_models import to_ours

GIVEN = 32  # tokens of a prompt, or of a source
END = 0
NO_TOKEN = -1  # an end that never occurs
# With the usual 0.02 an untrained model repeats one token, which could hide a wrong cache.
DEVIATION = 0.1
# With post-norm, 0.1 would amplify rounding errors to the size of a logit.
DEVIATION_POST_NORM = 0.05
CORES = os.cpu_count()


@dataclasses.dataclass(frozen=True)
class Shape:
    """A transformers model, its inputs, and what our model and CTranslate2 need to load it."""

    theirs: torch.nn.Module
    config: TransformerConfig  # of our model
    params: dict
    loader: str  # CTranslate2's class that reads the model; "": it is left out
    start_bt: np.ndarray  # the first tokens of the decoder
    source_bs: np.ndarray | None  # the input of the encoder

    @property
    def given_bt(self) -> np.ndarray:
        return self.start_bt if self.source_bs is None else self.source_bs

    def first(self, rows: int) -> "Shape":
        """Returns the same with only the first rows."""
        source_bs = None if self.source_bs is None else self.source_bs[:rows]
        return dataclasses.replace(self, start_bt=self.start_bt[:rows], source_bs=source_bs)


def gpt2(rows: int) -> Shape:
    """Makes GPT-2 small."""
    config = our_config(architectures.gpt2())
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.max_length, n_embd=config.width,
            n_layer=config.decoder_layers, n_head=config.heads, n_inner=config.feed_forward,
            layer_norm_epsilon=config.norm_epsilon, initializer_range=DEVIATION,
            bos_token_id=END, eos_token_id=END, pad_token_id=END,
        )
    )  # fmt: skip
    silence(theirs, theirs.transformer.wte, END)
    params = our_params(theirs, config, GPT2)
    return Shape(theirs, config, params, "GPT2Loader", given_tokens(config, rows), None)


def base(rows: int) -> Shape:
    """Makes the base model of the 2017 paper, with its shared vocabulary of 37,000."""
    config = our_config(architectures.transformer_base(), vocab_size=37_000, max_length=1024)
    padding = config.vocab_size - 1  # Marian's padding id; its decoder starts with it
    stacks = {
        f"{stack}_{key}": value
        for stack, layers in (
            ("encoder", config.encoder_layers),
            ("decoder", config.decoder_layers),
        )
        for key, value in dict(
            layers=layers, attention_heads=config.heads, ffn_dim=config.feed_forward
        ).items()
    }
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocab_size, d_model=config.width, **stacks,
            max_position_embeddings=config.max_length, activation_function="relu",
            scale_embedding=True, init_std=DEVIATION_POST_NORM, pad_token_id=padding,
            eos_token_id=END, decoder_start_token_id=padding, forced_eos_token_id=None,
        )
    )  # fmt: skip
    silence(theirs, theirs.model.shared, END, padding)
    given_bs = given_tokens(config, rows)
    enliven(theirs, torch.from_numpy(given_bs.astype(np.int64)))
    params = our_params(theirs, config, MARIAN)
    start_bt = np.full((rows, 1), padding, np.int32)
    return Shape(theirs, config, params, "MarianMTLoader", start_bt, given_bs)


def smollm2(rows: int) -> Shape:
    """Makes SmolLM2-135M: 30 layers of width 576, nine heads that share three keys and values."""
    config = our_config(
        architectures.llama_style(), vocab_size=49_152, width=576, decoder_layers=30, heads=9,
        kv_heads=3, feed_forward=1536, rope_theta=100_000.0, max_length=8192, tie_output=True,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.width,
            num_hidden_layers=config.decoder_layers, num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads, intermediate_size=config.feed_forward,
            max_position_embeddings=config.max_length, rms_norm_eps=config.norm_epsilon,
            rope_parameters=dict(rope_type="default", rope_theta=config.rope_theta),
            tie_word_embeddings=True, initializer_range=DEVIATION,
            bos_token_id=END, eos_token_id=END, pad_token_id=END,
        )
    )  # fmt: skip
    silence(theirs, theirs.model.embed_tokens, END)
    params = our_params(theirs, config, LLAMA)
    return Shape(theirs, config, params, "", given_tokens(config, rows), None)


def llama_bench_speed(shape: Shape, program: str, steps: int) -> float:
    """Tokens per second of llama.cpp's llama-bench, which decodes `steps` tokens at batch 1.

    It reads the model from a GGUF file in float32 and generates its own tokens.
    """
    from tests.gguf_files import gguf_of

    with tempfile.TemporaryDirectory() as directory:
        shape.theirs.save_pretrained(directory)
        file = Path(directory, "model.gguf")
        gguf_of(Path(directory), file, tokenizer={"tokenizer.ggml.model": "no_vocab"})
        command = [program, "-m", str(file), "-p", "0", "-n", str(steps), "-t", str(CORES)]
        ended = subprocess.run(
            [*command, "-ngl", "0", "-o", "json"], capture_output=True, text=True, check=True
        )
    return float(json.loads(ended.stdout)[0]["avg_ts"])


def our_config(architecture: Mapping, **sizes) -> TransformerConfig:
    """Our config of an architecture with these sizes."""
    values = {**default.get_config().model.to_dict(), **architecture, **sizes}
    config, problems = schema.build(TransformerConfig, values, "model")
    if problems:
        raise schema.ConfigError(problems)
    return config.resolve()


def given_tokens(config: TransformerConfig, rows: int) -> np.ndarray:
    """Returns random tokens, neither the end nor padding, (B, T)."""
    rng = np.random.default_rng(0)
    return rng.integers(1, config.vocab_size - 1, (rows, GIVEN), dtype=np.int32)


def silence(model: torch.nn.Module, embedding: torch.nn.Embedding, *tokens: int) -> None:
    """Prevents the model from generating these tokens and from looking for an end."""
    embedding.weight.data[list(tokens)] = 0.0
    model.generation_config.eos_token_id = None
    model.eval()


@torch.inference_mode()
def enliven(marian: torch.nn.Module, tokens_bt: torch.Tensor) -> None:
    """Makes an untrained Marian model generate varied tokens.

    Untrained, it repeats its input token. A token table that is small compared to the positions
    reduces that; removing the mean of the hidden states makes their differences count.
    """
    marian.model.shared.weight *= 0.05
    given = dict(input_ids=tokens_bt, decoder_input_ids=tokens_bt.flip(0))
    last_norm = marian.model.decoder.layers[-1].final_layer_norm
    last_norm.bias -= marian.model(**given).last_hidden_state.mean((0, 1))
    gain = 1 / marian(**given).logits.std()
    last_norm.weight *= gain
    last_norm.bias *= gain


def our_params(
    theirs: torch.nn.Module, config: TransformerConfig, architecture: Architecture
) -> dict:
    """The parameters of transformers' model in our layout."""
    model, one = LanguageModel(config), jnp.ones((1, 1), jnp.int32)
    source = [one] if config.has_encoder else []
    shapes = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), one, *source)))
    weights = {
        name: weight.detach().numpy()
        for name, weight in theirs.named_parameters()  # lists a tied weight once
        if not (config.position == "sinusoidal" and "embed_positions" in name)
    }
    params, unused = to_ours(architecture, config, shapes["params"], weights)
    assert not unused, f"weights without a place in our parameters: {sorted(unused)}"
    return jax.tree.map(jnp.asarray, params)


class Ours:
    """Our decoder, ready to generate."""

    def __init__(self, shape: Shape, *, beams: int, steps: int):
        self._beams = beams
        rows = len(shape.start_bt) * beams
        ends = Ends(eos_id=NO_TOKEN, pad_id=END)
        model = LanguageModel(shape.config)
        self._generator = Generator(model, shape.config, ends, steps=steps, rows=rows)
        self._params = self._generator.lay_out(shape.params)
        lengths_b = jnp.full(len(shape.start_bt), shape.start_bt.shape[1], jnp.int32)
        self._prompts = Prompts(jnp.asarray(shape.start_bt), lengths_b)
        if shape.source_bs is not None:
            source_bs = jnp.asarray(shape.source_bs)
            self._prompts = self._prompts.replace(
                source_bs=source_bs, source_segments_bs=jnp.ones_like(source_bs)
            )

    def tokens(self) -> np.ndarray:
        if self._beams == 1:
            return np.asarray(self._generator.sequences(self._params, self._prompts))
        # All sequences have the same length, so a length penalty would change nothing.
        alpha = jnp.zeros(())
        beams = self._generator.search(self._params, self._prompts, beams=self._beams, alpha=alpha)
        return np.asarray(beams.tokens_bnt[:, 0])

    def cache_bytes(self) -> int:
        """Returns the bytes of the cache before the first token."""
        slots = self._generator.slots(self._prompts, self._beams)
        keep_tokens = self._beams > 1
        _, cache = self._generator._prefill(
            self._params, self._prompts, slots, keep_tokens=keep_tokens
        )
        return sum(array.nbytes for array in jax.tree.leaves(cache.layers))


class Transformers:
    """transformers' decoder, ready to generate."""

    def __init__(self, shape: Shape, *, beams: int, steps: int):
        self._generate, self._columns = shape.theirs.generate, shape.start_bt.shape[1]
        self._options = dict(max_new_tokens=steps, do_sample=False, num_beams=beams)
        given = torch.from_numpy(shape.given_bt.astype(np.int64))
        self._given = dict(inputs=given, attention_mask=torch.ones_like(given))

    def tokens(self) -> np.ndarray:
        return self._generate(**self._given, **self._options)[:, self._columns :].numpy()


class CTranslate2:
    """CTranslate2 in the process of `start_ctranslate2`, which serves all calls."""

    def __init__(self, process: Executor, shape: Shape, *, beams: int, steps: int):
        self._process, self._asked = process, (shape.given_bt.tolist(), beams, steps)

    def tokens(self) -> np.ndarray:
        return self._process.submit(_ask_ctranslate2, *self._asked).result()


def start_ctranslate2(shape: Shape) -> Executor:
    """Starts a separate process that has the model loaded.

    In one process with torch, it slowed down transformers by a quarter; the cause is unknown.
    """
    apart = multiprocessing.get_context("spawn")
    without_ours = dataclasses.replace(shape, params={})
    return ProcessPoolExecutor(1, apart, _load_in_ctranslate2, (without_ours,))


_loaded = None  # CTranslate2's model, in its own process


def _load_in_ctranslate2(shape: Shape) -> None:
    import ctranslate2
    from ctranslate2.converters import transformers as loaders

    global _loaded
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        spec = getattr(loaders, shape.loader)()(shape.theirs, _Names(shape))
        spec.validate()
        spec.optimize(quantization="float32")
        spec.save(directory)
        kind = ctranslate2.Generator if shape.source_bs is None else ctranslate2.Translator
        _loaded = kind(directory, compute_type="float32", inter_threads=1, intra_threads=CORES)


def _ask_ctranslate2(given: list[list[int]], beams: int, steps: int) -> np.ndarray:
    names = [[str(token) for token in row] for row in given]
    if hasattr(_loaded, "translate_batch"):
        results = _loaded.translate_batch(
            names, beam_size=beams, min_decoding_length=steps, max_decoding_length=steps
        )
        return np.array([[int(token) for token in result.hypotheses[0]] for result in results])
    results = _loaded.generate_batch(
        names, beam_size=beams, min_length=steps, max_length=steps, include_prompt_in_result=False
    )
    return np.array([result.sequences_ids[0] for result in results])


class _Names:
    """The part of a tokenizer that CTranslate2's loaders use: token 7 is called "7"."""

    bos_token = eos_token = unk_token = str(END)

    def __init__(self, shape: Shape):
        self._names = {str(token): token for token in range(shape.config.vocab_size)}
        if shape.loader == "MarianMTLoader":
            # The loader removes the token of this name from the vocabulary and the weights.
            self._names["<pad>"] = self._names.pop(str(shape.config.vocab_size - 1))

    def get_vocab(self) -> dict[str, int]:
        return self._names
