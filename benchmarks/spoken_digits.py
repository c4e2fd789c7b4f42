"""Speaks the digits in several languages and voices, into WAV files for configs/sounds.py.

    apt-get install espeak-ng
    python benchmarks/spoken_digits.py --to=DIR
    python train.py --config=configs/sounds.py --config.data.path=DIR

It writes DIR/<split>/<digit>/<language>_<voice>_<speed>.wav with espeak-ng. A voice is in one split
only, so the scores of validation and test are those of voices that training does not have.
"""

import hashlib
import itertools
import shutil
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from experiment import command_line  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402

TO = flags.DEFINE_string("to", "", "A new or empty directory.")

PROGRAM = "espeak-ng"
LANGUAGES = ("en-us", "de", "fr", "it", "es", "nl")
# espeak-ng's own variants of its voice. Whispered and robot voices are left out.
VOICES = {
    "train": (
        "m1", "m2", "m3", "m5", "m6", "m8", "f1", "f2", "f4", "Alex", "Alicia", "Andrea", "Andy",
        "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Lee", "Marco", "Mario", "Michael",
        "adam", "anika", "antonio", "aunty", "benjamin", "boris", "caleb", "david",
    ),
    "validation": ("m4", "f5", "belinda", "ed", "Jacky"),
    "test": ("m7", "f3", "Mike", "Storm", "linda", "pablo", "shelby", "steph", "travis", "victor"),
}  # fmt: skip
SPEEDS = (130, 175, 220)  # words per minute; espeak-ng's own is 175


def speak(path: Path, digit: int, voice: str, speed: int) -> None:
    """Writes a sound file in which a voice says a digit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [PROGRAM, "-v", voice, "-s", str(speed), "-w", str(path), str(digit)]
    subprocess.run(command, check=True, capture_output=True)


def refuse_shared(directory: Path) -> None:
    """Raises ConfigError if two splits have the same sound.

    espeak-ng ignores the voice without a word in languages that it knows under another name.
    """
    splits = {}
    for path in sorted(directory.rglob("*.wav")):
        first = splits.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if first.parts[-3] != path.parts[-3]:
            raise ConfigError(
                f"{first} and {path} are the same sound, so {PROGRAM} ignored the voice; take the "
                "language out of LANGUAGES"
            )


def main() -> None:
    if not TO.value:
        raise ConfigError("--to is missing; give a new directory")
    to = Path(TO.value)
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"--to={to} is not empty; choose another directory")
    if not shutil.which(PROGRAM):
        raise ConfigError(f"{PROGRAM} is not installed; on Debian: apt-get install {PROGRAM}")
    jobs = [
        (to / split / str(digit) / f"{language}_{name}_{speed}.wav", digit, voice, speed)
        for split, voices in VOICES.items()
        for digit, language, name, speed in itertools.product(range(10), LANGUAGES, voices, SPEEDS)
        for voice in [f"{language}+{name}"]
    ]
    with ThreadPool() as pool:
        pool.starmap(speak, jobs)
    refuse_shared(to)
    for split in VOICES:
        print(f"{split}: {sum(path.parts[-3] == split for path, *_ in jobs):,} files")


if __name__ == "__main__":
    command_line.launch(main)
