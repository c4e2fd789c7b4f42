import io
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiment.schema import ConfigError
from training.metric_writers import Reporter, log_line, parameter_table

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def reported(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_metrics_arrive_in_the_file_under_their_names(tmp_path):
    with Reporter(tmp_path, resume_step=0, last_step=100) as reporter:
        reporter.report(50, {"train/loss": jnp.asarray(1.5), "perf/mfu": 0.25})
        # On the disk at once: a crash must not lose it.
        assert reported(tmp_path) == [{"step": 50, "train/loss": 1.5, "perf/mfu": 0.25}]
        reporter.report(100, {"eval/dates/exact_match": 1})
    assert reported(tmp_path)[1] == {"step": 100, "eval/dates/exact_match": 1.0}


def test_nan_and_infinity_are_valid_json(tmp_path):
    given = {"train/loss": math.nan, "optim/grad_norm": math.inf, "a": -math.inf}
    with Reporter(tmp_path, resume_step=0, last_step=1) as reporter:
        reporter.report(1, given)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert {name: repr(float(record[name])) for name in given} == {
        "train/loss": "nan",
        "optim/grad_norm": "inf",
        "a": "-inf",
    }


def test_a_resumed_run_drops_later_metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 10, "train/loss": 3.0}\n'
        '{"step": 20, "train/loss": 2.0}\n'
        '{"step": 30, "train/loss": 9.0}\n'
        '{"step": 40, "train/l'
    )
    with Reporter(tmp_path, resume_step=20, last_step=40) as reporter:
        reporter.report(30, {"train/loss": 1.0})
    assert reported(tmp_path) == [
        {"step": 10, "train/loss": 3.0},
        {"step": 20, "train/loss": 2.0},
        {"step": 30, "train/loss": 1.0},
    ]
    assert [path.name for path in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


def test_a_last_line_without_its_newline_is_kept_whole(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}')
    with Reporter(tmp_path, resume_step=10, last_step=20) as reporter:
        reporter.report(20, {})
    assert reported(tmp_path) == [{"step": 10}, {"step": 20}]


def test_tensorboard_gets_the_same_metrics_and_a_restart_mark(tmp_path):
    from tensorboardX.proto.event_pb2 import SessionLog

    with Reporter(tmp_path, resume_step=20, last_step=100) as reporter:
        reporter.report(30, {"train/loss": 1.5})
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert scalars(file) == [(30, "train/loss", 1.5)]
    starts = [each for each in events(file) if each.session_log.status == SessionLog.START]
    assert [each.step for each in starts] == [21]


def events(file):
    """The complete events of a file."""
    from tensorboardX.proto.event_pb2 import Event

    data = file.read_bytes()
    while data:  # length (8 bytes), its checksum (4), the event, its checksum (4)
        length = int.from_bytes(data[:8], "little")
        if len(data) < 16 + length:
            return
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def scalars(file):
    return [
        (event.step, value.tag, value.simple_value)
        for event in events(file)
        for value in event.summary.value
    ]


REPORTS_ON_A_FULL_DISK = """
import resource, sys
from training.metric_writers import Reporter, TensorBoard

with Reporter(sys.argv[1], resume_step=0, last_step=300) as reporter:
    for step in range(1, 301):
        if step == 11:  # no file may grow
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        if step == 100:
            reporter.rewind(99)
        if step == 291:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            TensorBoard.PAUSE = 0
        reporter.report(step, {"train/loss": step, "optim/grad_norm": 1.0})
"""


def test_a_full_disk_does_not_stop_reports(tmp_path):
    """While the disk is full, reports are dropped, which is logged; later ones are recorded."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", REPORTS_ON_A_FULL_DISK, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for sink in ("tensorboard", "metrics.jsonl"):
        for step in (11, 99, 100, 290):
            assert f"{sink}: step {step} is not recorded" in done.stderr
        assert f"{sink}: going back to step 99 is not recorded" in done.stderr
        assert f"{sink}: step 291 is" not in done.stderr
    assert "Traceback" not in done.stderr
    files = list((tmp_path / "tensorboard").iterdir())
    assert len(files) < 10  # it is not tried again all the time
    steps = {step for file in files for step, _, _ in scalars(file)}
    assert steps == {*range(1, 11), *range(291, 301)}
    assert [record["step"] for record in reported(tmp_path)][-10:] == [*range(291, 301)]


def test_plain_lines_where_stderr_is_no_terminal(tmp_path, capsys):
    with Reporter(tmp_path, resume_step=0, last_step=100) as reporter:
        reporter.progress(5)
        reporter.log("hello")
        reporter.report(5, {"train/loss": 2.0})
    captured = capsys.readouterr()
    assert captured.err == "hello\nstep   5/100  loss 2.0000\n"
    assert captured.out == ""


def test_a_bar_on_a_terminal_with_the_lines_whole_above_it(tmp_path, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Reporter(tmp_path, resume_step=40, last_step=100) as reporter:
        for step in range(41, 101):
            reporter.progress(step)
        reporter.log("hello")
    shown = screen.getvalue()
    assert "40/100" in shown and "100/100" in shown
    # The line starts after the bar has been wiped, and nothing is written on its end.
    assert "\rhello\n" in shown


def test_the_bar_shows_the_newest_loss_and_score(tmp_path, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    best = "eval/dates/accuracy"
    with Reporter(tmp_path, resume_step=0, last_step=100, best_metric=best) as reporter:
        reporter.report(10, {"train/loss": 9.0})
        reporter.report(20, {"train/loss": 2.5, "optim/grad_norm": 1.0})
        reporter.report(20, {"eval/dates/exact_match": 0.125, "eval/dates/accuracy": 0.75})
    bar = screen.getvalue().rpartition("\r")[2]
    assert "loss=2.5000" in bar and "dates/accuracy=0.75" in bar
    assert "exact_match" not in bar and "9.0000" not in bar and "grad_norm" not in bar


def test_other_processes_are_silent(tmp_path, capsys):
    with Reporter(tmp_path / "run", resume_step=0, last_step=1, primary=False) as reporter:
        reporter.report(1, {"train/loss": 2.0})
        reporter.log("hello")
        reporter.progress(1)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_missing_wandb_is_named_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[wandb\]'"):
        Reporter(tmp_path, resume_step=0, last_step=1, wandb_project="mine")


def test_wandb_is_told_and_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    calls, configs = [], []

    class Run:
        config = types.SimpleNamespace(
            update=lambda values, allow_val_change: configs.append((values, allow_val_change))
        )

        def __init__(self, step):
            self.step = step  # the first that it takes

        def log(self, metrics, step):
            calls.append((step, metrics))

        def finish(self):
            calls.append("finish")

    def init(**options):
        assert options["resume"] == "allow" and options["name"] == tmp_path.name
        resumed = any(isinstance(each, tuple) and options["id"] in each for each in calls)
        calls.append((options["project"], options["id"]))
        return Run(12 if resumed else 0)  # as if it had got to step 11 before it was killed

    errors = types.SimpleNamespace(UsageError=RuntimeError)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, errors=errors))
    for resume_step in (0, 10, 0):
        config = {"seed": resume_step}
        with Reporter(tmp_path, resume_step, 20, "mine", config=config) as reporter:
            for step in (1, 2, 3):
                reporter.report(resume_step + step, {"train/loss": 1.0})
    assert configs == [({"seed": seed, "workdir": str(tmp_path)}, True) for seed in (0, 10, 0)]
    logged = [step for step, *_ in (c for c in calls if c != "finish") if isinstance(step, int)]
    assert logged == [1, 2, 3, 12, 13, 1, 2, 3]  # 11 was there
    assert calls.count("finish") == 3
    (project, first), (_, resumed), (_, fresh) = [c for c in calls if c[0] == "mine"]
    assert project == "mine"
    assert first == resumed != fresh


OFFLINE = """
import os, signal, sys
from pathlib import Path
from training.metric_writers import Reporter

workdir, resume_step, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
config = {"seed": 5, "model": {"width": width}}
with Reporter(workdir, resume_step, 20, "mine", config=config) as reporter:
    for step in range(resume_step + 1, resume_step + 6):
        reporter.report(step, {"train/loss": 1.0 / step})
    if not resume_step:
        os.kill(os.getpid(), signal.SIGKILL)
"""


REFUSED = """
import sys
from experiment.schema import ConfigError
from training.metric_writers import Reporter

try:
    Reporter(sys.argv[1], 0, 20, "mine")
except ConfigError as error:
    print(error)
"""


def run_script(script, *arguments, **variables):
    environment = {**os.environ, "WANDB_SILENT": "true", **variables}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_wandb_itself_records_config_identity_and_a_curve_that_goes_on_after_a_kill(tmp_path):
    """Offline, in the files that `wandb sync` sends. The first run is killed after step 5."""
    pytest.importorskip("wandb", reason="needs pip install -e '.[wandb]'")
    for resume_step, width, code in ((0, 8, -9), (3, 9, 0)):
        ended = run_script(OFFLINE, tmp_path, resume_step, width, WANDB_MODE="offline")
        assert ended.returncode == code, ended.stderr
    # Names begin with the time. The kill cost the first file what W&B had in its buffers.
    *_, path = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    written = list(wandb_records(path))
    ids = {record.run.run_id for record in written if record.run.run_id}
    assert ids == {(tmp_path / "wandb_id").read_text()}
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in written
        if r.history.item
    ]
    assert [row["_step"] for row in rows] == [*range(1, 9)]
    assert [row["train/loss"] for row in rows] == pytest.approx([1 / s for s in range(1, 9)])
    values = [
        (item.key or item.nested_key[0], json.loads(item.value_json))
        for r in written
        for item in (*r.config.update, *r.run.config.update)
    ]
    assert ("seed", 5) in values and ("model", {"width": 9}) in values
    assert ("workdir", str(tmp_path)) in values


def test_wandb_without_a_key_is_refused_in_one_line(tmp_path):
    pytest.importorskip("wandb", reason="needs pip install -e '.[wandb]'")
    ended = run_script(REFUSED, tmp_path, WANDB_MODE="online", WANDB_API_KEY="", HOME=str(tmp_path))
    assert ended.stdout.startswith("wandb_project=mine: No API key"), ended.stderr
    assert "WANDB_MODE=offline" in ended.stdout


def wandb_records(path):
    """What a file of W&B says: the format of LevelDB's log, after 7 bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    data, at, content = path.read_bytes(), 7, b""
    while at < len(data):
        if (left := 2**15 - at % 2**15) < 7:  # the rest of a block is empty
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        content += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            yield wandb_internal_pb2.Record.FromString(content)
            content = b""


def test_tensorboard_gets_the_config_and_the_table_of_scores(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    config = {"seed": 5, "model": {"width": 8, "attention": "dot", "bias": True}, "mesh": (1, 2)}
    with Reporter(tmp_path, 20, last_step=100, config=config) as reporter:
        reporter.report(30, {"eval/validation/loss": 0.5})
        reporter.finish(["eval/validation/loss"])
    (file,) = (tmp_path / "tensorboard").iterdir()
    found = {v.tag: (e.step, v) for e in events(file) for v in e.summary.value}
    step, text = found["config/text_summary"]
    assert step == 20
    shown = text.tensor.string_val[0].decode()
    assert all(line.startswith("    ") for line in shown.splitlines())
    assert json.loads(shown) == {**config, "mesh": [1, 2]}

    def table(tag):
        return HParamsPluginData.FromString(found[tag][1].metadata.plugin_data.content)

    given = table("_hparams_/session_start_info").session_start_info.hparams
    assert (given["seed"].number_value, given["model.width"].number_value) == (5, 8)
    assert (given["model.attention"].string_value, given["model.bias"].bool_value) == ("dot", True)
    assert given["mesh"].string_value == "[1, 2]"
    metrics = table("_hparams_/experiment").experiment.metric_infos
    assert [each.name.tag for each in metrics] == ["eval/validation/loss"]
    assert found["eval/validation/loss"][1].simple_value == 0.5


def test_a_log_line_shows_the_main_metrics():
    metrics = {
        "perf/mfu": 0.4123,
        "train/loss": 2.34567,
        "train/accuracy": 0.51,
        "optim/learning_rate": 9.8765e-4,
        "optim/grad_norm": 0.8765,
        "perf/tokens_per_second": 15234.4,
        "perf/tflops_per_device": 81.2,
        "perf/data_wait_fraction": 0.0031,
    }
    assert log_line(1200, 50000, metrics) == (
        "step  1200/50000  loss 2.3457  accuracy 0.5100  lr 0.000988  grad norm 0.876  "
        "15,234 tokens/s  MFU 41.2%  data wait 0.3%"
    )
    del metrics["perf/mfu"]
    assert "MFU" not in log_line(1200, 50000, metrics)


def test_a_log_line_distinguishes_total_loss_and_images():
    metrics = {"train/total_loss": 2.5, "train/loss": 2.0, "perf/images_per_second": 1234.5}
    assert log_line(1, 9, metrics) == "step 1/9  loss 2.0000  total loss 2.5000  1,234 images/s"


def test_a_log_line_shows_every_result_of_an_evaluation():
    line = log_line(7, 9, {"eval/dates/exact_match": 0.98125, "eval/dates/loss": 0.1})
    assert line == "step 7/9  eval/dates/exact_match 0.9812  eval/dates/loss 0.1"


def test_the_parameter_table_counts_every_module():
    params = {
        "blocks": {"out": {"kernel": jnp.zeros((6, 8, 64, 512)), "bias": jnp.zeros((6, 512))}},
        "token_embedding": {"embedding": jax.ShapeDtypeStruct((1000, 512), jnp.bfloat16)},
    }
    assert [line.rstrip() for line in parameter_table(params).splitlines()] == [
        "module           shapes                         dtype     parameters",
        "-" * 68,
        "blocks/out       bias 6x512, kernel 6x8x64x512  float32    1,575,936",
        "token_embedding  embedding 1000x512             bfloat16     512,000",
        "-" * 68,
        "total                                                      2,087,936",
    ]
