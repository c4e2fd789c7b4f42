"""Packing buffers of the CPU backend's matmuls, by hand."""

import jax
import jax.numpy as jnp
import pytest

from planning import hlo
from planning.matmul_buffers import packing
from training.compilation import compiler_options

THREADS = 3


def packed(subscripts: str, *shapes: tuple[int, ...], threads: int = THREADS) -> int:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    einsum = jax.jit(lambda *x: jnp.einsum(subscripts, *x))
    text = einsum.lower(*arrays).compile(compiler_options()).as_text()
    return packing(hlo.parse(text), threads)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "size"),
    [
        ("td,df->tf", [(4096, 192), (192, 768)], THREADS * (4096 + 768) * 192 * 4),
        # All elements are under way at once, beside what the threads keep.
        ("btk,bsk->bts", [(6, 256, 32), (6, 256, 32)], (THREADS + 6) * (256 + 256) * 32 * 4),
        ("bts,bsk->btk", [(6, 256, 256), (6, 256, 32)], (THREADS + 6) * (256 + 32) * 256 * 4),
        # What is summed over comes in four slices of 256, of which two are there at a time.
        ("td,df->tf", [(512, 1024), (1024, 64)], THREADS * 2 * (512 + 64) * 256 * 4),
        # Too small to be shared.
        ("btk,bsk->bts", [(6, 64, 32), (6, 64, 32)], 0),
        # 32.4 MiB: given back at once.
        ("td,df->tf", [(33000, 256), (256, 192)], 0),
    ],
)
def test_packing_buffer_sizes(subscripts, shapes, size):
    assert packed(subscripts, *shapes) == size


def test_a_single_thread_needs_no_packing_buffer():
    assert packed("td,df->tf", (4096, 192), (192, 768), threads=0) == 0
