"""Checks across config sections: one line per problem, with a remedy."""

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from input_pipeline.config import FORMER_FIT, FORMER_UPRIGHT, IMAGE_KEYS
from input_pipeline.objectives import OBJECTIVES
from model.positions import ABSOLUTE_POSITIONS
from training.mup import mup_problems
from training.pruning_schedule import prune_problems
from training.section_checks import (
    finetune_problems,
    gradient_problems,
    harness_problems,
    metric_problems,
    precision_problems,
    reference_problems,
    schedule_problems,
)

if TYPE_CHECKING:
    from experiment.sections import Experiment


def problems_between_sections(experiment: "Experiment") -> Iterator[str]:
    """Combinations of keys of several sections that cannot work."""
    run, model, data, task = experiment.run, experiment.model, experiment.data, experiment.task
    if model.matmul != "float" and not importlib.util.find_spec("qwix"):
        yield (
            f"model.matmul={model.matmul} needs qwix to multiply in 8 bits; install it: "
            "pip install -e '.[quantized]'"
        )
    yield from schedule_problems(experiment.optimizer, run)
    yield from finetune_problems(experiment.finetune, run, experiment.optimizer)
    yield from reference_problems(task, experiment.finetune, run)
    yield from prune_problems(experiment.prune, run, experiment.finetune, model)
    yield from mup_problems(model, experiment.optimizer, experiment.finetune)
    yield from metric_problems(experiment.eval, task)
    yield from harness_problems(experiment.eval, task)
    yield from precision_problems(experiment.optimizer, model.param_dtype)
    yield from gradient_problems(experiment.optimizer, model.dtype, model.param_dtype, model.matmul)
    objective = task.objective_spec
    if model.family not in objective.families:
        suitable = [name for name, each in OBJECTIVES.items() if model.family in each.families]
        yield (
            f"task.objective={task.objective} needs model.family="
            f"{' or '.join(objective.families)}, not {model.family}; "
            f"with family={model.family} choose one of: {', '.join(suitable)}"
        )
    if objective.kinds and objective.takes_patches != (model.input == "patches"):
        patched = ", ".join(name for name, each in OBJECTIVES.items() if each.takes_patches)
        yield (
            f"task.objective={task.objective} does not go with model.input={model.input}: "
            f"only {patched} take patches, every other objective takes tokens"
        )
    if objective.kinds and not objective.takes_signals and model.input == "patches":
        for key in ("input_shape", "input_mean", "input_std"):
            if value := getattr(model, key):
                yield (
                    f"model.{key}={value} is for sounds and series, not task.objective="
                    f"{task.objective}, which has data.image_mean and data.image_std; set it to ()"
                )
    if not objective.takes_images and (model.input != "patches" or objective.takes_signals):
        for key, off in IMAGE_KEYS.items():  # older runs on text have former defaults
            if (value := getattr(data, key)) not in (off, FORMER_FIT, FORMER_UPRIGHT):
                yield (
                    f"data.{key}={value} is for images, but task.objective={task.objective} reads "
                    f"{'none' if objective.takes_signals else 'text'}; set it to {off}"
                )
    if data.weighs_classes and (objective.head != "classifier" or objective.takes_patches):
        yield (
            f"data.class_balance={data.class_balance} and data.class_weights={data.class_weights} "
            f"are for classes of texts, not task.objective={task.objective}; set them to none, ()"
        )
    classifies = objective.head in ("classifier", "regressor")
    reads_to_classify = classifies and not objective.takes_patches
    reads_first = model.pooling in ("first", "first_mean")
    if reads_to_classify and model.family == "decoder" and reads_first:
        yield (
            f"model.pooling={model.pooling} in a decoder sees the first token alone; "
            "set model.pooling=last or mean"
        )
    if model.distillation == "head" and objective.head != "classifier":
        yield (
            f"model.distillation=head is a second classifier, but task.objective={task.objective} "
            "has none; set it to token"
        )
    if objective.has_prefix:
        for reason in model.refusals("prefix"):
            yield f"{reason}; choose another objective or another kind"
    if task.auxiliary_masked_lm and model.family != "encoder":
        yield (
            f"task.auxiliary_masked_lm={task.auxiliary_masked_lm:g} needs model.family=encoder, "
            f"not {model.family}, whose tokens do not attend to later ones; set it to 0"
        )
    if task.next_sentence and model.token_types == 1:
        yield (
            "model.token_types=1 cannot tell the two sentences of task.next_sentence apart; "
            "set it to 2, or to 0 for none"
        )
    if model.input == "tokens" and model.position in ABSOLUTE_POSITIONS:
        columns = {"length": data.length}
        if model.family == "encoder_decoder":
            columns["encoder_length"] = data.encoder_length
        for key, length in columns.items():
            if length > model.max_length:
                yield (
                    f"data.{key}={length} exceeds model.max_length={model.max_length}, the last "
                    f"position that model.position={model.position} can address; add "
                    f"--config.data.{key}={model.max_length}"
                )
    if model.layer_groups and experiment.finetune.layer_decay != 1:
        yield (
            f"finetune.layer_decay={experiment.finetune.layer_decay:g} gives each layer its own "
            f"rate, but with model.layer_groups={model.layer_groups} layers share parameters; set "
            "it to 1"
        )
    if experiment.finetune.resize_vocabulary and model.input == "patches":
        yield (
            "finetune.resize_vocabulary=True is for tokens, but model.input=patches has none; "
            "set it to False"
        )
    accumulate = experiment.optimizer.accumulate
    if data.batch_size % accumulate:
        yield (
            f"optimizer.accumulate={accumulate} does not divide data.batch_size={data.batch_size}"
        )
    saves, scores = experiment.checkpoint.every, experiment.eval.every
    # With eval.patience, a run saves whenever its score improves.
    chooses = experiment.checkpoint.best_metric and not experiment.eval.patience
    if chooses and saves and (not scores or saves % scores):
        yield (
            f"checkpoint.best_metric chooses among scored steps, but checkpoint.every={saves} is "
            f"not a multiple of eval.every={scores}; make them equal"
        )
