"""From a prompt, and maybe a target, to the row that the model reads.

The ids are those that generate.py gives the model. An encoder-decoder, and a prefix LM that was
trained on pairs, also need a target; without one, the model's own greedy answer is the target.
"""

import dataclasses

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from checkpointing.loaded_run import LoadedRun
from experiment.schema import ConfigError
from inference import output_text, predictors
from inference.prompts import MASK, TextPrompts, in_batches
from inference.sampler import Sampler
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer

NAME = "--prompt"  # in error messages
# 2 GB in float32. The page would be far too large long before.
MOST_WEIGHTS = 2**29


@dataclasses.dataclass(frozen=True)
class ModelInput:
    """One row, without padding."""

    fields: Fields
    first_target: int = 0  # the position that predicts the first target
    targets: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    answer: str | None = None  # to the prompt, by the model; "" if the target was given
    offset: float = 0.0  # what was subtracted from a series, and is added to its forecast

    def batch(self, mesh: Mesh, longest: int = 0) -> dict[str, np.ndarray]:
        """The padded row, as often as the mesh needs it; padding is as in generate.py."""
        rows = mesh.shape["data"] * mesh.shape["fsdp"]
        ((_, batch),) = in_batches([self.fields], rows, longest)
        return batch


def generates(run: LoadedRun) -> bool:
    """Whether the model writes text, so that there can be a target."""
    return run.experiment.task.objective_spec.head == "language_model"


def read_input(
    run: LoadedRun, prompt: str, target: str | None, *, weights: bool = True
) -> ModelInput:
    """The row of a prompt; refuses what the model cannot read, before anything compiles.

    With `weights`, also a row with too many attention weights to show.
    """
    if target is not None and not generates(run):
        raise ConfigError(
            "--target is the text that a model writes, and this model "
            f"(task.objective={run.experiment.task.objective}) writes none; leave it out"
        )
    for name, text in (("prompt", prompt), ("target", target or "")):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"--{name} is not valid UTF-8") from error
    found = _written(run, prompt, target) if generates(run) else _read(run, prompt)
    _refuse_long(run, found, weights)
    return found


def _read(run: LoadedRun, prompt: str) -> ModelInput:
    """For encoders and classifiers."""
    task, tokenizer = run.experiment.task, run.tokenizer
    ranks_items = task.objective_spec.ranks_items  # then the row ends in a masked item
    if task.objective_spec.head == "masked_language_model" and not ranks_items:
        marks = (MASK, tokenizer.mask_name)
        if not any(mark and mark in prompt for mark in marks):  # attention needs no mask
            prompts = TextPrompts(
                task.objective,
                run.experiment.data.example_kind,
                tokenizer,
                takes_two=task.next_sentence,
                needs_mask=False,
            )
            return ModelInput(_noted(prompts(prompt, NAME), prompts.unknown))
    predictor = _predictor(run)
    treatment = "left out" if ranks_items else predictors.READ_AS_UNKNOWN
    fields = dict(_noted(predictor.prompt(prompt, NAME), predictor.unknown, treatment))
    offset = float(fields.pop("offset", 0.0))
    return ModelInput(fields, offset=offset)


