"""Memory and cost of a compiled program, from the compiler's analysis and the program's text."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator

import jax

from experiment.schema import ConfigError
from planning import hlo
from planning.counting import Cost, cost
from planning.matmul_buffers import packing
from planning.serial_depth import serial_depth

UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    arguments: int
    # Intermediate values, and results that do not reuse the buffers of arguments.
    temporaries: int
    program: int
    packing: int  # CPUs only: buffers allocated at run time (planning/matmul_buffers.py)

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries + self.program + self.packing


class TooLargeError(Exception):
    """The compiler ran out of memory. `temporaries` and `total` are 0 if it gave no number."""

    def __init__(self, message: str):
        super().__init__(message)
        self.temporaries = _bytes_in(message, r"HLO temporaries \(([\d.]+)([BKMGT])\)")
        self.total = _bytes_in(message, r"Used ([\d.]+)([BKMGT]) of [\d.]+[BKMGT] hbm")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program's memory and cost on one device."""

    memory: Memory
    cost: Cost
    serial_depth: int  # matmuls and loop iterations that wait for one another


@contextlib.contextmanager
def catch_out_of_memory() -> Iterator[None]:
    """Raises TooLargeError if the compiler runs out of memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLargeError(str(error)) from None


def measure(compiled: jax.stages.Compiled, threads: float) -> Compiled:
    """Returns memory and cost of a program; `threads` is `Target.threads`."""
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        raise ConfigError(
            "jax cannot read the compiled program, because the compiler's version does not match "
            "jax's; install the one that does: pip install -e '.[plan-tpu]'"
        ) from None
    found, program = compiled.memory_analysis(), hlo.parse(text)
    memory = Memory(
        arguments=found.argument_size_in_bytes,
        temporaries=found.temp_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes,
        program=found.generated_code_size_in_bytes,
        packing=packing(program, threads),
    )
    return Compiled(memory, cost(program), serial_depth(program))


def _bytes_in(message: str, pattern: str) -> int:
    found = re.search(pattern, message)
    return int(float(found.group(1)) * UNITS[found.group(2)]) if found else 0
