import jax
import pytest

from training.chips import peak_flops


@pytest.mark.parametrize(
    ("device_kind", "flops"),
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
    ],
)
def test_published_peaks(device_kind, flops):
    assert peak_flops(device_kind) == pytest.approx(flops)


@pytest.mark.parametrize(("device_kind", "chip_tflops"), [("TPU v3", 123), ("TPU7x", 2307)])
def test_two_devices_share_a_chip(device_kind, chip_tflops):
    assert 2 * peak_flops(device_kind) == pytest.approx(chip_tflops * 1e12)


@pytest.mark.parametrize(
    "device_kind", ["cpu", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "TPU v99"]
)
def test_an_unknown_chip_has_no_peak_flops(device_kind):
    assert peak_flops(device_kind) is None


def test_this_machine_is_asked_as_jax_names_it():
    kind = jax.devices("cpu")[0].device_kind
    assert peak_flops(kind) is None
