"""Published weights in and out: python convert.py --from=DIR --to=WORKDIR, or the other way.

From a directory as the Hugging Face hub has them (config.json, safetensors, tokenizer files) to a
workdir that train.py can start from (--config.init_from=WORKDIR) and that generate.py and
evaluate.py run. From WORKDIR[:STEP] to a directory that transformers loads.

Which architectures there are, and what of their configs is not computed here, is said in
pretrained/. Nothing is left behind if something is refused.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags, logging

import experiment as door
from configs import default
from input_pipeline.subword import FILE_NAME, TEXT_START, SubwordTokenizer
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_files import (
    CONFIG_FILE_NAME,
    FILE_NAMES,
    NEEDED_BESIDE,
    open_tokenizer,
)
from jobs import trained
from model.config import TransformerConfig
from pretrained import files, published, sentence
from pretrained.architecture import Head, Options, Specials
from pretrained.layouts import places, their_shapes, to_theirs
from schema import ConfigError, refuse_remote
from training import workdir as records
from training.checkpoint import DIRECTORY, Checkpoints, find_checkpoint
from training.config import CheckpointConfig, MeshConfig, TaskConfig
from training.mesh import make_mesh
from training.step import TrainState, abstract_params
from training.task import make_model, smallest_batch

# What examples of a task are read from, when the weights are to be trained on or scored.
SOURCES = {
    "seq2seq": "translation_files",
    "causal_lm": "text_files",
    "masked_lm": "text_files",
    "classify_text": "labelled_text_files",
    "classify_images": "image_files",
    "embed": "text_files",
}
LONGEST_ROW = 2048  # columns, where a model could read more
PREPROCESSOR = "preprocessor_config.json"
# Heads of ours that lie beside a classifier's own, for which theirs have no place.
BESIDE_CLASSES = ("transform/", "transform_norm/", "vocabulary/")


def convert(source: str, target: str, param_dtype: str = "float32", tokenizer: str = "") -> None:
    """In whichever direction `source` asks for: a run's directory goes out, any other comes in."""
    for flag, path in (("--from", source), ("--to", target), ("--tokenizer", tokenizer)):
        refuse_remote(flag, path)
    workdir = re.fullmatch(r"(.*?)(?::\d+)?", source)[1]
    is_run = Path(workdir, DIRECTORY).is_dir()
    with _new_directory(Path(target)) as directory:
        if not is_run:
            import_model(Path(source), directory, param_dtype, tokenizer)
        elif tokenizer:
            raise ConfigError("--tokenizer is for models that come in; a run has its own")
        else:
            export_model(source, directory)


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """A directory to write to that becomes `target` when all went well, and else is gone."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--to={target} is there already; choose a new directory, or empty it")
    final = Path(os.path.abspath(target))
    temporary = final.with_name(f".{final.name}.new-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(final)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--to={target} cannot be written ({reason})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def import_model(source: Path, workdir: Path, param_dtype: str, tokenizer_path: str) -> None:
    found = published.read(source)
    if found.ignored:
        logging.warning("not understood and left out: %s", ", ".join(found.ignored))
    config = default.get_config().to_dict()
    config["model"] |= {**found.model, "param_dtype": param_dtype}
    config["task"] |= found.task
    config["data"] |= _data(found)
    try:
        experiment = door.from_mapping(config)
    except ConfigError as error:
        raise ConfigError(
            [f"{source / files.CONFIG}: {each}" for each in error.problems]
        ) from error
    model_config = experiment.model.resolve()
    tokenizer = None
    if model_config.input == "tokens":
        tokenizer = _read_tokenizer(found, tokenizer_path)
    params = load_params(found, model_config, experiment.task)

    digest = "" if tokenizer is None else tokenizer.digest
    digests = dict(zip(records.DIGESTS, ("", digest), strict=True))
    records.record_config(workdir, {**config, **digests}, resuming=False)
    records.record_model(workdir, model_config, found.labels)
    records.record_environment(workdir, {})
    if tokenizer is not None:
        tokenizer.save(workdir)
    save_params(params, workdir, experiment.checkpoint)


def load_params(found: published.Published, model: TransformerConfig, task: TaskConfig) -> dict:
    """The parameters, each read from the file straight into the parts that the devices hold."""
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1, sequence=1, tensor=1))
    like = abstract_params(make_model(model, task), task, smallest_batch(model), mesh)
    readers, unused = found.fill(_shapes(like), model)
    if unused:
        logging.warning("of another head, and left out: %s", ", ".join(sorted(unused)))

    def load(path, leaf):
        reader = readers[_path(path)]
        array = jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda index: reader(index, leaf.dtype)
        )
        return jax.block_until_ready(array)  # what was read for it is given back before the next

    return jax.tree.map_with_path(load, like)


def save_params(params: dict, workdir: str | Path, config: CheckpointConfig) -> None:
    """A checkpoint of no training: the parameters at step 0, and nothing for an optimizer."""
    with Checkpoints(workdir, config) as checkpoints:
        checkpoints.save(0, TrainState(np.zeros((), np.int32), params, (), None), {})


def _data(found: published.Published) -> dict[str, Any]:
    length = min(found.model["max_length"], LONGEST_ROW)
    data = dict(source=SOURCES[found.head.objective], length=length, encoder_length=length)
    path = found.directory / PREPROCESSOR
    if found.model["input"] == "patches":
        data |= dict(source="image_files", image_size=found.model["image_size"])
        if path.is_file():
            data |= _pixels(Options(files.read_json(found.directory, PREPROCESSOR), str(path)))
    return data


def _pixels(options: Options) -> dict[str, Any]:
    """How pixels become numbers: 0 to 1, less the mean, divided by the deviation."""
    options.require("do_rescale", True)
    if abs(255 * options.get("rescale_factor", 1 / 255) - 1) > 1e-3:
        options.refuse("rescale_factor", options.get("rescale_factor"), "only 1 / 255 is")
    if not options.get("do_normalize", True):
        return {}
    return {key: tuple(options.get(key, [])) for key in ("image_mean", "image_std")}


def _read_tokenizer(found: published.Published, path: str) -> SubwordTokenizer:
    tokenizer = open_tokenizer(Path(path) if path else _find_tokenizer(found.directory))
    ids = found.specials
    roles = {"pad": ids.pad, "bos": ids.bos, "eos": ids.eos}
    if found.head.objective == "seq2seq":
        roles["bos"] = ids.decoder_start  # what an answer begins with
    if found.architecture.model_type in ("roberta", "bart"):
        roles |= {"cls": ids.bos, "sep": ids.eos}
    if found.architecture.model_type == "bart":
        roles[TEXT_START] = ids.bos
    tokenizer = tokenizer.with_roles({role: id for role, id in roles.items() if id is not None})
    size = found.model["vocab_size"]
    named = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    for role, id in [*named.items(), *((TEXT_START, id) for id in tokenizer.text_start_ids)]:
        if id is not None and id >= size:
            raise ConfigError(
                f"{found.directory}: the id of {role}, {id}, is beyond vocab_size={size}"
            )
    if tokenizer.vocab_size > size:
        raise ConfigError(
            f"{found.directory}: the tokenizer has {tokenizer.vocab_size} ids, but the model's "
            f"vocab_size is {size}; give the model's own with --tokenizer=FILE"
        )
    return tokenizer


def _find_tokenizer(directory: Path) -> Path:
    for name in FILE_NAMES:
        path = directory / name
        if path.is_file() and (directory / NEEDED_BESIDE.get(name, name)).is_file():
            return files.inside(directory, name)
    others = sorted(p.name for p in directory.iterdir() if p.suffix in (".spm", ".model"))
    named = f"; {', '.join(others)} cannot be read" if others else ""
    known = [f"{n} with {NEEDED_BESIDE[n]}" if n in NEEDED_BESIDE else n for n in FILE_NAMES]
    raise ConfigError(
        f"{directory} has none of {', '.join(known)}{named}; give one with --tokenizer=FILE"
    )


def export_model(run: str, directory: Path) -> None:
    checkpoints, step = find_checkpoint(run)
    model = trained.load(checkpoints.parent, str(step))
    task, config, tokenizer = model.experiment.task, model.model_config, model.tokenizer
    head = _head(task)
    specials = _specials(tokenizer, config)
    described = published.describe(config, head, model.labels, specials)
    params = {_path(path): leaf for path, leaf in jax.tree.leaves_with_path(model.params)}
    beside = [p for p in params if p.startswith(BESIDE_CLASSES) and "classify" in head.objective]
    if beside:
        logging.warning("no place for %s, which are left out", ", ".join(beside))
    params = {path: leaf for path, leaf in params.items() if path not in beside}
    found = list(places({path: leaf.shape for path, leaf in params.items()}, described.table))
    files.write_tensors(
        directory, their_shapes(found), config.param_dtype, to_theirs(found, params)
    )
    files.write_json(directory / files.CONFIG, described.config)
    if described.architecture.generates:
        ids = {key: id for key, id in described.config.items() if key.endswith("_token_id")}
        if config.family == "encoder_decoder" and tokenizer.text_start_ids:
            ids["forced_bos_token_id"] = specials.bos
            if described.architecture.model_type != "bart":
                logging.warning("texts begin with id %d, which only BART's files say", specials.bos)
        files.write_json(directory / files.GENERATION, ids)
    if head.objective == "embed":
        sentence.write(directory, config.width, task.embedding, normalize=task.normalize)
    if config.input == "patches":
        _write_preprocessor(directory, model)
    elif isinstance(tokenizer, SubwordTokenizer):
        _write_tokenizer(directory, tokenizer, config)
    else:
        logging.warning("a byte tokenizer has no published format: no tokenizer files are written")


def _head(task: TaskConfig) -> Head:
    match task.objective:
        case "span_corruption":
            return Head("seq2seq")
        case "prefix_lm":
            raise ConfigError(
                "task.objective=prefix_lm reads its prefix both ways, which no published decoder "
                "does; models of this objective stay here"
            )
    return Head(task.objective, task.next_sentence)


def _specials(tokenizer: Tokenizer | None, model: TransformerConfig) -> Specials:
    if tokenizer is None:
        return Specials()
    if model.family == "encoder_decoder":
        text_start = next(iter(tokenizer.text_start_ids), None)
        return Specials(tokenizer.pad_id, text_start, tokenizer.eos_id, tokenizer.bos_id)
    return Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def _write_tokenizer(
    directory: Path, tokenizer: SubwordTokenizer, model: TransformerConfig
) -> None:
    (directory / FILE_NAME).write_text(tokenizer.content, encoding="utf-8")
    spelt = tokenizer.role_names
    names = {f"{role}_token": name for role, name in spelt.items() if role != TEXT_START}
    if model.family == "encoder_decoder":
        del names["bos_token"]  # what begins an answer here is the model's to say there
        if TEXT_START in spelt:
            names["bos_token"] = spelt[TEXT_START]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    if model.position == "learned":
        config["model_max_length"] = model.max_length
    files.write_json(directory / CONFIG_FILE_NAME, config)


def _write_preprocessor(directory: Path, model: trained.Trained) -> None:
    data, config = model.experiment.data, model.model_config
    channels = config.image_channels
    mean, std = data.image_mean or (0.0,), data.image_std or (1.0,)
    files.write_json(
        directory / PREPROCESSOR,
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": config.image_size, "width": config.image_size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(mean) * (channels // len(mean)),
            "image_std": list(std) * (channels // len(std)),
        },
    )


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    return {_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}


def _path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def main() -> None:
    for flag in (FROM, TO):
        if not flag.value:
            raise ConfigError(f"--{flag.name} is missing; see --help")
    convert(FROM.value, TO.value, PARAM_DTYPE.value, TOKENIZER.value)


if __name__ == "__main__":
    FROM = flags.DEFINE_string("from", "", "A published model's directory, or WORKDIR[:STEP].")
    TO = flags.DEFINE_string("to", "", "Where it goes: a directory that is new or empty.")
    TOKENIZER = flags.DEFINE_string("tokenizer", "", "A file, where the directory has none.")
    PARAM_DTYPE = flags.DEFINE_enum(
        "param_dtype", "float32", ["float32", "bfloat16"], "Of the parameters that come in."
    )
    door.launch(main)
