"""Serves a report on this machine while its runs go on.

It listens on the loopback address only, answers GET and HEAD only, and serves one page from memory:
no part of a request becomes a path. Host headers of other names are refused, so that a web page
elsewhere cannot read the report through a name that it points at this machine (DNS rebinding).
"""

import contextlib
import hashlib
import http.server
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path

from experiment.schema import ConfigError
from storage.mirror import Mirror
from storage.object_store import is_remote

ADDRESS = "127.0.0.1"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
REFRESH_SECONDS = 5.0
REMOTE_REFRESH_SECONDS = 30.0  # of runs in a bucket, which upload their records once a minute
WATCHED = (
    "config.json", "model.json", "environment.json", "metrics.jsonl", "events.jsonl",
    "evaluations.jsonl", "samples", "evaluations", "checkpoints",
)  # fmt: skip


def refresh_seconds(workdirs: Iterable[str | Path]) -> float:
    """How often a page looks for changes."""
    return REMOTE_REFRESH_SECONDS if any(map(is_remote, workdirs)) else REFRESH_SECONDS


def version_of(workdirs: Iterable[str | Path]) -> str:
    """A digest of sizes and times of the files that a report reads."""
    digest = hashlib.sha256()
    for workdir in workdirs:
        if is_remote(workdir):
            digest.update(f"{workdir}:{_remote_version(str(workdir))}\n".encode())
            continue
        for name in WATCHED:
            path = Path(workdir, name)
            try:
                facts = path.stat()
                digest.update(f"{path}:{facts.st_size}:{facts.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{path}:missing\n".encode())
    return digest.hexdigest()[:20]


def _remote_version(url: str) -> str:
    try:
        return Mirror(url).remote_version()
    except OSError as error:
        raise ConfigError(f"--workdirs={url} cannot be read ({error.strerror})") from error


class ReportServer(http.server.ThreadingHTTPServer):
    """Serves the page that `make_page(version)` returns for the newest version of the files."""

    daemon_threads = True

    def __init__(
        self, workdirs: Sequence[str | Path], make_page: Callable[[str], str], port: int = 0
    ):
        self._workdirs, self._make_page = workdirs, make_page
        self._lock, self._version, self._page = threading.Lock(), "", b""
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--port={port} cannot be used ({reason}); choose another, or 0 for any free one"
            ) from error

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def version(self) -> str:
        return version_of(self._workdirs)

    def page(self) -> tuple[str, bytes]:
        """(version, page): made again only if a file has changed."""
        with self._lock:
            version = self.version()
            if version != self._version:
                self._page = self._make_page(version).encode()
                self._version = version
            return self._version, self._page

    def handle_error(self, request, client_address) -> None:
        """Passes over browsers that hang up early."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "report", ""
    timeout = 30  # seconds for a request

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if not self._has_loopback_host():
            self.send_error(HTTPStatus.FORBIDDEN, "only for this machine")
            return
        if self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND, "there is only /")
            return
        try:
            version, page = self.server.page() if with_body else (self.server.version(), b"")
        except ConfigError:  # such as a directory that was removed, or a network that is down
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the runs cannot be read")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if with_body:
            self.send_header("Content-Length", str(len(page)))
        self.send_header("ETag", f'"{version}"')
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if with_body:
            self.wfile.write(page)

    def _has_loopback_host(self) -> bool:
        name, _, port = self.headers.get("Host", "").rpartition(":")
        return name in LOOPBACK_NAMES and port == str(self.server.server_port)

    def log_message(self, *_) -> None:
        """Requests are not logged."""


def serve(server: ReportServer) -> None:
    """Says where the page is, and serves it until Ctrl-C."""
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        server.serve_forever()
