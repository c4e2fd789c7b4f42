"""Imports and exports published weights: python convert.py --from=DIR --to=WORKDIR, or back.

It imports a model of the Hugging Face hub, hf://ORG/NAME, a directory with the files of one
(config.json, safetensors, tokenizer files), or a GGUF file, to a workdir. train.py starts from it
(--config.init_from=WORKDIR), and generate.py and evaluate.py can use it. It exports WORKDIR[:STEP]
to a directory that transformers loads.

The files in pretrained/ say which architectures and config keys are supported. If convert.py
refuses a model, it writes nothing.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags, logging

from checkpointing import (
    conversion_places,
    loaded_run,
    model_card,
    run_directory,
    stored_params,
)
from checkpointing.checkpoint_manager import Checkpoints, find_checkpoint
from configs import default
from experiment import command_line, sections
from experiment.schema import ConfigError, refuse_remote
from input_pipeline.chat_encoding import learnt_template
from input_pipeline.objectives import OBJECTIVES, Objective
from input_pipeline.sources.registry import source_for_imports
from input_pipeline.tokenizers.subword import SubwordTokenizer
from model.config import TransformerConfig
from pretrained import (
    auto_tokenizer,
    generation_settings,
    image_processor,
    model_files,
    peft_adapter,
    published,
    published_tokenizer,
    sentence,
    special_tokens_record,
)
from pretrained.architecture import Head
from pretrained.layouts import places, their_shapes, to_theirs
from pretrained.model_source import open_source
from training.config import CheckpointConfig, MeshConfig, TaskConfig
from training.mesh import make_mesh
from training.model_for_task import make_model, smallest_batch
from training.train_state import TrainState, abstract_params

LONGEST_ROW = 2048  # the largest data.length of an imported model, even if it can read more
# Modules of an auxiliary masked LM next to a classifier; published models have no such modules.
AUXILIARY = ("transform/", "transform_norm/", "vocabulary/")


def convert(
    source: str,
    target: str,
    param_dtype: str = "float32",
    tokenizer: str = "",
    ignore_keys: Collection[str] = (),
    *,
    base: str = "",
    adapter: bool = False,
    source_eos: bool = True,
    languages: published_tokenizer.Languages = published_tokenizer.AS_PUBLISHED,
    allow_nonfinite: bool = False,
) -> str:
    """Exports `source` if it is a run's directory, else imports it; returns a line about it.

    The other arguments are for imports; the flags of the same names explain them.
    """
    conversion_places.refuse_other_places(source, target, tokenizer)
    refuse_remote("--base", base)
    workdir = re.fullmatch(r"(.*?)(?::\d+)?", source)[1]
    is_run = conversion_places.is_run(workdir)
    for_imports = {
        "tokenizer": tokenizer, "ignore_keys": ignore_keys, "base": base,
        "allow_nonfinite": allow_nonfinite, "nosource_eos": not source_eos,
        "source_language": languages.source, "target_language": languages.target,
    }  # fmt: skip
    for flag in (flag for flag, value in for_imports.items() if is_run and value):
        raise ConfigError(f"--{flag} is for imports, and this is a run; leave it out")
    if not is_run and adapter:
        raise ConfigError("--adapter is for exports, and --from is no run; leave it out")
    if not is_run:
        conversion_places.refuse_missing(source)
    with conversion_places.new_target(target, is_export=is_run) as (directory, repo):
        if adapter and repo:
            raise ConfigError(
                f"--to={target}: adapters are not uploaded; give a directory, and upload that"
            )
        if adapter:
            return export_adapter(source, directory)
        if is_run:
            return export_model(source, directory, repo)
        with (
            conversion_places.published_model(source) as (path, name),
            open_source(str(path), base, ignore_keys, with_tokenizer=not tokenizer) as found,
        ):
            line = import_model(
                found,
                directory,
                param_dtype,
                conversion_places.local_tokenizer_file(tokenizer),
                ignore_keys,
                source_eos=source_eos,
                languages=languages,
                allow_nonfinite=allow_nonfinite,
            )
            model_files.write_json(directory / model_card.IMPORTED_FROM, {"source": name})
            return line


def import_model(
    found: published.Published,
    workdir: Path,
    param_dtype: str,
    tokenizer_path: str,
    ignore_keys: Collection[str] = (),
    *,
    source_eos: bool = True,
    languages: published_tokenizer.Languages = published_tokenizer.AS_PUBLISHED,
    allow_nonfinite: bool = False,
) -> str:
    """Writes a published model as step 0 of a run; the arguments are those of `convert`."""
    path = found.directory / model_files.CONFIG
    for note in found.notes:
        logging.warning("%s: %s", path, note)
    config = default.get_config().to_dict()
    config["model"] |= {**found.model, "param_dtype": param_dtype}
    config["task"] |= found.task
    config["data"] |= _data(found)
    try:
        experiment = sections.from_mapping(config)
    except ConfigError as error:
        raise ConfigError([f"{path}: {each}" for each in error.problems]) from error
    model_config = experiment.model.resolve()
    tokenizer = None
    if model_config.input == "tokens":
        tokenizer = published_tokenizer.read(
            found, tokenizer_path, source_eos=source_eos, languages=languages
        )
    params = load_params(found, model_config, experiment.task, allow_nonfinite=allow_nonfinite)

    digest = "" if tokenizer is None else tokenizer.digest
    digests = dict(zip(run_directory.DIGESTS, ("", digest), strict=True))
    run_directory.record_config(workdir, {**config, **digests}, resuming=False)
    run_directory.record_model(workdir, model_config, found.labels)
    run_directory.record_environment(workdir, {})
    if tokenizer is not None:
        tokenizer.save(workdir)
        file, pieces, content = published_tokenizer.published_file(found, tokenizer_path), (), "{}"
        if isinstance(tokenizer, SubwordTokenizer):
            pieces, content = tokenizer.pieces, tokenizer.content
            warn_of_other_ids(found.architecture.model_type, content)
        special_tokens_record.store(workdir, found, file, pieces, content, ignore_keys)
    if found.architecture.generates:
        _store_generation_settings(found, workdir)
    save_params(params, workdir, experiment.checkpoint)
    line = f"{found.architecture.model_type} as task.objective={found.head.objective}"
    return f"{line}; {published_tokenizer.describe(tokenizer)}" if tokenizer is not None else line


def warn_of_other_ids(model_type: str, content: str) -> None:
    """Warns if transformers' AutoTokenizer does not follow this tokenizer.json."""
    if difference := auto_tokenizer.difference(model_type, content):
        logging.warning("%s", difference)


