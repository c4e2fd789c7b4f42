r"""Checks tunes in ABC notation with music21, and writes them as .abc and .mid.

    python generate.py --workdir=runs/tunes --method=sample --temperature=0.8 --prompt='X: 1' \
        --num_outputs=200 --max_new_tokens=800 --slide --stop=$'\n\n' --json \
        --output=tunes.json
    python benchmarks/abc_tunes.py --input=tunes.json --output=tunes
    python benchmarks/abc_tunes.py --input=DIR/validation.txt

A file that ends in .json has outputs of generate.py; any other has tunes with a blank line between
them. Prints how many tunes music21 parses to at least one note, and the share of their bars that
are as long as the metre asks. The first and the last bar of a tune do not count: they may be
incomplete. music21 cannot write every tune that it parses as MIDI. --roll=N draws tune N as a piano
roll, OUTPUT/N.png. Needs music21 (pip install music21), and matplotlib for the picture.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from experiment import command_line  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline.sources.files.reading import read_text  # noqa: E402

INPUT = flags.DEFINE_string("input", "", "The file of tunes.")
OUTPUT = flags.DEFINE_string("output", "", "A directory for one .abc and one .mid file per tune.")
ROLL = flags.DEFINE_integer("roll", 0, "The number of the tune to draw, from 1; 0: none.")


def tunes(path: Path) -> list[str]:
    """The tunes in a file: outputs of generate.py in JSON, or texts between blank lines."""
    if not path.is_file():
        raise ConfigError(f"--input={path} is not a file; give the tunes to check")
    text = bytes(read_text(path)).decode()
    if path.suffix != ".json":
        return [tune for tune in text.split("\n\n") if tune.strip()]
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["input"] + each["text"] for line in lines for each in line["outputs"]]


def parsed(tune: str) -> Any:
    """The score, or None if the tune is not valid or has no note."""
    from music21 import converter

    try:
        score = converter.parse(tune, format="abc")
    except Exception:  # music21 raises what its internals raise
        return None
    return score if len(score.recurse().notes) else None


def bars(score: Any) -> list[bool]:
    """For each bar between the first and the last, whether it is as long as the metre asks."""
    from music21 import stream

    bar_streams = list(score.recurse().getElementsByClass(stream.Measure))[1:-1]
    return [each.duration.quarterLength == each.barDuration.quarterLength for each in bar_streams]


def draw(score: Any, title: str, path: Path) -> None:
    """A piano roll: time in quarter notes, pitch as the number of the MIDI key."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 2.4), layout="constrained")
    for note in score.flatten().notes:
        for pitch in note.pitches:
            length = float(note.duration.quarterLength)
            axes.barh(pitch.midi, length * 0.95, left=float(note.offset), height=0.8, color="C0")
    axes.set(xlabel="quarter notes", ylabel="MIDI pitch", title=title)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main() -> None:
    given = tunes(Path(INPUT.value))
    if not given:
        raise ConfigError(f"--input={INPUT.value} has no tune")
    if not 0 <= ROLL.value <= len(given):
        raise ConfigError(f"--roll={ROLL.value} must be at least 0 and at most {len(given)}")
    if ROLL.value and not OUTPUT.value:
        raise ConfigError("--roll needs a directory to draw in; give --output")
    directory = Path(OUTPUT.value)
    directory.mkdir(parents=True, exist_ok=True)
    valid, right = 0, []
    for number, tune in enumerate(given, 1):
        score = parsed(tune)
        if OUTPUT.value:
            (directory / f"{number}.abc").write_text(tune + "\n", encoding="utf-8")
        if score is None:
            continue
        valid += 1
        right += bars(score)
        if OUTPUT.value:
            with contextlib.suppress(Exception):
                score.write("midi", directory / f"{number}.mid")
        if number == ROLL.value:
            title = next((line[2:].strip() for line in tune.splitlines() if line[:2] == "T:"), "")
            draw(score, title, directory / f"{number}.png")
    print(f"{valid:,} of {len(given):,} tunes parse ({valid / len(given):.1%})")
    share = f" ({sum(right) / len(right):.1%})" if right else ""
    print(f"{sum(right):,} of {len(right):,} bars are as long as the metre asks{share}")


if __name__ == "__main__":
    command_line.launch(main)
