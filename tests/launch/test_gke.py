"""launch/gke.sh: the JobSet that it applies."""

import importlib

import pytest
import yaml

from tests.launch.test_restart import FINAL
from tests.scripts import ROOT

VALUES = dict(
    NAME="run", IMAGE="x-docker.pkg.dev/p/r/backbone:1", TPU="tpu-v5-lite-podslice",
    TOPOLOGY="4x4", WORKDIR="gs://b/run",
)  # fmt: skip
HOSTILE = ("--config=configs/x.py", '--config.data.path=it\'s "a" \\ $(PATH) # path: [')


@pytest.fixture
def apply(stand_ins):
    """Runs the script; returns the manifest that kubectl got."""

    def run(*arguments, **values):
        ended = stand_ins.run(ROOT / "launch/gke.sh", *arguments, **VALUES | values)
        assert ended.returncode == 0, ended.stderr
        return yaml.safe_load((stand_ins.home / "manifest.yaml").read_text())

    return run


def pods(manifest):
    """The specs of the Job and of its pods."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    return job, job["template"]["spec"]


def test_the_manifest_fits_the_schema_of_jobset_and_kubernetes(apply):
    """Nothing is lost when it is read: a key that the schema does not know would be."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="needs pip install -e '.[launch-test]'"
    )
    manifest = apply(*HOSTILE)
    assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest


def test_the_schema_notices_a_mistake(apply):
    pytest.importorskip("kubeflow_trainer_api", reason="needs pip install -e '.[launch-test]'")
    models = importlib.import_module("kubeflow_trainer_api.models")
    manifest = apply(*HOSTILE)
    job, pod = pods(manifest)
    job["backOffLimit"] = job.pop("backoffLimit")
    pod["containers"][0]["resource"] = pod["containers"][0].pop("resources")
    found = models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict()
    assert (
        "backOffLimit" not in pods(found)[0] and "resource" not in pods(found)[1]["containers"][0]
    )


def test_every_pod_runs_the_same_command(apply, stand_ins):
    _, pod = pods(apply(*HOSTILE))
    (container,) = pod["containers"]
    # Kubernetes would replace $(PATH).
    escaped = HOSTILE[1].replace("$(", "$$(")
    assert container["args"] == ["python", "train.py", "--workdir=gs://b/run", HOSTILE[0], escaped]
    assert container["image"] == VALUES["IMAGE"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert stand_ins.calls("kubectl") == [["apply", "--filename=-"]]


@pytest.mark.parametrize(
    ("topology", "chips_per_host", "hosts", "chips"),
    [("4x4", "4", 4, 4), ("2x2x4", "4", 4, 4), ("2x4", "8", 1, 8), ("1x1", "4", 1, 1)],
)
def test_there_is_a_pod_for_each_host(apply, topology, chips_per_host, hosts, chips):
    job, pod = pods(apply("--seed=1", TOPOLOGY=topology, CHIPS_PER_HOST=chips_per_host))
    assert job["completions"] == job["parallelism"] == hosts
    assert job["completionMode"] == "Indexed"
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"google.com/tpu": chips}


def test_all_pods_start_again_unless_that_would_not_help(apply):
    manifest = apply("--config=configs/x.py", MAX_RESTARTS="7")
    policy = manifest["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job, pod = pods(manifest)
    # The first pod that fails fails the Job, and JobSet creates all of them again.
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert set(rule["onExitCodes"]["values"]) == set(FINAL)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (dict(TOPOLOGY="16"), "TOPOLOGY=16 must be that of the node pool"),
        (dict(TOPOLOGY="3x3"), "TOPOLOGY=3x3 has 9 chips, no multiple"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(stand_ins, values, problem):
    ended = stand_ins.run(ROOT / "launch/gke.sh", "--config=configs/x.py", **VALUES | values)
    assert ended.returncode == 2 and problem in ended.stderr
    assert stand_ins.calls() == []


def test_print_shows_the_manifest_and_applies_nothing(stand_ins):
    ended = stand_ins.run(ROOT / "launch/gke.sh", "--config=configs/x.py", PRINT="1", **VALUES)
    assert yaml.safe_load(ended.stdout)["kind"] == "JobSet"
    assert stand_ins.calls() == []