def _store_generation_settings(found: published.Published, workdir: Path) -> None:
    """Stores the settings in the workdir for an export; logs the flags that they need here."""
    settings = generation_settings.read(found.directory)
    if settings:
        model_files.write_json(workdir / model_files.GENERATION, settings)
    if line := generation_settings.describe(settings, family=found.model["family"]):
        logging.warning("%s", line)


def load_params(
    found: published.Published,
    model: TransformerConfig,
    task: TaskConfig,
    *,
    allow_nonfinite: bool = False,
) -> dict:
    """Reads the parameters from the files directly into the devices' shards."""
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1, sequence=1, tensor=1))
    like = abstract_params(make_model(model, task), task, smallest_batch(model), mesh)
    readers, unused = found.fill(_shapes(like), model, allow_nonfinite=allow_nonfinite)
    if unused:
        logging.warning("tensors of another head are left out: %s", ", ".join(sorted(unused)))

    def load(path, leaf):
        reader = readers[_path(path)]
        array = jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda index: reader(index, leaf.dtype)
        )
        return jax.block_until_ready(array)  # frees its host memory before the next array is read

    return jax.tree.map_with_path(load, like)


def save_params(params: dict, workdir: str | Path, config: CheckpointConfig) -> None:
    """Writes a checkpoint of step 0 with the parameters and no optimizer state."""
    with Checkpoints(workdir, config) as checkpoints:
        checkpoints.save(0, TrainState(np.zeros((), np.int32), params, (), None), {})


def _data(found: published.Published) -> dict[str, Any]:
    """Keys of the `data` section for an imported model."""
    length = min(found.model["max_length"], LONGEST_ROW)
    objective = OBJECTIVES[found.head.objective]
    if objective.head == "embedder":
        length = min(length, sentence.max_length(found.directory) or length)
    kind = next(iter(objective.kinds), "documents")
    is_image_model = found.model["input"] == "patches"
    source = source_for_imports("images" if is_image_model else kind)
    data = dict(source=source, length=length, encoder_length=length)
    if is_image_model:
        size = found.model["image_size"]
        data["image_size"] = size
        data |= image_processor.read(found.directory, size)
    return data


