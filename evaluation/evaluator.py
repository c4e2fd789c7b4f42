"""Evaluates a model on eval sets, with the metrics of its task, and writes readable samples."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evaluation.eval_details import EvalDetails, example_text, make_position_step
from evaluation.metrics import (
    calibration_error,
    class_scores,
    entity_f1,
    regression_scores,
    text_scores,
)
from evaluation.ranking import ranking_sums
from evaluation.span_metrics import scores_of_windows
from evaluation.target_rows import after_prompt, exact_rows, matching_rows, prompt_lengths
from experiment.schema import ConfigError
from inference.answer_spans import Window
from inference.decoding import GREEDY, Ends, Sampling
from inference.generation import Generator, Prompts
from model.config import TransformerConfig
from training.config import (
    CLASS_METRICS,
    NUMERIC_METRICS,
    RANKING_METRICS,
    SPAN_METRICS,
    TAG_METRICS,
    TEXT_METRICS,
    EvalConfig,
    TaskConfig,
)
from training.losses import ABSOLUTE
from training.mesh import fetch
from training.preference_loss import CHOSEN, MARGIN, REJECTED
from training.quantile_loss import COVERAGE, MAE
from training.step import CALIBRATION, make_eval_step

FOR_SAMPLES = Sampling(temperature=0.8)  # for running text: greedy decoding repeats itself

NAMES_OF = {"rouge": ("rouge1", "rouge2", "rougeL")}  # all other metrics have one score


@dataclasses.dataclass(frozen=True)
class EvalSet:
    """A held-out set, ready for evaluation."""

    batches: Sequence[Mapping[str, Array]]
    text_bytes: int  # bytes of the targets, for bits per byte; 0 if that has no meaning
    has_target: bool  # whether examples have a target text; running text has none
    # The target text of each row of each batch, or the example that has the answer to a question;
    # None for rows that only pad a batch. Empty if no metric needs text.
    references: Sequence[Any] = ()


def metric_names(task: TaskConfig, eval_set: EvalSet, metrics: Sequence[str]) -> list[str]:
    """The names of the scores that `Evaluator.evaluate` returns for this set."""
    scores = {"regressor": (ABSOLUTE,), "forecaster": (MAE, COVERAGE)}
    names = ["loss", *scores.get(task.objective_spec.head, ("accuracy",))]
    for term in task.terms[1:]:
        if not term.training_only:
            names += [f"{term.name}_nll", f"{term.name}_accuracy"]
    if eval_set.has_target:
        names += ["exact_match"]
    if task.objective_spec.needs_reference:
        names += [MARGIN, CHOSEN, REJECTED]
    elif task.objective_spec.head == "language_model":
        names += ["perplexity"]
    if eval_set.text_bytes:
        names += ["bits_per_byte"]
    return names + [name for metric in metrics for name in NAMES_OF.get(metric, (metric,))]


def refuse_metrics(
    metrics: Sequence[str], labels: Sequence[str], eval_sets: Mapping[str, EvalSet]
) -> None:
    """Raises ConfigError for metrics that fit the objective, but not the data."""
    for metric in metrics:
        if metric in TEXT_METRICS:
            for name, eval_set in eval_sets.items():
                if not eval_set.has_target:
                    raise ConfigError(
                        f"eval.metrics: {metric} compares outputs with references, and {name} has "
                        "none; set it to ()"
                    )
        if metric in NUMERIC_METRICS and labels:
            words = [label for label in labels if not _is_number(label)]
            if words:
                raise ConfigError(
                    f"eval.metrics: {metric} needs classes that are numbers, but one of the "
                    f"data's is {words[0]!r}; take it out"
                )
        if metric == "top5_accuracy" and len(labels) <= 5:
            raise ConfigError(
                f"eval.metrics: top5_accuracy of {len(labels)} classes is always 1; take it out"
            )


class Evaluator:
    """Evaluates parameters on eval sets. It compiles once per shape."""

    def __init__(
        self,
        model: nn.Module,
        config: TransformerConfig,
        task: TaskConfig,
        settings: EvalConfig,
        tokenizer: Any,
        labels: Sequence[str],
        reference: dict | None = None,
    ):
        """`reference`: the frozen parameters of objectives that compare with them."""
        self._objective, self._settings = task.objective_spec, settings
        self._tokenizer, self._labels = tokenizer, labels
        self._task, self._main_term = task, next(iter(task.terms), None)
        ranking = [metric for metric in settings.metrics if metric in RANKING_METRICS]
        step = make_eval_step(
            model,
            task,
            calibration="ece" in settings.metrics,
            more_sums=ranking and ranking_sums(ranking, tokenizer.text_ids, config.vocab_size),
        )
        self._eval_step = step
        if reference is not None:
            self._eval_step = lambda params, batch: step(params, batch, reference)
        self._position_step = make_position_step(model, task)
        self._model, self._config = model, config
        self._generators: dict[tuple[int, int, bool], Generator] = {}
        self._params, self._laid_out = None, {}  # of the current evaluation; laid out, by order

    def evaluate(
        self, params, eval_set: EvalSet, details: EvalDetails | None = None
    ) -> dict[str, float]:
        """The scores on a set, by name; `metric_names` lists the names.

        `details` collects the rows that the scores come from.
        """
        metrics = self._settings.metrics
        term = self._main_term
        keeps_rows = any(metric in (*CLASS_METRICS, *TAG_METRICS) for metric in metrics)
        finds_spans = any(metric in SPAN_METRICS for metric in metrics)
        totals, hypotheses, class_rows, windows = None, [], [], []
        for batch in eval_set.batches:
            found, outputs = self._eval_step(params, batch)
            if details is not None:
                self._add_details(details, params, batch, outputs)
            if keeps_rows:
                rows = fetch((batch[term.targets], outputs, batch[term.weights]))
                class_rows.append(rows)
            if finds_spans:
                places = [batch[f"context_{key}"] for key in ("start", "end", "first")]
                logits_b2t, *places = fetch((outputs, *places))
                columns = logits_b2t, *(each.tolist() for each in places)
                windows += [Window(*row) for row in zip(*columns, strict=True)]
            if eval_set.has_target:
                # One generation serves all metrics.
                tokens_bt, expected_bt, weights_bt = self._generate(params, batch, has_target=True)
                exact = exact_rows(tokens_bt, expected_bt, weights_bt, batch.get("target_cut", 0))
                found = {**found, "exact_match": exact}
                if details is not None:
                    self._add_answers(details, batch, tokens_bt, expected_bt, weights_bt)
                if eval_set.references:
                    hypotheses += [self._tokenizer.decode(row) for row in fetch(tokens_bt)]
            totals = found if totals is None else jax.tree.map(jnp.add, totals, found)
        totals = jax.device_get(totals)
        calibration = totals.pop(CALIBRATION, None)
        means = {name: float(total / max(count, 1)) for name, (total, count) in totals.items()}
        scores = {"loss": means.pop("nll"), **means}
        if self._objective.head == "language_model" and not self._objective.needs_reference:
            scores["perplexity"] = math.exp(min(scores["loss"], 700.0))
        if calibration is not None:
            scores["ece"] = calibration_error(*calibration)
        if eval_set.text_bytes:
            scores["bits_per_byte"] = float(totals["nll"][0]) / math.log(2) / eval_set.text_bytes
        if hypotheses:
            pairs = zip(hypotheses, eval_set.references, strict=True)
            real = [pair for pair in pairs if pair[1] is not None]
            scores |= text_scores(metrics, *zip(*real, strict=True))
        if windows:
            pairs = zip(eval_set.references, windows, strict=True)
            scores |= scores_of_windows(
                [pair for pair in pairs if pair[0] is not None],
                self._tokenizer,
                most_tokens=self._task.answer_tokens,
                unanswerable=self._task.unanswerable,
            )
        if class_rows and self._objective.head == "token_classifier":
            scores["entity_f1"] = self._entity_f1(class_rows)
        elif class_rows:
            labels_b, probabilities_bc, weights_b = map(
                np.concatenate, zip(*class_rows, strict=True)
            )
            real_b = weights_b > 0
            found = labels_b[real_b], probabilities_bc[real_b]
            if self._objective.head == "regressor":
                scores |= regression_scores(metrics, *found)
            else:
                scores |= class_scores(metrics, *found, self._class_values())
        return scores

    def _add_details(self, details: EvalDetails, params, batch, outputs) -> None:
        if "labels" in batch:
            details.add_classes(*fetch((batch["labels"], outputs, batch["weights"])))
        if self._objective.head == "language_model" and not self._objective.has_source:
            details.add_positions(*fetch(self._position_step(params, batch)))

    def _add_answers(self, details: EvalDetails, batch, tokens_bt, expected_bt, weights_bt) -> None:
        matched_b = matching_rows(tokens_bt, expected_bt, weights_bt, batch.get("target_cut", 0))
        has_source = self._objective.has_source
        source_bt = batch["encoder_segment_ids"] != 0 if has_source else None
        lengths_b = source_bt.sum(axis=1) if has_source else prompt_lengths(batch)
        tokens_bt, expected_bt, weights_bt, matched_b, lengths_b = jax.device_get(
            (tokens_bt, expected_bt, weights_bt, matched_b, lengths_b)
        )
        inputs_bt = jax.device_get(batch["encoder_inputs" if has_source else "inputs"])
        real = np.flatnonzero((weights_bt > 0).any(axis=1)).tolist()
        decode, pad_id = self._tokenizer.decode, self._tokenizer.pad_id
        expected_bt = np.where(weights_bt > 0, expected_bt, pad_id)
        details.add_answers(
            [decode(tokens_bt[row]) for row in real],
            [decode(inputs_bt[row][: lengths_b[row]]) for row in real],
            [decode(expected_bt[row]) for row in real],
            [lengths_b[row] for row in real],
            [matched_b[row] for row in real],
        )

    def _entity_f1(self, rows) -> float:
        """`rows`: arrays (B, T) of tags, predicted tags and weights, of each batch."""
        expected, predicted = [], []
        for tags_bt, found_bt, weights_bt in rows:
            for tags_t, found_t, weights_t in zip(tags_bt, found_bt, weights_bt, strict=True):
                at = np.flatnonzero(weights_t > 0)
                expected.append([self._labels[tag] for tag in tags_t[at]])
                predicted.append([self._tag(tag) for tag in found_t[at]])
        return entity_f1(expected, predicted)

    def _tag(self, number: int) -> str:
        """A tag; a model may have more classes than the data has tags."""
        return self._labels[number] if number < len(self._labels) else "O"

    def _class_values(self) -> np.ndarray | None:
        """The numbers that the classes stand for, if a metric needs them."""
        if any(metric in NUMERIC_METRICS for metric in self._settings.metrics):
            return np.array([float(label) for label in self._labels])
        return None

    def _generate(self, params, batch, *, has_target: bool) -> tuple[Array, Array, Array]:
        """Generated tokens (B, T), and the targets and weights of the same positions."""
        targets_bt, weights_bt = batch["targets"], batch["weights"]
        if self._objective.has_source:
            starts = [self._tokenizer.bos_id, *self._tokenizer.text_start_ids]
            columns = [jnp.full_like(targets_bt[:, :1], id) for id in starts]
            prompts = Prompts(
                jnp.concatenate(columns, axis=1),
                jnp.full_like(targets_bt[:, 0], len(starts)),
                batch["encoder_inputs"],
                batch["encoder_segment_ids"],
            )
            given = len(starts) - 1
            targets_bt, weights_bt = targets_bt[:, given:], weights_bt[:, given:]
        else:
            prompts = Prompts(batch["inputs"], prompt_lengths(batch))
            targets_bt, weights_bt = after_prompt(targets_bt, weights_bt, prompts.lengths_b)
        rows, steps = targets_bt.shape
        if not (has_target or self._objective.has_source):
            steps -= steps // 2  # the second half of the row; there are no positions after it
        beams = self._settings.beam_size if has_target else 1
        generator = self._generator(rows * beams, steps, has_target)
        params = self._lay_out(generator, params)
        if beams > 1:
            alpha = self._settings.length_penalty
            found = generator.search(params, prompts, beams=beams, alpha=alpha)
            return found.tokens_bnt[:, 0], targets_bt, weights_bt
        keys_b = None if has_target else jax.random.split(jax.random.key(0), rows)
        return generator.sequences(params, prompts, keys_b), targets_bt, weights_bt

    def _lay_out(self, generator: Generator, params) -> dict:
        """Lays out the parameters for decoding, once for all batches and sets."""
        if self._params is not params:
            self._params, self._laid_out = params, {}
        if generator.order not in self._laid_out:
            self._laid_out[generator.order] = generator.lay_out(params)
        return self._laid_out[generator.order]

    def release(self) -> None:
        """Frees the laid-out copies of the last evaluation's parameters."""
        self._params, self._laid_out = None, {}

    def _generator(self, rows: int, steps: int, has_target: bool) -> Generator:
        key = rows, steps, has_target
        if key not in self._generators:
            tokenizer = self._tokenizer
            more_ends = tuple((id,) for id in tokenizer.more_eos_ids)
            self._generators[key] = Generator(
                self._model,
                self._config,
                Ends(tokenizer.eos_id, tokenizer.pad_id, more_ends, tokenizer.banned_ids),
                steps=steps,
                rows=rows,
                bidirectional_prompt=self._objective.has_prefix,
                sampling=GREEDY if has_target else FOR_SAMPLES,
            )
        return self._generators[key]

    def samples(self, params, eval_set: EvalSet, examples: Sequence[Mapping]) -> str:
        """Readable outputs for the first rows of the first batch, one for each of `examples`."""
        batch, count, labels = eval_set.batches[0], len(examples), self._labels
        decode = self._tokenizer.decode if self._tokenizer else None
        match self._objective.head:
            case "classifier":
                _, probabilities_bc = self._eval_step(params, batch)
                predictions_b = jax.device_get(probabilities_bc).argmax(axis=1)
                rows = zip(examples, predictions_b, strict=False)
                blocks = [
                    f"{example_text(row)} -> {labels[prediction]} ({labels[row['label']]})"
                    for row, prediction in rows
                ]
                return "\n".join(blocks) + "\n"
            case "regressor":
                _, scores_b = self._eval_step(params, batch)
                rows = zip(examples, jax.device_get(scores_b), strict=False)
                blocks = [
                    f"{example_text(row)} -> {score:.4g} ({row['score']:g})" for row, score in rows
                ]
                return "\n".join(blocks) + "\n"
            case "token_classifier":
                _, tags_bt = self._eval_step(params, batch)
                tags_bt, weights_bt = jax.device_get((tags_bt, batch["weights"]))
                blocks = []
                for row, tags_t, weights_t in zip(examples, tags_bt, weights_bt, strict=False):
                    found = [self._tag(tag) for tag in tags_t[weights_t > 0]]
                    words = zip(row["words"], found, row["tags"], strict=False)
                    blocks.append(
                        " ".join(f"{word}/{tag} ({labels[own]})" for word, tag, own in words)
                    )
                return "\n".join(blocks) + "\n"
            case "span":
                _, logits_b2t = self._eval_step(params, batch)
                ids_bt, logits_b2t = jax.device_get((batch["inputs"], logits_b2t))
                blocks = []
                for row, ids_t, logits_2t in zip(examples, ids_bt, logits_b2t, strict=False):
                    first, last = logits_2t.argmax(axis=1)
                    found = self._tokenizer.decode(ids_t[first : last + 1])
                    right = [row["text_pair"][start:end] for start, end in row["answers"]]
                    blocks.append(f"{row['text']} -> {found!r} ({' | '.join(right)})")
                return "\n".join(blocks) + "\n"
            case "forecaster":
                _, quantiles_btc = self._eval_step(params, batch)
                rows = zip(examples, jax.device_get(quantiles_btc), strict=False)
                blocks = [_forecast_text(row, quantiles_tc) for row, quantiles_tc in rows]
            case "masked_language_model" if self._objective.ranks_items:
                _, predictions_bx = self._eval_step(params, batch)
                batch, predictions_bx = jax.device_get((dict(batch), predictions_bx))
                rows = zip(batch["inputs"], predictions_bx, batch["targets"], strict=True)
                blocks = [
                    f"given:    {decode(row)}\nanswer:   {decode(best[:1])}\n"
                    f"expected: {decode(target[:1])}"
                    for row, best, target in rows
                ]
            case "masked_language_model":
                _, predictions_bt = self._eval_step(params, batch)
                batch, predictions_bt = jax.device_get((dict(batch), predictions_bt))
                filled_bt = np.where(batch["weights"] > 0, predictions_bt, batch["targets"])
                pairs = zip(batch["targets"], filled_bt, strict=True)
                blocks = [f"text:   {decode(was)}\nfilled: {decode(now)}" for was, now in pairs]
            case _:
                has_target = eval_set.has_target
                if not has_target and jax.device_count() == 1:
                    # Generate only the rows to show. With a target, exact match has compiled the
                    # full batch already; several devices need equal numbers of rows.
                    batch = {name: array[:count] for name, array in batch.items()}
                outputs = self._generate(params, batch, has_target=has_target)
                tokens_bt, expected_bt, weights_bt = jax.device_get(outputs)
                expected_bt = np.where(weights_bt > 0, expected_bt, self._tokenizer.pad_id)
                prompts = self._prompts(batch, examples)
                rows = zip(prompts, tokens_bt, expected_bt, strict=False)
                blocks = [
                    f"given:    {prompt}\nanswer:   {decode(output)}\nexpected: {decode(expected)}"
                    for prompt, output, expected in rows
                ]
        return "\n\n".join(blocks[:count]) + "\n"

    def _prompts(self, batch, examples: Sequence[Mapping]) -> list[str]:
        if "source" in examples[0]:
            return [example["source"] for example in examples]
        if self._objective.has_source:
            rows = jax.device_get(batch["encoder_inputs"])
            return [self._tokenizer.decode(row) for row in rows[: len(examples)]]
        rows, lengths = jax.device_get((batch["inputs"], prompt_lengths(batch)))
        pairs = zip(rows, lengths, examples, strict=False)
        return [self._tokenizer.decode(row[:length]) for row, length, _ in pairs]


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _forecast_text(example: Mapping, quantiles_tc: np.ndarray) -> str:
    """A line for each value: what came, and the quantiles that were forecast."""
    offset, lines = example["offset"], [example["name"]]
    rows = zip(example["future"], example["is_known"], quantiles_tc, strict=True)
    for value, is_known, quantiles_c in rows:
        came = f"{value + offset:.6g}" if is_known else "missing"
        lines.append(f"{came}: {' '.join(f'{each + offset:.6g}' for each in quantiles_c)}")
    return "\n".join(lines)
