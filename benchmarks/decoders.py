"""One model with the same random weights three times: transformers', ours and CTranslate2's.

Every decoder is asked with `tokens()` and answers with an array (rows, new tokens). None of them
can end early: token 0, the end, and Marian's padding have embeddings of zeros, which are the output
kernel as well, so their logits are 0 where the likeliest is far above.
"""

import dataclasses
import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor

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
from tests.model.published_models import to_ours

GIVEN = 32  # tokens of a prompt, or of a source
END = 0
NO_TOKEN = -1  # as an end: none
# At its usual 0.02 an untrained model repeats one token, and a wrong cache could go unnoticed.
DEVIATION = 0.1
# With norms behind the residuals, that much would make a rounding error grow to a whole logit.
DEVIATION_POST_NORM = 0.05
CORES = os.cpu_count()


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model in transformers, what it is asked, and how ours and CTranslate2's are made of it."""

    theirs: torch.nn.Module
    config: TransformerConfig  # of ours
    params: dict
    loader: str  # the class in CTranslate2 that reads it
    start_bt: np.ndarray  # what the decoder begins with
    source_bs: np.ndarray | None  # what the encoder reads

    @property
    def given_bt(self) -> np.ndarray:
        return self.start_bt if self.source_bs is None else self.source_bs

    def first(self, rows: int) -> "Shape":
        """The same, asked for fewer rows."""
        source_bs = None if self.source_bs is None else self.source_bs[:rows]
        return dataclasses.replace(self, start_bt=self.start_bt[:rows], source_bs=source_bs)


def gpt2(rows: int) -> Shape:
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
    """The 2017 paper's, with its shared vocabulary of 37,000."""
    config = our_config(architectures.transformer_base(), vocab_size=37_000, max_length=1024)
    padding = config.vocab_size - 1  # where Marian has it; its decoder begins with it
    sides = {
        f"{side}_{key}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for key, value in dict(
            layers=layers, attention_heads=config.heads, ffn_dim=config.feed_forward
        ).items()
    }
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocab_size, d_model=config.width, **sides,
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


def our_config(architecture: Mapping, **sizes) -> TransformerConfig:
    values = {**default.get_config().model.to_dict(), **architecture, **sizes}
    config, problems = schema.build(TransformerConfig, values, "model")
    if problems:
        raise schema.ConfigError(problems)
    return config.resolve()


def given_tokens(config: TransformerConfig, rows: int) -> np.ndarray:
    """Random ones, neither the end nor padding."""
    rng = np.random.default_rng(0)
    return rng.integers(1, config.vocab_size - 1, (rows, GIVEN), dtype=np.int32)


def silence(model: torch.nn.Module, embedding: torch.nn.Embedding, *tokens: int) -> None:
    """Makes these tokens ones that are never said, and the model one that looks for no end."""
    embedding.weight.data[list(tokens)] = 0.0
    model.generation_config.eos_token_id = None
    model.eval()


@torch.inference_mode()
def enliven(marian: torch.nn.Module, tokens_bt: torch.Tensor) -> None:
    """Makes an untrained model of this kind say more than one token.

    It repeats the token it was given, the less so the smaller the table is beside the positions;
    and what all its hidden states have in common hides what they differ in.
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
    model, one = LanguageModel(config), jnp.ones((1, 1), jnp.int32)
    source = [one] if config.has_encoder else []
    shapes = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), one, *source)))
    weights = {
        name: weight.detach().numpy()
        for name, weight in theirs.named_parameters()  # which lists a tied weight once
        if not (config.position == "sinusoidal" and "embed_positions" in name)
    }
    params, unused = to_ours(architecture, config, shapes["params"], weights)
    assert not unused, f"weights without a place in our parameters: {sorted(unused)}"
    return jax.tree.map(jnp.asarray, params)


class Ours:
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
        # All sequences are of one length, so a penalty for it would change nothing.
        alpha = jnp.zeros(())
        beams = self._generator.search(self._params, self._prompts, beams=self._beams, alpha=alpha)
        return np.asarray(beams.tokens_bnt[:, 0])

    def cache_bytes(self) -> int:
        """Of the keys and values that are kept, as they are before the first token."""
        slots = self._generator.slots(self._prompts, self._beams)
        keep_tokens = self._beams > 1
        _, cache = self._generator._read(
            self._params, self._prompts, slots, keep_tokens=keep_tokens
        )
        return sum(array.nbytes for array in jax.tree.leaves(cache.layers))


class Transformers:
    def __init__(self, shape: Shape, *, beams: int, steps: int):
        self._generate, self._columns = shape.theirs.generate, shape.start_bt.shape[1]
        self._options = dict(max_new_tokens=steps, do_sample=False, num_beams=beams)
        given = torch.from_numpy(shape.given_bt.astype(np.int64))
        self._given = dict(inputs=given, attention_mask=torch.ones_like(given))

    def tokens(self) -> np.ndarray:
        return self._generate(**self._given, **self._options)[:, self._columns :].numpy()


class CTranslate2:
    """`process` is what `start_ctranslate2` makes of the shape, once for all that is asked."""

    def __init__(self, process: Executor, shape: Shape, *, beams: int, steps: int):
        self._process, self._asked = process, (shape.given_bt.tolist(), beams, steps)

    def tokens(self) -> np.ndarray:
        return self._process.submit(_ask_ctranslate2, *self._asked).result()


def start_ctranslate2(shape: Shape) -> Executor:
    """A process of its own that has the model loaded.

    In one process with torch it slowed down transformers by a quarter; why was not looked into.
    """
    apart = multiprocessing.get_context("spawn")
    without_ours = dataclasses.replace(shape, params={})
    return ProcessPoolExecutor(1, apart, _load_in_ctranslate2, (without_ours,))


_loaded = None  # in that process: the model, as CTranslate2 has it


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
    """As much of a tokenizer as CTranslate2's loaders ask for: token 7 is called "7"."""

    bos_token = eos_token = unk_token = str(END)

    def __init__(self, shape: Shape):
        self._names = {str(token): token for token in range(shape.config.vocab_size)}
        if shape.loader == "MarianMTLoader":
            # It takes the padding out of the vocabulary and the weights, by this name.
            self._names["<pad>"] = self._names.pop(str(shape.config.vocab_size - 1))

    def get_vocab(self) -> dict[str, int]:
        return self._names
