"""Arrays as short text for a page: quantised, compressed by zlib, written in base64.

A value x is stored as the code round(M * sqrt(|x| / scale)) with its sign, so small values keep
more digits than large ones. M is 255 or 65,535 for weights, which lie in [0, 1], and 127 or 32,767
for signed values. The browser reads them in page/packed_arrays.js.
"""

import base64
import zlib

import numpy as np


def largest_code(bits: int, signed: bool = False) -> int:
    """The largest code of so many bits."""
    return 2 ** (bits - signed) - 1


def error_bound(values: np.ndarray, bits: int, signed: bool = False, scale: float = 1.0):
    """How far a stored value can be from the true one: sqrt(x) / M, and a bit more near zero."""
    half_step = 0.5 / largest_code(bits, signed)
    root = np.sqrt(np.abs(np.asarray(values, np.float64)) / scale)
    return scale * (2 * root * half_step + half_step**2)


def pack(values: np.ndarray, bits: int, signed: bool = False) -> dict:
    """Packs an array. Each entry of its first axis becomes a part that is decoded by itself."""
    scale = float(np.abs(values).max(initial=0.0)) if signed else 1.0
    parts = [_deflate(_planes(_codes(part, bits, signed, scale), bits)) for part in values]
    return {"bits": bits, "signed": signed, "scale": scale, "parts": parts}


def unpack(packed: dict, shape: tuple[int, ...]) -> np.ndarray:
    """Reads what `pack` wrote, the way a browser does. `shape` is that of the whole array."""
    largest = largest_code(packed["bits"], packed["signed"])
    parts = []
    for text in packed["parts"]:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
        codes = planes.astype(np.int64)
        if packed["bits"] == 16:
            high, low = codes.reshape(2, -1)
            codes = high * 256 + low
        roots = (codes - largest * packed["signed"]) / largest
        parts.append(np.sign(roots) * roots**2 * packed["scale"])
    return np.stack(parts).reshape(shape)


def pack_bits(values: np.ndarray) -> list[str]:
    """Packs booleans, eight in a byte, one text for each entry of the first axis."""
    return [_deflate(np.packbits(part).tobytes()) for part in values]


def pack_sums(totals: np.ndarray) -> list[str]:
    """Packs sums of weights in steps of 1e-4, as 16 bits."""
    steps = np.round(np.clip(totals, 0, 6.5) * 10_000).astype(np.int64)
    return [_deflate(_planes(part, 16)) for part in steps]


def _codes(values: np.ndarray, bits: int, signed: bool, scale: float) -> np.ndarray:
    largest = largest_code(bits, signed)
    # In float64: rounding in float32 would cross the edge between two codes now and then.
    sizes = np.abs(values.astype(np.float64)) / (scale or 1.0)
    roots = np.sqrt(np.minimum(sizes, 1.0))
    codes = np.rint(largest * roots).astype(np.int32)
    return largest + np.where(values < 0, -codes, codes) if signed else codes


def _planes(codes: np.ndarray, bits: int) -> bytes:
    """The codes' high bytes, then their low bytes: high bytes alone compress well."""
    low = (codes & 255).astype(np.uint8).tobytes()
    return low if bits == 8 else (codes >> 8).astype(np.uint8).tobytes() + low


def _deflate(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode("ascii")
