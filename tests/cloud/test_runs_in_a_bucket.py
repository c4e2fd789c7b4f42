"""Runs in a bucket: the same results as on a disk, and one writer."""

import json
import time

import pytest

import evaluate
import generate
import train
from checkpointing import loaded_run
from checkpointing.recorded_run import read_run
from configs import dates
from experiment.schema import ConfigError
from storage import lease
from storage.lease import Lease
from storage.mirror import Mirror, open_run_directory, with_urls
from storage.object_store import filesystem, remote_path
from tests import scripts
from tests.cloud.conftest import child, copy_run
from tests.cloud.runs import STEPS, assert_same_run, flags_of, wait_for
from tests.runs import tiny
from visualization import report_server


@pytest.fixture(scope="module")
def finished(gcs, local):
    """The same run in the bucket, stopped and resumed once."""
    url = f"{gcs}/finished"
    for steps in (4, STEPS):
        train.train_and_evaluate(tiny(dates, steps), url)
    return url


def test_a_run_and_its_resumption_are_as_on_a_disk(finished, local):
    # The run on the disk was not told to end at step 4, so it did not evaluate there twice.
    assert_same_run(finished, local, [2, 4, 6])
    assert (remote_path(finished) / "checkpoints/6/digests.json").exists()
    assert list((remote_path(finished) / "tensorboard").iterdir())
    assert not (remote_path(finished) / lease.NAME).exists()


def test_killed_inside_and_between_saves(gcs_faults, url, local):
    command = "train.py", "--config=configs/dates.py", f"--workdir={url}"
    command += tuple(flags_of(tiny(dates, STEPS)))
    checkpoints = remote_path(url) / "checkpoints"
    # Inside a save: all is written but the object that marks the checkpoint as complete.
    with gcs_faults(503, "checkpoints%2F2%2Fcommit_success"):
        process = child(*command)
        wait_for(checkpoints / "2" / "digests.json", process)
        process.kill()
        process.communicate()
    assert not (checkpoints / "2" / "commit_success.txt").exists()
    # Between saves.
    process = child(*command)
    wait_for(checkpoints / "4" / "commit_success.txt", process)
    process.kill()
    process.communicate()
    process = child(*command)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert f"resuming {url} at step 4" in errors or f"resuming {url} at step 6" in errors
    assert_same_run(url, local, [2, 4, 6])


def test_a_damaged_checkpoint_is_put_aside(finished, url, local, capsys):
    copy_run(finished, url)
    data = next((remote_path(url) / "checkpoints/6/params/d").iterdir())
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    with pytest.raises(ConfigError, match="has changed since it was written"):
        loaded_run.load(url)
    train.train_and_evaluate(tiny(dates, STEPS), url)
    assert f"{data} has changed since it was written" in capsys.readouterr().err
    assert (remote_path(url) / "corrupt/6/digests.json").exists()
    assert_same_run(url, local, [2, 4, 6])


def test_scripts_read_a_run_in_the_bucket(finished, local):
    score = evaluate.evaluate(finished)
    theirs = evaluate.evaluate(local)
    clock = ("seconds",)
    assert {k: v for k, v in score.items() if k not in clock} == {
        k: v for k, v in theirs.items() if k not in clock
    }
    recorded = (remote_path(finished) / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(recorded[-1])["step"] == STEPS
    assert generate.generate(finished, ["1 May 2020"]) == generate.generate(local, ["1 May 2020"])
    run = read_run(finished)
    assert (str(run.workdir), run.checkpoints) == (finished, (2, 4, 6))
    shown = scripts.run("report.py", f"--workdirs={finished}", "--text")
    assert shown.code == 0 and finished in shown.out and "run-" not in shown.out


def test_pages_of_a_run_in_the_bucket(finished, local, tmp_path):
    pytest.importorskip("plotly")
    for workdir, name in ((finished, "theirs"), (str(local), "ours")):
        numbers = tmp_path / f"{name}.json"
        given = ["--prompt=1. Mai", f"--json={numbers}", f"--output={tmp_path / name}.html"]
        ended = scripts.run("visualize.py", f"--workdir={workdir}", *given)
        assert ended.code == 0, ended.err
    theirs, ours = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("theirs", "ours"))
    assert theirs.pop("title") == "finished" and ours.pop("title") == "run"
    assert theirs == ours
    page = tmp_path / "report.html"
    ended = scripts.run("report.py", f"--workdirs={finished},{local}", f"--output={page}")
    assert ended.code == 0, ended.err
    text = page.read_text()
    assert f'title="{finished}"' in text and "<span>finished</span>" in text
    assert "mirror" not in text and str(open_run_directory("x", finished)) not in text
    ended = scripts.run("report.py", f"--workdirs={finished}/none")
    assert ended.code == 2 and f"{finished}/none" in ended.err and "run-" not in ended.err


