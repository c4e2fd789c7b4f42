"""Run directories of older code resume, evaluate and generate with today's, to the bit.

The last bits of a float depend on the processor. On the one that made the archives all results are
compared as they are; on any other, floats to a tolerance, and ids, texts and restored arrays still
as they are.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.old_runs import make

EXPECTED = json.loads((make.FOLDER / "expected.json").read_text())
IS_SAME_MACHINE = make.machine() == EXPECTED["machine"]


def comparable(value):
    """The same structure, in which floats may differ where the processor does."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    if isinstance(value, float) and not IS_SAME_MACHINE:
        return pytest.approx(value, rel=1e-4, abs=1e-6)
    return value


def results_of_today(name: str, run: Path, data: Path) -> dict:
    """What `make.results` returns in a process with the compiler's defaults, as in a real run."""
    code = (
        "import json, sys; from pathlib import Path; from tests.old_runs import make; "
        "name, run, data = sys.argv[1:]; "
        "print(json.dumps(make.results(name, Path(run), Path(data))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, name, str(run), str(data)],
        cwd=make.FOLDER.parents[1],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", make.RUNS)
def test_an_old_run_goes_on_as_before(name, tmp_path):
    make.write_data(tmp_path / "data")
    with tarfile.open(make.FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path / "run", filter="data")
    found = results_of_today(name, tmp_path / "run", tmp_path / "data")
    expected = EXPECTED[name]
    if not IS_SAME_MACHINE:
        found.pop("resumed_params"), expected.pop("resumed_params")
    assert found.keys() == expected.keys()
    for part in expected:
        assert found[part] == comparable(expected[part]), part
