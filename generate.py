r"""Runs a trained model on text: python generate.py --workdir=DIR (--prompt=TEXT | --input=FILE|-)

A language model continues the text; a model trained on pairs writes the target. A masked LM fills
each [MASK]; a span-corruption model fills <extra_id_0>, <extra_id_1>, ...; a classifier prints the
class and its probability, separated by a tab; a model of baskets recommends ten items, one on a
line, each with its probability; a published base model prints the embedding as a list of numbers.
For models of images, sounds or series, each line is the path of a file; a series is continued, with
a line for each step and a column for each quantile. If the model was trained on pairs of texts, a
tab separates the two texts of a line.

The output has one line per input line, in the same order, on standard output or in --output=FILE;
--num_outputs=N writes N lines per input line. A line break inside an output is written as \n,
except with --prompt. --json prints one object per input line with all details. --stream shows
outputs as they are generated, one line after another. Until all lines are answered, the outputs so
far are in FILE.part; --resume continues after them.

--chat talks with a language model by its chat template: each line of standard input is a turn, and
/reset begins a new conversation. With --input, each line is a conversation in JSON to answer.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags
from jax.sharding import Mesh

from checkpointing import loaded_run
from checkpointing.checkpoint_manager import saved_steps
from experiment import command_line
from experiment.schema import ConfigError
from inference import conversation, predictors, sampling_options
from inference.answer_file import AnswerFile, digest_of, is_regular, opened, refuse_unwritable
from input_pipeline.object_copy import local_copy
from input_pipeline.sources.files.reading import BYTE_ORDER_MARK, Lines
from storage.mirror import open_run_directory
from storage.object_store import is_remote, refuse_unwritable_object
from training.device_memory import out_of_memory
from training.mesh import check_batch

BATCH_SIZE = 16  # the default of --batch_size if there are several lines
NUMBERED = "line {}"  # the name of a line in error messages
NAMED = 5  # lines in an error message
REMEDY = "lower --batch_size, --num_outputs, --beam_size or --max_new_tokens, or shorten the lines"
LEAVE_OUT = "grep '[^[:space:]]' FILE prints the others"

# The flags of SamplingOptions.
OPTIONS = {
    "method": "greedy, beam or sample.",
    "max_new_tokens": "Maximum number of output tokens; 0: the row length of training.",
    "num_outputs": "Outputs per line; beam, items: the best ones; sample: drawn independently.",
    "beam_size": "beam: number of sequences that the search keeps at every step.",
    "length_penalty": "beam: alpha in log-probability / ((5 + tokens) / 6) ** alpha.",
    "temperature": "sample: 1: the model's distribution; below 1: sharper; above 1: flatter.",
    "top_k": "sample: draw only from the k likeliest tokens; 0: from all.",
    "top_p": "sample: draw only from the fewest tokens that together have this probability.",
    "min_p": "sample: draw only from tokens with at least this share of the top probability.",
    "repetition_penalty": "Above 1: lowers the probability of tokens that the text already has.",
    "seed": "sample: the output depends only on the seed and the line number, not on batching.",
    "stop": "The output ends before this text; may be given several times.",
    "prefix": "Encoder-decoder models: the beginning of every output.",
    "suffix": "fill_in_middle models: the text after the output, which follows the prompt.",
    "slide": "Beyond the row length of training, drop the oldest tokens from the cache.",
    "stream": "Show the output as it is generated.",
    "draft_workdir": "The run of a smaller draft model for speculative decoding.",
    "draft_tokens": "Tokens drafted per round.",
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
    chat: bool = False,
    system: str = "",
    skip: int = 0,
    answered: Callable[[Sequence[predictors.Outputs]], None] | None = None,
    **options: Any,
) -> list[predictors.Outputs]:
    """Runs the model of the run in `workdir` on lines; returns the outputs of each line.

    `options` are fields of SamplingOptions. `names` are the lines' names in error messages. `step`
    and `average` select checkpoints as in `loaded_run.load`. `strict` refuses lines that the
    vocabulary cannot spell. With `ids`, lines and outputs are token ids. With `chat`, lines are
    conversations in JSON, and `system` is the system's message of those that have none. `answered`
    gets the outputs as they come, in the order of the lines, without the first `skip` lines.
    """
    names = names or [NUMBERED.format(number + 1) for number in range(len(lines))]
    refuse_empty(workdir, lines, names)
    model = loaded_run.load(workdir, step, average)
    size = batch_size or evenly_shared(BATCH_SIZE if len(lines) > 1 else 1, model.mesh)
    check_batch("--batch_size", size, model.mesh)
    size = min(size, evenly_shared(max(len(lines), 1), model.mesh))
    with jax.set_mesh(model.mesh), out_of_memory("generation", REMEDY):
        predictor = predictors.make_predictor(
            model, options, size, strict=strict, ids=ids, chat=chat, system=system
        )
        return predictors.predict(predictor, lines, names, size, skip=skip, answered=answered)


def stream(
    workdir: str | Path,
    lines: Iterable[str],
    show: Callable[[str], None],
    *,
    step: str = "",
    average: int = 1,
    strict: bool = False,
    ids: bool = False,
    chat: bool = False,
    system: str = "",
    keep_breaks: bool = True,
    **options: Any,
) -> None:
    r"""Passes the outputs to `show` piece by piece, with a line break after each output.

    Without `keep_breaks`, line breaks inside outputs are written as \r and \n; not those of `chat`.
    It reads the next line only after the output of the last one, so a person may type the lines.
    With `chat`, the lines are the turns of one conversation, which `system` begins.
    """
    model = loaded_run.load(workdir, step, average)
    size = evenly_shared(1, model.mesh)
    with jax.set_mesh(model.mesh), out_of_memory("generation", REMEDY):
        options["stream"] = True
        predictor = predictors.make_predictor(
            model, options, size, strict=strict, ids=ids, chat=chat
        )
        if chat:

            def answer(prompt: str, number: int) -> Iterator[str]:
                return predictors.stream(predictor, prompt, "the conversation", number, size)

            conversation.converse(lines, answer, show, system)
            return
        for number, line in enumerate(lines):
            name = NUMBERED.format(number + 1)
            for piece in predictors.stream(predictor, line, name, number, size):
                show(piece if keep_breaks else escaped(piece))
            show("\n")


def refuse_empty(workdir: str | Path, lines: Sequence[str], names: Sequence[str]) -> None:
    """Refuses empty lines for a classifier, all of them by name, before the model is loaded."""
    if not loaded_run.recorded_config(workdir)["task"]["objective"].startswith("classify"):
        return
    empty = [name for line, name in zip(lines, names, strict=True) if not line.strip()]
    if len(empty) == 1:
        fix = "fill it in" if empty[0] == "--prompt" else f"fill it in or leave it out; {LEAVE_OUT}"
        raise ConfigError(f"{empty[0]} is empty, which has no class; {fix}")
    if empty:
        more = f" and {len(empty) - NAMED:,} more" if len(empty) > NAMED else ""
        raise ConfigError(
            f"{', '.join(empty[:NAMED])}{more} are empty, which have no class; fill them in or "
            f"leave them out; {LEAVE_OUT}"
        )


def evenly_shared(rows: int, mesh: Mesh) -> int:
    """The number of rows, rounded up so that the mesh divides it evenly."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    return -(-rows // shares) * shares


