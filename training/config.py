"""The config sections of training, and the keys at the top level."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from experiment.schema import (
    HUB,
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
SPAN_KEYS = dict(window_overlap=128, answer_tokens=30, unanswerable=False)  # their defaults
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
        yield from path_problems("init_from", self.init_from, (*RUN_SCHEMES, HUB))
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
    window_overlap: Count
    answer_tokens: PositiveInt
    unanswerable: bool

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
        for key, usual in SPAN_KEYS.items():
            if (value := getattr(self, key)) != usual and key not in keys:
                yield f"task.{key}={value} goes with {self._instead(key)}; set it to {usual}"
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
        if self.objective_spec.head == "span":
            yield from self._without_part("label_smoothing")
        yield from path_problems("task.teacher", self.teacher, (*RUN_SCHEMES, HUB))

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
    gradient_dtype: Literal["float32", "bfloat16"]

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
    fsync: bool
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
    "entity_f1", "squad_exact_match", "squad_f1",
    "ece",
    *RANKING_METRICS,
]  # fmt: skip
TEXT_METRICS = ("bleu", "chrf", "rouge")
NUMERIC_METRICS = ("pearson", "spearman")  # need classes that are numbers
TAG_METRICS = ("entity_f1",)
SPAN_METRICS = ("squad_exact_match", "squad_f1")
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
    tasks: tuple[str, ...]
    task_path: str
    task_limit: Count

    @property
    def has_tasks(self) -> bool:
        """Whether tasks of lm-evaluation-harness are scored."""
        return bool(self.tasks or self.task_path)

    def problems(self) -> Iterator[str]:
        if self.task_limit and not self.has_tasks:
            yield (
                f"eval.task_limit={self.task_limit} does nothing without eval.tasks or "
                "eval.task_path; set it to 0"
            )
        if self.patience and not self.every:
            yield (
                f"eval.patience={self.patience} counts evaluations, but with eval.every=0 the only "
                "one is the last; set eval.every to a number of steps, or eval.patience=0"
            )
