"""A job of two processes whose workdir is in a bucket."""

import json

import pytest

from checkpointing import loaded_run
from storage.object_store import remote_path
from tests.cloud.conftest import free_port
from tests.test_processes import ended, losses, start
from training import processes


@pytest.mark.slow
@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_two_processes_save_together(store, request):
    url = f"{request.getfixturevalue(store)}/two-processes"
    common = {processes.ADDRESS: f"localhost:{free_port()}", processes.COUNT: "2"}
    first, second = ended(*(start(url, 2, **common, **{processes.INDEX: str(n)}) for n in range(2)))
    assert json.loads(first.splitlines()[-1])["step"] == 3
    assert '"step"' not in second
    remote = remote_path(url)
    assert len(losses(remote)) == 3
    assert json.loads((remote / "environment.json").read_text())["processes"] == 2
    assert (remote / "checkpoints/3/digests.json").exists()
    assert loaded_run.load(url).step == 3
    assert not [each for each in remote.iterdir() if each.name.startswith(".")]
