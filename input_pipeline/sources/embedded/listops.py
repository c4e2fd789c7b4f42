"""ListOps: nested lists of digits with their value: ">29<47]0]", MAX(2, 9, MIN(4, 7), 0), is 9.

After Nangia and Bowman (2018), and the long version of the Long Range Arena. The operator opens a
list and "]" closes it, so every symbol is one character and, with data.tokenizer=byte, one token. A
trained tokenizer would merge unrelated digits.

    <  MIN, the smallest argument
    >  MAX, the largest
    =  MED, the median; for an even count, the mean of the middle two, rounded down
    +  SUM_MOD, the sum modulo 10

The shape of a list is drawn first, then its symbols from the outside in. The answer of example i is
i modulo 10. The operator of a list and the answers of its arguments are drawn again and again until
they give the list's answer. So all answers are equally common, for inner lists too, at every length
and depth.

A hash of the text decides whether a list is for training or for evaluation. A list for the wrong
split is drawn again, so no list is in both splits. Short lists may occur twice in one split.

Baseline: a linear classifier on the counts of all symbols and the first operator gets 28% of the
held-out lists right, with the default options (a test runs it).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import numpy as np

from experiment.schema import Bounds, PositiveInt
from input_pipeline import randomness
from input_pipeline.sources.base import Source, Splits, content_digest, hash_fraction

if TYPE_CHECKING:
    from input_pipeline.config import DataConfig

SEED = 0  # the lists are the same in every run; the run's seed shuffles them
TRAIN_SIZE, EVAL_SIZE = 1_000_000, 2_000
EVAL_SHARE = 0.25  # of all possible lists; a larger share takes fewer draws
DIGITS = 10
CLOSE = "]"
SHORTEST = 4  # symbols: an operator, two digits and the bracket


@dataclasses.dataclass(frozen=True)
class ListOpsOptions:
    """`data.options` of this source: bounds on the lists."""

    depth: PositiveInt = 3  # levels of nesting
    arguments: Annotated[int, Bounds(at_least=2)] = 3  # the most arguments of one list
    min_length: Annotated[int, Bounds(at_least=SHORTEST)] = 4  # symbols of the whole list
    max_length: PositiveInt = 30

    def problems(self) -> Iterator[str]:
        shortest, longest = self.min_length, self.max_length
        if longest < shortest + 2:
            yield (
                f"data.options.max_length={longest} must exceed data.options.min_length={shortest} "
                "by at least 2: not every length can be met exactly"
            )
        fits = self._longest_list()
        if longest > fits:
            yield (
                f"data.options.max_length={longest} exceeds the {fits} symbols of the longest list "
                f"with data.options.depth={self.depth} and "
                f"data.options.arguments={self.arguments}; change one of them"
            )

    def problems_with(self, data: "DataConfig") -> Iterator[str]:
        """Problems with other keys of the `data` section."""
        if data.tokenizer == "byte" and self.max_length + 2 > data.length:
            yield (
                f"data.length={data.length} would cut lists off, which leaves them without an "
                f"answer: set it to at least {self.max_length + 2}, for "
                f"data.options.max_length={self.max_length} between cls and sep"
            )

    def _longest_list(self) -> int:
        """Symbols of the largest list within `depth` and `arguments`.

        Stops counting above `max_length`, because the number grows exponentially.
        """
        symbols, depth = 1, 0
        while depth < self.depth and symbols < self.max_length:
            symbols, depth = 2 + self.arguments * symbols, depth + 1
        return symbols


def median(values: list[int]) -> int:
    """The median, rounded down."""
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[-middle - 1]) // 2  # both are the middle if the count is odd


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "<": min,
    ">": max,
    "=": median,
    "+": lambda values: sum(values) % DIGITS,
}


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """A node of a shape: a list if it has arguments, else a digit."""

    depth: int  # how many lists contain it
    arguments: list["Node"] = dataclasses.field(default_factory=list)


class Lists(Sequence):
    """The lists of one split, each generated on access."""

    def __init__(self, options: ListOpsOptions, size: int, *, is_eval: bool, seed: int = SEED):
        self._options, self._size, self._is_eval, self._seed = options, size, is_eval, seed

    def __len__(self):
        return self._size

    def __getitem__(self, index: int) -> dict[str, str | int]:
        if not 0 <= index < self._size:
            raise IndexError(index)
        purpose = randomness.EVAL_LIST if self._is_eval else randomness.TRAIN_LIST
        draw = _random_integers(randomness.generator(self._seed, purpose, index))
        answer = index % DIGITS
        shape = _shape(self._options, draw)
        while True:
            text = _written(shape, answer, draw)
            if (hash_fraction(text) < EVAL_SHARE) == self._is_eval:
                return {"text": text, "label": answer}


def load(options: ListOpsOptions) -> Splits:
    """Lists as texts, with their values as labels."""
    eval_lists = list(Lists(options, EVAL_SIZE, is_eval=True))
    lengths = options.min_length, options.max_length
    bounds = {"depth": options.depth, "arguments": options.arguments, "length": lengths}
    digest = content_digest([repr(bounds), str(TRAIN_SIZE), repr(eval_lists)])
    return Splits(
        "labelled",
        Lists(options, TRAIN_SIZE, is_eval=False),
        {"held_out": eval_lists},
        tuple(str(digit) for digit in range(DIGITS)),
        {"numpy": version("numpy"), **bounds},
        digest,
        "none",
    )


SOURCE = Source(
    "listops", lambda data: load(data.source_options), "labelled", options=ListOpsOptions
)


Draw = Callable[[int], int]  # n -> a number from 0 to n - 1


def _random_integers(rng: np.random.Generator) -> Draw:
    """A fast source of random integers: single draws from NumPy are slow, so it draws blocks."""
    blocks: Iterator[list[float]] = (rng.random(512).tolist() for _ in itertools.count())
    uniform = itertools.chain.from_iterable(blocks)
    return lambda n: int(next(uniform) * n)


def _shape(options: ListOpsOptions, draw: Draw) -> Node:
    """A random shape. Its length is uniform within the bounds, to within two symbols.

    Random digits become lists of 2 to `arguments` digits while there is room for the three symbols
    that the shortest list adds; then lists grow digit by digit. If no list may grow any more, up to
    two symbols are missing. `ListOpsOptions.problems` refuses bounds that would leave more.
    """
    lowest = options.min_length + 2
    length = lowest + draw(options.max_length - lowest + 1)
    most = options.arguments
    root = Node(depth=0)
    size, digits, growing = 1, [root], []  # digits: those that may become lists
    while size < length:
        room = length - size
        if digits and room >= 3:
            node = _taken(digits, draw)
            count = 2 + draw(min(most, room - 1) - 1)
            size += 1  # the bracket; the operator replaces the digit
            growing += [node] if count < most else []
        elif growing:
            node, count = growing[draw(len(growing))], 1
            if len(node.arguments) + 1 == most:
                growing.remove(node)
        else:
            break
        size += count
        for _ in range(count):
            digit = Node(node.depth + 1)
            node.arguments.insert(draw(len(node.arguments) + 1), digit)
            digits += [digit] if digit.depth < options.depth else []
    return root


def _taken(nodes: list[Node], draw: Draw) -> Node:
    """Removes and returns a random node; their order does not matter."""
    number = draw(len(nodes))
    nodes[number], nodes[-1] = nodes[-1], nodes[number]
    return nodes.pop()


def _written(node: Node, answer: int, draw: Draw) -> str:
    """Random symbols for a node, such that its value is `answer`."""
    if not node.arguments:
        return str(answer)
    operators = tuple(OPERATORS)
    while True:
        operator = operators[draw(len(operators))]
        values = [draw(DIGITS) for _ in node.arguments]
        if OPERATORS[operator](values) == answer:
            break
    parts = map(_written, node.arguments, values, itertools.repeat(draw))
    return f"{operator}{''.join(parts)}{CLOSE}"
