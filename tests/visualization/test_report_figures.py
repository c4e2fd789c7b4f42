"""Figures for papers: the same bytes for the same runs, and the curves they should hold."""

import re

import pytest

from checkpointing.recorded_run import read_run
from experiment.schema import ConfigError
from tests.recorded_runs import write_run
from visualization import report_figures

pytest.importorskip("matplotlib")


@pytest.fixture
def runs(tmp_path):
    return [read_run(write_run(tmp_path / name)) for name in ("a", "$b^2$<&>")]


def test_the_same_runs_give_the_same_bytes(runs, tmp_path):
    first = report_figures.write_figures(runs, tmp_path / "1", smoothing=0.5)
    second = report_figures.write_figures(runs, tmp_path / "2", smoothing=0.5)
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_there_is_a_figure_for_each_metric(runs, tmp_path):
    paths = report_figures.write_figures(runs, tmp_path / "figures")
    assert sorted(path.name for path in paths) == [
        "eval-dates-exact_match.svg", "eval-dates-loss.svg", "optim-learning_rate.svg",
        "train-loss.svg",
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(
        path.name for path in paths
    )


def test_a_figure_names_its_axes_and_runs(runs, tmp_path):
    report_figures.write_figures(runs, tmp_path, axis="seconds")
    text = (tmp_path / "train-loss.svg").read_text()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert {"wall time (s)", "train/loss", "a", "$b^2$&lt;&amp;&gt;"} <= set(words)


def test_an_axis_that_no_run_recorded_gives_no_figure(tmp_path):
    run = read_run(write_run(tmp_path / "old", events=None))
    assert report_figures.write_figures([run], tmp_path / "figures", axis="tokens") == []


def test_names_of_metrics_become_names_of_files():
    assert report_figures.file_name("eval/dates/loss") == "eval-dates-loss"
    assert report_figures.file_name("../../etc/passwd") == "etc-passwd"
    assert report_figures.file_name("///") == "metric"


def test_a_missing_matplotlib_is_named_with_the_remedy(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[plots\]'"):
        report_figures.write_figures(runs, tmp_path)
