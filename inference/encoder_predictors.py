"""Predictors that call the model once for a batch: they fill masks, recommend, classify, embed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference.answer_spans import Window, best_answer
from inference.prompts import (
    ImagePrompts,
    ItemPrompts,
    SignalPrompts,
    TextPrompts,
    TooLongError,
    in_batches,
)
from input_pipeline.config import source_table
from input_pipeline.objectives import answer_span
from input_pipeline.objectives.classify_tokens import encode_words, framed
from input_pipeline.rows import Fields
from input_pipeline.sources.files.tagged_text import words_of
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer
from training.compilation import compiler_options
from training.device_memory import prompt_problem
from training.infer_sizes import tells_pairs_apart
from training.mesh import put_batch
from training.model_for_task import forward

CANDIDATES = 5  # tokens for each mask


RECOMMENDED = 10  # items for each basket, unless --num_outputs says how many


Outputs = list[dict[str, Any]]


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
        single = self._model.text_pairs is False and _tab_separates_texts(self._model)
        if "\t" in text and single:
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
    """Predicts a tag for each word of a text; spaces and tabs separate words."""

    def __init__(self, model: loaded_run.LoadedRun, tokenizer: Tokenizer, *, strict: bool = False):
        if isinstance(tokenizer, IdTokenizer):
            raise ConfigError("tags are those of words, and --ids has none; leave it out")
        self._tokenizer = tokenizer
        super().__init__(model, tokenizer, strict=strict)

    def prompt(self, text: str, name: str) -> Fields:
        words = words_of(text)
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


class SpanAnswers(_EncoderPredictor):
    """Finds the part of a context that answers a question: QUESTION, a tab, CONTEXT.

    A context that is too long for a row of training is read in windows that overlap.
    """

    def __init__(self, model: loaded_run.LoadedRun, tokenizer: Tokenizer, *, strict: bool = False):
        if isinstance(tokenizer, IdTokenizer):
            raise ConfigError("answers are parts of a text, and --ids has none; leave it out")
        self._tokenizer = tokenizer
        self._questions: list[tuple[str, np.ndarray, list[Fields]]] = []
        super().__init__(model, tokenizer, strict=strict)
        task, length = model.experiment.task, self.trained_length
        self._cutter = answer_span.window_cutter(tokenizer, length, task.window_overlap)

    def prompt(self, text: str, name: str) -> Fields:
        parts = text.split("\t")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise ConfigError(f"{name} must be a question and a context, with a tab between them")
        for part in parts:
            self._prompt(part, name)  # notes text that cannot be spelt
        question = self._cutter.question(self._tokenizer.encode(parts[0]))
        context, spans = self._tokenizer.encode_with_spans(parts[1])
        windows = [
            answer_span.answer_span(
                dict(text=question, text_pair=context[first:stop], first=first, start=-1, end=-1),
                np.random.default_rng(0),
                tokenizer=self._tokenizer,
            )
            for first, stop in self._cutter.windows(len(question), len(context))
        ]
        self._questions.append((parts[1], spans, windows))
        return {"inputs": windows[0]["inputs"], "question": np.int32(len(self._questions) - 1)}

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return outputs["logits"]

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        asked = [self._questions[number] for number in batch["question"][: len(numbers)]]
        rows = [(owner, row) for owner, (*_, windows) in enumerate(asked) for row in windows]
        found: list[list[Window]] = [[] for _ in asked]
        inputs = [{key: row[key] for key in ("inputs", "token_types")} for _, row in rows]
        for chosen, part in in_batches(inputs, self.rows, self.max_prompt_length):
            for number, logits_2t in zip(chosen, self._outputs(part), strict=False):
                owner, row = rows[number]
                places = (int(row[f"context_{key}"]) for key in ("start", "end", "first"))
                found[owner].append(Window(logits_2t, *places))
        return [self._answer(*each) for each in zip(asked, found, strict=True)]

    def _answer(self, asked: tuple, windows: list[Window]) -> Outputs:
        context, spans, _ = asked
        task = self._model.experiment.task
        best = best_answer(windows, context, spans, task.answer_tokens)
        if task.unanswerable and best.no_answer > best.score:
            best = best._replace(text="", start=0, end=0)
        return [
            {
                "answer": best.text,
                "start": best.start,
                "end": best.end,
                "score": best.score,
                "no_answer_score": best.no_answer,
            }
        ]


class Forecasts(_EncoderPredictor):
    """Forecasts quantiles of the values that follow a series."""

    @staticmethod
    def _from_outputs(outputs: Mapping[str, jax.Array]) -> jax.Array:
        return outputs["quantiles"]

    def predict(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> list[Outputs]:
        inputs = {name: each for name, each in batch.items() if name != "offset"}
        quantiles_btc = self._outputs(inputs)[: len(numbers)]
        levels = [str(level) for level in self._model.experiment.task.quantiles]
        offsets_b = batch["offset"].astype(np.float64)
        return [
            [
                {"step": step, "quantiles": dict(zip(levels, row_c, strict=True))}
                for step, row_c in enumerate((quantiles_tc + offset).tolist(), start=1)
            ]
            for quantiles_tc, offset in zip(quantiles_btc, offsets_b, strict=False)
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
    return _tab_separates_texts(model) or bool(data.text_pair_field)


def _tab_separates_texts(model: loaded_run.LoadedRun) -> bool:
    """Whether a tab separates two texts in the files that the model was trained on."""
    return source_table()[model.experiment.data.source].tab_separates_texts


def _refuse_long(fields: Fields, name: str, longest: int) -> Fields:
    tokens = len(fields.get("inputs", ()))
    if longest and tokens > longest:
        raise TooLongError(
            f"{name} has {tokens} tokens with the special ones, and model.position=learned ends at "
            f"model.max_length={longest}"
        )
    return fields
