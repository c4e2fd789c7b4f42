"""Problems between the sections of training: metrics, references, adapters, rounding, schedules."""

from collections.abc import Iterator

from input_pipeline.objectives import OBJECTIVES
from training.config import (
    CLASS_METRICS,
    NUMERIC_METRICS,
    RANKING_METRICS,
    SPAN_METRICS,
    TAG_METRICS,
    TEXT_METRICS,
    EvalConfig,
    FinetuneConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)


def metric_problems(evaluation: EvalConfig, task: TaskConfig) -> Iterator[str]:
    """Yields a message for each metric that the objective has no outputs for."""
    objective = task.objective_spec
    of_head = dict(
        classifier=CLASS_METRICS,
        token_classifier=TAG_METRICS,
        regressor=NUMERIC_METRICS,
        span=SPAN_METRICS,
    )
    allowed = of_head.get(objective.head, ())
    allowed += TEXT_METRICS if "pairs" in objective.kinds else ()
    allowed += RANKING_METRICS if objective.ranks_items else ()
    # Of the main term's probabilities
    without = ("regressor", "forecaster")
    has_probabilities = not objective.needs_reference and objective.head not in without
    allowed += ("ece",) if objective.terms and has_probabilities else ()
    for metric in evaluation.metrics:
        if metric not in allowed:
            instead = f"choose among: {', '.join(allowed)}" if allowed else "set it to ()"
            yield (
                f"eval.metrics: {metric} does not go with task.objective={task.objective}; "
                f"{instead}"
            )


def harness_problems(evaluation: EvalConfig, task: TaskConfig) -> Iterator[str]:
    """Yields a message for tasks of lm-evaluation-harness if the model does not continue text."""
    if evaluation.has_tasks and not task.objective_spec.is_causal:
        causal = [name for name, each in OBJECTIVES.items() if each.is_causal]
        yield (
            f"eval.tasks={evaluation.tasks} and eval.task_path={evaluation.task_path!r} need a "
            f"causal language model (task.objective={' or '.join(causal)}), not task.objective="
            f"{task.objective}; set them to () and ''"
        )


def reference_problems(task: TaskConfig, finetune: FinetuneConfig, run: RunConfig) -> Iterator[str]:
    """Yields a message if an objective has no complete reference to compare with."""
    if not task.objective_spec.needs_reference:
        return
    objective = f"task.objective={task.objective}"
    if not run.init_from:
        yield (
            f"{objective} compares with the model that it starts from; set init_from to a run's "
            "workdir"
        )
    for key, off in (("lora_also_train", "''"), ("resize_vocabulary", False)):
        if value := getattr(finetune, key):
            yield (
                f"finetune.{key}={value!r} does not go with {objective}, whose reference must have "
                f"all parameters; set it to {off}"
            )


def finetune_problems(
    finetune: FinetuneConfig, run: RunConfig, optimizer: OptimizerConfig
) -> Iterator[str]:
    """Yields a message for fine-tuning without a run to start from, or with an unfit optimizer."""
    if not run.init_from:
        for key in ("lora_rank", "resize_vocabulary"):
            if value := getattr(finetune, key):
                yield (
                    f"finetune.{key}={value} needs parameters to start from; set init_from to a "
                    "run's workdir"
                )
    if finetune.lora_rank and optimizer.name == "muon":
        yield (
            f"finetune.lora_rank={finetune.lora_rank} does not go with optimizer.name=muon, which "
            "updates all directions of a matrix equally, but an adapter has few; choose adamw"
        )


def precision_problems(optimizer: OptimizerConfig, param_dtype: str) -> Iterator[str]:
    """Yields a message for rounding of float32 parameters, or of a bfloat16 moving average."""
    if optimizer.rounding == "nearest":
        return
    if param_dtype != "bfloat16":
        yield (
            f"optimizer.rounding={optimizer.rounding} needs model.param_dtype=bfloat16, not "
            f"{param_dtype}; set it to nearest"
        )
    elif optimizer.ema_decay:
        yield (
            f"optimizer.ema_decay={optimizer.ema_decay:g} would not change in bfloat16: "
            f"optimizer.rounding={optimizer.rounding} does not apply to averages; set it to 0"
        )


def gradient_problems(
    optimizer: OptimizerConfig, dtype: str, param_dtype: str, matmul: str
) -> Iterator[str]:
    """Yields a message for bfloat16 gradients of a model that does not multiply in bfloat16."""
    if optimizer.gradient_dtype == "float32":
        return
    for key, value, needed in (
        ("dtype", dtype, "bfloat16"),
        ("param_dtype", param_dtype, "float32"),
        ("matmul", matmul, "float"),
    ):
        if value != needed:
            yield (
                f"optimizer.gradient_dtype=bfloat16 needs model.{key}={needed}, not {value}; "
                "set it to float32"
            )


def schedule_problems(optimizer: OptimizerConfig, run: RunConfig) -> Iterator[str]:
    """Yields a message for warm-up or decay that does not fit into the run."""
    end = optimizer.decay_end(run.steps)
    end_key = "optimizer.decay_steps" if optimizer.decay_steps else "steps"
    warmup = f"optimizer.warmup_steps={optimizer.warmup_steps}"
    add = "add --config.optimizer.warmup_steps="
    match optimizer.schedule:
        case "linear" | "cosine" if optimizer.warmup_steps >= end:
            yield f"{warmup} leaves no step to decay before {end_key}={end}; {add}{end // 10}"
        case "stable_decay" if optimizer.warmup_steps > end - optimizer.decay_length(end):
            yield (
                f"{warmup} reaches into the last optimizer.decay_fraction="
                f"{optimizer.decay_fraction:g} of {end_key}={end}; make one of them smaller: {add}"
                f"{min(end // 10, end - optimizer.decay_length(end))}"
            )
