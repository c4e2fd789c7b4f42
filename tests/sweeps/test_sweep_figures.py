"""Figures and page of a sweep, from runs that were written by hand."""

import dataclasses

import numpy as np
import pytest

from checkpointing.recorded_run import read_run
from sweeps.sweep_figures import draw_curves, draw_lines, draw_profile, write_figures
from sweeps.sweep_page import lead, sweep_page
from sweeps.sweep_table import make_rows
from tests.recorded_runs import METRICS, write_run
from tests.sweeps.test_sweep_record import variant
from tests.sweeps.test_sweep_table import LOSS, PROFILE, THREE, by_distance, results

pytest.importorskip("matplotlib")
MATCH = "eval/dates/exact_match"


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def two_runs(tmp_path):
    """Two seeds: the second evaluated once more, and scored 0.5 higher."""
    other = [{**line, MATCH: line[MATCH] + 0.5} if MATCH in line else line for line in METRICS]
    other.append({"step": 60, MATCH: 9.0})
    return [
        read_run(write_run(tmp_path / "a")),
        read_run(write_run(tmp_path / "b", metrics=other)),
    ]


def test_curves_are_means_over_seeds_at_common_steps(axes, tmp_path):
    assert draw_curves(axes, {"v": two_runs(tmp_path), "none yet": []}, MATCH)
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [20, 40]
    np.testing.assert_allclose(line.get_ydata(), [0.5, 1.0])
    (band,) = axes.collections  # one standard deviation of two values that are 0.5 apart
    ys = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose((ys.min(), ys.max()), (0.5 - 0.5**1.5, 1 + 0.5**1.5))


def test_lines_are_over_the_values_of_a_key(axes):
    overrides = {
        "a": {"model.heads": "8", "model.position": "rope"},
        "b": {"model.heads": "2", "model.position": "rope"},
        "other_data": {"model.heads": "4", "model.position": "none"},
    }
    variants = {name: variant(overrides=each) for name, each in overrides.items()}
    record = dataclasses.replace(THREE, variants=variants)
    rows = make_rows(record, results())
    plot = {"kind": "lines", "x": "model.heads", "by": "model.position", "log_x": True}
    assert draw_lines(axes, record, rows, LOSS, plot)
    (rope, none) = axes.containers
    assert rope.lines[0].get_xdata().tolist() == [2, 8]  # in order
    np.testing.assert_allclose(rope.lines[0].get_ydata(), [1.7, 2.0])
    assert none.get_label() == "none" and axes.get_xscale() == "log"
    axes.clear()
    draw_lines(axes, record, rows, LOSS, {**plot, "by": ("model.position", "model.heads")})
    assert [each.get_label() for each in axes.containers] == ["rope 8", "rope 2", "none 4"]


def test_profiles_are_over_the_number_in_the_name(axes):
    rows = make_rows(PROFILE, by_distance())
    plot = {"kind": "profile", "log_x": True, "log_y": True}
    assert draw_profile(axes, rows, "d_*", plot)
    a, b, _ = axes.containers
    assert (a.get_label(), b.get_label()) == ("a", "b")
    assert a.lines[0].get_xdata().tolist() == [8, 16, 128]
    np.testing.assert_allclose(a.lines[0].get_ydata(), 2.0 / np.array([8, 16, 128]))
    assert b.lines[0].get_xdata().tolist() == [8, 16]
    # Values 1, 2, 3: the t quantile with two degrees of freedom is 4.3027.
    (low, high), *_ = [path.vertices[:, 1] for path in a.lines[2][0].get_paths()]
    np.testing.assert_allclose((high - low) / 2, 4.302653 / 3**0.5 / 8, rtol=1e-6)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert not draw_profile(axes, rows, "e_*", plot)


def test_patterns_get_a_profile_by_default(tmp_path):
    rows = make_rows(PROFILE, by_distance())
    paths = write_figures(tmp_path / "figures", dataclasses.replace(PROFILE, plots=()), rows, {})
    assert [path.name for path in paths] == ["eval-held_out-loss-bars.svg", "d_-profile.svg"]
    assert "<h3>d_*</h3>" in lead(PROFILE, rows, paths)


def test_the_same_results_give_the_same_figures(tmp_path):
    rows = make_rows(THREE, results())
    record = dataclasses.replace(THREE, plots=({"kind": "bars"}, {"kind": "curves"}))
    paths = write_figures(tmp_path / "one", record, rows, {"a": []})
    assert [path.name for path in paths] == ["eval-held_out-loss-bars.svg"]  # no curves to draw
    again = write_figures(tmp_path / "two", record, rows, {"a": []})
    assert paths[0].read_bytes() == again[0].read_bytes()
    assert "other_data" in paths[0].read_text()  # text stays text


def test_the_page_has_tables_and_figures_and_escapes_names(tmp_path):
    pytest.importorskip("plotly")
    record = dataclasses.replace(THREE, claim="<script>alert(1)</script>")
    rows = make_rows(record, results())
    figures = write_figures(tmp_path / "figures", record, rows, {})
    top = lead(record, rows, figures)
    assert "<script>" not in top and "&lt;script&gt;" in top
    assert "difference from a" in top and "paired t" in top and "Welch t" in top
    assert top.count("<svg") == 1
    page = sweep_page(record, rows, two_runs(tmp_path), figures)
    assert top in page and page.startswith("<!DOCTYPE html>")
