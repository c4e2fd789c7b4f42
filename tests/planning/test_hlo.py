"""The text of programs, also in the ways that only TPU's compiler writes it."""

import jax
import jax.numpy as jnp
import pytest

from planning import hlo

# TPU's compiler does not say how long a loop is.
LOOP = """HloModule test

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %more = s32[] constant(STRIDE)
  %j = s32[] add(%i, %more)
  ROOT %next = (s32[], f32[8]) tuple(NEXT, %x)
}, execution_thread="sparsecore"

%condition (t: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(12)
  %t = (s32[]{:T(128)}, f32[8]{0:T(128)S(1)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %less = pred[] compare(%count, %limit), direction=DIRECTION
}

ENTRY %main (x0: f32[8], n: s32[]) -> (s32[], f32[8]) {
  %x0 = f32[8] parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant(START)
  %copied = s32[] copy(%zero)
  %state = (s32[], f32[8]) tuple(BEGIN, %x0)
  ROOT %loop = (s32[], f32[8]) while(%state), condition=%condition, body=%body
}
"""


def passes(**changes):
    text = LOOP
    usual = dict(direction="LT", start="0", begin="%copied", stride="1", next="%j")
    for key, value in (usual | changes).items():
        text = text.replace(key.upper(), value)
    program = hlo.parse(text)
    entry = program.computations[program.entry]
    return hlo.trip_count(program, entry, entry.instructions["loop"])


def test_a_loop_that_counts_to_a_constant():
    assert passes() == 12
    assert passes(start="2") == 10


def test_a_loop_whose_passes_were_joined():
    assert passes(stride="2") == 6
    assert passes(stride="5") == 3


@pytest.mark.parametrize(
    "loop", [dict(direction="NE"), dict(begin="%n"), dict(next="%i"), dict(stride="0")]
)
def test_a_loop_that_only_the_data_can_tell(loop):
    assert passes(**loop) is None


def test_the_length_that_jax_gives_a_loop():
    def function(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=17)[0]

    program = hlo.parse(jax.jit(function).lower(jnp.ones(3)).compile().as_text())
    lengths = [
        hlo.trip_count(program, computation, instruction)
        for computation in program.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "while"
    ]
    assert lengths == [17]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[4,8]{1,0}", 128),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30),
        ("pred[7]", 7),
        ("s4[3]", 2),
        ("f8e4m3fn[9]", 9),
        ("s32[]", 4),
        ("(f32[2], (bf16[2], s32[]{:S(4)}), token[])", 16),
    ],
)
def test_bytes_of_shapes(text, size):
    program = hlo.parse(f"ENTRY %main () -> f32[] {{\n  ROOT %x = {text} parameter(0)\n}}\n")
    assert sum(array.bytes for array in program.computations["main"].root.arrays) == size