def export_model(run: str, directory: Path, repo: str = "") -> str:
    """Writes the model of a run, WORKDIR[:STEP], in a published format; returns a line about it.

    `repo` is its name on the hub, for which it gets a model card.
    """
    checkpoints, step = find_checkpoint(run)
    model = loaded_run.load(checkpoints.parent, str(step))
    task, config, tokenizer = model.experiment.task, model.model_config, model.tokenizer
    described, params = _described(model)
    specials = published_tokenizer.special_ids(tokenizer, config)
    found = list(places({path: leaf.shape for path, leaf in params.items()}, described.table))
    dtype = jax.numpy.dtype(config.param_dtype)
    computed = {
        name: array.astype(dtype) for name, array in described.architecture.computed(config).items()
    }
    shapes = their_shapes(found) | {name: array.shape for name, array in computed.items()}
    tensors = itertools.chain(to_theirs(found, params), computed.items())
    model_files.write_tensors(directory, shapes, config.param_dtype, tensors)
    record = special_tokens_record.load(checkpoints.parent)
    written = described.config if record is None else record.config_with_ids(described.config)
    model_files.write_json(directory / model_files.CONFIG, written)
    if described.architecture.generates:
        ids = {key: id for key, id in described.config.items() if key.endswith("_token_id")}
        if config.family == "encoder_decoder" and tokenizer.text_start_ids:
            ids["forced_bos_token_id"] = specials.forced_bos
            if described.architecture.model_type not in ("bart", "mbart", "m2m_100"):
                logging.warning(
                    "only the files of BART, mBART-50 and M2M-100 are read again so that outputs "
                    "begin with id %d",
                    specials.forced_bos,
                )
        settings = generation_settings.read(checkpoints.parent)
        if tokenizer.forced_eos:
            settings = {"forced_eos_token_id": specials.eos} | settings
        model_files.write_json(directory / model_files.GENERATION, settings | ids)
    if task.objective_spec.head == "embedder":
        sentence.write(
            directory,
            config.width,
            task.embedding,
            model.experiment.data.length,
            normalize=task.normalize,
        )
    if config.input == "patches":
        data = dataclasses.asdict(model.experiment.data)
        if note := image_processor.write(directory, data, config.image_size, config.image_channels):
            logging.warning("%s", note)
    elif isinstance(tokenizer, SubwordTokenizer):
        trained_on = model.experiment.data
        template = learnt_template(tokenizer, trained_on.example_kind, trained_on.options)
        published_tokenizer.write(directory, tokenizer, config, task, record, template)
        warn_of_other_ids(described.architecture.model_type, tokenizer.content)
    else:
        logging.warning("this model's tokenizer has no published format, so none is written")
    if repo:
        size = sum(int(np.prod(shape)) for shape in shapes.values())
        model_card.write(directory, run.removesuffix(f":{step}"), step, size, repo)
    return f"{described.architecture.model_type}: {described.config['architectures'][0]}"


