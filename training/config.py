"""The config sections of training, and the keys at the top level."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from experiment.schema import (
    OBJECT_STORAGE,
    RUN_SCHEMES,
    Bounds,
    Count,
    NonNegativeFloat,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Probability,
    path_problems,
)
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.objectives.objective import LossTerm, Objective

DPO_BETA, FIM_RATE = 0.1, 0.5  # the defaults
QUANTILES = (0.1, 0.5, 0.9)  # the default
HalfOpenUnit = Annotated[float, Bounds(at_least=0, below=1)]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The keys at the top level."""

    seed: Annotated[int, Bounds(at_least=0, below=2**32)]  # jax truncates larger seeds
    steps: PositiveInt
    time_limit: NonNegativeFloat
    log_every: PositiveInt
    init_from: str
    profile_steps: tuple[Count, Count]
    wandb_project: str
    compilation_cache: str

    def problems(self) -> Iterator[str]:
        first, last = self.profile_steps
        if (first, last) != (0, 0) and not 1 <= first <= last <= self.steps:
            yield (
                f"profile_steps={self.profile_steps} must satisfy 1 <= first <= last <= "
                f"steps={self.steps}; (0, 0) switches the profiler off"
            )
        yield from path_problems("init_from", self.init_from, RUN_SCHEMES)
        yield from path_problems("compilation_cache", self.compilation_cache, OBJECT_STORAGE)


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The keys of `task`: the objective and its loss."""

    objective: Annotated[str, OneOf(lambda: OBJECTIVES)]
    label_smoothing: HalfOpenUnit
    z_loss: NonNegativeFloat
    noise_rate: Annotated[float, Bounds(above=0, below=1)]
    mean_span: Annotated[float, Bounds(at_least=1)]
    fim_rate: Probability
    fim_spm_rate: Probability
    whole_words: bool
    next_sentence: bool
    embedding: Literal["pooled", "first", "mean"]
    normalize: bool
    auxiliary_masked_lm: NonNegativeFloat
    teacher: str
    teacher_weight: Probability
    teacher_temperature: PositiveFloat
    quantiles: tuple[Annotated[float, Bounds(above=0, below=1)], ...]
    dpo_beta: PositiveFloat

    @property
    def objective_spec(self) -> Objective:
        """What the objective declares: its head, its loss terms, what can learn it."""
        if self.objective not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.objective!r}")
        return OBJECTIVES[self.objective]

    @property
    def terms(self) -> list[LossTerm]:
        """The terms of the loss that are switched on, the main one first."""
        terms = self.objective_spec.terms
        return [term for term in terms if not term.key or getattr(self, term.key)]

    def problems(self) -> Iterator[str]:
        keys = self.objective_spec.keys
        if self.whole_words and "whole_words" not in keys:
            yield (f"task.whole_words=True needs {self._instead('whole_words')}; set it to False")
        if self.auxiliary_masked_lm and "auxiliary_masked_lm" not in keys:
            yield (
                f"task.auxiliary_masked_lm={self.auxiliary_masked_lm:g} goes with "
                f"{self._instead('auxiliary_masked_lm')}; set it to 0"
            )
        if "embedding" not in keys and (self.embedding != "pooled" or self.normalize):
            yield (
                f"task.embedding={self.embedding} and task.normalize={self.normalize} need "
                f"{self._instead('embedding')}; set them to pooled and False"
            )
        if self.next_sentence and "next_sentence" not in keys:
            yield (
                f"task.next_sentence=True needs {self._instead('next_sentence')}; "
                "set task.next_sentence=False"
            )
        if self.dpo_beta != DPO_BETA and "dpo_beta" not in keys:
            yield (
                f"task.dpo_beta={self.dpo_beta:g} goes with {self._instead('dpo_beta')}; "
                f"set it to {DPO_BETA}"
            )
        for key in ("fim_rate", "fim_spm_rate"):
            if (value := getattr(self, key)) != FIM_RATE and key not in keys:
                yield f"task.{key}={value:g} goes with {self._instead(key)}; set it to {FIM_RATE}"
        if "quantiles" not in keys and self.quantiles != QUANTILES:
            yield (
                f"task.quantiles={self.quantiles} goes with {self._instead('quantiles')}; "
                f"set it to {QUANTILES}"
            )
        if self.quantiles != tuple(sorted(set(self.quantiles))) or 0.5 not in self.quantiles:
            yield (
                f"task.quantiles={self.quantiles} must increase and have 0.5, the median, which "
                "is the forecast"
            )
        if self.objective_spec.needs_reference:
            yield from self._without_part("z_loss", "teacher")
        if self.objective_spec.head in ("regressor", "forecaster"):
            yield from self._without_part("label_smoothing", "z_loss", "teacher")
        yield from path_problems("task.teacher", self.teacher, RUN_SCHEMES)

    def _without_part(self, *keys: str) -> Iterator[str]:
        for key in keys:
            if value := getattr(self, key):
                yield f"task.{key}={value} has no part in task.objective={self.objective}"

    def _instead(self, key: str) -> str:
        """The objectives that read a key, and this one, which does not."""
        readers = [name for name, each in OBJECTIVES.items() if key in each.keys]
        return f"task.objective={' or '.join(readers)}, not {self.objective}"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The keys of `optimizer`: optimizer and learning rate."""

    name: Literal["adam", "adamw", "adafactor", "lion", "muon", "sgd"]
    schedule: Literal["constant", "linear", "cosine", "stable_decay", "inverse_sqrt"]
    learning_rate: PositiveFloat
    warmup_steps: Count
    decay_steps: Count
    decay_fraction: Annotated[float, Bounds(above=0, at_most=1)]
    final_fraction: Probability
    beta1: HalfOpenUnit
    beta2: HalfOpenUnit
    epsilon: PositiveFloat
    weight_decay: NonNegativeFloat
    decay_embeddings: bool
    clip_norm: NonNegativeFloat
    accumulate: PositiveInt
    ema_decay: HalfOpenUnit
    offload: bool
    rounding: Literal["nearest", "stochastic", "master"]

    def decay_end(self, steps: int) -> int:
        """Returns the number of updates after which the learning rate has its final value."""
        return self.decay_steps or steps

    def decay_length(self, end: int) -> int:
        """Returns the number of updates before `end` that decay (schedule=stable_decay)."""
        return max(1, round(self.decay_fraction * end))

    def problems(self) -> Iterator[str]:
        if self.weight_decay and self.name in ("adam", "sgd"):
            yield (
                f"optimizer.weight_decay={self.weight_decay:g} does nothing with "
                f"optimizer.name={self.name}; choose adamw, or set it to 0"
            )


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """The keys of `finetune`: which parameters train."""

    lora_rank: Count
    lora_alpha: PositiveFloat
    lora_targets: str
    lora_also_train: str
    freeze: str
    layer_decay: Annotated[float, Bounds(above=0, at_most=1)]
    head_scale: PositiveFloat
    resize_vocabulary: bool

    def problems(self) -> Iterator[str]:
        for key in ("lora_targets", "lora_also_train", "freeze"):
            try:
                re.compile(getattr(self, key))
            except re.error as error:
                yield (
                    f"finetune.{key}={getattr(self, key)!r} is not a regular expression ({error}); "
                    "correct it"
                )
        if self.lora_rank and self.freeze:
            yield (
                f"finetune.freeze={self.freeze!r} does nothing with finetune.lora_rank="
                f"{self.lora_rank}, which trains only adapters and heads; set it to ''"
            )
        if self.lora_also_train and not self.lora_rank:
            yield (
                f"finetune.lora_also_train={self.lora_also_train!r} does nothing with "
                "finetune.lora_rank=0, which trains everything; set it to ''"
            )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The keys of `mesh`: sizes of the mesh axes."""

    data: int
    fsdp: int
    sequence: int
    tensor: int

    def problems(self) -> Iterator[str]:
        sizes = dataclasses.asdict(self)
        for axis, size in sizes.items():
            if size < 1 and size != -1:
                yield f"mesh.{axis}={size} must be at least 1, or -1 for the devices that are left"
        rest = [f"mesh.{axis}" for axis, size in sizes.items() if size == -1]
        if len(rest) > 1:
            yield f"{' and '.join(rest)} are -1, but only one axis can take the remaining devices"


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """The keys of `checkpoint`: when to save and what to keep."""

    every: Count
    keep: PositiveInt
    overlap: Count
    best_metric: str
    best_mode: Literal["max", "min"]

    def problems(self) -> Iterator[str]:
        if self.best_metric and not self.best_metric.startswith("eval/"):
            yield (
                f"checkpoint.best_metric={self.best_metric} must be a metric of an evaluation, "
                "such as eval/dates/exact_match"
            )


@dataclasses.dataclass(frozen=True)
class FailureConfig:
    """The keys of `failure`: what to do about anomalies and stalls."""

    nonfinite: Literal["stop", "skip"]
    spike: Literal["ignore", "skip", "rollback"]
    spike_factor: Annotated[float, Bounds(above=1)]
    spike_window: PositiveInt
    rollback_steps: Count
    rollback_batches: Count
    limit: PositiveInt
    watchdog_seconds: NonNegativeFloat
    watchdog_ends: bool
    heartbeat_seconds: PositiveInt
    join_seconds: PositiveInt

    @property
    def skips(self) -> bool:
        """Whether a step with an anomaly keeps the old state."""
        return self.nonfinite == "skip" or self.spike != "ignore"

    def problems(self) -> Iterator[str]:
        if self.watchdog_ends and not self.watchdog_seconds:
            yield (
                "failure.watchdog_ends=True needs a time to wait; set failure.watchdog_seconds to "
                "several times what the slowest step or compilation takes"
            )


RANKING_METRICS = (
    "mrr",
    *(f"{name}@{k}" for name in ("hit", "ndcg") for k in (1, 5, 10, 20, 50, 100)),
)
Metric = Literal[
    "bleu", "chrf", "rouge", "macro_f1", "matthews", "pearson", "spearman", "top5_accuracy",
    "entity_f1",
    "ece",
    *RANKING_METRICS,
]  # fmt: skip
TEXT_METRICS = ("bleu", "chrf", "rouge")
NUMERIC_METRICS = ("pearson", "spearman")  # need classes that are numbers
TAG_METRICS = ("entity_f1",)
CLASS_METRICS = ("macro_f1", "matthews", *NUMERIC_METRICS, "top5_accuracy")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """The keys of `eval`: when and how to evaluate."""

    every: Count
    batch_size: PositiveInt
    batches: Count
    patience: Count
    metrics: tuple[Metric, ...]
    beam_size: PositiveInt
    length_penalty: NonNegativeFloat
    samples: Count

    def problems(self) -> Iterator[str]:
        if self.patience and not self.every:
            yield (
                f"eval.patience={self.patience} counts evaluations, but with eval.every=0 the only "
                "one is the last; set eval.every to a number of steps, or eval.patience=0"
            )


def metric_problems(evaluation: EvalConfig, task: TaskConfig) -> Iterator[str]:
    """Yields a message for each metric that the objective has no outputs for."""
    objective = task.objective_spec
    of_head = dict(
        classifier=CLASS_METRICS, token_classifier=TAG_METRICS, regressor=NUMERIC_METRICS
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
