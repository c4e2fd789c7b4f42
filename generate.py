r"""Asks a trained model: python generate.py --workdir=DIR (--prompt=TEXT | --input=FILE|-)

A model that writes goes on with the text, or answers it if it was trained on pairs. A masked LM
fills in each [MASK]; span corruption says what is in <extra_id_0>, <extra_id_1>, ...; a classifier
names the class, with its probability behind a tab, and of images lines are the paths of files. A
published base model gives the vector of the text or the image, as a list of numbers. Two
texts that were a pair in training have a tab between them.

Lines in, lines out, in the same order, on standard output or in --output=FILE; with --num_outputs
so many for each. A line break inside an output is written as \n, unless it answers --prompt. --json
has one object for each line in, with all that is known. --stream shows an answer as it is written,
one line after another.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import jax
from absl import flags
from jax.sharding import Mesh

from checkpointing import loaded_run
from experiment import command_line
from experiment.schema import ConfigError
from inference import predictors, sampling_options
from input_pipeline.sources.files.reading import Lines
from training.mesh import check_batch

BATCH_SIZE = 16  # of many lines, unless --batch_size says otherwise
NUMBERED = "line {}"  # what refusals call a line

# The flags that say how a model is to write, which has them as SamplingOptions.
OPTIONS = {
    "method": "greedy, beam or sample.",
    "max_new_tokens": "The most that are written; 0: as many as rows had in training.",
    "num_outputs": "Answers to each line; beam: the best ones, sample: drawn one by one.",
    "beam_size": "beam: answers that are kept while the best is searched for.",
    "length_penalty": "beam: alpha in log-probability / ((5 + tokens) / 6) ** alpha.",
    "temperature": "sample: 1: as the model says; below: more of the likeliest.",
    "top_k": "sample: only among so many of the likeliest tokens; 0: all.",
    "top_p": "sample: only among the fewest tokens that together have this probability.",
    "min_p": "sample: only among tokens with this share of the likeliest one's probability.",
    "repetition_penalty": "Above 1: against tokens that the text has already.",
    "seed": "sample: a line's answers depend on this and on its number.",
    "stop": "The answer ends in front of this text; may be given several times.",
    "prefix": "Encoder-decoder models: what every answer begins with.",
    "slide": "When there are as many tokens as in a row of training, forget the oldest.",
    "stream": "Show the answer as it is written.",
    "draft_workdir": "The run of a smaller model that drafts what the model only checks.",
    "draft_tokens": "Tokens that are drafted at a time.",
}


def generate(
    workdir: str | Path,
    lines: Sequence[str],
    *,
    names: Sequence[str] = (),
    step: str = "",
    average: int = 1,
    batch_size: int = 0,
    strict: bool = False,
    ids: bool = False,
    **options: Any,
) -> list[predictors.Outputs]:
    """What a run's model answers to each line; `options` are those of SamplingOptions.

    `names` are what refusals call the lines. With `strict`, lines that the vocabulary cannot spell
    are refused; with `ids`, lines and answers are ids.
    """
    model = loaded_run.load(workdir, step, average)
    size = batch_size or evenly_shared(BATCH_SIZE if len(lines) > 1 else 1, model.mesh)
    check_batch("--batch_size", size, model.mesh)
    names = names or [NUMBERED.format(number + 1) for number in range(len(lines))]
    with jax.set_mesh(model.mesh):
        predictor = predictors.make_predictor(model, options, size, strict=strict, ids=ids)
        return predictors.predict(predictor, lines, names, size)


def stream(
    workdir: str | Path,
    lines: Iterable[str],
    show: Callable[[str], None],
    *,
    step: str = "",
    average: int = 1,
    strict: bool = False,
    ids: bool = False,
    **options: Any,
) -> None:
    """Hands the answers to `show` piece by piece, each with a line break behind it.

    The next line is not asked for before a line is answered, so that they may come from a person.
    """
    model = loaded_run.load(workdir, step, average)
    size = evenly_shared(1, model.mesh)
    with jax.set_mesh(model.mesh):
        options["stream"] = True
        predictor = predictors.make_predictor(model, options, size, strict=strict, ids=ids)
        for number, line in enumerate(lines):
            name = NUMBERED.format(number + 1)
            for piece in predictors.stream(predictor, line, name, number, size):
                show(piece)
            show("\n")


def evenly_shared(rows: int, mesh: Mesh) -> int:
    """The next number of rows that the mesh can share out evenly."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    return -(-rows // shares) * shares


def read_lines(path: str) -> Iterator[str]:
    """Those of a file, plain or gzip, or as they come on standard input."""
    if path != "-":
        yield from Lines(Path(path))
        return
    for number, line in enumerate(sys.stdin.buffer):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            name = NUMBERED.format(number + 1)
            raise ConfigError(f"{name} of standard input is not valid UTF-8") from error


