"""Where our parameters lie in their tensors: any part can be read alone, and all written back."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pretrained.layouts import At, layout, places, their_shapes, to_ours, to_theirs
from tests.pretrained.make_fixtures import FIXTURES

# (ours, where, our shape, their tensor in words: an independent way to get ours from theirs)
CASES = {
    "linear": ("a/kernel", At("t"), (4, 6), lambda t: t.T),
    "to heads": ("a/query/kernel", At("t"), (4, 3, 2), lambda t: t.T.reshape(4, 3, 2)),
    "from heads": ("self_attention/out/kernel", At("t"), (3, 2, 4), lambda t: t.T.reshape(3, 2, 4)),
    "untransposed": ("a/kernel", At("t", untransposed=True), (4, 6), lambda t: t),
    "the middle third": (
        "a/key/kernel",
        At("t", untransposed=True, part=(1, 3)),
        (4, 3, 2),
        lambda t: np.split(t, 3, axis=1)[1].reshape(4, 3, 2),
    ),
    "a third of a bias": (
        "a/key/bias",
        At("t", untransposed=True, part=(2, 3)),
        (3, 2),
        lambda t: np.split(t, 3)[2].reshape(3, 2),
    ),
    "a table": ("a/embedding", At("t"), (7, 4), lambda t: t),
    "rows that mean nothing": ("a/embedding", At("t", rows_before=2), (7, 4), lambda t: t[2:]),
    "ones in front": ("a/embedding", At("t", leading_ones=2), (7, 4), lambda t: t[0, 0]),
    "patches": (
        "a/kernel",
        At("t", patch=(2, 2, 3)),
        (12, 5),
        lambda t: np.moveaxis(t, (0, 1, 2, 3), (3, 2, 0, 1)).reshape(12, 5),
    ),
}


def tensor_of(lies, rng):
    return rng.normal(size=lies.their_shape).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_a_slice_of_a_converted_tensor_is_the_converted_slice(case):
    path, at, shape, in_words = CASES[case]
    rng = np.random.default_rng(0)
    lies = layout(at, path, shape)
    tensor = tensor_of(lies, rng)
    ours = in_words(tensor)
    assert ours.shape == shape
    for _ in range(50):
        bounds = [sorted(rng.integers(0, size + 1, 2)) for size in shape]
        index = tuple(slice(*pair) for pair in bounds)
        np.testing.assert_array_equal(lies.read(tensor.__getitem__, index), ours[index])
    everything = (slice(None),) * len(shape)
    np.testing.assert_array_equal(lies.read(tensor.__getitem__, everything), ours)


@pytest.mark.parametrize("case", CASES)
def test_writing_is_the_inverse_of_reading(case):
    path, at, shape, in_words = CASES[case]
    lies = layout(at, path, shape)
    tensor = tensor_of(lies, np.random.default_rng(1))
    ours = in_words(tensor)
    again = np.zeros_like(tensor)
    lies.place(ours, again)
    np.testing.assert_array_equal(in_words(again), ours)
    if not lies.total:
        np.testing.assert_array_equal(again, tensor)


def test_a_device_reads_its_part_alone():
    """Of a kernel split by heads or by width, no byte of another device's part is read."""
    lies = layout(At("t"), "a/query/kernel", (8, 4, 2))
    tensor = tensor_of(lies, np.random.default_rng(0))
    read = []

    def counting(index):
        read.append(math.prod(part.stop - part.start for part in index))
        return tensor[index]

    lies.read(counting, (slice(0, 8), slice(1, 2), slice(0, 2)))
    lies.read(counting, (slice(2, 4), slice(None), slice(None)))
    assert read == [tensor.size // 4, tensor.size // 4]


def test_layers_are_stacked_and_parts_put_together():
    table = {
        "blocks/query": At("h.{layer}.qkv", untransposed=True, part=(0, 2)),
        "blocks/key": At("h.{layer}.qkv", untransposed=True, part=(1, 2)),
        "end": "end",
    }
    shapes = {"blocks/query/kernel": (3, 4, 2), "blocks/key/kernel": (3, 4, 2), "end/bias": (5,)}
    rng = np.random.default_rng(0)
    ours = {path: rng.normal(size=shape) for path, shape in shapes.items()}
    found = list(places(shapes, table))
    theirs = dict(to_theirs(found, ours))
    assert {name: x.shape for name, x in theirs.items()} == their_shapes(found)
    for layer in range(3):
        both = [ours[f"blocks/{name}/kernel"][layer] for name in ("query", "key")]
        np.testing.assert_array_equal(theirs[f"h.{layer}.qkv.weight"], np.concatenate(both, axis=1))
    again, unused = to_ours(shapes, table, theirs)
    assert unused == set() and again.keys() == ours.keys()
    assert all(np.array_equal(again[path], ours[path]) for path in ours)


DIGESTS = """
import hashlib
from pathlib import Path

import jax
import numpy as np

from tests.pretrained.test_parity import imported

for name in ("llama", "gpt2", "t5"):
    *_, params = imported(Path({fixtures!r}) / name)
    leaves = jax.tree.leaves(params)
    split = sum(not leaf.is_fully_replicated for leaf in leaves)
    print(name, jax.device_count(), split > 3)
    print([hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves])
"""


def test_two_devices_hold_the_same_model():
    root = Path(__file__).resolve().parent.parent.parent

    def run(devices):
        flags = f"--xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS.format(fixtures=str(FIXTURES))],
            cwd=root,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    one, two = run(1), run(2)
    assert one[1::2] == two[1::2]
    assert two[0::2] == [f"{name} 2 True" for name in ("llama", "gpt2", "t5")]
