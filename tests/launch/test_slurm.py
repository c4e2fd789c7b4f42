"""launch/slurm.sh: what it submits, and which jobs are queued again."""

import shlex

import pytest

from tests.launch.test_restart import FINAL
from tests.scripts import ROOT

VALUES = dict(WORKDIR="/shared/run", NODES="4", GPUS="8")
ARGUMENTS = ("--config=configs/x.py", "--config.data.path=it's a path")
SCRIPT = ROOT / "launch/slurm.sh"


def test_it_submits_itself_from_anywhere(stand_ins, tmp_path):
    options = "--partition=gpu --time=24:00:00"
    values = VALUES | dict(SBATCH_OPTIONS=options)
    ended = stand_ins.run(SCRIPT, *ARGUMENTS, cwd=tmp_path, **values)
    assert ended.returncode == 0, ended.stderr
    ((*given, script, config, path),) = stand_ins.calls("sbatch")
    assert (script, config, path) == ("launch/slurm.sh", *ARGUMENTS)
    assert {"--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--job-name=run"} < set(given)
    # The job is queued again after a preemption. The steps, not the script, get SIGTERM.
    assert {"--requeue", "--signal=TERM@180", *options.split()} < set(given)


@pytest.fixture
def job(stand_ins):
    """Runs the script as SLURM does: in a job, with a copy of the script, and nothing set but what
    was set when it was submitted."""

    def run(code, **variables):
        stand_ins.plan_codes(code)
        copied = stand_ins.home / "slurm_script"
        copied.write_text(SCRIPT.read_text())
        in_a_job = dict(SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(ROOT))
        return stand_ins.run("bash", copied, *ARGUMENTS, **VALUES, **in_a_job, **variables)

    return run


def test_all_processes_run_the_same_command(job, stand_ins):
    assert job(0, PYTHON="/venv/bin/python").returncode == 0
    expected = ["--kill-on-bad-exit=1", "/venv/bin/python", "train.py", "--workdir=/shared/run"]
    assert stand_ins.calls("srun") == [[*expected, *ARGUMENTS]]
    assert stand_ins.calls("scontrol") == []


@pytest.mark.parametrize("code", FINAL)
def test_what_a_restart_does_not_mend_is_not_queued_again(job, stand_ins, code):
    assert job(code).returncode == code
    assert stand_ins.calls("scontrol") == []


@pytest.mark.parametrize("code", [1, 70, 71, 74, 75, 134, 143])
def test_other_ends_are_queued_again(job, stand_ins, code):
    assert job(code, SLURM_RESTART_COUNT="9").returncode == code
    assert stand_ins.calls("scontrol") == [["requeue", "7"]]


def test_failures_are_queued_again_a_few_times_and_preemptions_always(job, stand_ins):
    assert "gave up after 10 restarts" in job(134, SLURM_RESTART_COUNT="10").stderr
    assert stand_ins.calls("scontrol") == []
    job(75, SLURM_RESTART_COUNT="10")
    assert stand_ins.calls("scontrol") == [["requeue", "7"]]


def test_the_options_are_those_of_the_example(stand_ins):
    """What the docs say is what the script takes."""
    text = SCRIPT.read_text().replace("\\\n#", " ")
    example = next(line for line in text.splitlines() if line.startswith("#   WORKDIR="))
    words = shlex.split(example.lstrip("# "))
    values = dict(word.split("=", 1) for word in words[: words.index("launch/slurm.sh")])
    ended = stand_ins.run(*words[len(values) :], **values)
    assert ended.returncode == 0, ended.stderr
    assert len(stand_ins.calls("sbatch")) == 1
