"""launch/tpu_vm.sh, launch/tpu_slice.sh, and the start-up script that they send."""

import os
import signal
import time

import pytest

from tests.scripts import ROOT

VALUES = dict(
    NAME="tpu", ZONE="us-west4-a", ACCELERATOR="v5litepod-16", WORKDIR="gs://b/run/"
)  # fmt: skip
ARGUMENTS = ("--config=configs/x.py", "--config.data.path=it's a path")
SCRIPTS = {"tpu_vm": "tpu-vm", "tpu_slice": "queued-resources"}


def cloud_tpu_calls(stand_ins, verb):
    return [each[4:] for each in stand_ins.calls("gcloud") if each[3:4] == [verb]]


@pytest.fixture(params=SCRIPTS)
def launch(request, stand_ins):
    def run(*plan, **values):
        stand_ins.plan_states(*plan)
        return stand_ins.run(ROOT / f"launch/{request.param}.sh", *ARGUMENTS, **VALUES | values)

    run.kind = SCRIPTS[request.param]
    return run


@pytest.mark.parametrize("code", [0, 2, 134])
def test_a_tpu_is_created_and_deleted_when_the_run_has_ended(launch, stand_ins, code):
    bucket = stand_ins.home / "bucket/b/run.launch"
    (bucket / "exit_code").write_text("1")  # of an earlier launch
    ended = launch(["CREATING", "ACTIVE", "UNREACHABLE", f"ENDS {code}"])
    assert ended.returncode == code, ended.stderr
    assert f"the run ended with code {code}; its directory is gs://b/run" in ended.stderr
    (create,) = cloud_tpu_calls(stand_ins, "create")
    assert create[0] == "tpu" and "--zone=us-west4-a" in create
    assert "--accelerator-type=v5litepod-16" in create
    software = {"tpu-vm": "--version", "queued-resources": "--runtime-version"}[launch.kind]
    assert f"{software}=v2-alpha-tpuv5-lite" in create
    (delete,) = cloud_tpu_calls(stand_ins, "delete")
    assert delete[0] == "tpu" and "--quiet" in delete
    assert {each[2] for each in stand_ins.calls("gcloud") if each[1] == "tpus"} == {launch.kind}
    assert ["archive", "--format=tar.gz", "HEAD"] in stand_ins.calls("git")
    assert (bucket / "source.tar.gz").exists()


def test_more_options_of_gcloud(launch, stand_ins):
    options = "--spot --service-account=a@b"
    ended = launch(["ENDS 0"], GCLOUD_OPTIONS=options, ACCELERATOR="v7-8", RUNTIME="new")
    assert ended.returncode == 0, ended.stderr
    (create,) = cloud_tpu_calls(stand_ins, "create")
    assert create[-2:] == options.split()
    assert any(each.endswith("version=new") for each in create)


def test_a_slice_that_is_preempted_is_requested_again_with_the_same_command(stand_ins):
    stand_ins.plan_states(
        ["WAITING_FOR_RESOURCES", "ACTIVE", "SUSPENDING", "SUSPENDED"],
        ["ACTIVE", "SUSPENDED"],
        ["ACTIVE", "ENDS 0"],
    )
    ended = stand_ins.run(ROOT / "launch/tpu_slice.sh", *ARGUMENTS, **VALUES)
    assert ended.returncode == 0, ended.stderr
    creates = cloud_tpu_calls(stand_ins, "create")
    assert len(creates) == 3 and creates[0] == creates[1] == creates[2]
    assert len(cloud_tpu_calls(stand_ins, "delete")) == 3
    uploads = [each for each in stand_ins.calls("gcloud") if each[:2] == ["storage", "cp"]]
    assert len(uploads) == 1  # a commit that is checked out meanwhile does not change the run


def test_a_request_that_failed_is_not_repeated(stand_ins):
    stand_ins.plan_states(["WAITING_FOR_RESOURCES", "FAILED"])
    ended = stand_ins.run(ROOT / "launch/tpu_slice.sh", *ARGUMENTS, **VALUES)
    assert ended.returncode == 1
    assert "the request failed:" in ended.stderr
    assert len(cloud_tpu_calls(stand_ins, "create")) == 1
    assert len(cloud_tpu_calls(stand_ins, "delete")) == 1


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_vm_that_is_gone_is_deleted_and_the_code_says_that_the_run_can_resume(stand_ins, state):
    stand_ins.plan_states(["READY", state])
    ended = stand_ins.run(ROOT / "launch/tpu_vm.sh", *ARGUMENTS, **VALUES)
    assert ended.returncode == 75
    assert len(cloud_tpu_calls(stand_ins, "delete")) == 1


def test_an_interrupted_launch_finds_its_tpu(launch, stand_ins):
    stand_ins.plan_existing("ACTIVE", "ACTIVE", "ENDS 0")
    ended = launch()
    assert ended.returncode == 0, ended.stderr
    assert "tpu is there (ACTIVE): waiting" in ended.stderr
    assert not cloud_tpu_calls(stand_ins, "create")
    assert stand_ins.calls("git") == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (dict(WORKDIR="/disk/run"), "WORKDIR=/disk/run must be gs://BUCKET/DIRECTORY"),
        (dict(ACCELERATOR="v9-8"), "ACCELERATOR=v9-8 is not known; set RUNTIME"),
    ],
)
def test_values_that_cannot_work_are_refused(launch, stand_ins, values, problem):
    ended = launch(**values)
    assert ended.returncode == 2 and problem in ended.stderr
    assert stand_ins.calls() == []


