"""The page as a file: complete, deterministic in what matters, and safe against what runs hold."""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from checkpointing.recorded_run import read_run
from experiment.schema import ConfigError
from tests.recorded_runs import ANSWERS, CLASSES, CONFIG, EVENTS, METRICS, POSITIONS, write_run
from visualization import report_page

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&amp;\u2028'


@pytest.fixture(autouse=True)
def small_plotly(monkeypatch):
    """The library itself is not what is tested here, and need not be installed."""
    monkeypatch.setattr(report_page, "plotly_source", lambda: "var Plotly = {};")


class Elements(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.handlers, self.scripts = [], [], [], []
        self._open = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.handlers += [name for name, _ in attributes if name.startswith("on")]
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif not self._open or self._open[-1] != "style":
            self.texts.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])


def page_of(*workdirs, **options):
    return report_page.report_page([read_run(each) for each in workdirs], **options)


def text_of(page):
    return re.sub(r"\s+", " ", " ".join(Elements(page).texts))


def test_a_page_shows_scores_time_and_troubles(tmp_path):
    text = text_of(page_of(write_run(tmp_path / "dates")))
    for shown in (
        "dates/exact_match", "0.75", "34 s", "4,000 tokens", "finished",
        "1 restart, 1 skipped step, 1 rollback", "rolled back", "3.12.1",
    ):  # fmt: skip
        assert shown in text


def test_every_metric_of_every_run_has_a_plot(tmp_path):
    other = [{"step": 1, "train/teacher_kl": 1.0}]
    page = page_of(write_run(tmp_path / "a"), write_run(tmp_path / "b", metrics=other))
    plots = [a["data-metric"] for tag, a in Elements(page).tags if "data-metric" in a]
    expected = {name for record in METRICS for name in record} - {"step"} | {"train/teacher_kl"}
    assert sorted(plots) == sorted(expected)


def test_config_differences_are_a_table(tmp_path):
    wide = {**CONFIG, "model": {**CONFIG["model"], "width": 128}}
    page = page_of(write_run(tmp_path / "a"), write_run(tmp_path / "b", config=wide))
    diff = page[page.index('<section id="config">') : page.index("<details>")]
    rows = re.findall(r'<th class="key">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', diff)
    assert rows == [("model.width", "<code>64</code>", "<code>128</code>")]


def test_runs_with_the_same_name_are_told_apart(tmp_path):
    runs = [read_run(write_run(tmp_path / part / "run")) for part in ("a", "b")]
    runs.append(read_run(write_run(tmp_path / "other")))
    assert report_page.run_names(runs) == ["a/run", "b/run", "other"]


def test_details_are_shown_or_their_command_is_named(tmp_path):
    a = write_run(tmp_path / "a", details=[CLASSES, ANSWERS])
    page = page_of(a, write_run(tmp_path / "my run"))
    text = text_of(page)
    assert "moo" in text and "05-02" in text
    assert f"python evaluate.py --workdir='{tmp_path}/my run' --details" in text
    assert "--workdir=" + str(a) not in text
    kinds = [a.get("data-kind") for _, a in Elements(page).tags]
    assert kinds.count("confusion") == 1 and kinds.count("lengths") == 2


def test_losses_by_position_of_runs_share_a_plot(tmp_path):
    workdirs = [write_run(tmp_path / name, details=[POSITIONS]) for name in "ab"]
    plots = [a for _, a in Elements(page_of(*workdirs)).tags if a.get("data-kind") == "positions"]
    (plot,) = plots
    assert json.loads(plot["data-plot"]) == [
        {"run": number, "x": [0, 1, 3], "y": [4.0, 3.0, 1.0]} for number in (0, 1)
    ]


def hostile_run(workdir):
    """A run whose every text tries to become HTML."""
    row = {"row": 0, "text": HOSTILE, "label": HOSTILE, "guess": HOSTILE, "probability": 0.1}
    answer = {"row": 0, "source": HOSTILE, "answer": HOSTILE, "expected": HOSTILE, "chrf": 1.0}
    lengths = [{"from": 1, "to": 2, "rows": 1, "exact_match": 0.0, "chrf": 1.0}]
    details = [
        {"step": 1, "eval_set": HOSTILE.replace("/", "|"), "objective": HOSTILE,
         "classes": {"labels": [HOSTILE], "confusion": [[0, 0, 1]], "worst": [row]},
         "answers": {"worst": [answer], "best": [answer], "by_length": lengths},
         "positions": {"nll": [1.0], "weight": [1.0]}},
    ]  # fmt: skip
    end = {"event": "end", "step": 2, "reason": HOSTILE}
    events = [*EVENTS[:-1], {"event": HOSTILE, "step": 1}, end]
    write_run(
        workdir,
        config={HOSTILE: HOSTILE, "model": {HOSTILE: [HOSTILE]}, "steps": HOSTILE},
        metrics=[{"step": 1, HOSTILE: 1.0, f"eval/{HOSTILE}/loss": 2.0}],
        events=events,
        samples={f"00000001_{HOSTILE.replace('/', '|')}.txt": HOSTILE},
    )
    for record in details:  # whose eval set is not fit for the name of a file
        (workdir / "evaluations").mkdir()
        (workdir / "evaluations" / "1.json").write_text(json.dumps(record))
    (workdir / "environment.json").write_text(json.dumps({HOSTILE: {HOSTILE: HOSTILE}}))
    (workdir / "model.json").write_text(HOSTILE)
    return workdir


def test_no_text_of_a_run_becomes_html(tmp_path):
    workdir = hostile_run(tmp_path / HOSTILE.replace("/", "|"))
    page = page_of(workdir, write_run(tmp_path / "b"))
    elements = Elements(page)
    assert [tag for tag, _ in elements.tags].count("script") == 3
    assert not [tag for tag, _ in elements.tags if tag in ("img", "iframe", "object", "a")]
    assert elements.handlers == []
    assert "alert(1)" in text_of(page)  # it is shown
    (block,) = elements.data["samples"].values()
    assert block["runs"][0]["texts"] == {"1": HOSTILE}
    for raw in re.findall(r"<script[^>]*>(.*?)</script>", page, re.S)[:1]:
        assert "<" not in raw and "\u2028" not in raw


def test_the_policy_allows_our_scripts_and_no_network(tmp_path):
    def policy(**options):
        page = page_of(tmp_path, **options)
        return html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1])

    write_run(tmp_path)
    assert "default-src 'none'" in policy()
    assert "connect-src 'none'" in policy()
    assert "unsafe-inline" not in re.search(r"script-src [^;]*", policy())[0]
    assert "connect-src 'self'" in policy(refresh=5)


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    for _, attributes in Elements(page_of(write_run(tmp_path))).tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")


@pytest.mark.parametrize(
    "left_out", [dict(config=None), dict(metrics=None), dict(events=None), dict(model={})]
)
def test_runs_that_lack_a_file_are_shown(tmp_path, left_out):
    workdir = write_run(tmp_path / "b", **left_out)
    (workdir / "environment.json").unlink()
    assert "</html>" in page_of(write_run(tmp_path / "a"), workdir)


def test_a_run_that_has_just_begun_is_shown(tmp_path):
    text = text_of(page_of(write_run(tmp_path, metrics=[], events=EVENTS[:1])))
    assert "No metrics have been written yet" in text
    assert "running or killed" in text


def test_a_missing_plotly_is_named_with_the_remedy(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[report\]'"):
        report_page.plotly_source()