def read_lines(path: str) -> Iterator[str]:
    """Yields the lines of a file, plain or gzip, or of standard input (-) as they arrive.

    An empty line at the end is not an input: some editors and programs write one more line end.
    """
    count, is_held_back = 0, False
    for line in lines_of(path) if path != "-" else standard_input():
        if is_held_back:
            yield ""
        is_held_back = not line
        count += 1
        if line:
            yield line
    if count - is_held_back < 1:
        where = "standard input" if path == "-" else f"--input={path}"
        raise ConfigError(f"{where} has no line; write each input on a line of its own")


def lines_of(path: str) -> Lines:
    """The lines of a file, local or in a bucket."""
    if not is_remote(path):
        return Lines(Path(path))
    with tempfile.TemporaryDirectory(prefix="input-") as directory:
        return Lines(Path(local_copy("--input", path, Path(directory))))  # which reads it at once


def standard_input() -> Iterator[str]:
    """Yields the lines of standard input; raises ConfigError for one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer):
        line = line.removeprefix(b"" if number else BYTE_ORDER_MARK)
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            name = NUMBERED.format(number + 1)
            raise ConfigError(f"{name} of standard input is not valid UTF-8") from error


def as_text(outputs: predictors.Outputs, *, keep_breaks: bool) -> str:
    r"""The outputs for one line, as text.

    Without `keep_breaks`, line breaks in texts are written as \r and \n.
    """
    if "label" in outputs[0]:
        return "{label}\t{probability:.4f}\n".format(**outputs[0])
    if "answer" in outputs[0]:
        return outputs[0]["answer"] + "\n"
    if "score" in outputs[0]:
        return "{score:.6g}\n".format(**outputs[0])
    if "tags" in outputs[0]:
        return " ".join(tag or "-" for tag in outputs[0]["tags"]) + "\n"
    if "item" in outputs[0]:
        return "".join("{item}\t{probability:.4f}\n".format(**output) for output in outputs)
    if "quantiles" in outputs[0]:
        rows = [[f"{value:.6g}" for value in each["quantiles"].values()] for each in outputs]
        heading = ["step", *outputs[0]["quantiles"]]
        rows = [heading, *([str(n), *row] for n, row in enumerate(rows, start=1))]
        return "".join("\t".join(row) + "\n" for row in rows)
    if "embedding" in outputs[0]:
        return json.dumps(outputs[0]["embedding"]) + "\n"
    texts = [output["text"] for output in outputs]
    if not keep_breaks:
        texts = [escaped(text) for text in texts]
    return "".join(text + "\n" for text in texts)


def escaped(text: str) -> str:
    r"""A text, or a piece of one, in a single line: line breaks are written as \r and \n."""
    return text.replace("\r", r"\r").replace("\n", r"\n")


def as_json(line: str, outputs: predictors.Outputs) -> str:
    """The outputs for one line, as a line of JSON."""
    return json.dumps({"input": line, "outputs": outputs}, ensure_ascii=False) + "\n"


def main() -> None:
    options = {name: flags.FLAGS[name].value for name in OPTIONS if flags.FLAGS[name].present}
    refuse_flags(options)
    is_prompt = PROMPT.value is not None
    lines = [PROMPT.value] if is_prompt else read_lines(INPUT.value or "-")
    chosen = dict(step=STEP.value, average=AVERAGE.value, strict=STRICT.value, ids=IDS.value)
    chosen |= dict(chat=CHAT.value, system=SYSTEM.value) | options
    if CHAT.value and is_prompt and not options.get("stream"):
        lines = [json.dumps({"prompt": PROMPT.value})]
    if options.get("stream") or is_talk():
        with opened(OUTPUT.value) as file:

            def show(piece: str) -> None:
                print(piece, end="", file=file, flush=True)

            stream(WORKDIR.value, lines, show, keep_breaks=is_prompt, **chosen)
        return
    lines = list(lines)
    names = ["--prompt"] if is_prompt else ()

    def as_texts(first: int, answers: Sequence[predictors.Outputs]) -> list[str]:
        if JSON.value:
            return [as_json(line, each) for line, each in zip(lines[first:], answers, strict=False)]
        return [as_text(each, keep_breaks=is_prompt) for each in answers]

    def answer(**given: Any) -> None:
        generate(WORKDIR.value, lines, names=names, batch_size=BATCH.value, **chosen, **given)

    if not (OUTPUT.value and is_regular(OUTPUT.value)):
        with opened(OUTPUT.value) as file:
            done = 0

            def show(answers: Sequence[predictors.Outputs]) -> None:
                nonlocal done
                file.writelines(as_texts(done, answers))
                file.flush()
                done += len(answers)

            answer(answered=show)
        return
    with AnswerFile(OUTPUT.value, request(chosen, lines), len(lines), resume=RESUME.value) as file:

        def write(answers: Sequence[predictors.Outputs]) -> None:
            file.write(as_texts(file.answered, answers))

        try:
            if file.answered < len(lines):
                answer(skip=file.answered, answered=write)
        except KeyboardInterrupt:
            print(f"stopped: {file.so_far}", file=sys.stderr)
            raise


def request(chosen: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """What the outputs depend on. A step that is not given is the newest one, which may change."""
    step = STEP.value
    if not step.isdecimal():
        newest = (saved_steps(open_run_directory("--workdir", WORKDIR.value)) or [""])[-1]
        step = f"{step} of {newest}" if step else str(newest)
    return {
        **{f"--{name}": value for name, value in chosen.items()},
        "--workdir": os.path.abspath(WORKDIR.value),
        "--step": step,
        "--input": digest_of(lines),
        "--json": JSON.value,
        "--batch_size": BATCH.value,
    }


def refuse_flags(options: Mapping[str, Any]) -> None:
    """Refuses flags that are wrong for every model."""
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run, such as runs/dates")
    if (PROMPT.value is None) == (INPUT.value is None) and not is_talk():
        which = "missing" if PROMPT.value is None else "both given"
        raise ConfigError(f"--prompt and --input are {which}; give one of them")
    texts = [("prompt", PROMPT.value or ""), ("prefix", options.get("prefix", ""))]
    texts += [("suffix", options.get("suffix", "")), ("system", SYSTEM.value)]
    if SYSTEM.value and not CHAT.value:
        raise ConfigError("--system begins a conversation; add --chat, or leave it out")
    if CHAT.value and IDS.value:
        raise ConfigError("--chat is about text, and --ids has none; leave one of them out")
    if CHAT.value and INPUT.value and options.get("stream"):
        raise ConfigError("--stream shows one conversation; with --chat leave --input out")
    for name, text in [*texts, *(("stop", stop) for stop in options.get("stop", ()))]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"--{name} is not valid UTF-8") from error
    if BATCH.value < 0:
        raise ConfigError(f"--batch_size={BATCH.value} must be at least 1")
    for flag in (BATCH, JSON):
        if (options.get("stream") or is_talk()) and flag.value:
            by = "--chat without --input" if is_talk() else "--stream"
            raise ConfigError(
                f"--{flag.name} does not go with {by}, which shows one output after another as "
                "text; leave one of them out"
            )
    if is_talk():
        options = {**options, "stream": True}
    if options.keys() != {"num_outputs"}:  # a model of items takes it without a method
        sampling_options.from_flags(options)
    has_file = OUTPUT.value and not is_remote(OUTPUT.value)
    if RESUME.value and (options.get("stream") or is_talk() or not has_file):
        raise ConfigError(
            "--resume continues a local file, --output=FILE, and not with --stream or --chat "
            "without --input; leave it out"
        )
    if OUTPUT.value:
        if INPUT.value and same_file(INPUT.value, OUTPUT.value):
            raise ConfigError(f"--output={OUTPUT.value} is also --input; choose another file")
        if is_remote(OUTPUT.value):
            refuse_unwritable_object("--output", OUTPUT.value)
        else:
            refuse_unwritable(Path(OUTPUT.value))


def is_talk() -> bool:
    """Whether standard input has the turns of one conversation."""
    return CHAT.value and PROMPT.value is None and INPUT.value is None


def same_file(one: str, other: str) -> bool:
    """Whether two paths, local or in a bucket, are those of one file."""
    return one == other or Path(one).resolve() == Path(other).resolve()


def define_options() -> None:
    """Defines a flag for each sampling option."""
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
    STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest step.")
    AVERAGE = flags.DEFINE_integer(
        "average", 1, "Number of checkpoints whose parameters are averaged."
    )
    PROMPT = flags.DEFINE_string("prompt", None, "One line of input.")
    INPUT = flags.DEFINE_string("input", None, "A file of lines, or - for standard input.")
    OUTPUT = flags.DEFINE_string("output", "", "The output file; default: standard output.")
    BATCH = flags.DEFINE_integer(
        "batch_size", 0, "Lines per batch; default: 16, or 1 for a single line."
    )
    JSON = flags.DEFINE_bool("json", False, "Print one JSON object per line, with all details.")
    STRICT = flags.DEFINE_bool(
        "strict",
        False,
        "Refuse text that the vocabulary cannot spell; default: it becomes unknown tokens.",
    )
    IDS = flags.DEFINE_bool(
        "ids",
        False,
        "Lines and outputs are token ids, separated by spaces; no special ids are added.",
    )
    RESUME = flags.DEFINE_bool(
        "resume", False, "Continue an --output that was interrupted, after its last answered line."
    )
    CHAT = flags.DEFINE_bool(
        "chat", False, "Talk with the model by its chat template; with --input: answer JSON lines."
    )
    SYSTEM = flags.DEFINE_string("system", "", "The system's message that begins a conversation.")
    define_options()
    command_line.launch(main, in_buckets=("input", "output"))