# The start-up script


@pytest.fixture
def boot(stand_ins, tmp_path):
    """What a host of the TPU runs at each boot, with the path of its checkout."""
    stand_ins.plan_states(["ENDS 0"])
    values = dict(ENVIRONMENT="WANDB_MODE=offline A=b")
    sent = stand_ins.run(ROOT / "launch/tpu_slice.sh", *ARGUMENTS, **VALUES, **values)
    assert sent.returncode == 0, sent.stderr
    (stand_ins.home / "bucket/b/run.launch/exit_code").unlink()
    (stand_ins.home / "calls").unlink()
    checkout = tmp_path / "host"
    commands = stand_ins.home / "bin"
    (commands / "tar").write_text("#!/bin/sh\ncat > source.tar.gz\n")
    # It installs restart.sh, and a stand-in for the Python that runs train.py.
    stand_ins.add(commands / "install_stand_in", "python3")
    stand_ins.add(commands / "training_stand_in", "python")
    (commands / "python3").write_text(
        f"""#!/bin/sh
        {commands}/install_stand_in "$@"
        mkdir -p .venv/bin launch
        cp {commands}/training_stand_in .venv/bin/python
        cp {ROOT}/launch/restart.sh launch
        """
    )
    # Options, up to the first word that is none, and then the command.
    stand_ins.add(commands / "unit_stand_in", "systemd-run")
    (commands / "systemd-run").write_text(
        f"""#!/bin/bash
        {commands}/unit_stand_in "$@"
        while [[ $1 == --* ]]; do shift; done
        exec "$@"
        """
    )
    for name in ("tar", "python3", "systemd-run"):
        (commands / name).chmod(0o755)
    return ("bash", stand_ins.home / "startup.sh"), dict(CHECKOUT=str(checkout))


TRAIN = ["train.py", "--workdir=gs://b/run", *ARGUMENTS]


def exit_code(stand_ins):
    path = stand_ins.home / "bucket/b/run.launch/exit_code"
    return path.read_text().strip() if path.exists() else ""


def test_a_host_installs_the_code_and_trains_to_the_end(boot, stand_ins):
    command, variables = boot
    stand_ins.plan_codes(134, 75, 0)
    booted = stand_ins.run(*command, **variables)
    assert booted.returncode == 0, booted.stderr
    assert stand_ins.calls("python") == [TRAIN] * 3  # a quotation mark and spaces have survived
    assert exit_code(stand_ins) == "0"
    installed = stand_ins.calls("python3")
    assert installed[-1][-2:] == ["-e", ".[tpu,gcs]"]
    (unit,) = stand_ins.calls("systemd-run")
    assert {"--wait", "--property=KillMode=mixed"} < set(unit)
    given = [each.removeprefix("--setenv=") for each in unit if each.startswith("--setenv=")]
    assert [each.partition("=")[0] for each in given] == ["HOME", "PATH", "WANDB_MODE", "A"]
    assert given[2:] == ["WANDB_MODE=offline", "A=b"]
    # The next boot finds that the run has ended.
    assert stand_ins.run(*command, **variables).returncode == 0
    assert len(stand_ins.calls("python")) == 3


@pytest.mark.parametrize("code", [2, 65, 69])
def test_a_run_that_a_restart_does_not_mend_ends_on_the_first_try(boot, stand_ins, code):
    command, variables = boot
    stand_ins.plan_codes(code, 0)
    stand_ins.run(*command, **variables)
    assert stand_ins.calls("python") == [TRAIN]
    assert exit_code(stand_ins) == str(code)


def test_a_host_that_was_killed_runs_the_same_command_at_the_next_boot(boot, stand_ins):
    command, variables = boot
    stand_ins.plan_codes("sleep", 0)
    with stand_ins.start(*command, **variables) as host:
        until = time.monotonic() + 30
        while not stand_ins.calls("python") and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(host.pid, signal.SIGKILL)
    assert exit_code(stand_ins) == ""
    assert stand_ins.run(*command, **variables).returncode == 0
    assert stand_ins.calls("python") == [TRAIN] * 2
    assert len(stand_ins.calls("python3")) == 3  # installed once, in three steps
    assert exit_code(stand_ins) == "0"


def test_a_run_that_was_stopped_with_its_vm_has_not_ended(boot, stand_ins):
    command, variables = boot
    unit = stand_ins.home / "bin/systemd-run"
    unit.write_text("#!/bin/sh\nexit 75\n")  # restart.sh ends so when it was sent SIGTERM
    assert stand_ins.run(*command, **variables).returncode == 75
    assert exit_code(stand_ins) == ""


def test_a_failed_installation_ends_the_launch(boot, stand_ins):
    command, variables = boot
    (stand_ins.home / "bin/python3").write_text("#!/bin/sh\nexit 1\n")
    assert stand_ins.run(*command, **variables).returncode == 1
    assert exit_code(stand_ins) == "1"
    assert stand_ins.calls("python") == []
