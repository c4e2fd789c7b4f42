import importlib.util

import pytest

from experiment.schema import ConfigError
from planning import targets


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5:4x4", "is not known. Did you mean 'v5p'?"),
        ("a10:8", "is not known. Did you mean 'a100'?"),
        ("toaster", "is not known. Known: v4, v5e,"),
        ("v5e:8", "needs a topology of 2 axes after a colon: v5e:4x4"),
        ("v5p:4x4", "needs a topology of 3 axes after a colon: v5p:4x4x4"),
        ("a100", "needs a number of devices after a colon, as in a100:8"),
        ("a100:0", "needs a number of devices after a colon"),
        ("h100:12", "is not a multiple of 8, the size of a node; choose 8 or 16"),
        ("cpu:4096", "comes too late: jax has already started"),
    ],
)
def test_unknown_devices_are_refused(name, message):
    with pytest.raises(ConfigError) as error:
        targets.find(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("v5e:2x4", "libtpu", "pip install -e '.[plan-tpu]'"),
        ("a100:8", "jax_plugins", "pip install -e '.[plan-cuda]'"),
    ],
)
def test_a_missing_compiler_is_refused_with_the_install_command(name, package, command):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ConfigError) as error:
        targets.find(name)
    assert command in str(error.value)


def test_every_device_has_all_its_figures():
    for kind in {*targets.TPUS.values(), *targets.GPUS.values()}:
        target = targets.Target("x", kind, ())
        assert min(target.chip[:3]) > 0
        # No chip computes less than a FLOP, or more than a few thousand, for each byte it reads.
        assert 1 < target.peak_flops / target.chip.bandwidth < 2000
