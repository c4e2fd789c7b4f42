"""The model with the head that a task needs, and its arguments from a batch."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import numpy as np
from jax import Array

from model.config import TransformerConfig
from model.heads import (
    Classifier,
    Embedder,
    Forecaster,
    LanguageModel,
    MaskedLanguageModel,
    SpanPredictor,
    TokenClassifier,
)
from model.routing import ROUTER
from training.config import TaskConfig
from training.router_losses import router_sums, with_segments


def make_model(model: TransformerConfig, task: TaskConfig) -> nn.Module:
    """The Flax module with the head that the task's objective needs."""
    head = task.objective_spec.head
    match head:
        case "language_model":
            return LanguageModel(model)
        case "masked_language_model":
            return MaskedLanguageModel(model, task.next_sentence)
        case "classifier":
            return Classifier(model, masked_tokens=task.auxiliary_masked_lm > 0)
        case "token_classifier":
            return TokenClassifier(model)
        case "span":
            return SpanPredictor(model)
        case "regressor":
            return Classifier(dataclasses.replace(model, num_classes=1))
        case "forecaster":
            return Forecaster(model, len(task.quantiles))
        case "embedder":
            return Embedder(model, task.embedding, task.normalize)
    raise ValueError(f"task.objective={task.objective} declares an unknown head, {head!r}")


def model_arguments(task: TaskConfig, batch: Mapping[str, Array]) -> tuple[tuple, dict]:
    """The model's positional and named arguments, from the arrays of a batch."""
    objective = task.objective_spec
    for name in ("images", "signals"):
        if name in batch:
            return (batch[name],), {}
    row = dict(positions_bt=batch.get("positions"), segments_bt=batch.get("segment_ids"))
    if objective.head != "language_model":
        row |= dict(token_types_bt=batch.get("token_types"))
        row |= dict(predicted_bx=batch["predicted"]) if "predicted" in batch else {}
        return (batch["inputs"],), row
    if not objective.has_source:
        return (batch["inputs"],), row | dict(prefix_bt=batch.get("prefix"))
    source = dict(
        encoder_positions_bs=batch.get("encoder_positions"),
        encoder_segments_bs=batch.get("encoder_segment_ids"),
    )
    return (batch["inputs"], batch["encoder_inputs"]), row | source


def smallest_batch(model: TransformerConfig) -> dict[str, np.ndarray]:
    """The smallest batch that a model can read: enough to infer its parameters' shapes."""
    if model.input == "patches":
        name = "signals" if model.input_shape else "images"
        return {name: np.zeros((1, *model.patched_shape), np.float32)}
    token = np.zeros((1, 1), np.int32)
    return {"inputs": token, "encoder_inputs": token}


def forward(
    model: nn.Module,
    task: TaskConfig,
    params,
    batch: Mapping[str, Array],
    dropout_key: Array | None = None,
    features_key: Array | None = None,
) -> dict[str, Array]:
    """The model's outputs by name. Dropout is on if there is a key for it.

    Without `features_key`, random features are those of evaluation. In training, the outputs of a
    model with experts include the sums that the losses of its routers need.
    """
    has_experts, is_training = model.config.experts > 0, dropout_key is not None
    arguments, named = model_arguments(task, with_segments(batch) if has_experts else batch)
    keys = {"dropout": dropout_key, "features": features_key}
    outputs = model.apply(
        {"params": params},
        *arguments,
        **named,
        deterministic=not is_training,
        rngs={name: key for name, key in keys.items() if key is not None},
        mutable=[ROUTER] if has_experts and is_training else False,
    )
    if has_experts and is_training:
        outputs, collections = outputs
        return by_name(task, outputs) | {ROUTER: router_sums(collections[ROUTER])}
    return by_name(task, outputs)


def by_name(task: TaskConfig, outputs: Array | tuple[Array, Array | None]) -> dict[str, Array]:
    """The outputs of a task's model by name."""
    if not isinstance(outputs, tuple):
        return {"logits": outputs}
    head = task.objective_spec.head
    if head == "embedder":
        return dict(zip(("embedding", "hidden"), outputs, strict=True))
    if head == "forecaster":
        return dict(zip(("quantiles", "scale"), outputs, strict=True))
    logits, second = outputs
    name = "next_sentence" if head == "masked_language_model" else "masked_tokens"
    return {"logits": logits} | ({} if second is None else {name: second})
