"""Translates a published model's directory to our model, and our model to a published config.

published = read(directory)     the published model with our config keys; loads no weights
published.fill(shapes, model)   functions that read our parameters from its files
describe(model, head, ...)      our model as a published architecture, with their config keys
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from model.config import TransformerConfig
from pretrained import image_processor, known_keys, model_files, sentence
from pretrained.architecture import Architecture, Head, MisfitError, PublishedConfig, Specials
from pretrained.catalog import EVERY, recognise
from pretrained.decoder_parts import require_full_attention
from pretrained.ids_and_labels import read_labels, read_specials, without_aliases
from pretrained.layouts import Index, ModuleTable, Place, places, their_shapes

COMPARED = 1 << 22  # numbers that are compared at a time
TABLE_TOLERANCE = 1e-2  # of computed tables, which files may have in 16 bits
# Styles of configs/architectures.py whose models have a published architecture.
STYLES = {
    "bert": "bert_style", "gpt2": "gpt2_style", "llama": "llama_style", "t5": "t5_style",
    "vit": "vit_style", "marian": "transformer_style --config.model.output_bias=True",
}  # fmt: skip

OF_PROTEINS = ("esm",)  # not what a model of texts should become, however close

# Keys of ablations and variants, and the only value that published architectures have.
NO_ABLATION = {
    "residual": True, "feed_forward_kind": "mlp", "share_qk": False, "parametrization": "standard",
}  # fmt: skip

Reader = Callable[[Index, Any], np.ndarray]  # (index, dtype) -> part of a parameter


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model, with its settings as keys of our config."""

    directory: Path
    architecture: Architecture
    head: Head
    model: dict[str, Any]  # keys of our `model` section
    task: dict[str, Any]  # keys of our `task` section
    labels: tuple[str, ...]
    specials: Specials
    notes: list[str]  # warnings for the user
    zeros: tuple[str, ...]  # patterns of tensors that the files lack and that are zeros
    tokenizer_class: str  # of transformers, or ""; the tokenizer's own config takes precedence
    tensors: model_files.TensorSource

    def fill(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        model: TransformerConfig,
        *,
        allow_nonfinite: bool = False,
    ) -> tuple[dict[str, Reader], list[str]]:
        """Returns functions that read parts of our parameters, by path, and unused tensor names.

        The unused tensors belong to other heads. `shapes` are the shapes of our parameters, by
        path. It reads no weights yet, but raises ConfigError if tensors are missing, left over or
        of another shape. The functions raise it for NaN and infinity, unless `allow_nonfinite`.
        """
        self._refuse_other_values(self.architecture.derived_values(model))
        table = self.architecture.table(model, self.head, self.specials)
        found = list(places(shapes, table))
        names, unused = self._match(their_shapes(found), table)
        by_path: dict[str, list[Place]] = {}
        for place in found:
            by_path.setdefault(place.path, []).append(place)
        readers = {
            path: self._reader(parts, names, allow_nonfinite) for path, parts in by_path.items()
        }
        return readers, unused

    def _reader(
        self, parts: Sequence[Place], names: Mapping[str, str], allow_nonfinite: bool
    ) -> Reader:
        def one(place: Place, index: Index) -> np.ndarray:
            if place.name not in names:  # or they have no such tensor
                return np.zeros(place.layout.shape, np.float32)[index]
            name = names[place.name]
            values = place.layout.read(lambda wanted: self.tensors.read(name, wanted), index)
            if not (allow_nonfinite or np.isfinite(values).all()):
                raise ConfigError(
                    f"{self.directory}: {name} has values that are NaN or infinite; get the "
                    "model's files again, or give --allow_nonfinite to import them as they are"
                )
            return values

        def read(index: Index, dtype: Any) -> np.ndarray:
            axes = len(parts[0].stacked)
            if not axes:
                return one(parts[0], index).astype(dtype, copy=False)
            sizes = [last + 1 for last in parts[-1].stacked]
            chosen = np.arange(len(parts)).reshape(sizes)[index[:axes]]
            first, *others = (parts[number] for number in chosen.flat)
            array = one(first, index[axes:])
            stacked = np.empty((chosen.size, *array.shape), dtype)
            stacked[0] = array
            for number, place in enumerate(others, 1):
                stacked[number] = one(place, index[axes:])
            return stacked.reshape(*chosen.shape, *array.shape)

        return read

    def _match(
        self, expected: Mapping[str, tuple[int, ...]], table: ModuleTable
    ) -> tuple[dict[str, str], list[str]]:
        """Returns {name in the table: name in the files}, and the names that are not used."""
        kind, copies = self.architecture, dict(self.architecture.copies)
        modules = {at if isinstance(at, str) else at.name for at in table.values()}
        modules.update(kind.other_heads)
        names, unused, extra = {}, [], []
        for name in self.tensors.shapes:
            if any(re.search(pattern, name) for pattern in kind.derived):
                continue
            renamed = name
            for pattern, replacement in kind.renames:
                renamed = re.sub(pattern, replacement, renamed)
            # Names in the files of a base model lack the prefix of a model with a head.
            candidates = [renamed, kind.base + renamed]
            known = next(
                (each for each in candidates if each in expected or copies.get(each) in expected),
                None,
            )
            if known in names:
                raise ConfigError(
                    f"{self.directory}: {name} and {names[known]} are both {known}; "
                    f"{model_files.SAME_MODEL}"
                )
            if known:
                names[known] = name
            elif any(each in copies or each.rpartition(".")[0] in modules for each in candidates):
                unused.append(name)
            else:
                extra.append(name)
        zeros = {n for n in expected if any(re.search(pattern, n) for pattern in self.zeros)}
        extra += [names[name] for name in zeros & names.keys()]
        may_lack = zeros.union(kind.zero_if_missing)
        missing = [n for n in expected if n not in names and n not in may_lack]
        if missing:
            raise ConfigError(
                f"{self.directory}: the weights lack {_listed(missing)}; {model_files.SAME_MODEL}"
            )
        if extra:
            raise ConfigError(
                f"{self.directory}: the weights have {_listed(extra)}, which a {kind.model_type} "
                f"of this config has no place for; {model_files.SAME_MODEL}"
            )
        for name in sorted(expected.keys() & names.keys()):
            self._refuse_shape(names[name], expected[name])
        for name in sorted(names.keys() - expected.keys()):
            self._refuse_other(names[name], names[copies[name]])
        return names, unused

    def _refuse_shape(self, name: str, expected: tuple[int, ...]) -> None:
        self.tensors.require_float(name)
        actual = self.tensors.shapes[name]
        if actual != expected:
            raise ConfigError(
                f"{self.directory}: {name} has the shape {list(actual)}, but the config makes it "
                f"{list(expected)}; {model_files.SAME_MODEL}"
            )

    def _refuse_other_values(self, computed: Mapping[str, np.ndarray]) -> None:
        """Refuses tables in the files, such as positions, that differ from the computed ones."""
        for name in sorted(computed.keys() & self.tensors.shapes.keys()):
            self._refuse_shape(name, computed[name].shape)
            table = self.tensors.read(name, (slice(None),))
            if not np.allclose(table.astype(np.float64), computed[name], atol=TABLE_TOLERANCE):
                raise ConfigError(
                    f"{self.directory}: {name} is not the table of sinusoids that a "
                    f"{self.architecture.model_type} has, and others are not supported; "
                    f"{model_files.SAME_MODEL}"
                )

    def _refuse_other(self, name: str, original: str) -> None:
        shape, read = self.tensors.shapes[name], self.tensors.read
        step = max(1, COMPARED // max(1, math.prod(shape[1:])))  # so that memory never holds both
        starts = range(0, shape[0], step) if shape else ()
        parts = [(slice(row, min(row + step, shape[0])),) for row in starts]
        if shape != self.tensors.shapes[original] or not all(
            np.array_equal(read(name, part), read(original, part)) for part in parts
        ):
            raise ConfigError(
                f"{self.directory}: {name} is not {original}, but the config ties them; one of "
                f"them is wrong; {model_files.SAME_MODEL}"
            )


def read(
    directory: str | Path,
    ignore_keys: Collection[str] = (),
    tensors: model_files.TensorSource | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Published:
    """Reads the config and the tensor shapes of a published model.

    Raises ConfigError if the model is not supported, or if its config has unknown keys that may
    change the result. It ignores the keys in `ignore_keys`. `tensors` are the weights if they are
    not in the directory; `changes` replace keys of the config.
    """
    directory = Path(directory)
    path = str(directory / model_files.CONFIG)
    config = model_files.read_json(directory, model_files.CONFIG) | dict(changes or {})
    config, notes = known_keys.leave_out(config, ignore_keys, path)
    architecture, head = recognise(directory, config)
    tensors = model_files.Tensors(directory) if tensors is None else tensors
    if head.objective == "masked_lm" and "cls.seq_relationship.weight" in tensors.shapes:
        # The config of the original BERT names one of its two heads, but its files have both.
        head = dataclasses.replace(head, next_sentence=True)
    options = PublishedConfig(without_aliases(config, architecture, path), path)
    if quantised := options.get("quantization_config"):
        remedy = "get the model without quantisation"
        if isinstance(quantised, dict) and quantised.get("quant_method") == "mxfp4":
            remedy = (
                "save the model in bfloat16 with transformers: from_pretrained(DIR, "
                "quantization_config=Mxfp4Config(dequantize=True)).save_pretrained(OUT)"
            )
        options.refuse("quantization_config", quantised, remedy)
    if code := options.get("auto_map"):
        options.refuse(
            "auto_map",
            code,
            "code that comes with a model is never run; if the model is a plain "
            f"{architecture.model_type} without that code, give --ignore_keys=auto_map",
        )
    problems = [options.differs(key, value) for key, value in architecture.required_values.items()]
    problems = [problem for problem in problems if problem]
    model = dict(architecture.style)
    for ours, (theirs, default) in architecture.keys.items():
        model[ours] = options.size(theirs) if default is None else options.get(theirs, default)
    _refuse_more_layers_than_tensors(directory, model, tensors.shapes)  # lists of layers are made
    model |= architecture.read_more(options, tensors.shapes, head)
    model |= architecture.read_tensors(model, tensors)
    if architecture.interpolates:
        model |= image_processor.other_size(directory, model["image_size"], model["patch_size"])
    generation = None
    if architecture.generates and (directory / model_files.GENERATION).exists():
        generation = PublishedConfig(
            model_files.read_json(directory, model_files.GENERATION),
            str(directory / model_files.GENERATION),
        )
    specials = read_specials(options, architecture, model, notes, generation)
    head, labels = read_labels(options, head)
    zeros = tuple(
        pattern
        for key, (value, pattern) in architecture.absent_at.items()
        if options.get(key) == value
    )
    unknown = known_keys.not_harmless(
        config, options.read_keys | architecture.aliases.keys(), architecture.harmless,
        architecture.neutral,
    )  # fmt: skip
    if unknown:
        problems.append(known_keys.refusal(config, unknown, path, architecture.model_type))
    if problems:
        raise ConfigError(problems)
    _refuse_more_layers_than_tensors(directory, model, tensors.shapes)
    if labels:
        model["num_classes"] = len(labels)
    task = dict(objective=head.objective, next_sentence=head.next_sentence)
    if head.objective == "embed":
        task |= sentence.read(directory)
        prompts = sentence.read_prompts(directory)
        if prompts:
            named = ", ".join(f"{name} {text!r}" for name, text in prompts.items())
            notes = [*notes, f"prompts to write before your texts: {named}"]
    return Published(
        directory, architecture, head, model, task, labels, specials, notes, zeros,
        str(config.get("tokenizer_class") or ""), tensors,
    )  # fmt: skip


def _refuse_more_layers_than_tensors(
    directory: Path, model: Mapping[str, Any], tensors: Collection[str]
) -> None:
    layers = max(model.get("encoder_layers", 0), model.get("decoder_layers", 0))
    if layers > len(tensors):
        raise ConfigError(
            f"{directory}: {layers} layers, but {len(tensors)} tensors; {model_files.SAME_MODEL}"
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more


@dataclasses.dataclass(frozen=True)
class Description:
    """Our model as a published architecture."""

    architecture: Architecture
    config: dict[str, Any]
    table: ModuleTable


def describe(
    model: TransformerConfig, head: Head, labels: Sequence[str], specials: Specials
) -> Description:
    """Finds the published architecture of our model; raises ConfigError if none fits."""
    refuse_ablations(model)
    for key in ("mixer", "bridge"):
        if (value := getattr(model, key)) != "attention":
            raise ConfigError(
                f"a model with model.{key}={value} cannot be exported: all published architectures "
                "that we write mix tokens by attention; train one with model.mixer=attention and "
                "model.bridge=attention"
            )
    if model.has_score_vector:
        raise ConfigError(
            f"a model with model.attention={model.attention} cannot be exported: no published "
            "architecture that we write has its score vectors; train one with another kind"
        )
    misfits, wanted = {}, head
    if head.objective == "regress_text":  # the same classes, with one label
        wanted = dataclasses.replace(head, objective="classify_text")
    for architecture in EVERY:
        classes = [name for name, each in architecture.heads.items() if each == wanted]
        reasons = [] if classes else [f"has no class for task.objective={head.objective}"]
        reasons += [
            f"needs model.{key}={value}, not {getattr(model, key)}"
            for key, value in architecture.required_style.items()
            if getattr(model, key) != value
        ]
        try:
            more = architecture.write_more(model, head, specials)
            if "attention" not in architecture.sets:
                require_full_attention(model)
        except MisfitError as misfit:
            reasons.append(str(misfit))
        if reasons:
            is_other = architecture.style.get("family", model.family) != model.family
            found = (not classes, is_other, len(reasons), "; ".join(reasons))
            kind = architecture.model_type  # variants share one
            misfits[kind] = min(misfits.get(kind, found), found)
            continue
        config = dict(architectures=classes[:1], model_type=architecture.model_type)
        config |= architecture.required_values
        config |= {theirs: getattr(model, ours) for ours, (theirs, _) in architecture.keys.items()}
        config |= more | _special_ids(specials)
        if wanted is not head:
            labels = ("LABEL_0",)
            config |= dict(problem_type="regression")
        if labels:
            numbered = {str(number): label for number, label in enumerate(labels)}
            config |= dict(id2label=numbered, label2id={v: int(k) for k, v in numbered.items()})
        config |= dict(torch_dtype=model.param_dtype)
        return Description(architecture, config, architecture.table(model, head, specials))

    def distance(name: str) -> tuple:
        lacks_class, is_other, count, _ = misfits[name]
        return lacks_class, is_other, name in OF_PROTEINS, count, name not in STYLES

    closest, *others = sorted(misfits, key=distance)
    lacks_class, *_, reasons = misfits[closest]
    style = ""
    if closest in STYLES and not lacks_class and "needs model." in reasons:
        style = f"; train.py --config=CONFIG.py:{STYLES[closest]} builds such a model"
    raise ConfigError(
        f"this model fits no published architecture; the closest is {closest} "
        f"({reasons}); train a model with these keys to export it; the others are no "
        f"closer: {', '.join(others)}{style}"
    )


def refuse_ablations(model: TransformerConfig) -> None:
    """Raises ConfigError for a model that differs from all published architectures."""
    ablated = [
        f"model.{key}={getattr(model, key)} (needs {value})"
        for key, value in NO_ABLATION.items()
        if getattr(model, key) != value
    ]
    if model.norm == "none":
        ablated.append("model.norm=none (needs layernorm or rmsnorm)")
    if ablated:
        raise ConfigError(
            f"no published architecture can hold {', '.join(ablated)}; to export a model, train it "
            "with the values that are needed"
        )


def _special_ids(specials: Specials) -> dict[str, int | list[int]]:
    eos = [specials.eos, *specials.more_eos] if specials.more_eos else specials.eos
    ids = {
        "pad_token_id": specials.pad,
        "bos_token_id": specials.bos,
        "eos_token_id": eos,
        "decoder_start_token_id": specials.decoder_start,
    }
    return {key: value for key, value in ids.items() if value is not None}
