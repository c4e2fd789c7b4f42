"""How often a hidden line of code is restored exactly: a fill-in-the-middle model and an n-gram.

    python train.py --config=configs/code.py
    python benchmarks/hidden_lines.py --workdir=runs/code

One random line of a held-out document is hidden, or with --rest the rest of it, from a random word
on. At most --before characters before it and --after after it are shown. The model writes what is
hidden with the suffix, and once more from the prefix alone. The n-gram of words, signs and
indentations mixes all shorter contexts (Witten-Bell smoothing). Its counts are those of the
training text plus --cache_weight times those of what is shown, the cache; in another row, the cache
is all the rest of the document. All write greedily. Prints a table in Markdown.
"""

import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from absl import flags  # noqa: E402

from checkpointing import loaded_run  # noqa: E402
from experiment import command_line, sections  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from generate import generate  # noqa: E402
from inference.prompts import MASK  # noqa: E402
from input_pipeline.sources.registry import components  # noqa: E402

TOKENS = re.compile(r"\n|[^\S\n]+|\w+|[^\w\s]")
CONTEXT, BITS = 3, 21  # tokens before the next one; bits of an id: together less than 64

WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run on documents.")
STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
LINES = flags.DEFINE_integer("lines", 500, "Number of hidden lines.")
BEFORE = flags.DEFINE_integer("before", 256, "Characters shown before the line, at most.")
AFTER = flags.DEFINE_integer("after", 96, "Characters shown after the line, at most.")
LONGEST = flags.DEFINE_integer("longest", 80, "Longer lines are not hidden.")
ORDER = flags.DEFINE_integer("order", 4, f"Words of the longest n-gram, at most {CONTEXT + 1}.")
CACHE_WEIGHT = flags.DEFINE_float("cache_weight", 10.0, "How often a count of the cache counts.")
REST = flags.DEFINE_bool("rest", False, "Hide the rest of a line, from a random word on.")
SAMPLES = flags.DEFINE_integer("samples", 0, "Number of answers to print.")


class Counts:
    """Which token follows the last tokens, at most CONTEXT: sorted by the last one first."""

    def __init__(self, ids: np.ndarray, vocabulary: int):
        keys = np.zeros(len(ids), np.int64)
        for back in range(1, CONTEXT + 1):
            keys[back:] |= ids[:-back].astype(np.int64) << BITS * (CONTEXT - back)
        order = np.argsort(keys, kind="stable")
        self._keys, self._next, self._vocabulary = keys[order], ids[order], vocabulary

    def after(self, context: tuple[int, ...]) -> np.ndarray:
        """How often each token follows the context: (vocabulary,)."""
        low = 0
        for place, id in enumerate(reversed(context)):
            low |= int(id) << BITS * (CONTEXT - 1 - place)
        high = low + (1 << BITS * (CONTEXT - len(context)))
        start, stop = np.searchsorted(self._keys, [low, high])
        return np.bincount(self._next[start:stop], minlength=self._vocabulary)


class WordIds:
    """Ids of the tokens of texts, from 1."""

    def __init__(self, texts: Iterable[str]):
        self.ids: dict[str, int] = {}
        for text in texts:
            for token in TOKENS.findall(text):
                self.ids.setdefault(token, len(self.ids) + 1)
        self.tokens = ["", *self.ids]
        if len(self.tokens) >= 1 << BITS:
            raise ConfigError(f"{len(self.tokens):,} different tokens are too many")

    def counts(self, text: str) -> Counts:
        return Counts(self.encode(text), len(self.tokens))

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.ids.get(token, 0) for token in TOKENS.findall(text)], np.int32)


After = Callable[[tuple[int, ...]], np.ndarray]  # as Counts.after


