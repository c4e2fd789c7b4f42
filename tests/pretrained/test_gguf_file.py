"""GGUF files are not trusted, and their tensors are read by rows."""

import importlib.util
import struct

import gguf
import numpy as np
import pytest

from experiment.schema import ConfigError
from pretrained.gguf_file import RenamedTensors, open_gguf
from tests.gguf_files import write_gguf

RNG = np.random.default_rng(0)
Q4_K, Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K


def half(block, start):
    return float(block[start : start + 2].view(np.float16)[0])


def q4_k_by_hand(block):
    """A block of 256 numbers: eight parts with a scale and a minimum of six bits each."""
    scale, minimum, packed, quants = half(block, 0), half(block, 2), block[4:16], block[16:]
    values = []
    for part in range(8):
        if part < 4:
            s, m = packed[part] & 63, packed[part + 4] & 63
        else:
            s = (packed[part + 4] & 15) | ((packed[part - 4] >> 6) << 4)
            m = (packed[part + 4] >> 4) | ((packed[part] >> 6) << 4)
        for byte in quants[part // 2 * 32 : part // 2 * 32 + 32]:
            number = byte >> 4 if part % 2 else byte & 15
            values.append(scale * int(s) * int(number) - minimum * int(m))
    return values


def q6_k_by_hand(block):
    """A block of 256 numbers of six bits: four low ones, two high ones, and 16 scales."""
    values = np.zeros(256)
    scales, scale = block[192:208].view(np.int8), half(block, 208)
    for number in range(256):
        part, within = divmod(number, 128)
        quarter, column = divmod(within, 32)
        low = int(block[part * 64 + quarter % 2 * 32 + column])
        low = low >> 4 if quarter >= 2 else low & 15
        high = int(block[128 + part * 32 + column]) >> (2 * quarter) & 3
        values[number] = scale * int(scales[number // 16]) * ((low | high << 4) - 32)
    return values


def blocks(kind, rows, columns):
    """Random blocks of a kind whose scales are finite numbers."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = RNG.integers(0, 256, (rows, columns, size), dtype=np.uint8)
    scales = RNG.normal(size=(rows, columns, 2)).astype(np.float16).view(np.uint8)
    if kind == Q4_K:
        data[..., :4] = scales
    else:
        data[..., -2:] = scales[..., :2]
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind, by_hand", [(Q4_K, q4_k_by_hand), (Q6_K, q6_k_by_hand)])
def test_rows_of_k_quants_are_the_formats_numbers(kind, by_hand, tmp_path):
    data = blocks(kind, 6, 2)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    expected = np.array([[by_hand(b) for b in row.reshape(2, size)] for row in data])
    expected = expected.reshape(6, 512)
    path = write_gguf(tmp_path / "x.gguf", "llama", {}, {"a": (data, kind), "b": (data, kind)})
    tensors = RenamedTensors(open_gguf(path), {"A": "a", "B": "b"}, {"B": 1})
    assert tensors.shapes == {"A": (6, 512), "B": (6, 512)}
    found = tensors.read("A", (slice(1, 4), slice(3, 300)))
    np.testing.assert_allclose(found, expected[1:4, 3:300], rtol=1e-5, atol=1e-6)
    # Of a head of six rows, the file has 0, 3, 1, 4, 2, 5.
    found = tensors.read("B", (slice(0, 6), slice(None)))
    np.testing.assert_allclose(found[[0, 3, 1, 4, 2, 5]], expected, rtol=1e-5, atol=1e-6)
    assert tensors.read("A", (slice(2, 2), slice(None))).shape == (0, 512)


def test_floats_are_read_exactly(tmp_path):
    values = RNG.normal(size=(3, 32)).astype(np.float32)
    kinds = gguf.GGMLQuantizationType
    stored = {
        "f32": values,
        "f16": values.astype(np.float16),
        "bf16": (gguf.quantize(values, kinds.BF16), kinds.BF16),
        "one": np.float32([1.5, -2]),
    }
    made = write_gguf(tmp_path / "x.gguf", "llama", {}, {"f32": values, "one": stored["one"]})
    tensors = RenamedTensors(open_gguf(made), {"f32": "f32", "one": "one"})
    np.testing.assert_array_equal(tensors.read("f32", (slice(1, 3),)), values[1:])
    np.testing.assert_array_equal(tensors.read("one", (slice(1, 2),)), [-2])
    pairs = {"f16": (stored["f16"], kinds.F16), "bf16": stored["bf16"]}
    tensors = open_gguf(write_gguf(tmp_path / "y.gguf", "llama", {}, pairs)).tensors
    np.testing.assert_array_equal(
        tensors["f16"].rows(slice(None)), stored["f16"].astype(np.float32)
    )
    bits = tensors["bf16"].rows(slice(None)).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    np.testing.assert_allclose(bits.view(np.float32), values, rtol=2**-8)


def refusal(path):
    with pytest.raises(ConfigError) as refused:
        open_gguf(path)
    (line,) = str(refused.value).splitlines()
    assert str(path) in line
    return line


def test_the_missing_package_is_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs the extra gguf: pip install -e '.[gguf]'" in refusal(tmp_path / "x.gguf")


def string(text):
    return struct.pack("<Q", len(text)) + text


def header(*fields, tensors=b"", count=0, fields_count=None):
    number = len(fields) if fields_count is None else fields_count
    start = b"GGUF" + struct.pack("<IQQ", 3, count, number)
    return start + b"".join(fields) + tensors


def tensor(name, shape, kind, offset):
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return string(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    "content",
    {
        "empty": b"",
        "another format": b"PK\x03\x04" + bytes(60),
        "only a start": b"GGUF" + struct.pack("<I", 3),
        "a version of the future": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        "more fields than bytes": header(fields_count=1 << 60),
        "more tensors than bytes": header(count=1 << 60),
        "a key beyond the end": header(struct.pack("<Q", 1 << 40) + b"abc"),
        "a text beyond the end": header(string(b"a") + struct.pack("<IQ", 8, 1 << 62)),
        "an endless list": header(string(b"a") + struct.pack("<IIQ", 9, 4, 1 << 62)),
        "an endless list of lists": header(
            string(b"a") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 3000
        ),
        "a text that is no UTF-8": header(string(b"a") + struct.pack("<I", 8) + string(b"\xff")),
        "an unknown type of a field": header(string(b"a") + struct.pack("<IQ", 77, 0)),
        "the same key twice": header(*[string(b"a") + struct.pack("<II", 4, 1)] * 2),
        "a tensor beyond the end": header(tensors=tensor(b"t", (64,), 0, 0), count=1) + bytes(64),
        "a tensor at the end of the world": header(
            tensors=tensor(b"t", (4,), 0, 1 << 60), count=1
        ) + bytes(64),
        "a size that overflows": header(
            tensors=tensor(b"t", (1 << 40, 1 << 40), 0, 0), count=1
        ) + bytes(64),
        "a tensor without a type": header(tensors=tensor(b"t", (4,), 77, 0), count=1) + bytes(64),
        "the same tensor twice": header(tensors=tensor(b"t", (4,), 0, 0) * 2, count=2) + bytes(64),
        "rows that are no blocks": header(tensors=tensor(b"t", (33, 2), 8, 0), count=1) + bytes(99),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_a_damaged_file_is_refused(content, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(content[1])
    assert "is not a valid GGUF file" in refusal(path)


def test_types_that_the_package_cannot_read_are_named(tmp_path):
    kind = gguf.GGMLQuantizationType.I32
    data = np.arange(4, dtype=np.int32)
    path = write_gguf(tmp_path / "x.gguf", "llama", {}, {"numbers": (data, kind)})
    assert "numbers has the type I32" in refusal(path)
