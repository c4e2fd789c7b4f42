"""The server gives one page to this machine, and nothing else to nobody else."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from experiment.schema import ConfigError
from tests.recorded_runs import METRICS, write_run
from tests.scripts import ROOT
from visualization.report_server import ReportServer, version_of


@contextlib.contextmanager
def served(workdirs, make_page):
    server = ReportServer(workdirs, make_page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(tmp_path):
    write_run(tmp_path)
    with served([tmp_path], lambda version: f"<p>version {version}</p>") as running:
        yield running


def ask(server, method="GET", path="/", host=None, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    headers = {"Host": host} if host is not None else {}
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_server_listens_on_the_loopback_address_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_is_served_and_not_stored(server, tmp_path):
    status, body, headers = ask(server)
    assert (status, body) == (200, f"<p>version {version_of([tmp_path])}</p>")
    assert headers["ETag"] == f'"{version_of([tmp_path])}"'
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Type"] == "text/html; charset=utf-8"


def test_a_head_has_the_version_and_no_body(server, tmp_path):
    status, body, headers = ask(server, "HEAD")
    assert (status, body, headers["ETag"]) == (200, "", f'"{version_of([tmp_path])}"')


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_methods_that_could_write_are_refused(server, method, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, _, _ = ask(server, method, body="x" if method != "TRACE" else None)
    assert status == 501
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "path",
    [
        "/config.json", "/../config.json", "/..%2f..%2fetc/passwd", "//etc/passwd", "/?x=1", "/.",
        "/index.html", "http://127.0.0.1/", "*",
    ],
)  # fmt: skip
def test_other_paths_are_not_there(server, path):
    status, body, _ = ask(server, path=path, host=f"127.0.0.1:{server.server_port}")
    assert status == 404
    assert "python" not in body and "root:" not in body


@pytest.mark.parametrize(
    "host",
    ["example.com", "example.com:{port}", "127.0.0.1.example.com:{port}", "", "localhost",
     "127.0.0.1:1", "0.0.0.0:{port}"],
)  # fmt: skip
def test_other_hosts_are_refused(server, host):
    status, body, _ = ask(server, host=host.format(port=server.server_port))
    assert status == 403
    assert "version" not in body


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_names_of_this_machine_are_served(server, name):
    assert ask(server, host=f"{name}:{server.server_port}")[0] == 200


def test_the_page_is_made_again_only_when_files_change(tmp_path):
    write_run(tmp_path)
    made = []
    with served([tmp_path], lambda version: made.append(version) or version) as server:
        first = [ask(server)[1] for _ in range(3)]
        assert len(made) == 1 and len(set(first)) == 1
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(str(METRICS[0]))
        assert ask(server, "HEAD")[2]["ETag"] != f'"{first[0]}"'
        assert ask(server)[1] == made[1] != first[0]
        (tmp_path / "samples").mkdir()
        assert ask(server)[1] != made[1]


def test_runs_that_disappear_are_answered_with_an_error(tmp_path, capfd):
    def make_page(version):
        raise ConfigError("no run here")

    with served([tmp_path], make_page) as server:
        assert ask(server)[0] == 503
        assert ask(server, "HEAD")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port={port} cannot be used") as refused:
            ReportServer([tmp_path], lambda version: "", port)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="--port=70000"):
        ReportServer([tmp_path], lambda version: "", 70000)


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    pytest.importorskip("plotly")
    write_run(tmp_path)
    # A shell starts background jobs, and so their children, with this signal ignored. Not by
    # preexec_fn: it would fork this process, of which jax warns.
    with_signal = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", with_signal, "report.py", f"--workdirs={tmp_path}", "--serve"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    assert line.startswith("http://127.0.0.1:"), line + process.stderr.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
