"""What a network and a server of objects do wrong, and what becomes of a run, in both stores."""

import gc
import threading
import types

import pytest

import evaluate
import train
from checkpointing import checkpoint_manager
from checkpointing.checkpoint_manager import Checkpoints
from configs import dates
from experiment import sections
from experiment.schema import ConfigError
from storage import lease, mirror
from storage.mirror import Mirror, open_run_directory
from storage.object_store import remote_path
from tests.cloud.conftest import child
from tests.cloud.runs import STEPS, assert_same_run, flags_of, wait_for
from tests.runs import tiny
from training.exits import SaveFailedError
from training.loop import Loop

# After a failed save, tensorstore reports to an event loop that Orbax has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
OUTAGE_SECONDS = 3.0


@pytest.fixture(scope="module", params=["gcs", "s3"])
def store(request):
    """A store of objects, the proxy before it, and how its requests are spelt."""
    is_s3 = request.param == "s3"
    return types.SimpleNamespace(
        bucket=request.getfixturevalue(request.param),
        proxy=request.getfixturevalue(f"{request.param}_proxy"),
        write="PUT " if is_s3 else "POST ",
        path=lambda *names: ("/" if is_s3 else "%2F").join(names),
        # Google's clients ask again for a while if Google itself says that a credential is invalid.
        expired=400 if is_s3 else 401,
        expired_body=b"<Error><Code>ExpiredToken</Code></Error>" if is_s3 else b"",
    )


def outage(proxy):
    """The server dies, and comes back."""
    proxy.die()
    threading.Timer(OUTAGE_SECONDS, proxy.start).start()


@pytest.fixture(scope="module")
def survivor(store, local):
    """A run to which all of this happened."""
    url, config = f"{store.bucket}/survivor", tiny(dates, STEPS)
    faults, path = store.proxy.faults, store.path
    if store.bucket.startswith("s3"):  # test_runs_in_a_bucket.py does this at gs://
        with faults(503, path("checkpoints", "2", "commit_success")):
            process = child(
                "train.py", "--config=configs/dates.py", f"--workdir={url}", *flags_of(config)
            )
            wait_for(remote_path(url) / "checkpoints/2/digests.json", process)
            process.kill()
            process.communicate()
        assert checkpoint_manager.saved_steps(url) == []
    # The server is gone in the middle of the first save; the credential expires before the second.
    first, second = path("checkpoints", "2", "params", "ocdbt"), path("checkpoints", "4")
    with (
        faults(0, store.write, first, count=1, then=lambda: outage(store.proxy)) as dead,
        faults(store.expired, store.write, second, body=store.expired_body),
        pytest.raises(SaveFailedError) as failed,
    ):
        train.train_and_evaluate(config, url)
    assert dead.done == 1
    assert "the checkpoint of step 4 could not be written" in str(failed.value)
    assert "older ones are intact: check the network and your credentials" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert checkpoint_manager.saved_steps(url) == [2]
    del failed
    gc.collect()  # such reports, while the warning is off
    # A server that is busy, limits the number of requests, and is slow.
    with (
        faults(503, store.write, "survivor", count=3) as busy,
        faults(429, "GET ", "survivor", count=3) as limited,
        faults(0, store.write, path("checkpoints", "6"), count=2) as slow,
    ):
        train.train_and_evaluate(config, url)
    assert [each.done for each in (busy, limited, slow)] == [3, 3, 2]
    return url


def test_nothing_is_lost(survivor, local):
    assert_same_run(survivor, local, [2, 4, 6])
    assert not (remote_path(survivor) / lease.NAME).exists()
    scores = evaluate.evaluate(survivor)
    expected = evaluate.evaluate(local)
    assert scores | {"seconds": 0} == expected | {"seconds": 0}


def test_a_damaged_checkpoint_is_put_aside(survivor, store):
    """It is moved, not deleted, and the one before it is taken."""
    data = next((remote_path(survivor) / "checkpoints/6/params/d").iterdir())
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    workdir, warnings = open_run_directory("--workdir", survivor), []
    config = sections.from_mapping(tiny(dates, STEPS)).checkpoint
    with Checkpoints(workdir, config) as checkpoints:
        assert checkpoints.newest_valid(warnings.append) == 4
    assert f"{data} has changed since it was written" in warnings[0]
    aside = remote_path(survivor) / "corrupt/6/params/d" / data.name
    assert aside.read_bytes() == bytes(content)
    assert checkpoint_manager.saved_steps(survivor) == [2, 4]


def test_refused_in_one_line_before_anything_is_read_or_compiled(store, monkeypatch):
    def never(*arguments, **more):
        raise AssertionError("went on")

    monkeypatch.setattr(train.pipeline, "load", never)

    def refusal(url):
        with pytest.raises(ConfigError) as refused:
            train.train_and_evaluate(tiny(dates, 1), url)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    scheme, faults = store.bucket.partition("://")[0], store.proxy.faults
    url = f"{store.bucket}/refused"
    missing = f"{scheme}://no-such-bucket/run"
    assert f"--workdir={missing} cannot be written (there is no such bucket)" in refusal(missing)
    assert f"--workdir={scheme}:///run has no valid name of a bucket" in refusal(f"{scheme}:///run")
    with faults(403, store.write, "refused"):
        assert f"--workdir={url} cannot be written (" in refusal(url)
    with faults(store.expired, "refused", body=store.expired_body):
        assert f"--workdir={url} cannot be " in (said := refusal(url))
        assert "your credentials" in said


def test_training_steps_send_no_requests(store, monkeypatch):
    """Between saves, even at log lines. A clock renews the lease and uploads records."""
    counts, step = {}, Loop._step

    def counted(loop, *arguments):
        lines = [line for line in store.proxy.lines if lease.NAME not in line]
        result = step(loop, *arguments)
        counts[len(counts) + 1] = len(lines)
        return result

    monkeypatch.setattr(Loop, "_step", counted)
    monkeypatch.setattr(mirror, "UPLOAD_SECONDS", 1e6)  # the clock, on a slow machine
    steps, saved = 12, 8
    config = tiny(dates, steps, checkpoint=dict(every=saved), eval=dict(every=0))
    train.train_and_evaluate({**config, "log_every": 2}, f"{store.bucket}/counted")
    # At the beginning of step n, steps up to n - 1 are done.
    assert len({counts[n] for n in range(1, saved + 1)}) == 1
    assert len({counts[n] for n in range(saved + 1, steps + 1)}) == 1
    assert counts[saved] < counts[saved + 1] < len(store.proxy.lines)


def test_records_that_cannot_be_uploaded_are_uploaded_later(store):
    copy = Mirror(f"{store.bucket}/later")
    (copy.directory / "metrics.jsonl").write_text("{}\n")
    with store.proxy.faults(403, store.write, "later"), pytest.raises(OSError):
        copy.upload()
    copy.upload()
    assert (remote_path(copy.url) / "metrics.jsonl").read_text() == "{}\n"
