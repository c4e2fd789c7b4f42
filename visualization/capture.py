"""A loaded run and a prompt -> a `ModelView`: everything that the page and the figures show."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from checkpointing.loaded_run import LoadedRun
from experiment.schema import ConfigError
from model.attention import KINDS
from model.attention.linear import FeatureMapAttention
from model.config import TransformerConfig
from model.mixers import ATTENTION
from visualization.captured_pass import (
    CANDIDATES,
    Captured,
    Layers,
    TopTokens,
    logit_lens,
    run_and_capture,
)
from visualization.model_inputs import ModelInput, generates, read_input
from visualization.model_view import AttentionMap, Candidates, LogitLens, ModelView, TokenScores
from visualization.patches import patch_names, patch_picture
from visualization.rollout import RESIDUAL, attention_rollout
from visualization.token_texts import in_a_sentence, special_names, token_texts

View = Literal["attention", "lens", "logprobs"]
VIEWS = ("attention", "lens", "logprobs")


def model_view(
    run: LoadedRun,
    prompt: str,
    target: str | None = None,
    *,
    title: str,
    layers: Sequence[int] = (),
    view: View = "attention",
) -> ModelView:
    """What the model makes of one input.

    `layers` are the numbers of the layers whose attention is shown; (): all. `view` "attention"
    shows everything; "lens" only the logit lens and norms; "logprobs" only the probabilities of the
    text.
    """
    refuse_layers(run, layers)
    _refuse_view(run, view)
    given = read_input(run, prompt, target, weights=view == "attention")
    batch = given.batch(run.mesh)
    found = run_and_capture(run, batch, weights=view == "attention")
    texts = _texts(run, given)
    scores = _scores(run, given, found) if view != "lens" else None
    return ModelView(
        title=title,
        facts=_facts(run, prompt, target, texts),
        maps=tuple(
            _map(run, name, layers_of, texts, layers) for name, layers_of in found.attention.items()
        ),
        prediction=_prediction(run, given, found),
        special_tokens=_special_tokens(run, texts),
        norms=tuple(
            (stack, np.asarray(_norms(found.hidden[stack]))[:, : len(texts[stack])])
            for stack in texts
            if view != "logprobs"
        ),
        lens=_lens(run, given, batch, found, texts) if view != "logprobs" else None,
        scores=scores,
        **patch_picture(run, given.fields),
    )


def refuse_layers(run: LoadedRun, layers: Sequence[int]) -> None:
    """Refuses numbers of layers that no stack of the model has."""
    depth = max(_depths(run).values())
    beyond = [layer for layer in layers if not 0 <= layer < depth]
    if beyond:
        raise ConfigError(
            f"--layers: there is no layer {beyond[0]}; this model's layers are 0 to {depth - 1}"
        )


def refuse_heads(
    run: LoadedRun, heads: Sequence[tuple[str, int, int]], layers: Sequence[int]
) -> None:
    """Refuses heads (map, layer, head) that are not there or not shown; "" is the only map."""
    depths = _attention_depths(run)
    if heads and not depths:
        raise ConfigError(
            f"--heads: no layer of this model attends: it has model.mixer={run.model_config.mixer}"
        )
    for name, layer, head in heads:
        if not name and len(depths) > 1:
            raise ConfigError(
                f"--heads: {layer}.{head} may be of {', '.join(depths)}; write such as "
                f"cross.{layer}.{head}"
            )
        if name and name not in depths:
            raise ConfigError(f"--heads: this model has no {name}; it has {', '.join(depths)}")
        depth = depths[name or next(iter(depths))]
        if layer >= depth or head >= run.model_config.heads:
            raise ConfigError(
                f"--heads: there is no {layer}.{head}; layers are 0 to {depth - 1}, heads 0 to "
                f"{run.model_config.heads - 1}"
            )
        if layers and layer not in layers:
            raise ConfigError(f"--heads: layer {layer} is not one of --layers; add it there")


def _attention_depths(run: LoadedRun) -> dict[str, int]:
    """The numbers of layers that attend, by the name of their map."""
    depths, config = _depths(run), run.model_config
    found = depths if config.mixer == ATTENTION else {}
    return found | ({"cross": depths["decoder"]} if config.has_cross_attention else {})


def _depths(run: LoadedRun) -> dict[str, int]:
    config = run.model_config
    depths = {"encoder": config.encoder_layers} if config.has_encoder else {}
    return depths | ({"decoder": config.decoder_layers} if config.has_decoder else {})


WITHOUT_LENS = ("embedder", "regressor", "token_classifier", "span", "forecaster")  # heads


def _refuse_view(run: LoadedRun, view: View) -> None:
    if view not in VIEWS:
        raise ConfigError(f"--view={view} is not one of: {', '.join(VIEWS)}")
    task = run.experiment.task
    if view == "logprobs" and not generates(run):
        raise ConfigError(
            "--view=logprobs shows the probability of each next token, which a model with "
            f"task.objective={task.objective} does not predict; choose attention or lens"
        )
    if view == "lens" and task.objective_spec.head in WITHOUT_LENS:
        raise ConfigError(
            "--view=lens shows the classes or tokens that the output head makes of each layer, and "
            "this model has no such head; choose attention"
        )


def _stacks_text(run: LoadedRun) -> dict[str, str]:
    """The field with the ids that each stack reads."""
    if run.model_config.family == "encoder_decoder":
        return {"encoder": "encoder_inputs", "decoder": "inputs"}
    return dict.fromkeys(_depths(run), "inputs")


def _texts(run: LoadedRun, given: ModelInput) -> dict[str, tuple[str, ...]]:
    """The tokens that each stack reads, as text."""
    config = run.model_config
    if config.input == "patches":
        return {
            "encoder": (*["[CLS]", "[DISTILLATION]"][: config.leading_tokens], *patch_names(run))
        }
    return {
        stack: token_texts(given.fields[field], run.tokenizer)
        for stack, field in _stacks_text(run).items()
    }


def _special_tokens(run: LoadedRun, texts: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    if run.tokenizer is None:
        return frozenset({"[CLS]"} & set(texts["encoder"]))
    names = set(special_names(run.tokenizer).values())
    return frozenset(names & {text for each in texts.values() for text in each})


def _map(
    run: LoadedRun,
    name: str,
    found: Layers,
    texts: Mapping[str, tuple[str, ...]],
    layers: Sequence[int],
) -> AttentionMap:
    queries = texts["decoder" if name == "cross" else name]
    keys = texts["encoder" if name == "cross" else name]
    depth = len(found.weights_lhts)
    shown = [layer for layer in range(depth) if not layers or layer in layers]
    real = (..., slice(len(queries)), slice(len(keys)))
    weights_lhts = found.weights_lhts[real]
    gradients_lhts = found.gradients_lhts
    residual = RESIDUAL if run.model_config.residual else 0.0
    return AttentionMap(
        name=name,
        layers=tuple(shown),
        kinds=tuple(run.model_config.attention_kind(layer) for layer in shown),
        queries=queries,
        keys=keys,
        weights_lhts=weights_lhts[shown],
        visible_lts=found.visible_lts[real][shown],
        gradients_lhts=None if gradients_lhts is None else gradients_lhts[real][shown],
        rollout_ts=None if name == "cross" else attention_rollout(weights_lhts, residual),
    )


@jax.jit
def _norms(hidden_lbtd: jax.Array) -> jax.Array:
    return jnp.linalg.norm(hidden_lbtd[:, 0].astype(jnp.float32), axis=-1)


def _last_stack(run: LoadedRun) -> str:
    return "decoder" if run.model_config.has_decoder else "encoder"


def _lens(
    run: LoadedRun,
    given: ModelInput,
    batch: Mapping[str, np.ndarray],
    found: Captured,
    texts: Mapping[str, tuple[str, ...]],
) -> LogitLens | None:
    stack, head = _last_stack(run), run.experiment.task.objective_spec.head
    if head in WITHOUT_LENS:
        return None
    hidden = found.hidden[stack]
    if head == "classifier":
        best = logit_lens(run, batch, stack, hidden, len(run.labels))
        by_layer = [
            TopTokens(*(each[layer][None] for each in best)) for layer in range(len(hidden))
        ]
        name_of = run.labels.__getitem__
        return LogitLens(("class",), tuple(_candidates(each, name_of) for each in by_layer))
    best = logit_lens(run, batch, stack, hidden, run.model_config.vocab_size)
    tokens = texts[stack]
    by_layer = [
        TopTokens(*(each[layer][: len(tokens)] for each in best)) for layer in range(len(hidden))
    ]
    return LogitLens(tokens, tuple(_candidates(each, _token_name(run)) for each in by_layer))


def _token_name(run: LoadedRun):
    return lambda id: token_texts([id], run.tokenizer)[0]


def _candidates(best: TopTokens, name_of) -> Candidates:
    names = tuple(tuple(name_of(int(id)) for id in row) for row in best.ids)
    return Candidates(names, best.probabilities)


def _scores(run: LoadedRun, given: ModelInput, found: Captured) -> TokenScores | None:
    """The probability of each token of the text that the decoder reads."""
    if not len(given.targets):
        return None
    places = given.first_target + np.arange(len(given.targets))
    logs_nv = log_softmax(found.outputs["logits"][0][places])
    chosen_n = logs_nv[np.arange(len(places)), given.targets]
    return TokenScores(
        tokens=token_texts(given.targets, run.tokenizer),
        log_probabilities=chosen_n.astype(np.float32),
        ranks=1 + (logs_nv > chosen_n[:, None]).sum(axis=-1),
        candidates=_candidates(_best(logs_nv), _token_name(run)),
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, over the last axis."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _best(logs_nv: np.ndarray) -> TopTokens:
    ids = np.argsort(-logs_nv, axis=-1, kind="stable")[:, :CANDIDATES]
    return TopTokens(ids, np.exp(np.take_along_axis(logs_nv, ids, axis=-1)).astype(np.float32))


def _prediction(run: LoadedRun, given: ModelInput, found: Captured) -> str:
    """The answer, the class, the filled masks or the next token."""
    head, logits = run.experiment.task.objective_spec.head, found.outputs.get("logits")
    if head == "embedder":
        return ""
    if head == "regressor":
        return f"{float(logits[0, 0]):.6g}"
    if head == "forecaster":
        return _forecast(run, given, found.outputs["quantiles"][0])
    if head == "span":
        first, last = logits[0].argmax(axis=-1)
        return run.tokenizer.decode(given.fields["inputs"][first : last + 1])
    if head == "token_classifier":
        return " ".join(run.labels[tag] for tag in logits[0, :, : len(run.labels)].argmax(-1))
    if head == "classifier":
        shares = np.exp(log_softmax(logits[0]))[: len(run.labels)]
        return f"{run.labels[shares.argmax()]} ({shares.max():.1%})"
    if given.answer is not None:
        return given.answer
    ids = given.fields["inputs"]
    if head == "masked_language_model":  # no special tokens, and no item twice, as in generate.py
        places, allowed = np.flatnonzero(ids == run.tokenizer.mask_id), run.tokenizer.text_ids
        if run.experiment.task.objective_spec.ranks_items:
            allowed = np.setdiff1d(allowed, ids)
    else:
        places, allowed = np.array([len(ids) - 1]), np.arange(run.model_config.vocab_size)
    logs_nv = log_softmax(logits[0][places])
    is_allowed_v = np.isin(np.arange(logs_nv.shape[-1]), allowed)
    best = _best(np.where(is_allowed_v, logs_nv, -np.inf))
    found_there = zip(token_texts(best.ids[:, 0], run.tokenizer), best.probabilities, strict=True)
    return ", ".join(f"{in_a_sentence(text)} ({shares[0]:.1%})" for text, shares in found_there)


def _forecast(run: LoadedRun, given: ModelInput, quantiles_hn: np.ndarray) -> str:
    """The first and the last value of the forecast, in the units of the file."""
    levels = run.experiment.task.quantiles
    middle = min(range(len(levels)), key=lambda place: abs(levels[place] - 0.5))
    values = quantiles_hn[:, middle].astype(np.float64) + given.offset
    name = "median" if levels[middle] == 0.5 else f"quantile {levels[middle]:g}"
    steps = [0] if len(values) == 1 else [0, len(values) - 1]
    return f"{name} " + ", ".join(f"{values[n]:.6g} at step {n + 1}" for n in steps)


def _facts(
    run: LoadedRun, prompt: str, target: str | None, texts: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, str], ...]:
    config = run.model_config
    one = len(texts) == 1  # stack, which then needs no name
    layers = ", ".join(
        f"{depth} " + ("" if one else f"{stack} ") + f"layer{'s' * (depth > 1)}"
        for stack, depth in _depths(run).items()
    )
    tokens = ", ".join(
        f"{len(each)}" if one else f"{len(each)} in the {stack}" for stack, each in texts.items()
    )
    heads = f"{config.heads} heads of size {config.head_size}"
    if config.kv_heads < config.heads:
        heads += f", {config.kv_heads} heads of keys and values"
    # Of a file, the name alone: a page that is passed on need not tell a directory.
    facts = [("input", Path(prompt).name if config.input == "patches" else prompt)]
    facts += [] if target is None else [("target", target)]
    facts += [
        (
            "model",
            f"{config.family.replace('_', '-')}, {layers}" + f", {heads}" * config.has_attention,
        ),
        *_mixer_facts(config),
        ("positions", config.position),
        ("task", run.experiment.task.objective),
        ("checkpoint", f"step {run.step}"),
        ("tokens", tokens),
    ]
    implied = [
        name
        for name, kind in KINDS.items()
        if isinstance(kind, FeatureMapAttention) and name in config.attention.split(",")
    ]
    if implied:
        kinds = " and ".join(implied)
        facts.append(("weights", f"of {kinds}: those that its sums over features imply"))
    if config.dtype != "float32":
        facts.append(("precision", f"the weights have the rounding of {config.dtype}"))
    return tuple(facts)


def _mixer_facts(config: TransformerConfig) -> Iterator[tuple[str, str]]:
    if config.mixer != ATTENTION:
        yield "mixer", f"{config.mixer}; there is no self-attention to show"
    if config.has_context_vector:
        yield "bridge", "context_vector; there is no cross-attention to show"
    if config.has_attention:
        yield ("attention" if config.mixer == ATTENTION else "cross-attention"), config.attention
