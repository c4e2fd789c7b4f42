"""Counts of compiled programs, against arithmetic by hand and XLA's own analysis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planning import hlo
from planning.collectives import Collective, by_kind
from planning.counting import cost

LAYERS, ROWS, WIDTH = 6, 32, 48


def compiled(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*arguments).compile()


def cost_of(function, *shapes):
    return cost(hlo.parse(compiled(function, *shapes).as_text()))


def layers(x, kernels, unroll=1):
    def layer(x, kernel):
        return jnp.tanh(x @ kernel), None

    return jax.lax.scan(layer, x, kernels, unroll=unroll)[0].sum()


STACK = (ROWS, WIDTH), (LAYERS, WIDTH, WIDTH)


def test_a_product():
    found = cost_of(lambda a, b: a @ b, (32, 48), (48, 56))
    assert found.flops == 2 * 32 * 48 * 56
    assert found.bytes == 4 * (32 * 48 + 48 * 56 + 32 * 56)


def test_a_batch_of_products():
    found = cost_of(lambda a, b: jnp.einsum("bqd,bkd->bqk", a, b), (3, 16, 24), (3, 20, 24))
    assert found.flops == 2 * 3 * 16 * 20 * 24


def test_int8_matmuls_are_counted():
    def products(a, b, c):
        int8_matmul = jax.lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        )
        return int8_matmul, b.astype(jnp.float32) @ c

    shapes = [((8, 16), jnp.int8), ((16, 24), jnp.int8), ((24, 4), jnp.float32)]
    arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    found = cost(hlo.parse(jax.jit(products).lower(*arguments).compile().as_text())).times(3)
    assert found.narrow_flops == 3 * 2 * 8 * 16 * 24
    assert found.flops == found.narrow_flops + 3 * 2 * 16 * 24 * 4


def test_a_loop_counts_as_often_as_it_runs():
    assert cost_of(layers, *STACK).flops == LAYERS * 2 * ROWS * WIDTH**2


def test_a_loop_costs_what_its_layers_cost_one_by_one():
    both = dict(argnums=(0, 1))
    looped = cost_of(jax.grad(layers, **both), *STACK)
    unrolled = cost_of(jax.grad(lambda *a: layers(*a, unroll=LAYERS), **both), *STACK)
    assert looped.flops == unrolled.flops == 3 * LAYERS * 2 * ROWS * WIDTH**2


def test_loops_in_loops():
    def repeated(x, kernels):
        return jax.lax.fori_loop(0, 5, lambda _, total: total + layers(x + total, kernels), 0.0)

    assert cost_of(repeated, *STACK).flops == 5 * LAYERS * 2 * ROWS * WIDTH**2


def test_a_loop_of_unknown_length_is_named_and_counts_once():
    def until_small(x, kernel):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ kernel, x)

    found = cost_of(until_small, (WIDTH, WIDTH), (WIDTH, WIDTH))
    assert found.flops == 2 * WIDTH**3
    assert len(found.unknown) == 1 and found.unknown[0].startswith("the passes of while")


def test_a_conditional_costs_its_cheaper_branch():
    def either(x, kernel):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ kernel, lambda: x @ kernel @ kernel)

    assert cost_of(either, (WIDTH, WIDTH), (WIDTH, WIDTH)).flops == 2 * WIDTH**3


def test_a_loop_reads_of_a_stack_one_layer_at_a_time():
    def bytes_of(count):
        return cost_of(layers, (ROWS, WIDTH), (count, WIDTH, WIDTH)).bytes

    kernel, activations = 4 * WIDTH**2, 4 * ROWS * WIDTH
    a_layer = (bytes_of(40) - bytes_of(20)) / 20
    # Cut out of the stack, multiplied, activated: a whole stack would be 20 kernels at least.
    assert kernel + activations < a_layer < 6 * kernel + 4 * activations


@pytest.mark.parametrize(
    "options",
    [
        dict(padding="VALID"),
        dict(padding="SAME"),
        dict(padding=[(2, 0)], window_strides=(2,)),
        dict(padding=[(0, 0)], lhs_dilation=(3,)),
        dict(padding=[(4, 1)], rhs_dilation=(2,)),
    ],
)
def test_convolutions_count_what_xla_counts(options):
    options = dict(window_strides=(1,)) | options
    program = compiled(
        lambda x, kernel: jax.lax.conv_general_dilated(
            x, kernel, **options, dimension_numbers=("NHC", "HIO", "NHC")
        ),
        (2, 17, 4),
        (5, 4, 8),
    )
    assert cost(hlo.parse(program.as_text())).flops == program.cost_analysis()["flops"]


def program(instructions: str) -> hlo.Program:
    return hlo.parse(f"HloModule test\n\nENTRY %main () -> f32[] {{\n{instructions}\n}}\n")


def test_a_tpu_writes_a_batch_of_products_as_a_convolution_with_zeros_between():
    # Scores of 4 rows and 2 heads: 128 queries by 128 keys, heads of 64.
    found = cost(
        program(
            "  %q = bf16[4,128,2,64] parameter(0)\n"
            "  %k = bf16[4,128,2,64] parameter(1)\n"
            "  ROOT %scores = bf16[4,2,128,128] convolution(%q, %k), "
            "window={size=4x2 stride=3x1 lhs_dilate=4x2}, dim_labels=0b1f_0o1i->01bf"
        )
    )
    assert found.flops == 2 * 4 * 2 * 128 * 128 * 64


def test_a_sum_over_rows_can_be_a_convolution_too():
    # A kernel's gradient: the sum over 4 rows of (256 x 128) times (128 x 512).
    found = cost(
        program(
            "  %x = bf16[4,128,256] parameter(0)\n"
            "  %dy = bf16[4,128,512] parameter(1)\n"
            "  ROOT %dw = bf16[256,512,1] convolution(%x, %dy), "
            "window={size=4}, dim_labels=0fb_0io->bf0"
        )
    )
    assert found.flops == 2 * 4 * 128 * 256 * 512


def test_cublas_says_what_it_contracts():
    found = cost(
        program(
            "  %a = bf16[64,32] parameter(0)\n"
            "  %b = bf16[32,16] parameter(1)\n"
            '  ROOT %c = bf16[64,16] custom-call(%a, %b), custom_call_target="__cublas$gemm", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
            '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
        )
    )
    assert found.flops == 2 * 64 * 32 * 16


def test_an_unknown_kernel_is_named():
    found = cost(
        program(
            "  %a = bf16[64,32] parameter(0)\n"
            '  ROOT %mine = bf16[64,32] custom-call(%a), custom_call_target="tpu_custom_call"'
        )
    )
    assert found.unknown == ("the kernel mine",)


@pytest.mark.parametrize(
    ("opcode", "groups", "group", "sent"),
    [
        ("all-reduce", "{{0,1,2,3},{4,5,6,7}}", 4, 2 * 3 / 4),
        ("all-gather", "[4,2]<=[8]", 2, 1),
        ("all-gather", "[2,4]<=[4,2]T(1,0)", 4, 3),
        ("reduce-scatter", "mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", 8, 7 / 8),
        ("all-to-all", "mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", 4, 3 / 4),
    ],
)
def test_bytes_that_a_collective_sends(opcode, groups, group, sent):
    found = cost(
        program(
            "  %x = bf16[16,1024] parameter(0)\n"
            f"  ROOT %y = bf16[16,1024] {opcode}(%x), channel_id=1, replica_groups={groups}"
        )
    )
    size = 2 * 16 * 1024
    assert found.collectives == (Collective(opcode, group, 1, size * sent),)


def test_the_two_halves_of_a_collective_are_one():
    found = cost(
        program(
            "  %x = f32[8] parameter(0)\n"
            "  %s = (f32[8], f32[16]) all-gather-start(%x), channel_id=1, replica_groups={{0,1}}\n"
            "  ROOT %d = f32[16] all-gather-done(%s)"
        )
    )
    assert found.collectives == (Collective("all-gather", 2, 1, 32),)


def test_a_collective_that_fusions_share_counts_once():
    text = """HloModule test

