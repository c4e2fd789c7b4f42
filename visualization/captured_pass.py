"""One pass of a model, with what its layers compute: attention weights and hidden states.

Capturing is flax's: the caller makes the collection `CAPTURE` mutable. The logit lens replaces the
output of a stack of layers by an earlier hidden state, and lets the model's own head read it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import Array

from checkpointing.loaded_run import LoadedRun
from model.attention.attention_weights import CAPTURE, PERTURBATIONS
from model.layers import Norm
from model.stack import Stack
from training.mesh import put_batch
from training.model_for_task import by_name, forward, model_arguments

CANDIDATES = 5  # of the logit lens and at each position of a text


class Layers(NamedTuple):
    """What one kind of attention of a stack computed, for the first row of the batch."""

    weights_lhts: np.ndarray
    visible_lts: np.ndarray
    gradients_lhts: np.ndarray | None


class Captured(NamedTuple):
    """What a pass computed."""

    outputs: dict[str, np.ndarray]
    attention: dict[str, Layers]  # by "encoder", "decoder" and "cross"
    hidden: dict[str, Array]  # by stack: (L + 1, B, T, D), after the embedding and each layer


def run_and_capture(
    run: LoadedRun, batch: Mapping[str, np.ndarray], *, weights: bool = True
) -> Captured:
    """Runs the model on a batch. For classifiers, the weights have gradients.

    Those are of the logit of the predicted class.
    """
    task = run.experiment.task
    has_classes = task.objective_spec.head == "classifier"

    def apply(params, batch, perturbations):
        arguments, named = model_arguments(task, batch)
        variables = {"params": params, **perturbations}
        outputs, state = run.model.apply(variables, *arguments, **named, mutable=[CAPTURE])
        return by_name(task, outputs), state[CAPTURE]["backbone"]

    def largest_logit(perturbations, params, batch):
        outputs, captured = apply(params, batch, perturbations)
        logits_bc = outputs["logits"][:, : len(run.labels)].astype(jnp.float32)
        return logits_bc[0].max(), (outputs, captured)

    def everything(params, batch, perturbations):
        if not (weights and has_classes):
            outputs, captured = apply(params, batch, {})
            gradients = {}
        else:
            gradients, (outputs, captured) = jax.grad(largest_logit, has_aux=True)(
                perturbations, params, batch
            )
        hidden = {stack: _hidden(layers) for stack, layers in captured.items()}
        attention = captured if weights else {}  # the compiler leaves out what is not returned
        return outputs, _first_row(attention), _first_row(gradients), hidden

    placed = put_batch(batch, run.mesh)
    with jax.set_mesh(run.mesh):
        shapes = jax.eval_shape(lambda *given: apply(*given, {})[1], run.params, placed)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _only_weights(shapes))
        perturbations = {PERTURBATIONS: {"backbone": zeros}}
        outputs, attention, gradients, hidden = jax.jit(everything)(
            run.params, placed, perturbations
        )
    outputs, attention, gradients = jax.device_get((outputs, attention, gradients))
    gradients = gradients.get(PERTURBATIONS, {}).get("backbone", {})
    return Captured(outputs, _by_name(attention, gradients), hidden)


def captured_attention(
    run: LoadedRun, params: Any, batch: Mapping[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Weights (L, B, H, T, S) and visibility (L, B, T, S) of a batch.

    They are by "encoder", "decoder" and "cross".
    """
    task = run.experiment.task

    def apply(params, batch):
        arguments, named = model_arguments(task, batch)
        _, state = run.model.apply({"params": params}, *arguments, **named, mutable=[CAPTURE])
        captured = state[CAPTURE]["backbone"]
        attention = {
            name: captured[stack]["blocks"][module]
            for name, (stack, module) in _attending(captured).items()
        }
        return {name: (each["weights"], each["visible"]) for name, each in attention.items()}

    with jax.set_mesh(run.mesh):
        return jax.device_get(jax.jit(apply)(params, put_batch(batch, run.mesh)))


def _hidden(layers: Mapping[str, Any]) -> Array:
    return jnp.concatenate([layers["embedded"][None], layers["blocks"]["hidden"]])


def _only_weights(captured: Mapping[str, Any]) -> dict[str, Any]:
    flat = traverse_util.flatten_dict(captured)
    return traverse_util.unflatten_dict({k: leaf for k, leaf in flat.items() if k[-1] == "weights"})


def _first_row(captured: Mapping[str, Any]) -> dict[str, Any]:
    """The first row of the batch of the arrays (L, B, ...) that blocks captured."""
    flat = traverse_util.flatten_dict(captured)
    selected = {
        path: leaf[:, 0] for path, leaf in flat.items() if path[-1] in ("weights", "visible")
    }
    return traverse_util.unflatten_dict(selected)


def _by_name(captured: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Layers]:
    found = {}
    for name, (stack, module) in _attending(captured).items():
        layers = captured[stack]["blocks"][module]
        weight_gradients = gradients[stack]["blocks"][module]["weights"] if gradients else None
        found[name] = Layers(layers["weights"], layers["visible"], weight_gradients)
    return found


def _attending(captured: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The stack and the module of each kind of attention that was captured."""
    return {
        name: (stack, module)
        for stack in ("encoder", "decoder")  # in the order in which they run
        for module, name in (("self_attention", stack), ("cross_attention", "cross"))
        if module in captured.get(stack, {}).get("blocks", {})
    }


class TopTokens(NamedTuple):
    """The likeliest ids at each position, best first."""

    ids: np.ndarray  # (..., candidates)
    probabilities: np.ndarray


def lens_logits(
    run: LoadedRun, params: Any, batch: Mapping[str, Array], stack: str, x_btd: Array
) -> Array:
    """What the model's head makes of a hidden state of a stack, after the final norm."""
    config = run.model_config
    if config.has_final_norm:
        norm = params["backbone"][stack].get("final_norm", {})  # norm=none has no parameters
        x_btd = Norm(config).apply({"params": norm}, x_btd)

    def instead(function, args, kwargs, context):
        if isinstance(context.module, Stack) and context.method_name == "__call__":
            return (x_btd if context.module.name == stack else args[0]), None
        return function(*args, **kwargs)

    with nn.intercept_methods(instead):
        return forward(run.model, run.experiment.task, params, batch)["logits"]


def logit_lens(
    run: LoadedRun, batch: Mapping[str, np.ndarray], stack: str, hidden_lbtd: Array, answers: int
) -> TopTokens:
    """The likeliest of the first `answers` ids or classes after each layer, (L + 1, T, N).

    (L + 1, N) for classes, which a text has once.
    """

    def best(params, batch, hidden_lbtd):
        def of_layer(x_btd: Array) -> tuple[Array, Array]:
            logits = lens_logits(run, params, batch, stack, x_btd)[0].astype(jnp.float32)
            shares = jax.nn.softmax(logits, axis=-1)[..., :answers]
            return jax.lax.top_k(shares, min(CANDIDATES, answers))

        return jax.lax.map(of_layer, hidden_lbtd)

    with jax.set_mesh(run.mesh):
        placed = put_batch(batch, run.mesh)
        shares, ids = jax.device_get(jax.jit(best)(run.params, placed, hidden_lbtd))
    return TopTokens(ids, shares)
