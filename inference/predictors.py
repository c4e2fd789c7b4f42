"""Predictors turn lines of text, or paths of images, sounds or series, into outputs.

The model's objective decides which predictor it gets. All predictors have the same two methods:

    prompt(line, name) -> the fields of the line's row; `name` is its name in error messages
    predict(batch, numbers) -> outputs for each line; row i of the batch is line numbers[i], and
        rows after those only pad the batch
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from tqdm import tqdm

from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference import sampling_options
from inference.conversation import ChatPrompts, chat_format_of
from inference.encoder_predictors import (
    RECOMMENDED,
    ClassPredictor,
    EmbeddingPredictor,
    FillMask,
    Forecasts,
    Outputs,
    Recommender,
    ScorePredictor,
    SpanAnswers,
    TagPredictor,
)
from inference.prompts import (
    in_batches,
    prompt_rows,
)
from inference.sampler import Sampler
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer

READ_AS_UNKNOWN = "read as its unknown token"


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
        "span": SpanAnswers,
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
    # A single line needs no bar; None: a bar on a terminal only.
    disable = True if len(lines) == 1 else None
    with tqdm(total=len(lines), unit="line", disable=disable, dynamic_ncols=True) as bar:
        for numbers, batch in in_batches(rows, batch_size, predictor.max_prompt_length):
            if numbers[-1] >= skip:
                outputs = predictor.predict(batch, numbers)
                for number, each in zip(numbers, outputs, strict=True):
                    found[number] = each
            first = done
            while done < len(lines) and found[done] is not None:
                done += 1
            if answered is not None and done > first:
                with tqdm.external_write_mode():  # the bar makes room for answers
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
