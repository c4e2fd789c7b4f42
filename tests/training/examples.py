"""Small training jobs, and batches for them made by hand."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np

from configs.default import get_config
from model.config import TransformerConfig
from tests.tiny import IMAGES, tiny_config
from training.anomalies import STOP_ON_NONFINITE, init_anomalies
from training.config import FailureConfig, FinetuneConfig, MeshConfig, OptimizerConfig, TaskConfig
from training.finetune import Tuning, as_tree, by_name, rate_scales, select_trainable
from training.mesh import make_mesh
from training.model_for_task import make_model
from training.pruning import make_pruner
from training.pruning_schedule import PruneConfig
from training.schedules import learning_rate
from training.step import make_train_step
from training.train_state import (
    NO_FROZEN_INPUTS,
    FrozenInputs,
    Teacher,
    TrainSpec,
    TrainState,
    abstract_params,
    abstract_state,
)

# The model that an objective is tried with.
MODELS = {
    "causal_lm": dict(family="decoder"),
    "prefix_lm": dict(family="decoder"),
    "seq2seq": dict(family="encoder_decoder"),
    "masked_lm": dict(family="encoder", token_types=2),
    "classify_text": dict(family="encoder", num_classes=5),
    "classify_images": IMAGES,
}
OBJECTIVES = tuple(MODELS)
VOCABULARY, CLASSES = tiny_config().vocab_size, IMAGES["num_classes"]

OPTIMIZER = OptimizerConfig(
    **get_config().optimizer.to_dict() | dict(schedule="constant", warmup_steps=0)
)
TASK = TaskConfig(**get_config().task.to_dict())
PRUNE = PruneConfig(**get_config().prune.to_dict())
FINETUNE = FinetuneConfig(**get_config().finetune.to_dict())


@dataclasses.dataclass(frozen=True)
class Job:
    """All that a training loop needs but the batches."""

    config: TransformerConfig
    task: TaskConfig
    model: nn.Module
    abstract: TrainState
    init: callable
    step: callable
    tuning: Tuning
    model_params: dict  # shapes of the model's parameters
    failure: FailureConfig

    def start(self, step: int = 0) -> TrainState:
        """A state with random parameters and an optimizer that has seen nothing.

        Drawn with NumPy: compiling `init` takes as long as compiling a step.
        """
        params = _draw(self.abstract.params, seed=0)
        state = TrainState(
            step=np.int32(step),
            params=params,
            opt_state=jax.tree.map(
                lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.abstract.opt_state
            ),
            ema=None if self.abstract.ema is None else params,
            anomalies=jax.device_get(init_anomalies(self.failure)),
            # Nothing is pruned, and no head has a score.
            prune=jax.tree.map(
                lambda leaf: np.full(leaf.shape, leaf.dtype == bool, leaf.dtype),
                self.abstract.prune,
            ),
        )
        return jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, self.abstract))

    def frozen_inputs(self) -> FrozenInputs:
        """Random parameters of a base to adapt, where there is one."""
        base = {
            name: leaf
            for name, leaf in by_name(self.model_params).items()
            if name in self.tuning.base
        }
        drawn = _draw(as_tree(base), seed=1)
        return FrozenInputs(
            jax.device_put(drawn, jax.tree.map(lambda x: x.sharding, as_tree(base))), {}
        )

    def run(
        self, state: TrainState, batch, steps: int, frozen_inputs: FrozenInputs = NO_FROZEN_INPUTS
    ) -> tuple[TrainState, list[float]]:
        """The state after some steps on one batch, and the loss before each of them."""
        losses = []
        for _ in range(steps):
            state, metrics = self.step(state, batch, frozen_inputs)
            losses.append(metrics["train/loss"])
        return state, [float(loss) for loss in losses]


def _draw(shapes, seed: int):
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return rng.normal(centre, 0.2, leaf.shape).astype(leaf.dtype)

    return jax.tree.map_with_path(draw, shapes)


def make_job(
    objective: str,
    batch,
    *,
    model=None,
    task=None,
    optimizer=None,
    finetune=None,
    new=(),
    teacher: Teacher | None = None,
    seed: int = 0,
    mesh=None,
    failure: FailureConfig = STOP_ON_NONFINITE,
    prune=None,
) -> Job:
    """A job with the sections' defaults changed by the mappings; on one device by default.

    `new` are names of parameters that a base to adapt would not have.
    """
    config = tiny_config(**MODELS[objective] | (model or {}))
    task = dataclasses.replace(TASK, objective=objective, **task or {})
    optimizer_config = dataclasses.replace(OPTIMIZER, **optimizer or {})
    network = make_model(config, task)
    schedule = learning_rate(optimizer_config, 100, config.base_width)
    finetune = dataclasses.replace(FINETUNE, **finetune or {})
    if mesh is None:
        mesh = make_mesh(MeshConfig(data=-1, fsdp=1, sequence=1, tensor=1))
    model_params = abstract_params(network, task, batch, mesh)
    tuning = select_trainable(finetune, model_params, new)
    spec = TrainSpec(
        network,
        task,
        optimizer_config,
        schedule,
        rate_scales(finetune, config),
        tuning,
        teacher,
        failure,
        seed,
        make_pruner(dataclasses.replace(PRUNE, **prune or {}), 100, tuning.split(model_params)[0]),
    )
    abstract, init = abstract_state(spec, batch, mesh)
    step = make_train_step(spec, abstract)
    return Job(config, task, network, abstract, init, step, tuning, model_params, failure)


def make_batch(objective: str, rows: int = 8, length: int = 8, seed: int = 0) -> dict:
    """Random rows of uneven length; rows 1, 5, 9, ... fill up the batch and count for nothing."""
    rng = np.random.default_rng(seed)
    is_real_b = np.arange(rows) % 4 != 1
    if objective == "classify_images":
        size, channels = IMAGES["image_size"], IMAGES["image_channels"]
        images = rng.normal(size=(rows, size, size, channels)).astype(np.float32)
        return {"images": images, **_labels(rng, is_real_b)}

    segments_bt = _segments(rng, rows, length)
    inputs_bt = _tokens(rng, rows, length)
    if objective == "classify_text":
        return {"inputs": inputs_bt, "segment_ids": segments_bt, **_labels(rng, is_real_b)}

    weights_bt = (segments_bt * is_real_b[:, None]).astype(np.float32)
    batch = {"inputs": inputs_bt, "targets": _tokens(rng, rows, length), "weights": weights_bt}
    match objective:
        case "prefix_lm":
            prefix_bt = (np.arange(length) < rng.integers(1, length, (rows, 1))).astype(np.int32)
            batch |= {"prefix": prefix_bt, "weights": weights_bt * (1 - prefix_bt)}
        case "seq2seq":
            batch |= {
                "segment_ids": segments_bt,
                "encoder_inputs": _tokens(rng, rows, length + 2),
                "encoder_segment_ids": _segments(rng, rows, length + 2),
            }
        case "masked_lm":
            batch |= {
                "segment_ids": segments_bt,
                "token_types": (np.arange(length) >= rng.integers(1, length, (rows, 1))).astype(
                    np.int32
                ),
                "next_sentence": rng.integers(2, size=rows).astype(np.int32),
                "weights": weights_bt * rng.integers(2, size=(rows, length)).astype(np.float32),
            }
    return batch


def _tokens(rng, rows, length):
    return rng.integers(VOCABULARY, size=(rows, length)).astype(np.int32)


def _segments(rng, rows, length):
    return (np.arange(length) < rng.integers(2, length + 1, (rows, 1))).astype(np.int32)


def _labels(rng, is_real_b):
    labels = rng.integers(CLASSES, size=len(is_real_b)).astype(np.int32)
    return {"labels": labels, "weights": is_real_b.astype(np.float32)}
