"""What is fuzzed: each target makes its files in an empty directory and opens them.

A target is a function of a seeded random.Random and the directory. It may raise what a script
reports in a few lines (REFUSALS), and nothing else.
"""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from absl import logging
from PIL import Image

import convert
import train
from checkpointing import loaded_run
from configs import default, digits
from experiment import sections
from experiment.command_line import parse_config
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.image_decoding import infer_image_spec, read
from input_pipeline.tokenizers.published_files import open_tokenizer
from pretrained import published
from tests.fuzz.mutations import HOSTILE, mutate_file, mutated_bytes, mutated_json
from tests.gguf_files import letters_metadata, metadata_of, tensors_of, write_gguf
from tests.runs import tiny
from training.exits import EndedError

TESTS = Path(__file__).resolve().parent.parent
PUBLISHED = TESTS / "pretrained" / "fixtures"
TOKENIZERS = TESTS / "input_pipeline" / "tokenizers" / "fixtures"
ENTRIES = ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")  # what a path may name
STYLES = ("PNG", "JPEG", "PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")  # only two are read
REFUSALS = (ConfigError, EndedError)
TEXTS = ["Friday 13th", "élan \N{SNOWMAN} \U0001f469", "", " a\tb\nc ", "x" * 300]

Target = Callable[[random.Random, Path], None]


def configs(rng: random.Random, directory: Path) -> None:
    config = default.get_config().to_dict()
    experiment = sections.from_mapping(_with_tuples(mutated_json(rng, config)))
    experiment.model.resolve()


def flags(rng: random.Random, directory: Path) -> None:
    config = default.get_config().to_dict()
    overrides = {}
    for _ in range(rng.randint(1, 3)):
        section = rng.choice([name for name, each in config.items() if isinstance(each, dict)])
        key = rng.choice(sorted(config[section]))
        value = rng.choice(HOSTILE)
        text = "1" + "0" * 400 if value == 10**400 else str(value)
        overrides[f"{section}.{key}"] = text
    sections.from_mapping(parse_config("configs/dates.py", overrides))


def published_configs(rng: random.Random, directory: Path) -> None:
    _copy(rng.choice(sorted(PUBLISHED.iterdir())), directory)
    path = directory / "config.json"
    path.write_text(json.dumps(mutated_json(rng, json.loads(path.read_text()))))
    found = published.read(directory, ())
    config = default.get_config().to_dict()
    config["model"] |= found.model
    config["task"] |= found.task
    config["data"] |= convert._data(found)
    sections.from_mapping(config).model.resolve()


def conversions(rng: random.Random, directory: Path) -> None:
    """A small published model, one file of which is changed, converted as a whole."""
    source = directory / "model"
    source.mkdir()
    _copy(PUBLISHED / rng.choice(("bert_base", "gpt2", "vit_classifier", "t5")), source)
    if rng.random() < 0.5:
        _copy(TOKENIZERS / rng.choice(("bert_cased", "gpt2", "t5")), source)
    mutate_file(rng, rng.choice(sorted(path for path in source.iterdir() if path.is_file())))
    convert.convert(str(source), str(directory / "run"))


def tensor_headers(rng: random.Random, directory: Path) -> None:
    _copy(rng.choice(sorted(PUBLISHED.iterdir())), directory)
    path = directory / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.5:
        header = json.dumps(mutated_json(rng, json.loads(header))).encode()
        size = len(header)
    else:
        header = mutated_bytes(rng, header)
        size = rng.choice((len(header), size, 0, 2**63, size + 1))
    path.write_bytes(size.to_bytes(8, "little") + header + rest)
    published.read(directory, ())


def gguf_files(rng: random.Random, directory: Path) -> None:
    """A small GGUF file, in which metadata or bytes, mostly of the header, are changed."""
    source = PUBLISHED / rng.choice(("llama", "qwen2", "qwen3"))
    config = json.loads((source / "config.json").read_text())
    metadata = metadata_of(config) | letters_metadata(config["vocab_size"])
    if rng.random() < 0.5:
        changed = mutated_json(rng, metadata)
        metadata = changed if isinstance(changed, dict) else metadata
    metadata = {key: in_gguf(value) for key, value in metadata.items() if key}
    path = directory / "model.gguf"
    write_gguf(path, config["model_type"], metadata, tensors_of(source, config))
    if rng.random() < 0.6:
        content = path.read_bytes()
        end = rng.choice((64, 300, 3000, len(content)))
        path.write_bytes(mutated_bytes(rng, content[:end]) + content[end:])
    convert.convert(str(path), str(directory / "run"))


def in_gguf(value):
    """The value as one that the format can hold."""
    match value:
        case bool() | None:
            return value
        case int():
            return value % 2**31
        case float():
            return max(-1e38, min(1e38, value))
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():  # of one type
            found = [in_gguf(each) for each in value if type(each) is type(value[0])]
            return [each for each in found if isinstance(each, int | float | str)]
    return None