def as_text(outputs: predictors.Outputs, *, keep_breaks: bool) -> str:
    if "label" in outputs[0]:
        return "{label}\t{probability:.4f}\n".format(**outputs[0])
    if "embedding" in outputs[0]:
        return json.dumps(outputs[0]["embedding"]) + "\n"
    texts = [output["text"] for output in outputs]
    if not keep_breaks:
        texts = [text.replace("\r", r"\r").replace("\n", r"\n") for text in texts]
    return "".join(text + "\n" for text in texts)


def as_json(line: str, outputs: predictors.Outputs) -> str:
    return json.dumps({"input": line, "outputs": outputs}, ensure_ascii=False) + "\n"


def main() -> None:
    options = {name: flags.FLAGS[name].value for name in OPTIONS if flags.FLAGS[name].present}
    refuse_flags(options)
    is_prompt = PROMPT.value is not None
    lines = [PROMPT.value] if is_prompt else read_lines(INPUT.value)
    chosen = dict(step=STEP.value, average=AVERAGE.value, strict=STRICT.value, ids=IDS.value)
    chosen |= options
    if options.get("stream"):
        with opened(OUTPUT.value) as file:

            def show(piece: str) -> None:
                print(piece, end="", file=file, flush=True)

            stream(WORKDIR.value, lines, show, **chosen)
        return
    lines = list(lines)
    names = ["--prompt"] if is_prompt else ()
    found = generate(WORKDIR.value, lines, names=names, batch_size=BATCH.value, **chosen)
    with opened(OUTPUT.value) as file:
        for line, outputs in zip(lines, found, strict=True):
            if JSON.value:
                file.write(as_json(line, outputs))
            else:
                file.write(as_text(outputs, keep_breaks=is_prompt))


def refuse_flags(options: Mapping[str, Any]) -> None:
    """What can be told from the command line alone."""
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run, such as runs/dates")
    if (PROMPT.value is None) == (INPUT.value is None):
        which = "missing" if PROMPT.value is None else "both there"
        raise ConfigError(f"--prompt and --input are {which}; give one of them")
    texts = [("prompt", PROMPT.value or ""), ("prefix", options.get("prefix", ""))]
    for name, text in [*texts, *(("stop", stop) for stop in options.get("stop", ()))]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"--{name} is not valid UTF-8") from error
    if BATCH.value < 0:
        raise ConfigError(f"--batch_size={BATCH.value} must be at least 1")
    for flag in (BATCH, JSON):
        if options.get("stream") and flag.value:
            raise ConfigError(
                f"--{flag.name} does not go with --stream, which shows one answer after another as "
                "text; leave one of them out"
            )
    sampling_options.from_flags(options)
    if OUTPUT.value:
        if INPUT.value and Path(INPUT.value).resolve() == Path(OUTPUT.value).resolve():
            raise ConfigError(f"--output={OUTPUT.value} is --input as well; choose another file")
        refuse_unwritable(Path(OUTPUT.value))


def refuse_unwritable(path: Path) -> None:
    """Found out now, rather than when all is done."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--output={path} cannot be written: {error.strerror}") from error
    if not existed:
        path.unlink()


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """The file, or standard output, whose reader may have had enough, as `head` has."""
    if path:
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left over
        sys.exit(1)


def define_options() -> None:
    define = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        bool: flags.DEFINE_bool,
        str: flags.DEFINE_string,
        tuple: flags.DEFINE_multi_string,
    }
    for name, meaning in OPTIONS.items():
        default = getattr(sampling_options.DEFAULTS, name)
        define[type(default)](name, default, meaning)


if __name__ == "__main__":
    WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run.")
    STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
    AVERAGE = flags.DEFINE_integer("average", 1, "Checkpoints to take the mean of.")
    PROMPT = flags.DEFINE_string("prompt", None, "The only line there is.")
    INPUT = flags.DEFINE_string("input", None, "A file of lines, or - for standard input.")
    OUTPUT = flags.DEFINE_string("output", "", "Where answers go; default: standard output.")
    BATCH = flags.DEFINE_integer("batch_size", 0, "Lines at a time; default: 16, or 1 of 1.")
    JSON = flags.DEFINE_bool("json", False, "One object for each line, with all that is known.")
    STRICT = flags.DEFINE_bool(
        "strict", False, "Refuse lines that the vocabulary cannot spell; default: unknown tokens."
    )
    IDS = flags.DEFINE_bool(
        "ids", False, "Lines and answers are ids, with spaces between them; none are added."
    )
    define_options()
    command_line.launch(main)
