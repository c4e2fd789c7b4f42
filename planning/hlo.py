"""A parser for the text of compiled programs: computations, instructions, shapes, loops.

XLA's own cost analysis counts the body of a loop once, has no result for GPUs of another machine,
and omits collectives. The text of the optimised program has all of it.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

BITS = {
    "pred": 8,
    "token": 0,
    "opaque": 0,
    "bf16": 16,
    "c64": 64,
    "c128": 128,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": bits for bits in (16, 32, 64)},
}  # per element; 8-bit floats have names such as f8e4m3fn

ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
END = re.compile(r'^\}(, execution_thread="\w+")?$')
NAME = re.compile(r"%([\w.\-]+)")
CALLED = re.compile(
    r"(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
    r"|(?:branch_computations|called_computations)=\{([^}]*)\}"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """Type, shape and place of an array of a program."""

    dtype: str
    shape: tuple[int, ...]
    in_main_memory: bool  # False: in a faster memory of the chip, or the host's

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits per element."""
        return BITS.get(self.dtype) or (8 if self.dtype.startswith("f8") else 4)

    @property
    def bytes(self) -> int:
        return math.ceil(self.size * self.bits / 8) if self.dtype not in ("token", "opaque") else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]  # its result: one array, or all leaves of a tuple
    operands: tuple[str, ...]
    literal: str  # the text in parentheses: a constant's value, a parameter's number
    attributes: str
    is_root: bool

    @property
    def array(self) -> Array:
        return self.arrays[0]

    def attribute(self, pattern: str) -> str:
        """Returns the first group of the first match in the attributes, or ''."""
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else ""

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        names = []
        for one, several in CALLED.findall(self.attributes):
            names += [one] if one else [name.strip(" %") for name in several.split(",")]
        return tuple(names)


@dataclasses.dataclass(frozen=True)
class Computation:
    """A function of the program: its instructions in order, by name."""

    name: str
    instructions: dict[str, Instruction]

    @functools.cached_property
    def root(self) -> Instruction:
        return next(i for i in reversed(self.instructions.values()) if i.is_root)

    @functools.cached_property
    def parameters(self) -> list[Instruction]:
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda instruction: int(instruction.literal))

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        found = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in instruction.operands:
                found[operand].append(instruction)
        return found

    def operands(self, instruction: Instruction) -> list[Instruction]:
        return [self.instructions[name] for name in instruction.operands]


@dataclasses.dataclass(frozen=True)
class Program:
    """All computations of a compiled program, by name."""

    computations: dict[str, Computation]
    entry: str

    def called(self, instruction: Instruction) -> list[Computation]:
        return [self.computations[name] for name in instruction.called]


def parse(text: str) -> Program:
    """Parses the text of `compiled.as_text()`."""
    computations, entry, name, instructions = {}, "", "", {}
    for line in _joined_lines(text):
        if END.match(line):
            computations[name] = Computation(name, instructions)
        elif line.startswith("  "):
            instruction = _instruction(line.strip())
            instructions[instruction.name] = instruction
        elif header := HEADER.match(line):
            is_entry, name = header.groups()
            entry, instructions = name if is_entry else entry, {}
    return Program(computations, entry)


def _joined_lines(text: str) -> Iterator[str]:
    """Yields logical lines; attributes of kernels contain line breaks."""
    joined, is_inside = "", False
    for line in text.splitlines():
        is_end = bool(END.match(line))
        is_new = is_end or line.startswith("  ") or not is_inside
        if is_new:
            yield joined
            joined = line
        else:
            joined += line
        is_inside = not is_end and (is_inside or line.endswith("{"))
    yield joined


def _instruction(line: str) -> Instruction:
    is_root = line.startswith("ROOT ")
    name, _, rest = line.removeprefix("ROOT ").partition(" = ")
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opens = rest.index("(")
    closes = _closing(rest, opens)
    opcode, inside = rest[:opens], rest[opens + 1 : closes - 1]
    return Instruction(
        name.lstrip("%"),
        opcode,
        _arrays(shape),
        tuple(NAME.findall(inside)),
        inside,
        rest[closes:],
        is_root,
    )


def _closing(text: str, start: int) -> int:
    """Returns the index after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    raise ValueError(f"a parenthesis is never closed: {text[start : start + 80]}")


def _arrays(shape: str) -> tuple[Array, ...]:
    return tuple(
        Array(
            dtype,
            tuple(int(size) for size in sizes.split(",") if size),
            # S(n) is a memory space: S(1) a TPU's vector memory, S(5) the host's.
            "S(" not in layout or "S(0)" in layout,
        )
        for dtype, sizes, layout in ARRAY.findall(shape)
    )


def numbers(text: str) -> list[int]:
    """Returns the numbers of a list such as 0,1,2."""
    return [int(number) for number in text.split(",") if number.strip()]


def trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Returns how often a loop's body runs; None if that depends on the data.

    CPU and GPU programs state it. TPU programs do not, but jax's loops of known length count up to
    a constant, by one, or by two if the compiler merged two iterations.
    """
    if known := loop.attribute(r'"known_trip_count":\{"n":"(\d+)"'):
        return int(known)
    condition = program.computations[loop.attribute(r"condition=%?([\w.\-]+)")]
    compare, inside, given = condition.root, condition, []
    if compare.opcode == "fusion":
        given = condition.operands(compare)
        (inside,) = program.called(compare)
        compare = inside.root
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return None
    counter, limit = (_argument(i, given) for i in inside.operands(compare))
    if limit.opcode != "constant" or counter.opcode != "get-tuple-element":
        return None
    index = _index(counter)
    start, stride = _start(computation, loop, index), _stride(program, loop, index)
    if start is None or not stride:
        return None
    return math.ceil((int(limit.literal) - start) / stride)


def _argument(instruction: Instruction, given: list[Instruction]) -> Instruction:
    """Returns the argument of a fusion's parameter, or the instruction itself."""
    is_parameter = given and instruction.opcode == "parameter"
    return given[int(instruction.literal)] if is_parameter else instruction


def _index(element: Instruction) -> int:
    return int(element.attribute(r"index=(\d+)"))


def _start(computation: Computation, loop: Instruction, index: int) -> int | None:
    """Returns the initial value of the loop state's element at `index`."""
    (state,) = computation.operands(loop)
    if state.opcode != "tuple":
        return None
    return _constant(_copied(computation, computation.operands(state)[index]))


def _stride(program: Program, loop: Instruction, index: int) -> int | None:
    """Returns what an iteration adds to the loop state's element at `index`."""
    body = program.computations[loop.attribute(r"body=%?([\w.\-]+)")]
    if body.root.opcode != "tuple":
        return None
    added = body.operands(body.root)[index]
    if added.opcode != "add":
        return None
    counter, stride = (_copied(body, operand) for operand in body.operands(added))
    is_counter = counter.opcode == "get-tuple-element" and _index(counter) == index
    return _constant(stride) if is_counter else None


def _copied(computation: Computation, instruction: Instruction) -> Instruction:
    """Returns the origin of a chain of copies and conversions."""
    while instruction.opcode in ("copy", "bitcast", "copy-done", "copy-start", "convert"):
        instruction = computation.operands(instruction)[0]
    return instruction


def _constant(instruction: Instruction) -> int | None:
    return int(instruction.literal) if instruction.opcode == "constant" else None