def tokenizers(rng: random.Random, directory: Path) -> None:
    _copy(rng.choice([path for path in sorted(TOKENIZERS.iterdir()) if path.is_dir()]), directory)
    files = sorted(path for path in directory.iterdir() if path.is_file())
    mutate_file(rng, rng.choice(files))
    named = [path for path in files if path.name in ENTRIES or path.suffix == ".model"]
    tokenizer = open_tokenizer(rng.choice(named), rng.choice((None, 100, 10**6)))
    for text in TEXTS:
        tokenizer.decode(tokenizer.encode(text))


def line_files(rng: random.Random, directory: Path) -> None:
    """Files of lines: classes, pairs, objects; plain or gzip."""
    lines = [f"{n % 2}\tnumber {n} é" for n in range(40)]
    name, source, objective = rng.choice((
        ("tsv", "labelled_text_files", "classify_text"),
        ("jsonl", "text_to_text_files", "seq2seq"),
        ("txt", "text_files", "causal_lm"),
    ))  # fmt: skip
    if name == "jsonl":
        record = {"task": "copy"}
        lines = [json.dumps({**record, "inputs": f"a {n}", "targets": f"b {n}"}) for n in range(40)]
    end = rng.choice(("", ".gz"))
    for split in ("train", "validation"):
        content = "".join(f"{line}\n" for line in lines).encode()
        path = directory / f"{split}.{name}{end}"
        path.write_bytes(gzip.compress(content) if end else content)
    mutate_file(rng, directory / f"train.{name}{end}")
    family = "encoder_decoder" if objective == "seq2seq" else "encoder"
    family = "decoder" if objective == "causal_lm" else family
    _open_data(directory, source, objective, family)


def images(rng: random.Random, directory: Path) -> None:
    style = rng.choice(STYLES)
    picture = Image.new(rng.choice(("L", "RGB")), (rng.randint(1, 40), rng.randint(1, 40)))
    file = io.BytesIO()
    picture.save(file, format=style)
    path = directory / f"a.{rng.choice((style.lower(), 'png', 'jpg'))}"
    path.write_bytes(file.getvalue())
    mutate_file(rng, path)
    config = sections.from_mapping(tiny(digits, 1, data=dict(image_size=8))).data
    read(path, infer_image_spec([path], config))


def run_directories(rng: random.Random, directory: Path) -> None:
    """A run, one file of which is changed; then it is resumed, or its model loaded."""
    shutil.copytree(_finished_run(), directory / "run")
    files = [path for path in sorted((directory / "run").rglob("*")) if path.is_file()]
    at_the_top = [path for path in files if path.parent == directory / "run"]
    mutate_file(rng, rng.choice(at_the_top if rng.random() < 0.8 else files))
    if rng.random() < 0.5:
        loaded_run.load(directory / "run")
    else:
        train.make_experiment(tiny(digits, 2), str(directory / "run"))


TARGETS: dict[str, Target] = {
    "configs": configs, "flags": flags, "published_configs": published_configs,
    "conversions": conversions, "tensor_headers": tensor_headers, "gguf_files": gguf_files,
    "tokenizers": tokenizers, "line_files": line_files, "images": images,
    "run_directories": run_directories,
}  # fmt: skip


def attempt(name: str, seed: int, directory: Path) -> bool:
    """One try; returns whether the input was accepted. Raises what is a finding."""
    logging.set_verbosity(logging.FATAL)
    try:
        TARGETS[name](random.Random(f"{name}:{seed}"), directory)
    except REFUSALS:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.is_file() and path.name != "expected.safetensors":
            shutil.copy(path, target)


def _with_tuples(value):
    """JSON's lists as the tuples that config files have."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _open_data(directory: Path, source: str, objective: str, family: str) -> None:
    config = tiny(
        default, 2,
        model=dict(family=family, max_length=64),
        task=dict(objective=objective),
        data=dict(source=source, path=str(directory), length=32, encoder_length=32, batch_size=4,
                  cache_dir=str(directory / "cache")),
    )  # fmt: skip
    experiment = sections.from_mapping(config)
    data = pipeline.load(experiment.data, objective=objective, masking=experiment.masking, seed=0)
    data.train_batch(0)


def prepare() -> None:
    """Trains the run of `run_directories`, before the first try, because it takes long."""
    workdir = _finished_run()
    if not workdir.exists():
        new = Path(tempfile.mkdtemp(dir=workdir.parent)) / "run"
        config = tiny(digits, 1, eval=dict(every=0, batches=1, samples=0))
        train.train_and_evaluate(config, new)
        with contextlib.suppress(OSError):  # another worker was faster
            new.rename(workdir)


def _finished_run() -> Path:
    return Path(os.environ["FUZZ_DIRECTORY"], "run")
