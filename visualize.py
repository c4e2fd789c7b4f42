r"""Shows how a model reads one input: python visualize.py --workdir=DIR --prompt=TEXT

Writes a page with the attention weights of all layers and heads, to open in a browser. The prompt
is as in generate.py; for models of images, sounds and series it is the path of a file. --target is
the text that a model writes: the answer of an encoder-decoder, or the continuation of a language
model's prompt. Without it, an encoder-decoder's own answer is shown.

--view=lens shows what the output head makes of each layer, --view=logprobs the probability of each
token of a text. --svg and --png write figures of --heads, --json the numbers.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from checkpointing import loaded_run
from experiment import command_line
from experiment.schema import ConfigError, refuse_remote
from visualization import capture
from visualization.model_view import ModelView

if TYPE_CHECKING:
    from visualization.framed_page import Page

FIGURES = ("svg", "png")
Head = tuple[str, int, int]  # map, layer, head


def attention(
    workdir: str | Path,
    prompt: str,
    target: str | None = None,
    *,
    layers: Sequence[int] = (),
    view: capture.View = "attention",
    step: str = "",
) -> "Page":
    """The page as an object that a notebook shows. `layers` are numbers from 0; (): all."""
    from visualization import attention_page

    view = capture_view(workdir, prompt, target, layers=layers, view=view, step=step)
    return attention_page.page(view)


def capture_view(
    workdir: str | Path,
    prompt: str,
    target: str | None = None,
    *,
    layers: Sequence[int] = (),
    heads: Sequence[Head] = (),
    view: capture.View = "attention",
    step: str = "",
) -> ModelView:
    """What the page shows, as NumPy arrays. `heads` are those of figures: they must be there."""
    run = loaded_run.load(workdir, step)
    capture.refuse_heads(run, heads, layers)
    title = Path(workdir).resolve().name
    return capture.model_view(run, prompt, target, title=title, layers=layers, view=view)


def parse_layers(text: str) -> tuple[int, ...]:
    """'0,3-5' -> (0, 3, 4, 5)."""
    found = set()
    for part in filter(None, re.split(r"[,\s]+", text)):
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not numbers or len(part) > 9:
            raise ConfigError(f"--layers={text}: {part!r} is no layer; write such as 0,3-5")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first:
            raise ConfigError(f"--layers={text}: {part!r} ends before it begins")
        if last - first > 9999:
            raise ConfigError(f"--layers={text}: {part!r} are more layers than any model has")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def parse_heads(text: str) -> tuple[Head, ...]:
    """'3.0,cross.1.7' -> (("", 3, 0), ("cross", 1, 7)); "" is the only map of a model."""
    found = []
    for part in filter(None, re.split(r"[,\s]+", text)):
        head = re.fullmatch(r"(?:(encoder|decoder|cross)\.)?(\d{1,4})\.(\d{1,4})", part)
        if not head:
            raise ConfigError(
                f"--heads={text}: {part!r} is no head; write layer and head, such as 3.0, in an "
                "encoder-decoder with encoder, decoder or cross before them, such as cross.1.7"
            )
        found.append((head[1] or "", int(head[2]), int(head[3])))
    return tuple(found)


def refuse_unwritable(flag: str, path: Path, *, is_directory: bool) -> None:
    """Refuses an output now that could not be written at the end."""
    try:
        if is_directory:
            path.mkdir(parents=True, exist_ok=True)
            return
        existed = path.exists()
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"--{flag}={path} cannot be written: {error.strerror}; choose another"
        ) from error


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run, such as runs/dates")
    if PROMPT.value is None:
        raise ConfigError(
            "--prompt is missing; give the text, or the path of an image, sound or series"
        )
    if VIEW.value not in capture.VIEWS:
        raise ConfigError(f"--view={VIEW.value} is not one of: {', '.join(capture.VIEWS)}")
    layers = parse_layers(LAYERS.value)
    directories = {name: flags.FLAGS[name].value for name in FIGURES if flags.FLAGS[name].value}
    heads = parse_heads(HEADS.value)
    if heads and VIEW.value != "attention":
        raise ConfigError(f"--heads is about attention; leave it or --view={VIEW.value} out")
    if heads and not directories:
        raise ConfigError("--heads chooses figures; give --svg=DIR or --png=DIR, or leave it out")
    page = OUTPUT.value or ("" if directories or JSON.value else f"{VIEW.value}.html")
    for flag, path in (("output", page), ("json", JSON.value), *directories.items()):
        if path:
            refuse_remote(f"--{flag}", path)
            refuse_unwritable(flag, Path(path), is_directory=flag in directories)
    chosen = dict(layers=layers, heads=heads, view=VIEW.value, step=STEP.value)
    view = capture_view(WORKDIR.value, PROMPT.value, TARGET.value, **chosen)
    if page:
        from visualization.attention_page import render

        Path(page).write_text(render(view), encoding="utf-8")
        print(page)
    if JSON.value:
        from visualization.as_json import as_json

        Path(JSON.value).write_text(as_json(view), encoding="utf-8")
        print(JSON.value)
    for format, directory in directories.items():
        from visualization import figures

        of_maps = [(name or view.maps[0].name, *numbers) for name, *numbers in heads]
        for path in figures.write(view, directory, format, of_maps or None):
            print(path)


if __name__ == "__main__":
    WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run.")
    STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
    PROMPT = flags.DEFINE_string(
        "prompt", None, "The text, or the path of an image, a sound or a series."
    )
    TARGET = flags.DEFINE_string("target", None, "The text that the model is to have written.")
    LAYERS = flags.DEFINE_string("layers", "", "Numbers of layers, such as 0,3-5; default: all.")
    VIEW = flags.DEFINE_string("view", "attention", "attention, lens or logprobs.")
    OUTPUT = flags.DEFINE_string("output", "", "The page; default: attention.html.")
    HEADS = flags.DEFINE_string("heads", "", "Heads for figures, such as 3.0,3.7 or cross.1.2.")
    SVG = flags.DEFINE_string("svg", "", "A directory for figures in SVG.")
    PNG = flags.DEFINE_string("png", "", "A directory for figures in PNG.")
    JSON = flags.DEFINE_string("json", "", "A file for the numbers, as JSON.")
    command_line.launch(main)
