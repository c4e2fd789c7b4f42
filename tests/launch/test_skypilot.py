"""launch/skypilot.yaml: what SkyPilot reads, and what its script runs."""

import pytest
import yaml

from tests.scripts import ROOT

FILE = ROOT / "launch/skypilot.yaml"
VALUES = dict(WORKDIR="gs://b/run", ARGUMENTS="--config=configs/x.py --config.data.path='a b'")


@pytest.fixture(scope="module")
def task_of():
    """SkyPilot's own reader, with the values of --env."""
    pytest.importorskip("sky", reason="needs pip install -e '.[launch-test]'")
    from sky import Task

    return lambda **values: Task.from_yaml_config(
        yaml.safe_load(FILE.read_text()), list(values.items())
    )


def test_skypilot_reads_the_task(task_of):
    task = task_of(**VALUES)
    (resources,) = task.resources
    assert resources.use_spot and resources.accelerators == {"A100": 1}
    assert resources.job_recovery["strategy"] == "EAGER_NEXT_REGION"
    assert task.workdir == "." and task.num_nodes == 1
    assert task.envs == VALUES | dict(EXTRAS="cuda12,gcs")


@pytest.mark.parametrize("name", VALUES)
def test_skypilot_refuses_a_missing_value_by_name(task_of, name):
    others = {key: value for key, value in VALUES.items() if key != name}
    with pytest.raises(ValueError, match=f"'{name}' is None. Please set a value"):
        task_of(**others)


@pytest.fixture
def run(stand_ins, tmp_path):
    """Runs the script of the task in a directory like the one that SkyPilot makes."""
    checkout = tmp_path / "sky_workdir"
    stand_ins.add(checkout / ".venv/bin/python", "python")
    (checkout / "launch").symlink_to(ROOT / "launch")
    script = yaml.safe_load(FILE.read_text())["run"]
    # What jax would see.
    (checkout / ".venv/bin/python").write_text(
        f'#!/bin/sh\nenv | grep ^JAX_ | sort\nexec sh {ROOT}/tests/launch/stand_in.sh python "$@"\n'
    )

    def run(**variables):
        defaults = dict(EXTRAS="cuda12,gcs", SKYPILOT_NUM_NODES="1", SKYPILOT_NODE_IPS="10.0.0.1")
        return stand_ins.run("bash", "-c", script, cwd=checkout, **defaults | VALUES | variables)

    return run


TRAIN = ["train.py", "--workdir=gs://b/run", "--config=configs/x.py", "--config.data.path=a b"]


def test_the_script_restarts_the_run_until_it_is_done(run, stand_ins):
    stand_ins.plan_codes(134, 0)
    ended = run()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert stand_ins.calls("python") == [TRAIN] * 2


def test_the_nodes_find_each_other(run, stand_ins):
    stand_ins.plan_codes(0, 0)
    nodes = dict(
        SKYPILOT_NUM_NODES="2", SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.2", SKYPILOT_NODE_RANK="1"
    )
    assert run(**nodes).stdout.splitlines() == [
        "JAX_COORDINATOR_ADDRESS=10.0.0.1:12345",
        "JAX_NUM_PROCESSES=2",
        "JAX_PROCESS_ID=1",
    ]
    assert run(**nodes, EXTRAS="tpu,gcs").stdout == ""  # jax asks the slice
