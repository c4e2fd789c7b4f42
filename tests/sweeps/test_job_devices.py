"""How jobs share cores and GPUs, with pretended devices."""

import pytest

from experiment.schema import ConfigError
from sweeps.job_devices import environment_of, gpu_names, split_devices


@pytest.fixture
def gpus(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_one_job_may_use_everything(gpus):
    (devices,) = split_devices(1, {}, [0, 1], gpus)
    assert devices.cpus is None and devices.environment == {}


def test_cores_are_shared_evenly(tmp_path):
    found = split_devices(3, {}, [0, 2, 4, 6, 8, 10, 12, 14], tmp_path)
    shares = [sorted(each.cpus) for each in found]
    assert sorted(cpu for share in shares for cpu in share) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert sorted(map(len, shares)) == [2, 3, 3]
    assert not any(each.environment for each in found)


def test_gpus_are_shared_and_those_of_the_environment_count(gpus):
    assert gpu_names({}, gpus) == ["0", "1", "2", "10"]
    shares = [each.environment for each in split_devices(2, {}, [0, 1], gpus)]
    assert shares == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,10"}]
    chosen = {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}
    shares = [each.environment for each in split_devices(2, chosen, [0, 1], gpus)]
    assert shares == [{"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}]
    for none in ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}):
        assert gpu_names(none, gpus) == []
    assert gpu_names({"JAX_PLATFORMS": "cpu"}, gpus) == []


def test_more_jobs_than_devices_are_refused(gpus, tmp_path):
    with pytest.raises(ConfigError, match="there are 4; choose at most 4"):
        split_devices(5, {}, list(range(8)), gpus)
    with pytest.raises(ConfigError, match="may use 2; choose at most 2"):
        split_devices(3, {"JAX_PLATFORMS": "cpu"}, [0, 1], gpus)
    with pytest.raises(ConfigError, match="must be at least 1"):
        split_devices(0, {}, [0, 1], tmp_path)


def test_a_tpu_host_has_one_job(tmp_path):
    (tmp_path / "accel0").touch()
    with pytest.raises(ConfigError, match="one job at a time"):
        split_devices(2, {}, [0, 1], tmp_path)
    assert len(split_devices(2, {"JAX_PLATFORMS": "cpu"}, [0, 1], tmp_path)) == 2


def test_a_cell_is_no_part_of_the_job_that_started_the_sweep(gpus):
    devices = split_devices(2, {}, [0, 1], gpus)[1]
    variables = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "HOME": "/h"}
    assert environment_of(devices, variables) == {"HOME": "/h", "CUDA_VISIBLE_DEVICES": "2,10"}
