"""The predictor for models that generate text: greedily, by sampling or by beam search."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference import output_text
from inference.beam_search import NEVER, Beams
from inference.decoding import GREEDY, Ends, Sampling, repeat_rows
from inference.generation import Generator, Prompts
from inference.prompts import TextPrompts, TooLongError
from inference.sampling_options import SamplingOptions
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.tokenizer import Tokenizer
from training.device_memory import prompt_problem, refuse_cache
from training.mesh import put_batch

SHOWN_EVERY = 4  # tokens, when streaming


class Sampler:
    """Generates text after prompts.

    It puts the parameters into the memory layout for decoding once, and compiles once per shape.
    """

    def __init__(
        self,
        model: loaded_run.LoadedRun,
        options: SamplingOptions,
        batch_size: int,
        tokenizer: Tokenizer,
        *,
        strict: bool = False,
        prompts: Callable[[str, str], Fields] | None = None,
        strips: bool = False,
    ):
        """`prompts`: reads lines, such as conversations; None: reads texts as in training.

        `strips` removes white space around outputs.
        """
        self._model, self._options, self._batch_size = model, options, batch_size
        self._tokenizer, self._task = tokenizer, model.experiment.task
        data = model.experiment.data
        self._has_source = model.model_config.family == "encoder_decoder"
        self._continues = not self._has_source and data.example_kind != "pairs"
        _refuse_unsupported_options(options, model)
        self._strips = strips
        self._prompt = prompts or TextPrompts(
            self._task.objective,
            data.example_kind,
            tokenizer,
            begin_with=options.prefix,
            suffix=options.suffix,
            suffix_first=self._task.fim_spm_rate == 1,
            strict=strict,
        )
        self._draft = _load_draft(options, model) if options.draft_workdir else None
        self._slots = data.length if options.slide else 0
        # Number of positions; 0: no limit.
        configs = [each.model_config for each in (model, self._draft) if each]
        learned = [each.max_length for each in configs if each.position == "learned"]
        self._positions = min(learned, default=0)
        # Forced tokens count as output, as in transformers. With --prefix, no token is forced at
        # the start.
        start = len(tokenizer.text_start_ids) if self._has_source else 0
        self._max_tokens = data.length - start
        if options.max_new_tokens:
            forced = (0 if options.prefix else start) + tokenizer.forced_eos
            self._max_tokens = max(options.max_new_tokens - forced, 0)
        self._steps = max(self._max_tokens, 1)
        for each in filter(None, (model, self._draft)):
            refuse_cache(
                each.model_config,
                options.rows_per_prompt,
                batch_size,
                self._slots or self._steps,
                model.mesh,
            )
        # Maximum padded length of prompts; 0: no limit.
        self.max_prompt_length = self._positions if self._has_source else self._slots
        self.trained_length = data.encoder_length if self._has_source else data.length

    def use(self, params: dict | None) -> None:
        """Sets the parameters, for the programs that are compiled; None frees all copies."""
        self._model = dataclasses.replace(self._model, params=params)
        self.__dict__.pop("_params", None)

    @property
    def unknown(self) -> dict[str, str]:
        """Name of a text -> its first part that the vocabulary cannot spell."""
        return self._prompt.unknown

    def prompt(self, text: str, name: str) -> Fields:
        """The fields of a text's row; refuses a text that leaves no room for the output."""
        fields = self._prompt(text, name)
        source, start = len(fields.get("encoder_inputs", ())), len(fields["inputs"])
        if self._positions and source > self._positions:
            raise TooLongError(
                f"{name} has {source} tokens with the special ones, and model.position=learned "
                f"ends at model.max_length={self._positions}"
            )
        given = name
        if self._has_source:
            given = "--prefix" if self._options.prefix else "the start of an output"
        problem = None
        if self._slots and start > self._slots:
            problem = TooLongError(
                f"{given} has {start} tokens with the special ones, and --slide keeps "
                f"{self._slots}, the length of training"
            )
        elif self._needed > self._room_after(start):
            problem = TooLongError(
                f"{given} has {start} tokens with the special ones, which leaves no room for "
                f"{self._needed} more: model.position=learned ends at model.max_length="
                f"{self._positions}",
                " or lower --max_new_tokens",
            )
        elif reason := self._memory_problem(name, source, start):
            problem = TooLongError(reason, "; lower --batch_size")
        if problem is not None:
            # Every line of an encoder-decoder has the same start, so there is nothing to count.
            raise ConfigError(problem.problems) if self._has_source else problem
        return fields

    def _memory_problem(self, name: str, source: int, start: int) -> str:
        """What is wrong if the devices cannot hold a batch of rows like this one, or ""."""
        model, rows = self._model, self._batch_size
        if source:
            return prompt_problem(model.model_config, name, source, 0, rows, model.mesh)
        if self._slots:  # --slide
            return ""
        return prompt_problem(model.model_config, name, start, self._steps, rows, model.mesh)

    @property
    def _needed(self) -> int:
        """The number of output tokens that must fit.

        Without --max_new_tokens, an output may be cut off at the last position, so one token is
        enough. Beam search compares complete outputs, so it needs room for all steps.
        """
        options = self._options
        return self._steps if options.max_new_tokens or options.method == "beam" else 1

    def _room_after(self, start: int) -> int:
        """How many tokens fit after a prompt of this length.

        The last token is not fed back, so it needs no position.
        """
        return self._positions - start + 1 if self._positions else sys.maxsize

    def predict(
        self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]
    ) -> list[list[dict[str, Any]]]:
        """The outputs for each line; row i of the batch is line numbers[i]."""
        if self._options.method == "beam":
            tokens_bnt, scores_bn = self._search(batch)
        else:
            tokens_bnt, scores_bn = self._sample(batch, numbers), None
        found = []
        for row in range(len(numbers)):
            outputs = [self._output(batch, row, tokens) for tokens in tokens_bnt[row]]
            if scores_bn is not None:
                scored = zip(outputs, scores_bn[row].tolist(), strict=True)
                outputs = [out | {"score": score} for out, score in scored if score > NEVER / 2]
            found.append(outputs[: self._options.num_outputs])
        return found

    def output_ids(
        self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]
    ) -> list[np.ndarray]:
        """The ids of one greedy or sampled output, with its end token, for the first rows.

        These are the first len(numbers) rows; the others only pad the batch.
        """
        tokens_bnt = self._sample(batch, numbers)
        return [self._generated(batch, row, tokens_bnt[row, 0]) for row in range(len(numbers))]

    def _search(self, batch: Mapping[str, np.ndarray]) -> Beams:
        options = self._options
        found = self._generator.search(
            self._params,
            self._prompts(batch),
            beams=options.beam_size,
            alpha=options.length_penalty,
        )
        return jax.device_get(found)

    def _sample(self, batch: Mapping[str, np.ndarray], numbers: Sequence[int]) -> np.ndarray:
        """Generated tokens (B, outputs, steps)."""
        outputs = self._options.num_outputs
        prompts, keys_b = self._prompts(batch), self._keys(numbers)
        if self._draft:
            tokens_bt = self._generator.speculate(
                self._params,
                self._drafter,
                self._draft_params,
                repeat_rows(outputs, prompts),
                keys_b,
                ahead=self._options.draft_tokens,
            ).tokens_bt
        else:
            tokens_bt = self._generator.sequences(self._params, prompts, keys_b, outputs=outputs)
        return jax.device_get(tokens_bt).reshape(self._batch_size, outputs, -1)

    def stream(self, batch: Mapping[str, np.ndarray], number: int) -> Iterator[str]:
        """Yields the output for the first row of the batch in pieces."""
        yield self._options.prefix
        shown, text = 0, ""
        for tokens_bt in self._generator.stream(
            self._params, self._prompts(batch), self._keys([number]), every=SHOWN_EVERY
        ):
            uncut = self._text(batch, 0, self._generated(batch, 0, jax.device_get(tokens_bt)[0]))
            text = output_text.cut(uncut, self._options.stop)
            if text != uncut:
                break
            settled = output_text.settled(text, self._options.stop)
            yield settled[shown:]
            shown = max(shown, len(settled))
        yield text[shown:]

    def _output(
        self, batch: Mapping[str, np.ndarray], row: int, tokens: np.ndarray
    ) -> dict[str, Any]:
        tokens = self._generated(batch, row, tokens)
        text = output_text.cut(self._text(batch, row, tokens), self._options.stop)
        text = text.strip() if self._strips else text
        return {"text": self._options.prefix + text, "tokens": len(tokens)}

    def _generated(
        self, batch: Mapping[str, np.ndarray], row: int, tokens: np.ndarray
    ) -> np.ndarray:
        room = min(self._room_after(len(_prompt_ids(batch, row))), self._max_tokens)
        return output_text.up_to_end(tokens[:room], self._tokenizer)

    def _text(self, batch: Mapping[str, np.ndarray], row: int, tokens: np.ndarray) -> str:
        return output_text.to_text(
            tokens,
            self._tokenizer,
            preceding=_prompt_ids(batch, row) if self._continues or self._options.prefix else (),
            sentinels="sentinels" in self._task.objective_spec.specials,
        )

    def _prompts(self, batch: Mapping[str, np.ndarray]) -> Prompts:
        lengths = (batch["segment_ids"] > 0).sum(axis=1).astype(np.int32)
        placed = put_batch({**batch, "lengths": lengths}, self._model.mesh)
        return Prompts(
            placed["inputs"],
            placed["lengths"],
            placed.get("encoder_inputs"),
            placed.get("encoder_segment_ids"),
        )

    def _keys(self, numbers: Sequence[int]) -> Array | None:
        """One random key per output, derived from the seed, line number and output number."""
        if self._options.method != "sample":
            return None
        lines = [*numbers, *[numbers[0]] * (self._batch_size - len(numbers))]
        return _row_keys(
            jax.random.key(self._options.seed),
            jnp.asarray(lines, jnp.uint32),
            outputs=self._options.num_outputs,
        )

    @functools.cached_property
    def _generator(self) -> Generator:
        return self._make_generator(self._model)

    @functools.cached_property
    def _params(self) -> dict:
        return self._generator.lay_out(self._model.params)

    @functools.cached_property
    def _drafter(self) -> Generator:
        return self._make_generator(self._draft)

    @functools.cached_property
    def _draft_params(self) -> dict:
        return self._drafter.lay_out(self._draft.params)

    def _make_generator(self, model: loaded_run.LoadedRun) -> Generator:
        options, tokenizer = self._options, self._tokenizer
        stops = output_text.stop_sequences(options.stop, tokenizer)
        stops += tuple((id,) for id in tokenizer.more_eos_ids)
        return Generator(
            model.model,
            model.model_config,
            Ends(tokenizer.eos_id, tokenizer.pad_id, stops, tokenizer.banned_ids),
            steps=self._steps,
            rows=self._batch_size * options.rows_per_prompt,
            slots=self._slots,
            bidirectional_prompt=self._task.objective_spec.has_prefix,
            sampling=_sampling(options),
        )