def export_adapter(run: str, directory: Path) -> str:
    """Writes the adapters of a run, WORKDIR[:STEP], in peft's format; returns a line about them."""
    checkpoints, step = find_checkpoint(run)
    workdir = checkpoints.parent
    base = run_directory.read_provenance(workdir).get("base")
    if base is None:
        raise ConfigError(
            f"--adapter: {workdir} has no adapters; train it with finetune.lora_rank, or leave "
            "--adapter out to export the model"
        )
    model = loaded_run.load(workdir, str(step))
    if model.experiment.finetune.resize_vocabulary:
        raise ConfigError(
            "--adapter: finetune.resize_vocabulary has changed the vocabulary, which an adapter "
            "cannot; leave --adapter out to export the merged model"
        )
    described, params = _described(model)
    ema = model.experiment.optimizer.ema_decay > 0
    stored = stored_params.read_own_params(workdir, step, model.params, ema=ema)
    own = {_path(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(stored)}
    own = {path: leaf for path, leaf in own.items() if path in params or "/lora_" in path}
    spec = model.experiment.task.objective_spec
    kind = peft_adapter.task_type(spec.head, has_source=spec.has_source)
    modules = peft_adapter.write(directory, described.table, own, params, base["alpha"], kind)
    return (
        f"adapters of {len(modules)} modules of a {described.architecture.model_type}, for peft; "
        f"their base is step {base['step']} of {os.path.normpath(workdir / base['run'])}, which "
        "is exported by itself"
    )


def _described(model: loaded_run.LoadedRun) -> tuple[published.Description, dict[str, jax.Array]]:
    """The published architecture of a run's model, and the parameters that it has by path."""
    task, config = model.experiment.task, model.model_config
    specials = published_tokenizer.special_ids(model.tokenizer, config)
    described = published.describe(config, _head(task), model.labels, specials)
    params = {_path(path): leaf for path, leaf in jax.tree.leaves_with_path(model.params)}
    has_classes = task.objective_spec.head in ("classifier", "regressor")
    auxiliary = [path for path in params if path.startswith(AUXILIARY) and has_classes]
    if auxiliary:
        logging.warning("the published format has no place for %s: left out", ", ".join(auxiliary))
    rows = described.architecture.used_rows(config)
    return described, {p: leaf[: rows.get(p)] for p, leaf in params.items() if p not in auxiliary}


def _head(task: TaskConfig) -> Head:
    """The head under the first objective in the table with the same kind of model."""
    if task.objective_spec.has_prefix:
        raise ConfigError(
            f"task.objective={task.objective} has bidirectional attention in its prefix, which no "
            "published decoder has; models of this objective cannot be exported"
        )

    if task.objective_spec.takes_signals:
        raise ConfigError(
            f"task.objective={task.objective} reads {task.objective_spec.kinds[0]}, which no "
            "published format that convert.py writes does; models of this objective cannot be "
            "exported"
        )

    def model_type(objective: Objective) -> tuple:
        return objective.head, objective.has_source, objective.takes_images

    wanted = model_type(task.objective_spec)
    name = next(name for name, each in OBJECTIVES.items() if model_type(each) == wanted)
    return Head(name, task.next_sentence)


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    return {_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}


def _path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def main() -> None:
    for flag in (FROM, TO):
        if not flag.value:
            raise ConfigError(f"--{flag.name} is missing; see --help")
    ignore_keys = [key.strip() for key in IGNORE_KEYS.value if key.strip()]
    line = convert(
        FROM.value,
        TO.value,
        PARAM_DTYPE.value,
        TOKENIZER.value,
        ignore_keys,
        base=BASE.value,
        adapter=ADAPTER.value,
        source_eos=SOURCE_EOS.value,
        languages=published_tokenizer.Languages(SOURCE_LANGUAGE.value, TARGET_LANGUAGE.value),
        allow_nonfinite=ALLOW_NONFINITE.value,
    )
    print(f"{TO.value}: {line}")


if __name__ == "__main__":
    FROM = flags.DEFINE_string(
        "from",
        "",
        "A published model, hf://ORG/NAME, its directory, or FILE.gguf; or a run, WORKDIR[:STEP].",
    )
    TO = flags.DEFINE_string(
        "to", "", "The target: a new or empty directory, or for an export hf://ORG/NAME."
    )
    BASE = flags.DEFINE_string(
        "base", "", "The model's directory, or GGUF file, that an adapter of peft in --from adapts."
    )
    ADAPTER = flags.DEFINE_bool(
        "adapter", False, "Export only the adapters (LoRA) of a run, in peft's format."
    )
    TOKENIZER = flags.DEFINE_string(
        "tokenizer",
        "",
        "A tokenizer's file, in place of the directory's own; none: no tokenizer, so that lines "
        "and outputs are ids.",
    )
    SOURCE_EOS = flags.DEFINE_bool(
        "source_eos",
        True,
        "Whether the source of an encoder-decoder ends with eos; not so in OpenNMT's models.",
    )
    SOURCE_LANGUAGE = flags.DEFINE_string(
        "source_language",
        "",
        "The language of the sources of a multilingual model, by its token, such as en_XX or "
        "eng_Latn.",
    )
    TARGET_LANGUAGE = flags.DEFINE_string(
        "target_language", "", "The language of its outputs, by its token, such as fr_XX."
    )
    IGNORE_KEYS = flags.DEFINE_list(
        "ignore_keys", [], "Keys of the published config.json to ignore, separated by commas."
    )
    ALLOW_NONFINITE = flags.DEFINE_bool(
        "allow_nonfinite", False, "Import weights that are NaN or infinite as they are."
    )
    PARAM_DTYPE = flags.DEFINE_enum(
        "param_dtype", "float32", ["float32", "bfloat16"], "The dtype of imported parameters."
    )
    command_line.launch(main)