def greedy_line(before: str, counts: Sequence[tuple[float, After]], vocabulary: WordIds) -> str:
    """The likeliest token after the likeliest token, up to a line break."""
    shown, line = vocabulary.encode(before).tolist(), ""
    while len(line) <= LONGEST.value:
        probabilities = np.zeros(len(vocabulary.tokens))
        for size in range(min(ORDER.value, len(shown) + 1)):
            context = tuple(shown[len(shown) - size :])
            found = sum(weight * after(context) for weight, after in counts)
            if not found.any():
                break
            new = np.count_nonzero(found)
            probabilities = (found + new * probabilities) / (found.sum() + new)
        shown.append(int(probabilities.argmax()))
        if vocabulary.tokens[shown[-1]] == "\n":
            break
        line += vocabulary.tokens[shown[-1]]
    return line


def hidden_lines(texts: Sequence[str], count: int) -> Iterable[tuple[str, str, str]]:
    """Yields (text before, the hidden line or rest of a line, text after: a line break first)."""
    rng = np.random.default_rng(0)
    sizes = np.array([text.count("\n") for text in texts], np.float64)
    while count:
        text = texts[rng.choice(len(texts), p=sizes / sizes.sum())]
        lines = text.split("\n")
        number = int(rng.integers(len(lines)))
        line = lines[number]
        if line.strip() and len(line) <= LONGEST.value and 0 < number < len(lines) - 1:
            words = [match.start() for match in TOKENS.finditer(line) if match[0].strip()]
            start = int(rng.choice(words)) if REST.value else 0
            before = "\n".join([*lines[:number], line[:start]])
            yield before, line[start:], "\n".join(["", *lines[number + 1 :]])
            count -= 1


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run")
    if not 1 <= ORDER.value <= CONTEXT + 1:
        raise ConfigError(f"--order={ORDER.value} must be at least 1 and at most {CONTEXT + 1}")
    data = sections.from_mapping(loaded_run.recorded_config(WORKDIR.value)).data
    splits = components(data)[0].splits
    if splits.kind != "documents":
        raise ConfigError(f"data.source={data.source} has no documents; choose another run")
    (documents,) = splits.evals.values()
    tests = list(hidden_lines([each["text"] for each in documents], LINES.value))
    shown = [(text[-BEFORE.value :], after[: AFTER.value]) for text, _, after in tests]
    answers = {}
    texts = [each["text"] for each in splits.train]
    vocabulary = WordIds([*texts, *(each["text"] for each in documents)])
    train = functools.lru_cache(500)(vocabulary.counts("\n".join(texts)).after)
    caches = {
        "what is shown": [before + after for before, after in shown],
        "the rest of the document": [before + after for before, _, after in tests],
    }
    name = f"{ORDER.value}-gram of words"
    answers[name] = [greedy_line(before, [(1, train)], vocabulary) for before, _ in shown]
    for what, contexts in caches.items():
        cached = ((CACHE_WEIGHT.value, vocabulary.counts(each).after) for each in contexts)
        answers[f"{name}, cache of {what}"] = [
            greedy_line(before, [(1, train), cache], vocabulary)
            for (before, _), cache in zip(shown, cached, strict=True)
        ]
    prompts = {"prefix alone": [before for before, _ in shown]}
    prompts["prefix and suffix"] = [f"{before}{MASK}{after}" for before, after in shown]
    for what, lines in prompts.items():
        options = dict(step=STEP.value, max_new_tokens=LONGEST.value + 1, stop=("\n",))
        found = generate(WORKDIR.value, lines, batch_size=25, **options)
        answers[f"{WORKDIR.value}, {what}"] = [each[0]["text"] for each in found]
    what = "rests of lines" if REST.value else "lines"
    print(f"{len(tests):,} hidden {what} of {len(documents):,} held-out documents\n")
    print("| model | restored exactly |\n|---|---|")
    for name, found in answers.items():
        right = [line == each for (_, line, _), each in zip(tests, found, strict=True)]
        print(f"| {name} | {np.mean(right):.1%} |")
    rows = zip(tests, shown, found, strict=True)
    for (_, line, _), (before, after), answer in itertools.islice(rows, SAMPLES.value):
        print(f"\n--- hidden: {line}\n{before}<<{answer}>>{after}")


if __name__ == "__main__":
    command_line.launch(main)