def _prompt_ids(batch: Mapping[str, np.ndarray], row: int) -> np.ndarray:
    """The decoder's prompt of a row, without padding."""
    return batch["inputs"][row][batch["segment_ids"][row] > 0]


@functools.partial(jax.jit, static_argnames="outputs")
def _row_keys(key: Array, lines_b: Array, outputs: int) -> Array:
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    of_line = jax.vmap(fold, in_axes=(0, None))
    return of_line(fold(key, lines_b), jnp.arange(outputs, dtype=jnp.uint32)).reshape(-1)


def _sampling(options: SamplingOptions) -> Sampling:
    penalty = options.repetition_penalty
    if options.method != "sample":
        return dataclasses.replace(GREEDY, repetition_penalty=penalty)
    return Sampling(options.temperature, options.top_k, options.top_p, options.min_p, penalty)


def _refuse_unsupported_options(options: SamplingOptions, model: loaded_run.LoadedRun) -> None:
    """Refuses options that this model does not support."""
    config = model.model_config
    if options.prefix and config.family != "encoder_decoder":
        raise ConfigError(
            "--prefix is the beginning of an encoder-decoder's outputs, and this model has no "
            "encoder; write it at the end of the prompt"
        )
    task = model.experiment.task
    if options.suffix and not task.objective_spec.reads_suffix:
        raise ConfigError(
            "--suffix needs a model that was trained with task.objective=fill_in_middle, not "
            f"{task.objective}; leave it out"
        )
    if options.slide and config.position == "learned":
        raise ConfigError(
            f"--slide generates without a limit, but model.position=learned ends at "
            f"model.max_length={config.max_length}; leave it out"
        )


def _load_draft(options: SamplingOptions, model: loaded_run.LoadedRun) -> loaded_run.LoadedRun:
    """Loads the draft model on the mesh of the main model; refuses one that does not fit it."""
    workdir = options.draft_workdir
    config = loaded_run.recorded_config(workdir, "--draft_workdir")
    draft = loaded_run.load(workdir, config={**config, "mesh": dict(model.mesh.shape)})
    ours, theirs = (
        {
            "task.objective": each.experiment.task.objective,
            "kind of examples": each.experiment.data.example_kind,
            "tokenizer": each.tokenizer.digest[:8] if each.tokenizer else None,
            "model.vocab_size": each.model_config.vocab_size,
        }
        for each in (model, draft)
    )
    for name, value in ours.items():
        if theirs[name] != value:
            raise ConfigError(
                f"--draft_workdir={workdir} cannot draft for this model: its {name} is "
                f"{theirs[name]}, not {value}; choose a run with the same"
            )
    return draft
