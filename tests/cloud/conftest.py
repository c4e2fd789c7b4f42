"""Servers that speak the protocols of object stores, each a process on a free port."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train
from configs import dates
from storage.object_store import filesystem
from tests.cloud.proxy import Proxy
from tests.cloud.runs import STEPS
from tests.runs import tiny

ROOT = Path(__file__).resolve().parent.parent.parent
pytest.importorskip("gcp_storage_emulator", reason="needs pip install -e '.[cloud-test]'")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cloud)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(*command: str, port: int):
    """A server process, ready to answer; ended with the context."""
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        else:
            raise TimeoutError(f"{command} does not answer")
        yield
    finally:
        process.kill()
        process.wait()


def gcs_environment(port: int) -> dict[str, str]:
    """What makes gcsfs, google-cloud-storage and tensorstore use the server on `port`."""
    address = f"http://127.0.0.1:{port}"
    return {
        "STORAGE_EMULATOR_HOST": address,
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        # gcsfs would ask Google what kind of bucket it is.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


@pytest.fixture(scope="session")
def gcs_proxy():
    """What is between the clients and the server of Google's protocol."""
    port = free_port()
    with server("-m", "tests.cloud.gcs_server", str(port), port=port), Proxy(port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def gcs(gcs_proxy):
    """Google's protocol, with the bucket gs://bucket; the environment of this process names it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gcs_environment(gcs_proxy.port).items():
            patch.setenv(name, value)
        yield "gs://bucket"


@pytest.fixture
def url(gcs, request):
    """A directory of its own for each test."""
    return f"{gcs}/{request.node.name.replace('[', '-').replace(']', '')}"


def copy_run(source: str, target: str) -> None:
    """Copies all objects below an address; gcsfs's recursive copy takes minutes for a run."""
    objects = filesystem(source)
    for path in objects.find(source):
        name = path.partition(source.partition("://")[2])[2]
        objects.pipe_file(f"{target}{name}", objects.cat_file(path))


def objects(url: str) -> dict[str, bytes]:
    """The content of all objects below an address, by name."""
    files, root = filesystem(url), url.partition("://")[2]
    return {name.removeprefix(f"{root}/"): files.cat_file(name) for name in files.find(url)}


def child(script: str, *arguments: str) -> subprocess.Popen:
    """Starts a script as a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def gcs_faults(gcs, gcs_proxy):
    """A context in which requests fail: the next `count` whose line contains `what`."""
    return gcs_proxy.faults


@pytest.fixture
def gcs_requests(gcs, gcs_proxy):
    """The number of requests so far."""
    return lambda: len(gcs_proxy.lines)


@pytest.fixture(scope="session")
def s3_proxy():
    """What is between the clients and the server of Amazon's protocol."""
    port = free_port()
    command = "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)
    with server(*command, port=port), Proxy(port) as proxy:
        yield proxy


def s3_environment(port: int) -> dict[str, str]:
    """What makes s3fs and tensorstore use the server on `port`."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.fixture(scope="session")
def s3(s3_proxy):
    """Amazon's protocol, with the bucket s3://bucket."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(s3_proxy.port).items():
            patch.setenv(name, value)
        filesystem("s3://bucket").mkdir("bucket")
        yield "s3://bucket"


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """The run on a disk that all others are compared with."""
    workdir = tmp_path_factory.mktemp("local") / "run"
    train.train_and_evaluate(tiny(dates, STEPS), workdir)
    return workdir
