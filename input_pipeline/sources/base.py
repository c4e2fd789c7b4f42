"""What a source is, and what it returns: splits, each a sequence of examples.

An example is in one split only. Examples are read when asked for, so a split may be larger than
memory. Reading a bad record raises BadRecordError.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiment.schema import ConfigError

if TYPE_CHECKING:
    from input_pipeline.config import DataConfig

Example = Mapping[str, Any]
FEW_CLASSES = 50  # up to this many classes, most may have a single row, as in a small trial
FEW_ROWS = 10  # up to this many rows, each may have a class of its own, as in a toy example
# Facts of a description: the data names no splits, and this share is held out under any name.
SHARE_BY_HASH, SHARE_AT_END = "held_out_share", "held_out_end"  # by a hash; the end of the text

# The fields of an example:
#   pairs      source, target, and optionally task         (text; the task's name)
#   documents  text, and optionally ends                   (False: the next one continues the text)
#   labelled   text, optionally text_pair, and label       (short text; an index into `labels`)
#   scored     text, optionally text_pair, and score       (a float)
#   tagged     text, words, tags                           (the words with spaces between them;
#                                                           indices into `labels`)
#   questions  text, text_pair, answers, place             (the question and its context; the first
#                                                           character and the end of each answer)
#   items      text, and optionally name                   (items and separators; of the sequence)
#   chats      messages, place, record                     (dicts with role and content; file:line;
#                                                           the messages as one string)
#   preferences  prompt, chosen, rejected, place, record   (lists of messages)
#   images     image (rows, columns, channels), and label  (uint8, or float32 in [0, 1])
#              and optionally name                         (of the file, for samples and details)
#   sounds     signal (frames, bands, 1), label, name      (float32; a spectrogram)
#   series     signal (steps, 1), future, is_known (steps), offset, name
#                                                          (float32; values minus the offset)
ExampleKind = Literal[
    "pairs", "documents", "labelled", "scored", "tagged", "questions", "items", "chats",
    "preferences", "images", "sounds", "series",
]  # fmt: skip
# Kinds whose examples have arrays of float32 instead of text: the model normalises them and cuts
# them into patches.
SIGNALS = ("sounds", "series")
PATCHED = ("images", *SIGNALS)  # kinds that the model cuts into patches: they have no tokens


class BadRecordError(ConfigError):
    """An example that cannot be used; the message names file, line and problem."""


class MissingSplitError(ConfigError):
    """The data has no split of this name; `known` are the splits that it has."""

    def __init__(self, problem: str, split: str, known: Iterable[str]):
        super().__init__(problem)
        self.split, self.known = split, tuple(known)


def refusal_of_split(problem: str, split: str, known: Iterable[str]) -> ConfigError:
    """The error for a bad split such as 'test[:50%]': MissingSplitError if its name is unknown."""
    known = tuple(known)
    is_known = split.partition("[")[0] in known
    return ConfigError(problem) if is_known else MissingSplitError(problem, split, known)


@dataclasses.dataclass(frozen=True)
class Splits:
    """The data of a source."""

    kind: ExampleKind
    train: Sequence[Example]
    evals: Mapping[str, Sequence[Example]]
    labels: tuple[str, ...]
    description: Mapping[str, Any]  # facts for the run directory: versions, counts, ...
    digest: str  # of the content: equal digests, equal examples
    # Where tokenized text is stored; none: examples are generated and tokenized on demand.
    storage: Literal["disk", "memory", "none"] = "disk"
    text_pairs: bool = False  # labelled, scored: every example has a text_pair
    # Signals: mean and standard deviation of each channel of the training split
    mean_and_std: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())

    @property
    def named_evals(self) -> tuple[str, ...]:
        """The evaluation splits that the data itself names."""
        is_unnamed = {SHARE_BY_HASH, SHARE_AT_END} & self.description.keys()
        return () if is_unnamed else tuple(self.evals)

    def scored_on_train(self, name: str) -> "Splits":
        """The same data, with the training split as the only evaluation split, called `name`."""
        return dataclasses.replace(self, evals={name: self.train})


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of examples. Each is declared in its own file, and listed in registry.py."""

    name: str
    load: Callable[["DataConfig"], Splits | Mapping[str, Splits]]  # by task, with `has_tasks`
    kind: ExampleKind | Literal[""] = ""  # "": data.kind says it
    place: Literal["path", "name", ""] = ""  # the key that says where the examples are
    options: type | None = None  # the dataclass of data.options, with defaults
    has_tasks: bool = False  # it is a mixture: data.mixture weighs its tasks
    tab_separates_texts: bool = False  # a line of its files may be two texts with a tab between
    for_imports: bool = False  # convert.py writes it in configs of models that read its kind
    # Signals: a made-up example with the shapes of all examples, from the config alone; and the
    # example in a file, without its label, for generate.py
    outline: Callable[["DataConfig"], Example] | None = None
    read: Callable[["DataConfig", Path], Example] | None = None


class LazyList(Sequence):
    """[function(argument) for argument in arguments], with each item computed on access."""

    def __init__(self, function: Callable[[Any], Any], arguments: Sequence):
        self._function, self._arguments = function, arguments

    def __len__(self):
        return len(self._arguments)

    def __getitem__(self, index: int) -> Any:
        return self._function(self._arguments[index])


def hash_fraction(text: str | bytes) -> float:
    """A hash of the text as a number in [0, 1), by which examples are split."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(data).digest()[:6]) / 2**48


def split_by_hash(
    examples: Iterable[Example], content: Callable[[Example], str | bytes], share: float
) -> tuple[list[Example], list[Example]]:
    """(training, evaluation) examples; a hash of the content chooses about `share` of them."""
    parts: tuple[list[Example], list[Example]] = [], []
    for example in examples:
        parts[hash_fraction(content(example)) < share].append(example)
    return parts


def content_digest(parts: Iterable[str | bytes]) -> str:
    """The SHA-256 digest of a sequence of parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))  # so that ("ab", "c") and ("a", "bc") differ
        digest.update(data)
    return digest.hexdigest()


def readable_examples(examples: Sequence[Example]) -> Iterator[Example]:
    """Yields the examples that can be read. Tokenizing counts the others."""
    for index in range(len(examples)):
        try:
            yield examples[index]
        except BadRecordError:
            continue


def refuse_single_use(labels: Counter[str], place: str, hint: str) -> None:
    """Raises ConfigError if most labels occur once: such labels are texts or row numbers.

    `labels` counts the training rows of each label; `hint` says where the label belongs.
    """
    rows, once = labels.total(), sum(count == 1 for count in labels.values())
    most_are = len(labels) > FEW_CLASSES and once > rows / 2
    if most_are or (once == rows and rows > FEW_ROWS):
        raise ConfigError(
            f"{place}: {len(labels):,} classes for {rows:,} rows, {once:,} of them with one row: "
            f"{hint}"
        )


def unnamed_splits_lines(contents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Log lines: what is held out of sources without named splits; one if it is the same for all.

    `contents` are the facts of each source: `Splits.description`.
    """
    said = {}
    for source, facts in contents.items():
        if share := facts.get(SHARE_BY_HASH):
            said[source] = f"no named splits: a hash holds out {share:g} (data.eval_share)"
        if share := facts.get(SHARE_AT_END):
            said[source] = (
                f"no named splits: the last {share:g} of the text is held out (data.eval_share)"
            )
    if said.keys() == contents.keys() and len(set(said.values())) == 1:
        return list(said.values())[:1]
    return [f"{source}: {line}" for source, line in said.items()]
