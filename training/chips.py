"""Published figures of one jax device: dense bfloat16 FLOP/s, memory and links."""

from typing import NamedTuple

# Keyed by jax's full device_kind: names of different chips share prefixes (L4 and L40S, A10 and
# A100, desktop and laptop). A name that is not here has no known peak.
_PEAK_TFLOPS = {
    # cloud.google.com/tpu/docs has one page per version; jax's names are in
    # jax/_src/pallas/mosaic/tpu_info.py. The pages count chips. Where the two cores of a chip are
    # two jax devices, each device has half.
    "TPU v2": 46 / 2,
    "TPU v3": 123 / 2,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5": 459,
    "TPU v5p": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
    "TPU7x": 2307 / 2,
    # NVIDIA's data sheets. From Ampere on they print figures "with sparsity", twice the dense ones.
    "Tesla V100-SXM2-16GB": 125,  # float16: Volta and Turing have no bfloat16
    "Tesla V100-SXM2-32GB": 125,
    "Tesla V100-PCIE-16GB": 112,
    "Tesla V100-PCIE-32GB": 112,
    "Tesla T4": 65,
    "NVIDIA A10": 125,
    "NVIDIA A30": 165,
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA L4": 242 / 2,
    "NVIDIA L40S": 733 / 2,
    "NVIDIA H100 80GB HBM3": 1979 / 2,
    "NVIDIA H100 PCIe": 1513 / 2,
    "NVIDIA H100 NVL": 1671 / 2,
    "NVIDIA H200": 1979 / 2,
    "NVIDIA GH200 480GB": 1979 / 2,
    "NVIDIA B200": 4500 / 2,
    # NVIDIA's Ada and Ampere GA102 whitepapers: bfloat16 with float32 accumulation.
    "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 4090": 165.2,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of a device; None if it is not known, as for CPUs."""
    tflops = _PEAK_TFLOPS.get(device_kind)
    return None if tflops is None else tflops * 1e12


class Chip(NamedTuple):
    """Memory of a device in bytes, and rates in bytes per second."""

    memory: float
    bandwidth: float  # of that memory
    links: float  # to other devices: all links together, one way
    network: float | None = None  # to other nodes of eight devices, one way; None: links reach all


GIB, GB = 2**30, 1e9
_CHIPS = {
    # From the same pages. A "bidirectional" figure is twice the one-way rate. For v4: six links of
    # 50 GB/s each, arXiv:2304.01433.
    "TPU v4": Chip(32 * GIB, 1200 * GB, 300 * GB),
    "TPU v5 lite": Chip(16 * GIB, 819 * GB, 400 / 2 * GB),
    "TPU v5": Chip(95 * GIB, 2765 * GB, 1200 / 2 * GB),
    "TPU v6 lite": Chip(32 * GIB, 1638 * GB, 800 / 2 * GB),
    # From the same data sheets, which count NVLink both ways. The networks are those of DGX A100
    # and DGX H100: one port of 200 or 400 Gbit/s per GPU.
    "NVIDIA A100-SXM4-40GB": Chip(40 * GIB, 1555 * GB, 600 / 2 * GB, 200 / 8 * GB),
    "NVIDIA A100-SXM4-80GB": Chip(80 * GIB, 2039 * GB, 600 / 2 * GB, 200 / 8 * GB),
    "NVIDIA H100 80GB HBM3": Chip(80 * GIB, 3350 * GB, 900 / 2 * GB, 400 / 8 * GB),
}


def chip(device_kind: str) -> Chip | None:
    """Returns the figures of a device; None if they are not known, as for CPUs."""
    return _CHIPS.get(device_kind)
