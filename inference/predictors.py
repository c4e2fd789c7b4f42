"""Predictors turn lines of text, or paths of images, sounds or series, into outputs.

The model's objective decides which predictor it gets. All predictors have the same two methods:

    prompt(line, name) -> the fields of the line's row; `name` is its name in error messages
    predict(batch, numbers) -> outputs for each line; row i of the batch is line numbers[i], and
        rows after those only pad the batch
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from tqdm import tqdm

from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference import sampling_options
from inference.conversation import ChatPrompts, chat_format_of
from inference.prompts import (
    ImagePrompts,
    ItemPrompts,
    SignalPrompts,
    TextPrompts,
    TooLongError,
    in_batches,
    prompt_rows,
)
from inference.sampler import Sampler
from input_pipeline.objectives.classify_tokens import encode_words, framed
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer
from training.compilation import compiler_options
from training.device_memory import prompt_problem
from training.infer_sizes import tells_pairs_apart
from training.mesh import put_batch
from training.model_for_task import forward

CANDIDATES = 5  # tokens for each mask
RECOMMENDED = 10  # items for each basket, unless --num_outputs says how many

# Sources whose files may hold pairs of texts, which only reading them tells.
FROM_FILES = ("labelled_text_files", "scored_files")
READ_AS_UNKNOWN = "read as its unknown token"

Outputs = list[dict[str, Any]]


def make_predictor(
    model: loaded_run.LoadedRun,
    given: Mapping[str, Any],
    batch_size: int,
    *,
    strict: bool = False,
    ids: bool = False,
    chat: bool = False,
    system: str = "",
):
    """Makes the predictor of a model.

    `given` are sampling options, which only models that generate text take. `strict` refuses text
    that the vocabulary cannot spell. With `ids`, lines and outputs are token ids. With `chat`,
    lines are conversations; `system` is the system's message of those that have none.
    """
    if chat:
        format, options = chat_format_of(model), sampling_options.from_flags(given)
        prompts = ChatPrompts(format, system, strict=strict)
        return Sampler(model, options, batch_size, format.tokenizer, prompts=prompts, strips=True)
    task, tokenizer = model.experiment.task, model.tokenizer
    head = task.objective_spec.head
    if ids:
        tokenizer = _for_ids(model, given)
    elif isinstance(tokenizer, IdTokenizer):
        raise ConfigError("this model came without a tokenizer: give ids for text, with --ids")
    if head == "language_model":
        options = sampling_options.from_flags(given)
        return Sampler(model, options, batch_size, tokenizer, strict=strict)
    if task.objective_spec.ranks_items and given.keys() <= {"num_outputs"}:
        count = given.get("num_outputs", RECOMMENDED)
        return Recommender(model, tokenizer, count, strict=strict)
    if given:
        flags = ", ".join(f"--{name}" for name in given)
        raise ConfigError(
            f"{flags}: this is about writing text, which a model with task.objective="
            f"{task.objective} does not do; leave it out"
        )
    predictors_by_head = {
        "masked_language_model": FillMask,
        "embedder": EmbeddingPredictor,
        "regressor": ScorePredictor,
        "token_classifier": TagPredictor,
        "forecaster": Forecasts,
    }
    predictor = predictors_by_head.get(head, ClassPredictor)(model, tokenizer, strict=strict)
    predictor.rows = batch_size
    return predictor


def _for_ids(model: loaded_run.LoadedRun, given: Mapping[str, Any]) -> IdTokenizer:
    if model.tokenizer is None:
        raise ConfigError("--ids is about tokens, and this model reads none; leave it out")
    for name in ("stop", "prefix", "suffix"):
        if given.get(name):
            raise ConfigError(f"--{name} is text, and --ids has none; leave one of them out")
    return IdTokenizer.like(model.tokenizer, model.model_config.vocab_size)


def predict(
    predictor,
    lines: Sequence[str],
    names: Sequence[str],
    batch_size: int,
    *,
    skip: int = 0,
    answered: Callable[[Sequence[Outputs]], None] | None = None,
) -> list[Outputs]:
    """Predicts the outputs of each line, in order. Checks all lines before the first prediction.

    `answered` gets the outputs as they come, in order, those of the first `skip` lines left out.
    Batches without other lines are skipped, and their lines have no outputs. So a line is always in
    the same batch, and its outputs are the same to the last bit.
    """
    rows = prompt_rows(predictor.prompt, lines, names)
    left_out = isinstance(predictor, Recommender)
    note_unknown(predictor.unknown, len(lines), "left out" if left_out else READ_AS_UNKNOWN)
    note_long_rows(rows, predictor.trained_length)
    found: list[Outputs | None] = [None] * len(lines)
    done = skip
    with tqdm(total=len(lines), unit="line", disable=None, dynamic_ncols=True) as bar:
        for numbers, batch in in_batches(rows, batch_size, predictor.max_prompt_length):
            if numbers[-1] >= skip:
                outputs = predictor.predict(batch, numbers)
                for number, each in zip(numbers, outputs, strict=True):
                    found[number] = each
            first = done
            while done < len(lines) and found[done] is not None:
                done += 1
            if answered is not None and done > first:
                answered(found[first:done])
            bar.update(len(numbers))
    return [each or [] for each in found]


def stream(sampler: Sampler, line: str, name: str, number: int, batch_size: int) -> Iterator[str]:
    """Yields the output for one line in pieces."""
    sampler.unknown.clear()
    row = sampler.prompt(line, name)
    note_unknown(sampler.unknown, 1)
    note_long_rows([row], sampler.trained_length)
    ((_, batch),) = in_batches([row], batch_size, sampler.max_prompt_length)
    return sampler.stream(batch, number)


def note_long_rows(rows: Sequence[Fields], trained_length: int) -> None:
    """Warns about rows that are longer than the rows of training."""
    sizes = [len(row.get("encoder_inputs", row.get("inputs", ()))) for row in rows]
    long = sum(size > trained_length for size in sizes)
    if long:
        logging.warning(
            f"{long:,} of {len(rows):,} lines have more tokens than rows had in training: up to "
            f"{max(sizes):,}, not {trained_length:,}"
        )


def note_unknown(unknown: Mapping[str, str], lines: int, treatment: str = READ_AS_UNKNOWN) -> None:
    """Warns about text that becomes unknown tokens, or is left out."""
    if unknown:
        name, text = next(iter(unknown.items()))
        logging.warning(
            "%d of %d lines have text that the model's vocabulary cannot spell, %s: the first is "
            "%r in %s; --strict refuses such lines",
            len(unknown), lines, treatment, text, name,
        )  # fmt: skip


class _EncoderPredictor:
    """Base class of predictors that call the model once for a text or an image."""

    rows = 1  # of a batch

    def __init__(
        self, model: loaded_run.LoadedRun, tokenizer: Tokenizer | None, *, strict: bool = False
    ):
        self._model = model
        self.unknown: Mapping[str, str] = {}
        task, data, config = model.experiment.task, model.experiment.data, model.model_config
        if config.input_shape:
            self._prompt, self.max_prompt_length = SignalPrompts(data), 0
        elif config.input == "patches":
            self._prompt = ImagePrompts(config.image_size, config.image_channels, data)
            self.max_prompt_length = 0
        elif task.objective_spec.ranks_items:
            self._prompt = ItemPrompts(tokenizer, strict=strict)
            self.unknown = self._prompt.unknown
            self.max_prompt_length = _max_prompt_length(model)
        else:
            self._prompt = TextPrompts(
                task.objective,
                data.example_kind,
                tokenizer,
                takes_two=_takes_two(model),
                strict=strict,
                # A sentence encoder truncates texts as its published pipeline does.
                longest=data.length if task.embedding != "pooled" else 0,
            )
            self.unknown = self._prompt.unknown
            self.max_prompt_length = _max_prompt_length(model)
        self.trained_length = data.length

        def outputs(params, batch):
            return self._from_outputs(forward(model.model, task, params, batch))

        self._compiled = jax.jit(outputs, compiler_options=compiler_options())

    def prompt(self, text: str, name: str) -> Fields:
        fields = _refuse_long(self._prompt(text, name), name, self.max_prompt_length)
        tokens, model = len(fields.get("inputs", ())), self._model
        config, mesh = model.model_config, model.mesh
        if reason := prompt_problem(config, name, tokens, 0, self.rows, mesh):
            raise TooLongError(reason, "; lower --batch_size")
        return fields

    def _outputs(self, batch: Mapping[str, np.ndarray]) -> Any:
        placed = put_batch(batch, self._model.mesh)
        return jax.device_get(self._compiled(self._model.params, placed))


class FillMask(_EncoderPredictor):
    """Fills masks in a text with the likeliest tokens."""

    def __init__(self, model: loaded_run.LoadedRun, tokenizer: Tokenizer, *, strict: bool = False):
        if tokenizer.mask_id is None:
            raise ConfigError("this model's tokenizer has no mask token, so it cannot fill gaps")
        self._tokenizer, self._text_ids_v = tokenizer, jnp.asarray(tokenizer.text_ids)
        super().__init__(model, tokenizer, strict=strict)

    def _from_outputs(self, outputs: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        probs_btv = jax.nn.softmax(outputs["logits"].astype(jnp.float32), axis=-1)
        # Special tokens are left out.
        text_probs_btv = probs_btv[..., self._text_ids_v]
        probs_btn, places_btn = jax.lax.top_k(text_probs_btv, CANDIDATES)
        return probs_btn, self._text_ids_v[places_btn]

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        probs_btn, ids_btn = self._outputs(batch)
        lengths_b = (batch["segment_ids"] > 0).sum(axis=1)
        rows = zip(batch["inputs"], lengths_b, ids_btn, probs_btn, numbers, strict=False)
        return [[self._filled(row[:length], *found)] for row, length, *found, _ in rows]

    def _filled(
        self, inputs_t: np.ndarray, ids_tn: np.ndarray, probs_tn: np.ndarray
    ) -> dict[str, Any]:
        gaps = np.flatnonzero(inputs_t == self._tokenizer.mask_id)
        filled_t = inputs_t.copy()
        filled_t[gaps] = ids_tn[gaps, 0]
        parts = [filled_t]
        if self._model.experiment.task.next_sentence:  # two texts, each ending at a separator
            parts = np.split(filled_t, np.flatnonzero(inputs_t == self._tokenizer.sep_id))[:-1]
        return {
            "text": "\t".join(self._tokenizer.decode(part) for part in parts),
            "gaps": [
                [
                    {"token": self._tokenizer.decode([id]), "id": id, "probability": prob}
                    for id, prob in zip(ids_tn[gap].tolist(), probs_tn[gap].tolist(), strict=True)
                ]
                for gap in gaps
            ],
        }


class Recommender(_EncoderPredictor):
    """Recommends the likeliest items that a basket does not have, the likeliest first."""

    def __init__(
        self,
        model: loaded_run.LoadedRun,
        tokenizer: Tokenizer,
        count: int = RECOMMENDED,
        *,
        strict: bool = False,
    ):
        known = len(tokenizer.text_ids)
        if not 1 <= count <= known:
            raise ConfigError(
                f"--num_outputs={count} must be at least 1 and at most {known}, the number of items"
            )
        self._tokenizer, self._count = tokenizer, count
        super().__init__(model, tokenizer, strict=strict)

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.softmax(outputs["logits"].astype(jnp.float32), axis=-1)

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        probs_btv = self._outputs(batch)
        masks_bt = batch["inputs"] == self._tokenizer.mask_id
        rows = zip(batch["inputs"], masks_bt.argmax(axis=1), probs_btv, numbers, strict=False)
        return [self._best(inputs_t, probs_tv[mask]) for inputs_t, mask, probs_tv, _ in rows]

    def _best(self, inputs_t: np.ndarray, probs_v: np.ndarray) -> Outputs:
        new = np.setdiff1d(self._tokenizer.text_ids, inputs_t)
        best = new[np.argsort(-probs_v[new], kind="stable")][: self._count]
        return [
            {"item": self._tokenizer.decode([id]), "probability": float(probs_v[id])} for id in best
        ]


class ClassPredictor(_EncoderPredictor):
    """Predicts the probability of each class, the likeliest class first."""

    def prompt(self, text: str, name: str) -> Fields:
        # Empty texts are refused, as in training.
        parts = text.split("\t") if _takes_two(self._model) else [text]
        if not all(part.strip() for part in parts):
            what = "has an empty text" if text.strip() else "is empty"
            raise ConfigError(f"{name} {what}, which has no class; fill it in or leave it out")
        is_from_files = self._model.experiment.data.source in FROM_FILES
        if "\t" in text and self._model.text_pairs is False and is_from_files:
            raise ConfigError(
                f"{name} has a tab, which separates two texts, and this model was trained on "
                "single texts; replace the tab by a space, or leave out what is not the text"
            )
        return super().prompt(text, name)

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.softmax(outputs["logits"].astype(jnp.float32), axis=-1)

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        probs_bc = self._outputs(batch)
        labels = self._model.labels
        return [
            [{"label": labels[c], "probability": float(probs_c[c])} for c in np.argsort(-probs_c)]
            for probs_c in probs_bc[: len(numbers), : len(labels)]
        ]


class ScorePredictor(ClassPredictor):
    """Predicts a number for each text, or pair of texts."""

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return outputs["logits"][:, 0].astype(jnp.float32)

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        scores_b = self._outputs(batch)[: len(numbers)]
        return [[{"score": float(score)}] for score in scores_b]


class TagPredictor(_EncoderPredictor):
    """Predicts a tag for each word of a text; white space separates words."""

    def __init__(self, model: loaded_run.LoadedRun, tokenizer: Tokenizer, *, strict: bool = False):
        if isinstance(tokenizer, IdTokenizer):
            raise ConfigError("tags are those of words, and --ids has none; leave it out")
        self._tokenizer = tokenizer
        super().__init__(model, tokenizer, strict=strict)

    def prompt(self, text: str, name: str) -> Fields:
        words = text.split()
        if not words:
            raise ConfigError(f"{name} is empty, so no word has a tag; fill it in or leave it out")
        self._prompt(" ".join(words), name)  # notes text that cannot be spelt
        ids, numbers = encode_words(words, self._tokenizer)
        # The words' numbers take the place of tags.
        fields = framed(ids, numbers, self._tokenizer)
        return _refuse_long(fields, name, self.max_prompt_length)

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.softmax(outputs["logits"].astype(jnp.float32), axis=-1)

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        probs_btc = self._outputs(batch)[..., : len(self._model.labels)]
        found = []
        for probs_tc, words_t, weights_t in zip(
            probs_btc[: len(numbers)], batch["targets"], batch["weights"], strict=False
        ):
            at = np.flatnonzero(weights_t > 0)
            # A word that becomes no token, such as a control character, has no tag.
            tags: list[str | None] = [None] * (int(words_t[at].max(initial=-1)) + 1)
            probabilities: list[float | None] = [None] * len(tags)
            for place in at:
                word, best = int(words_t[place]), int(probs_tc[place].argmax())
                tags[word] = self._model.labels[best]
                probabilities[word] = float(probs_tc[place, best])
            found.append([{"tags": tags, "probabilities": probabilities}])
        return found


class Forecasts(_EncoderPredictor):
    """Forecasts quantiles of the values that follow a series."""

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return outputs["quantiles"]

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        inputs = {name: each for name, each in batch.items() if name != "offset"}
        quantiles_bhn = self._outputs(inputs)[: len(numbers)]
        levels = [str(level) for level in self._model.experiment.task.quantiles]
        offsets_b = batch["offset"].astype(np.float64)
        return [
            [
                {"step": step, "quantiles": dict(zip(levels, row_n, strict=True))}
                for step, row_n in enumerate((quantiles_hn + offset).tolist(), start=1)
            ]
            for quantiles_hn, offset in zip(quantiles_bhn, offsets_b, strict=False)
        ]


class EmbeddingPredictor(_EncoderPredictor):
    """Computes the embedding of a text or an image."""

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return outputs["embedding"].astype(jnp.float32)

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        vectors_bd = self._outputs(batch)[: len(numbers)]
        return [[{"embedding": vector_d.tolist()}] for vector_d in vectors_bd]


def _max_prompt_length(model: loaded_run.LoadedRun) -> int:
    """The maximum length of a row in tokens; 0: no maximum."""
    config = model.model_config
    return config.max_length if config.position == "learned" else 0


def _takes_two(model: loaded_run.LoadedRun) -> bool:
    """Whether a line may be two texts, separated by a tab."""
    data, task = model.experiment.data, model.experiment.task
    if task.objective_spec.head == "masked_language_model":
        return task.next_sentence
    if model.text_pairs is not None:
        return model.text_pairs
    if not tells_pairs_apart(model.model_config, model.tokenizer):
        return False
    return data.source in FROM_FILES or bool(data.text_pair_field)


def _refuse_long(fields: Fields, name: str, longest: int) -> Fields:
    tokens = len(fields.get("inputs", ()))
    if longest and tokens > longest:
        raise TooLongError(
            f"{name} has {tokens} tokens with the special ones, and model.position=learned ends at "
            f"model.max_length={longest}"
        )
    return fields
