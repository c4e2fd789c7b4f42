"""What all files of launch/ have in common: refusals, syntax, and the truth about what has run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_restart import FINAL
from tests.scripts import ROOT

FILES = sorted((ROOT / "launch").iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".sh"]
NEEDED = {
    "tpu_vm.sh": "NAME ZONE ACCELERATOR WORKDIR",
    "tpu_slice.sh": "NAME ZONE ACCELERATOR WORKDIR",
    "gke.sh": "NAME IMAGE TPU TOPOLOGY WORKDIR",
    "slurm.sh": "WORKDIR NODES GPUS",
}


def test_every_launch_is_here():
    parts = {"common.sh", "tpu_common.sh", "tpu_startup.sh", "restart.sh", "skypilot.yaml"}
    assert {path.name for path in FILES} == set(NEEDED) | parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_first_line_says_what_has_not_run(path):
    comments = [line for line in path.read_text().splitlines() if not line.startswith("#!")]
    first = next(line for line in comments if "shellcheck" not in line)
    assert re.match(r"# .*(Not yet run|has not yet)", first), first


@pytest.mark.parametrize(("script", "names"), NEEDED.items())
def test_all_missing_values_are_named_at_once(stand_ins, script, names):
    ended = stand_ins.run(ROOT / "launch" / script)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[:2] == [
        f"set {names} in the environment",
        "give the arguments of train.py, such as --config=configs/x.py",
    ]
    values = dict.fromkeys(names.split(), "gs://b/run")
    first, *others = names.split()
    ended = stand_ins.run(
        ROOT / "launch" / script, "--workdir=x", **{name: values[name] for name in others}
    )
    assert ended.stderr.splitlines()[:2] == [
        f"set {first} in the environment",
        "set WORKDIR in place of --workdir",
    ]
    assert stand_ins.calls() == []


@pytest.mark.parametrize("script", NEEDED)
def test_the_example_at_the_top_has_all_values(script):
    text = (ROOT / "launch" / script).read_text()
    example = re.sub(r"\\\n#", " ", text).partition("\n#\n#   ")[2].partition("\n")[0]
    assert f"launch/{script} --config=configs/x.py" in example
    assert set(re.findall(r"\b([A-Z]+)=", example)) >= set(NEEDED[script].split())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_parse_it(path):
    subprocess.run(["bash", "-n", path], check=True)


def test_shellcheck_finds_nothing():
    beside_python = Path(sys.executable).with_name("shellcheck")
    shellcheck = beside_python if beside_python.exists() else shutil.which("shellcheck")
    if not shellcheck:
        pytest.skip("needs pip install -e '.[launch-test]'")
    others = [ROOT / "tests/launch/stand_in.sh"]
    subprocess.run([shellcheck, "--external-sources", *SCRIPTS, *others], cwd=ROOT, check=True)


def test_all_launches_agree_on_the_codes_that_end_a_run():
    """Those of restart.sh are tested one by one."""
    slurm = (ROOT / "launch/slurm.sh").read_text()
    (codes,) = re.findall(r"^    (0 \| .*?)\)", slurm, re.M)
    assert set(map(int, codes.split(" | "))) == {0, *FINAL}
    gke = (ROOT / "launch/gke.sh").read_text()
    (codes,) = re.findall(r"values: \[(.*)\]", gke)
    assert set(map(int, codes.split(","))) == set(FINAL)