def test_a_served_page_follows_a_run_in_the_bucket(finished, url, gcs_faults, gcs_requests):
    copy_run(finished, url)
    versions = []

    def make_page(version):
        versions.append(version)
        return str(read_run(url).metrics["train/loss"].last)

    server = report_server.ReportServer([url], make_page)
    try:
        assert server.page()[1] == server.page()[1] and len(versions) == 1
        before = gcs_requests()
        server.version()
        assert gcs_requests() - before <= 3, "lists what there is, and downloads nothing"
        mirror = Mirror(url)
        mirror.download()
        with (mirror.directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 7, "train/loss": 0.25}) + "\n")
        mirror.upload()
        assert server.page()[1] == b"(7, 0.25)" and len(versions) == 2
        with gcs_faults(403, "GET"), pytest.raises(ConfigError, match=f"{url} cannot be read"):
            server.page()
        assert server.page()[1] == b"(7, 0.25)" and len(versions) == 2
    finally:
        server.server_close()
    seconds = report_server.refresh_seconds
    assert seconds([url, "runs/a"]) > seconds(["runs/a"])


def test_a_run_starts_from_a_run_in_the_bucket(finished, local, tmp_path):
    scores = [
        train.train_and_evaluate(tiny(dates, 1, init_from=str(source)), tmp_path / name)
        for name, source in (("a", f"{finished}:4"), ("b", f"{local}:4"))
    ]
    assert scores[0] == scores[1]


def test_one_writer(url, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.5)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.1)
    with Lease(url):
        with pytest.raises(ConfigError, match=r"in use by another run \(process .* in \d+ s"):
            train.train_and_evaluate(tiny(dates, 1), url)
        # A run elsewhere is not seen, but it renews its lease.
        monkeypatch.setattr(lease, "_machine", lambda: "elsewhere")
        with pytest.raises(ConfigError, match="expires at"):
            Lease(url).__enter__()
        # If it was killed, its lease is taken over when it has expired.
        now = time.time
        monkeypatch.setattr(lease.time, "time", lambda: now() + lease.SECONDS + 1)
        first = Lease(url)
        with first, Lease(url + "2"):
            first.confirm()
            first._write = lambda: None
            filesystem(url).pipe_file(f"{url}/{lease.NAME}", b'{"id": "other"}')
            with pytest.raises(lease.LeaseLostError, match="another run has taken over"):
                first.confirm()


def test_a_run_waits_for_the_lease_of_a_machine_that_is_gone(url, monkeypatch):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    record = {"id": "gone", "holder": "process 7 on gone", "machine": "gone", "pid": 7}
    expires = time.time() + 2
    content = json.dumps({**record, "expires": expires}).encode()
    filesystem(url).pipe_file(f"{url}/{lease.NAME}", content)
    warnings = []
    with Lease(url, warnings.append) as taken:
        assert time.time() >= expires
        taken.confirm()
    (warning,) = warnings
    assert "leased to another run (process 7 on gone); if that run is dead" in warning


def test_only_what_changed_is_uploaded(url, gcs_requests, monkeypatch):
    monkeypatch.setattr("storage.mirror.PART_BYTES", 100)
    mirror = Mirror(url)
    path, lines = mirror.directory / "metrics.jsonl", [f"{n:09d}\n" for n in range(35)]
    path.write_text("".join(lines))
    (mirror.directory / "config.json").write_text("{}")
    mirror.upload()
    before = gcs_requests()
    mirror.upload()
    assert gcs_requests() == before
    with path.open("a") as file:
        file.write("more\n")
    mirror.upload()
    assert gcs_requests() - before == 1
    other = Mirror(url)
    other.download()
    assert path.read_text() == "".join(lines) + "more\n"
    path.write_text("".join(lines[:12]))  # a rollback
    other.upload()
    (other.directory / "config.json").unlink()
    other.upload()
    names = sorted(each.name for each in remote_path(url).iterdir())
    assert names == ["metrics.jsonl", "metrics.jsonl.part00001"]
    assert (open_run_directory("x", url) / "metrics.jsonl").read_text() == "".join(lines[:12])


def test_a_run_that_is_not_there_is_refused_in_one_line(url):
    with pytest.raises(ConfigError) as refused:
        evaluate.evaluate(f"{url}/none")
    said = with_urls(str(refused.value))
    assert f"{url}/none is not a run's directory" in said and "\n" not in said
