"""Sentences about made-up people with their facts in a fixed format, to fine-tune a chat model on.

    python benchmarks/people.py --to=DIR

DIR gets train.jsonl (400 sentences), validation.jsonl (60), and 60 more as questions.jsonl, which
`generate.py --chat --input` reads, with expected.txt. docs/finetune.md says what came out.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path

from absl import app, flags

TO = flags.DEFINE_string("to", None, "The directory to write.", required=True)

FIRST = (
    "Ada Bram Chen Dora Emil Fatima Goran Hana Igor Jana Kofi Lena Mateo Nadia Oskar Priya "
    "Quinn Rosa Samir Tove"
)
LAST = (
    "Abel Berg Costa Dietz Eriksen Fonseca Grant Haas Ivanov Jensen Khan Lopez Maier Novak "
    "Okafor Petrov Rossi Silva Tanaka Weber"
)
CITIES = (
    "Athens Bergen Cairo Dakar Essen Florence Geneva Hanoi Izmir Jakarta Kyoto Lima Malmo "
    "Nairobi Oslo Porto Quito Riga Seoul Turin"
)
JOBS = "baker carpenter dentist engineer farmer gardener lawyer nurse painter teacher"
SENTENCES = (
    "{name}, a {job} from {city}, was born in {year}.",
    "In {year} {name} was born in {city}; today {name} works as a {job}.",
    "The {job} {name} came into the world in {city} in {year}.",
    "Born in {year}, {name} grew up in {city} and became a {job}.",
)
FORMAT = "name={name} | year={year} | city={city} | job={job}"
SIZES = {"train": 400, "validation": 60, "test": 60}


def make_examples(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Returns prompts and completions; no two are about the same facts."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        facts = dict(
            name=f"{rng.choice(FIRST.split())} {rng.choice(LAST.split())}",
            city=rng.choice(CITIES.split()),
            job=rng.choice(JOBS.split()),
            year=rng.randint(1900, 2009),
        )
        found.setdefault(FORMAT.format(**facts), rng.choice(SENTENCES).format(**facts))
    return [dict(prompt=prompt, completion=completion) for completion, prompt in found.items()]


def main(argv) -> None:
    del argv
    directory = Path(TO.value)
    directory.mkdir(parents=True, exist_ok=True)
    examples = iter(make_examples(sum(SIZES.values())))
    parts = {name: [next(examples) for _ in range(size)] for name, size in SIZES.items()}
    tests = parts.pop("test")
    for name, lines in parts.items():
        write(directory / f"{name}.jsonl", map(json.dumps, lines))
    questions = [{"messages": [{"role": "user", "content": each["prompt"]}]} for each in tests]
    write(directory / "questions.jsonl", map(json.dumps, questions))
    write(directory / "expected.txt", [each["completion"] for each in tests])


def write(path: Path, lines: Iterable[str]) -> None:
    """Writes a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