%start (p: f32[8]) -> f32[16] {
  %p = f32[8] parameter(0)
  ROOT %gather.1 = f32[16] all-gather(%p), channel_id=5, replica_groups=[1,2]<=[2], dimensions={0}
}

%end (q: f32[8]) -> f32[16] {
  %q = f32[8] parameter(0)
  ROOT %gather.2 = f32[16] all-gather(%q), channel_id=5, replica_groups=[1,2]<=[2], dimensions={0}
}

ENTRY %main (x: f32[8]) -> f32[16] {
  %x = f32[8] parameter(0)
  %begun = f32[16] fusion(%x), kind=kCustom, calls=%start
  ROOT %ended = f32[16] fusion(%x), kind=kCustom, calls=%end
}
"""
    (found,) = by_kind(cost(hlo.parse(text)).collectives).values()
    assert found == Collective("all-gather", 2, 1, 32)


# From a program for v5e, with the names and sizes changed: an all-gather that starts, is carried
# through a fusion with a matmul and one with an update of a stack, and ends.
IN_FLIGHT = """HloModule test

%start (p: bf16[64,128]) -> (bf16[64,128], bf16[256,128], u32[]) {
  %p = bf16[64,128]{1,0} parameter(0)
  %gather.1 = bf16[256,128]{1,0} all-gather(%p), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %begin = (bf16[64,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.2 (p: bf16[64,128], g: bf16[256,128], u: u32[], a: bf16[32,48], b: bf16[48,16]) -> (f32[32,16], bf16[64,128], bf16[256,128], bf16[256,128], u32[]) {
  %a = bf16[32,48]{1,0} parameter(3)
  %b = bf16[48,16]{1,0} parameter(4)
  %product = f32[32,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
  %p = bf16[64,128]{1,0} parameter(0)
  %g = bf16[256,128]{1,0} parameter(1)
  %gather.2 = bf16[256,128]{1,0} all-gather(%p), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  %u = u32[]{:S(2)} parameter(2)
  ROOT %t = (f32[32,16]{1,0}, bf16[64,128]{1,0}, bf16[256,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) tuple(%product, %p, %g, %gather.2, %u)
}

%async_collective_fusion.3 (p: bf16[64,128], g: bf16[256,128], u: u32[], stack: f32[12,32,16], new: f32[1,32,16], n: s32[]) -> (f32[12,32,16], bf16[64,128], bf16[256,128], bf16[256,128], u32[]) {
  %stack = f32[12,32,16]{2,1,0} parameter(3)
  %new = f32[1,32,16]{2,1,0} parameter(4)
  %n = s32[]{:S(6)} parameter(5)
  %zero = s32[] constant(0)
  %updated = f32[12,32,16]{2,1,0} dynamic-update-slice(%stack, %new, %n, %zero, %zero)
  %p = bf16[64,128]{1,0} parameter(0)
  %g = bf16[256,128]{1,0} parameter(1)
  %gather.3 = bf16[256,128]{1,0} all-gather(%p), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  %u = u32[]{:S(2)} parameter(2)
  ROOT %t = (f32[12,32,16]{2,1,0}, bf16[64,128]{1,0}, bf16[256,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) tuple(%updated, %p, %g, %gather.3, %u)
}

%end (p: bf16[64,128], g: bf16[256,128], u: u32[]) -> bf16[256,128] {
  %p = bf16[64,128]{1,0} parameter(0)
  %g = bf16[256,128]{1,0} parameter(1)
  %gather.4 = bf16[256,128]{1,0} all-gather(%p), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  %u = u32[]{:S(2)} parameter(2)
  ROOT %finish = bf16[256,128]{1,0} custom-call(%p, %g, %gather.4, %u), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: bf16[64,128], a: bf16[32,48], b: bf16[48,16], stack: f32[12,32,16], new: f32[1,32,16], n: s32[]) -> bf16[256,128] {
  %x = bf16[64,128]{1,0} parameter(0)
  %a = bf16[32,48]{1,0} parameter(1)
  %b = bf16[48,16]{1,0} parameter(2)
  %stack = f32[12,32,16]{2,1,0} parameter(3)
  %new = f32[1,32,16]{2,1,0} parameter(4)
  %n = s32[]{:S(6)} parameter(5)
  %started = (bf16[64,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %p.1 = bf16[64,128]{1,0} get-tuple-element(%started), index=0
  %g.1 = bf16[256,128]{1,0} get-tuple-element(%started), index=1
  %u.1 = u32[]{:S(2)} get-tuple-element(%started), index=2
  %one = (f32[32,16]{1,0}, bf16[64,128]{1,0}, bf16[256,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) fusion(%p.1, %g.1, %u.1, %a, %b), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (1, {}), {4}: (2, {})}, calls=%async_collective_fusion.2
  %p.2 = bf16[64,128]{1,0} get-tuple-element(%one), index=1
  %g.2 = bf16[256,128]{1,0} get-tuple-element(%one), index=3
  %u.2 = u32[]{:S(2)} get-tuple-element(%one), index=4
  %two = (f32[12,32,16]{2,1,0}, bf16[64,128]{1,0}, bf16[256,128]{1,0}, bf16[256,128]{1,0}, u32[]{:S(2)}) fusion(%p.2, %g.2, %u.2, %stack, %new, %n), kind=kLoop, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (1, {}), {4}: (2, {})}, calls=%async_collective_fusion.3
  %p.3 = bf16[64,128]{1,0} get-tuple-element(%two), index=1
  %g.3 = bf16[256,128]{1,0} get-tuple-element(%two), index=3
  %u.3 = u32[]{:S(2)} get-tuple-element(%two), index=4
  ROOT %ended = bf16[256,128]{1,0} fusion(%p.3, %g.3, %u.3), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, calls=%end
}
"""  # noqa: E501


def test_buffers_of_a_collective_in_flight_are_memory_traffic_once():
    found = cost(hlo.parse(IN_FLIGHT))
    gathered = 2 * 64 * 128 + 2 * 256 * 128  # a part is read, and the whole is written
    matmul = 2 * 32 * 48 + 2 * 48 * 16 + 4 * 32 * 16
    updated = 2 * 4 * 32 * 16  # of the stack, one layer
    assert found.bytes == gathered + matmul + updated
    assert found.flops == 2 * 32 * 48 * 16
    assert by_kind(found.collectives) == {
        ("all-gather", 4): Collective("all-gather", 4, 1, 3 * 2 * 64 * 128)
    }


def test_on_chip_buffers_are_no_memory_traffic():
    found = cost(
        program(
            "  %x = f32[1024]{0:T(1024)} parameter(0)\n"
            "  %near = f32[1024]{0:T(1024)S(1)} negate(%x)\n"
            "  ROOT %far = f32[1024]{0:T(1024)} negate(%near)"
        )
    )
    assert found.bytes == 2 * 4096


SPLASH = (
    "  %blocks = s8[1,4,2] parameter(0)\n"
    "  %q = bf16[ROWS6,1024,64] parameter(1)\n"
    "  %k = bf16[ROWS2,1024,64] parameter(2)\n"
    "  ROOT %a = bf16[ROWS6,1024,64] custom-call(%blocks, %q, %k, %k), "
    'custom_call_target="tpu_custom_call", '
    "frontend_attributes={kernel_metadata={\n"
    '"xprof_metadata":"{\\"block_q\\": 256, \\"block_kv\\": 512}"\n'
    '}}, metadata={op_name="jit(step)/SIDE/blocks/self_attention/splash_mha_fwd_x/pallas_call"}'
)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("count", [1, 2])
def test_attention_kernels_count_the_blocks_that_they_visit(stack, count):
    rows, columns = 256, 512
    hidden = np.triu(np.ones((1024, 1024)), 1) if stack == "decoder" else np.zeros((1024, 1024))
    blocks = hidden.reshape(1024 // rows, rows, 1024 // columns, columns)
    visited = rows * columns * (~blocks.all(axis=(1, 3))).sum()
    axis_of_rows = f"{count}," if count > 1 else ""  # left out for a single row
    found = cost(program(SPLASH.replace("SIDE", stack).replace("ROWS", axis_of_rows)))
    assert found.kernel_flops == found.flops == 2 * 2 * (count * 6) * visited * 64