def _written(run: LoadedRun, prompt: str, target: str | None) -> ModelInput:
    """For models that write text."""
    objective, tokenizer = run.experiment.task.objective_spec, run.tokenizer
    has_source = run.model_config.family == "encoder_decoder"
    is_pair = has_source or run.experiment.data.example_kind == "pairs"
    given = {"prefix": target} if has_source and target else {}
    try:
        sampler = _predictor(run, **given)
        fields = _noted(sampler.prompt(prompt, NAME), sampler.unknown)
    except ConfigError as error:
        # The flags of generate.py: the target is what the answer begins with.
        said = [each.replace("--prefix", "--target") for each in error.problems]
        said = [each.replace(" or lower --max_new_tokens", "") for each in said]
        raise ConfigError(said) from error
    start, answer = fields["inputs"], ""
    if has_source and target is not None:
        tokens = np.concatenate([start, tokenizer.target_affixes[1]])
    elif is_pair and (has_source or objective.has_prefix):
        if target is None:
            written = _greedy(run, sampler, fields)
            sentinels = "sentinels" in objective.specials
            answer = output_text.to_text(written, tokenizer, sentinels=sentinels)
        else:
            written = np.append(tokenizer.target.encode(target), tokenizer.eos_id)
        tokens = np.concatenate([start, written])
    else:  # a text that goes on
        tokens = _continued(sampler, prompt, start, target, tokenizer)
        more = _prefix(tokens, start) if objective.has_prefix else {}
        first = len(start) - 1 if objective.has_prefix else 0
        fields = {**fields, "inputs": tokens, **more}
        return ModelInput(fields, first, tokens[first + 1 :])
    tokens = tokens.astype(np.int32)
    fields = {**fields, "inputs": tokens[:-1]}
    first = 0
    if not has_source:
        fields |= _prefix(tokens[:-1], start)
        first = len(start) - 1
    return ModelInput(fields, first, tokens[first + 1 :], answer)


def _prefix(tokens: np.ndarray, start: np.ndarray) -> Fields:
    return {"prefix": np.arange(len(tokens)) < len(start)}


def _continued(
    sampler: Sampler, prompt: str, start: np.ndarray, target: str | None, tokenizer: Tokenizer
) -> np.ndarray:
    """The ids of prompt and target as one text, if they begin with those of the prompt."""
    if not target:
        return start
    if not tokenizer.causal_suffix and not isinstance(tokenizer, IdTokenizer):
        joined = sampler.prompt(prompt + target, "--prompt with --target")["inputs"]
        if len(joined) > len(start) and np.array_equal(joined[: len(start)], start):
            return joined
    return np.concatenate([start, tokenizer.encode(target)]).astype(np.int32)


def _greedy(run: LoadedRun, sampler: Sampler, fields: Fields) -> np.ndarray:
    """The ids of the model's own answer."""
    batch = ModelInput(fields).batch(run.mesh, sampler.max_prompt_length)
    with jax.set_mesh(run.mesh):
        return sampler.output_ids(batch, [0])[0]


def _predictor(run: LoadedRun, **options):
    rows = run.mesh.shape["data"] * run.mesh.shape["fsdp"]
    ids = isinstance(run.tokenizer, IdTokenizer)  # a model without its tokenizer
    return predictors.make_predictor(run, options, rows, ids=ids)


def _noted(
    fields: Fields, unknown: dict[str, str], treatment: str = predictors.READ_AS_UNKNOWN
) -> Fields:
    for name, text in unknown.items():
        logging.warning("%s: the model's vocabulary cannot spell %r, %s", name, text, treatment)
    return fields


def _refuse_long(run: LoadedRun, found: ModelInput, weights: bool) -> None:
    config, data = run.model_config, run.experiment.data
    if config.input == "patches":
        return
    sizes = {
        NAME: (len(found.fields.get("encoder_inputs", ())), data.encoder_length),
        "the decoder's text" if generates(run) else NAME: (
            len(found.fields["inputs"]),
            data.length,
        ),
    }
    for name, (tokens, trained) in sizes.items():
        if config.position == "learned" and tokens > config.max_length:
            raise ConfigError(
                f"{name} has {tokens} tokens with the special ones, and model.position=learned "
                f"ends at model.max_length={config.max_length}; shorten it"
            )
        if tokens > trained > 0:
            logging.warning("%s has %d tokens; rows of training had %d", name, tokens, trained)
    longest = max(tokens for tokens, _ in sizes.values())
    layers = config.encoder_layers * config.has_encoder + config.decoder_layers * config.has_decoder
    if weights and layers * config.heads * longest**2 > MOST_WEIGHTS:
        raise ConfigError(
            f"{longest} tokens have {layers * config.heads * longest**2:,} attention weights in "
            f"{layers} layers of {config.heads} heads, more than {MOST_WEIGHTS:,}; shorten the text"
        )
