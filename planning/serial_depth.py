"""How many matmuls and loop iterations of a compiled program have to wait for one another.

A chip computes independent matmuls together, if it has room. It cannot do so with those that need
each other's results: their number bounds the time of a step from below, however large the chip is.
Iterations without a matmul count too: a TPU computes the product with a single row without its
matrix unit.
"""

from planning.counting import CUBLAS
from planning.hlo import Computation, Instruction, Program, trip_count

MATMULS = ("dot", "convolution")


def serial_depth(program: Program) -> int:
    """Returns the number of matmuls and iterations on the longest path through a program.

    The iterations of a loop run one after another, and each counts as one at least. As in
    planning/counting.py, a loop of unknown length counts once, and of a conditional the cheapest
    branch counts.
    """
    return _Depths(program).of(program.computations[program.entry])


class _Depths:
    def __init__(self, program: Program):
        self._program = program
        self._found: dict[str, int] = {}

    def of(self, computation: Computation) -> int:
        if computation.name not in self._found:
            depths: dict[str, int] = {}
            for instruction in computation.instructions.values():
                before = max((depths[name] for name in instruction.operands), default=0)
                depths[instruction.name] = before + self._own(computation, instruction)
            self._found[computation.name] = max(depths.values(), default=0)
        return self._found[computation.name]

    def _own(self, computation: Computation, instruction: Instruction) -> int:
        called = [self.of(inside) for inside in self._program.called(instruction)]
        match instruction.opcode:
            case "while":
                body = instruction.attribute(r"body=%?([\w.\-]+)")
                passes = trip_count(self._program, computation, instruction)
                return (passes or 1) * max(1, self.of(self._program.computations[body]))
            case "conditional":
                return min(called)
            case "fusion" | "call" | "async-start" | "call-start":
                return max(called, default=0)
            case "custom-call":
                return int(_is_matmul(instruction))
        return int(instruction.opcode in MATMULS)


def _is_matmul(instruction: Instruction) -> bool:
    target = instruction.attribute(r'custom_call_target="([^"]*)"')
    return target == "tpu_custom_call" or target.startswith(CUBLAS)
