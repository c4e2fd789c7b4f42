"""Probes of a run that was trained: computed once for each checkpoint, and found again."""

import json
import shutil
import tarfile
from types import SimpleNamespace

import pytest

import evaluate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from sweeps import probe_computation
from sweeps.cell_results import read_result
from sweeps.probe_computation import compute_probes
from sweeps.probe_results import missing_probes, probe_values
from sweeps.probes import score_longer_rows
from sweeps.probes.probe import Probe
from tests import scripts
from tests.old_runs import make
from tests.recorded_runs import write_run

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compile_once):
    """A small language model with its data."""
    directory = tmp_path_factory.mktemp("probed")
    make.write_data(directory / "data")
    with tarfile.open(make.FOLDER / "decoder.tar.gz") as archive:
        archive.extractall(directory / "run", filter="data")
    path = directory / "run" / "config.json"
    config = json.loads(path.read_text())
    config["data"]["path"] = str(directory / "data" / "decoder")
    path.write_text(json.dumps(config))
    return directory / "run"


def test_the_command_computes_a_probe_once(trained, tmp_path, monkeypatch):
    """Rows of other lengths have the scores of evaluate.py with the changed keys."""
    monkeypatch.setattr(score_longer_rows, "TIMES", (1, 4))
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    command = ("sweep.py", f"--run={run}", "--probes=score_longer_rows")
    first = scripts.run(*command)
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert len(found) == 4
    config = loaded_run.recorded_config(trained)
    for times in (1, 4):
        rows = score_longer_rows.TOKENS // (16 * times)
        changed = {**config, "data": {**config["data"], "length": 16 * times}}
        changed["eval"] = {**config["eval"], "batch_size": rows, "batches": 1}
        scores = evaluate.evaluate(trained, config=changed)
        for name in ("loss", "bits_per_byte"):
            (expected,) = (value for key, value in scores.items() if key.endswith(f"/{name}"))
            value = found[f"probe/score_longer_rows/{name}/{times}"]
            assert value == pytest.approx(expected, rel=1e-6)
    assert found["probe/score_longer_rows/loss/1"] != found["probe/score_longer_rows/loss/4"]
    path = run / "probes" / "score_longer_rows.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "values": {"loss/1": "inf"}}))
    again = scripts.run(*command)  # the file is of this checkpoint, so it stays
    assert json.loads(again.out) == {"probe/score_longer_rows/loss/1": "inf"}
    path.write_text(json.dumps({**content, "checkpoint": "of another run"}))
    assert missing_probes(run, ["score_longer_rows"]) and not probe_values(run)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A run with a checkpoint, and probes that count how often they are computed."""
    run = write_run(tmp_path / "run")
    save(run, 40, "a")
    counts = {"one": 0, "two": 0}

    def probe(name):
        def compute(probed):
            counts[name] += 1
            if (run / "broken").exists() and name == "two":
                raise ConfigError("broken")
            return {"key_1": float(counts[name])}

        return Probe(compute, lambda experiment: "", keys=("key_*",))

    probes = {name: probe(name) for name in counts}
    for module in ("probe_checks", "probe_computation"):
        monkeypatch.setattr(f"sweeps.{module}.PROBES", probes)
    stub = SimpleNamespace(run=SimpleNamespace(experiment=None))
    monkeypatch.setattr(probe_computation, "open_run", lambda workdir: stub)
    return run, counts


def save(run, step, digest):
    place = run / "checkpoints" / str(step)
    place.mkdir(parents=True, exist_ok=True)
    (place / "digests.json").write_text(digest)
    (place / "_CHECKPOINT_METADATA").write_text("{}")


def test_only_missing_probes_are_computed(recorded):
    run, counts = recorded
    assert compute_probes(run, ["one"]) == ["one"]
    assert missing_probes(run, ["one", "two"]) == ["two"]
    assert compute_probes(run, ["one", "two"]) == ["two"] and counts == {"one": 1, "two": 1}
    assert probe_values(run) == {"probe/one/key_1": 1.0, "probe/two/key_1": 1.0}
    assert compute_probes(run, ["one", "two"]) == [] and counts == {"one": 1, "two": 1}


@pytest.mark.parametrize(("step", "digest"), [(40, "b"), (60, "a")])
def test_another_checkpoint_needs_its_own_values(recorded, step, digest):
    """Also one of the same step: a run may have been removed and trained again."""
    run, counts = recorded
    compute_probes(run, ["one"])
    save(run, step, digest)
    assert probe_values(run) == {} and missing_probes(run, ["one"]) == ["one"]
    compute_probes(run, ["one"])
    assert counts["one"] == 2 and probe_values(run) == {"probe/one/key_1": 2.0}


def test_what_was_found_before_a_failure_stays(recorded):
    run, counts = recorded
    (run / "broken").touch()
    with pytest.raises(ConfigError, match="broken"):
        compute_probes(run, ["one", "two"])
    assert missing_probes(run, ["one", "two"]) == ["two"]
    (run / "broken").unlink()
    compute_probes(run, ["one", "two"])
    assert counts["one"] == 1 and not missing_probes(run, ["one", "two"])


def test_a_damaged_file_is_computed_again(recorded):
    run, _ = recorded
    compute_probes(run, ["one"])
    (run / "probes" / "one.json").write_text('{"step": 40')
    assert probe_values(run) == {} and compute_probes(run, ["one"]) == ["one"]


def test_a_cell_is_done_when_its_probes_are(recorded):
    run, _ = recorded
    match = "eval/dates/exact_match"
    metrics, probes = [match, "probe/one/key_*", "probe/two/key_1"], ["one"]
    result = read_result(run, metrics, 40, probes=probes)
    assert result.is_trained and not result.is_done and result.values == {}
    compute_probes(run, probes)
    result = read_result(run, metrics, 40, probes=probes)
    assert result.is_done and result.values == {match: 0.75, "probe/one/key_1": 1.0}
    assert read_result(run, [match], 40).is_done
    assert not read_result(run, [match], 80, probes=probes).is_trained


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--run=nowhere", "--probes=latency"], "--run=nowhere is no directory"),
        (["--run=nowhere"], "--run needs --probes"),
        (["--run=nowhere", "--probes=latenzy"], "Did you mean 'latency'"),
        (["--run=nowhere", "--probes=latency", "--grid=seed=0"], "leave --study, --grid"),
        (["--search=model.heads=1,2", "--probes=latency"], "--probes are for --grid"),
        (["--grid=seed=0", "--probes=latenzy"], "there is no latenzy"),
    ],
)
def test_bad_input_is_refused(arguments, reason):
    ended = scripts.run("sweep.py", *arguments)
    assert ended.code == 2 and reason in ended.err and len(ended.err.splitlines()) == 1


def test_a_probe_that_does_not_fit_a_run_is_refused(trained):
    ended = scripts.run("sweep.py", f"--run={trained}", "--probes=latency")
    assert ended.code == 2 and "task.objective=causal_lm is no classifier" in ended.err
    assert not (trained / "probes").exists()
