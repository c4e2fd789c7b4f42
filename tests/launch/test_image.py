"""The Dockerfile: what it says, and, where there is a builder of images, the image."""

import fnmatch
import json
import re
import shutil
import subprocess
import time

import pytest

from tests.scripts import ROOT

IMAGE = "backbone-test"


def instructions() -> list[tuple[str, str]]:
    """(Instruction, rest) of each instruction of the Dockerfile, without comments."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def values(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def is_ignored(path: str) -> bool:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line.removeprefix("**/") for line in patterns if line and line[0] != "#"]
    names = path.split("/")
    parts = [*names, *("/".join(names[:end]) for end in range(1, len(names) + 1))]
    return any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in patterns)


def test_another_parser_reads_the_same_instructions():
    parser = pytest.importorskip(
        "dockerfile_parse", reason="needs pip install -e '.[launch-test]'"
    ).DockerfileParser(str(ROOT / "Dockerfile"))
    found = [each["instruction"] for each in parser.structure if each["instruction"] != "COMMENT"]
    assert found == [name for name, _ in instructions()]
    assert parser.baseimage == "debian:12.11-slim"


def test_the_base_is_pinned():
    (base,) = [rest.partition("=")[2] for rest in values("ARG") if rest.startswith("BASE=")]
    assert re.fullmatch(r"debian:\d+\.\d+-slim", base)
    assert values("FROM") == ["${BASE}"]


def test_a_change_of_the_code_does_not_install_the_dependencies_again():
    order = [f"{name} {rest}" for name, rest in instructions()]
    (copied,) = [n for n, each in enumerate(order) if each.startswith("COPY pyproject.toml")]
    (installed,) = [n for n, each in enumerate(order) if "pip install" in each]
    code = order.index("COPY . .")
    assert copied < installed < code
    # What pip reads of the project is there.
    needed = re.findall(r'readme = "(.*)"', (ROOT / "pyproject.toml").read_text())
    assert {"pyproject.toml", *needed} <= set(order[copied].split()[1:-1])
    assert not any(is_ignored(path) for path in order[copied].split()[1:-1])


def test_no_user_is_root_and_any_command_can_be_run():
    names = [name for name, _ in instructions()]
    assert values("USER") == ["1000"]
    assert "RUN" not in names[names.index("USER") :]
    assert json.loads(values("ENTRYPOINT")[0]) == ["tini", "--"]
    assert json.loads(values("CMD")[0]) == ["python", "train.py", "--help"]


def test_the_context_has_the_code_and_nothing_else():
    sent = {path.name for path in ROOT.iterdir() if not is_ignored(path.name)}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    scripts = {path.name for path in ROOT.glob("*.py")}
    assert packages | scripts | {"launch", "configs", "pyproject.toml"} <= sent
    assert not sent & {"tests", "docs", ".git", ".ci", "notebooks", "runs"}
    for path in (".venv/bin/python", "runs/dates/config.json", "model/__pycache__/x.pyc"):
        assert is_ignored(path)


@pytest.fixture(scope="module")
def engine():
    """A command that builds and runs images."""
    for name in ("docker", "podman"):
        if (
            shutil.which(name)
            and not subprocess.run([name, "info"], capture_output=True).returncode
        ):
            return name
    pytest.skip("there is no docker or podman here")


@pytest.fixture(scope="module")
def image(engine):
    """An image for CPUs; downloads the base and the dependencies if they are not cached."""
    subprocess.run([engine, "build", "--tag", IMAGE, "."], cwd=ROOT, check=True)

    def run(*command: str, options: tuple[str, ...] = ()):
        return subprocess.run(
            [engine, "run", "--rm", *options, IMAGE, *command], capture_output=True, text=True
        )

    return run


TRAIN = (
    "python", "train.py", "--config=configs/digits.py", "--config.model.encoder_layers=1",
    "--config.model.width=16", "--config.model.heads=2", "--config.optimizer.warmup_steps=1",
    "--config.eval.every=0",
)  # fmt: skip


@pytest.mark.slow
def test_the_image_trains_as_any_user(image):
    help_text = image()
    assert help_text.returncode == 0 and "--workdir" in help_text.stdout
    assert image("python", "train.py", "--help").stdout == help_text.stdout
    for options in ((), ("--user=12345",)):
        ended = image(*TRAIN, "--config.steps=4", options=options)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1])["step"] == 4
    assert image("id", "--user").stdout == "1000\n"
    assert image("touch", "/backbone/x").returncode != 0


@pytest.mark.slow
def test_a_container_that_is_stopped_saves(image, engine):
    """tini, which is process 1, passes SIGTERM on."""
    command = [*TRAIN, "--config.steps=1000000", "--config.log_every=10"]
    name = f"{IMAGE}-stopped"
    process = subprocess.Popen(
        [engine, "run", "--rm", f"--name={name}", IMAGE, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        lines = iter(process.stderr.readline, "")
        assert any(re.match(r"step +10/", line) for line in lines)
        begun = time.monotonic()
        subprocess.run([engine, "stop", "--time=60", name], capture_output=True, check=True)
        assert time.monotonic() - begun < 60
        assert process.wait() == 75, process.stderr.read()


@pytest.mark.slow
def test_an_extra_that_does_not_exist_is_refused(engine):
    command = [engine, "build", "--build-arg=EXTRAS=gcs,tpuu", "."]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "EXTRAS: no ['tpuu'] in pyproject.toml" in ended.stdout + ended.stderr
