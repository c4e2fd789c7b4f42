"""The script that shows attention: its outputs and its refusals."""

import json

import numpy as np
import pytest

import train
import visualize
from configs import dates
from experiment.schema import ConfigError
from tests import scripts
from tests.runs import tiny

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def run(tmp_path_factory, compile_once):
    workdir = tmp_path_factory.mktemp("visualized") / "dates"
    train.train_and_evaluate(tiny(dates, steps=2), workdir)
    return workdir


def refusal(*arguments) -> str:
    ended = scripts.run("visualize.py", *arguments)
    assert ended.code == 2 and not ended.out, ended
    return ended.err.strip()


def test_json_output(run, tmp_path):
    path = tmp_path / "numbers.json"
    given = [f"--workdir={run}", "--prompt=1. Mai", "--target=05-01", f"--json={path}"]
    ended = scripts.run("visualize.py", *given)
    assert (ended.code, ended.out) == (0, f"{path}\n"), ended.err
    found = json.loads(path.read_text())
    view = visualize.capture_view(run, "1. Mai", "05-01")
    assert found["title"] == "dates"
    assert [each["name"] for each in found["maps"]] == ["encoder", "decoder", "cross"]
    for written, attention in zip(found["maps"], view.maps, strict=True):
        assert tuple(written["queries"]) == attention.queries
        np.testing.assert_allclose(written["weights"], attention.weights_lhts, rtol=1e-6)
        np.testing.assert_array_equal(written["visible"], attention.visible_lts)
        heads = attention.weights_lhts.shape[0] * attention.weights_lhts.shape[1]
        assert len(written["summaries"]) == heads
    assert found["scores"]["tokens"] == [*"05-01", "[EOS]"]
    assert len(found["lens"]["layers"]) == 2
    assert set(found["norms"]) == {"encoder", "decoder"}


def test_the_page_of_a_notebook(run):
    page = visualize.attention(run, "1. Mai", layers=[0])
    assert "<html" in page.html and page._repr_html_()


def test_layers_are_numbers_and_ranges():
    assert visualize.parse_layers("0,3-5") == (0, 3, 4, 5)
    assert visualize.parse_layers("") == ()
    assert visualize.parse_layers("2, 1") == (1, 2)
    for wrong in ("a", "1-", "-1", "5-3", "1-99999999"):
        with pytest.raises(ConfigError, match="--layers="):
            visualize.parse_layers(wrong)


def test_refusals_come_before_anything_is_loaded(tmp_path, run):
    file = tmp_path / "file"
    file.write_text("")
    given = [f"--workdir={run}", "--prompt=x"]
    assert "--workdir is missing" in refusal("--prompt=x")
    assert "--prompt is missing" in refusal(given[0])
    assert "--view=x is not one of" in refusal(*given, "--view=x")
    assert "'b' is no layer" in refusal(*given, "--layers=b")
    assert "there is no layer 7" in refusal(*given, "--layers=0,7", f"--json={tmp_path}/x")
    assert "cannot be written" in refusal(*given, f"--output={tmp_path}/none/page.html")
    assert "cannot be written" in refusal(*given, f"--json={tmp_path}")
    assert "cannot be written" in refusal(*given, f"--svg={file}/figures")
    assert "--json=gs://bucket/x has the scheme" in refusal(*given, "--json=gs://bucket/x")
    assert "--svg=s3://bucket/x has the scheme" in refusal(*given, "--svg=s3://bucket/x")
    assert "--heads chooses figures" in refusal(*given, "--heads=0.1")
    svg = f"--svg={tmp_path}/svg"
    assert "'0' is no head" in refusal(*given, svg, "--heads=0")
    assert "0.1 may be of encoder, decoder, cross" in refusal(*given, svg, "--heads=0.1")
    assert "there is no 0.2; layers are 0 to 0, heads 0 to 1" in refusal(
        *given, svg, "--heads=cross.0.2"
    )
    assert "none" in refusal(f"--workdir={tmp_path}/none", "--prompt=x", f"--json={tmp_path}/x")
    assert not (tmp_path / "x").exists()
