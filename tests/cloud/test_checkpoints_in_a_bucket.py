"""Which checkpoints a bucket keeps, and an Orbax that cannot be used there."""

import dataclasses
import types

import pytest

from checkpointing.checkpoint_manager import Checkpoints, saved_steps
from experiment.schema import ConfigError
from storage import orbax_on_s3
from storage.mirror import open_run_directory
from tests.checkpointing.test_checkpoint_manager import (
    CONFIG,
    METRIC,
    abstract,
    assert_same,
    make_state,
)
from tests.cloud.conftest import objects


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_old_checkpoints_are_removed(store, request):
    """All but the newest, the best and the last regular one; and nothing remains of the others."""
    url = f"{request.getfixturevalue(store)}/pruned"
    workdir = open_run_directory("--workdir", url)
    config = dataclasses.replace(CONFIG, keep=1, every=2, best_metric=METRIC, best_mode="max")
    with Checkpoints(workdir, config) as checkpoints:
        for step, score in enumerate((0.1, 0.9, 0.2, 0.3, 0.4), start=1):
            checkpoints.save(step, make_state(step), {METRIC: score})
        assert checkpoints.best() == (2, 0.9)
    assert saved_steps(url) == [2, 4, 5]
    places = {name.split("/")[1] for name in objects(url) if name.startswith("checkpoints/")}
    assert places == {"2", "4", "5"}
    with Checkpoints(workdir, config) as checkpoints:
        assert_same(checkpoints.restore(5, abstract(make_state())), make_state(5))
        checkpoints.forget_after(3)
    assert saved_steps(url) == [2]


def test_another_orbax_is_refused_in_one_line(monkeypatch):
    from orbax.checkpoint._src.serialization import tensorstore_utils

    monkeypatch.delattr(tensorstore_utils, "_use_gcs_driver")
    orbax_on_s3.enable.cache_clear()
    with pytest.raises(ConfigError, match=r"^runs at s3:// need another version than orbax-che"):
        orbax_on_s3.enable()


def test_amazons_own_servers_are_left_to_tensorstore(monkeypatch, s3):
    """Another server needs its address and a region."""
    own = orbax_on_s3.kvstore("s3://bucket/a/b")
    assert own["endpoint"].startswith("http://127.0.0.1:") and own["aws_region"] == "us-east-1"
    assert (own["bucket"], own["path"]) == ("bucket", "a/b")
    endpoint = "https://s3.us-east-1.amazonaws.com"
    client = types.SimpleNamespace(meta=types.SimpleNamespace(endpoint_url=endpoint))
    files = types.SimpleNamespace(connect=lambda: None, s3=client)
    monkeypatch.setattr(orbax_on_s3, "filesystem", lambda url: files)
    amazon = orbax_on_s3.kvstore("s3://bucket/a/b")
    assert "endpoint" not in amazon and "aws_region" not in amazon
