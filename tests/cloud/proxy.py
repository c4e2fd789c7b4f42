"""A proxy between a client and a server of object storage, which counts requests and breaks them.

It runs in threads of the test's process, so that a test can change at any moment what it does. A
request is one line, such as "PUT /bucket/run/checkpoints/2/commit_success.txt".
"""

import contextlib
import dataclasses
import http.client
import http.server
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

NAME = re.compile(rb'"name": "([^"]*)"')
SLOW_SECONDS = 1.0
NOT_FORWARDED = ("connection", "keep-alive", "transfer-encoding", "content-length")


@dataclasses.dataclass(eq=False)
class Fault:
    """What happens to the next `count` requests whose line contains all of `words`."""

    words: tuple[str, ...]
    status: int
    body: bytes
    count: int
    then: Callable[[], None]
    done: int = 0  # how many there were


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection, of which clients open many at once."""

    daemon_threads = True
    request_queue_size = 128


class Proxy:
    """Forwards requests from `port` to a server on this machine."""

    def __init__(self, upstream: int):
        self._upstream = upstream
        self.port = 0
        self.lines: list[str] = []  # of all requests
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._server: Server | None = None

    def __enter__(self) -> "Proxy":
        self.start()
        return self

    def __exit__(self, *exception) -> None:
        self.die()

    def start(self) -> None:
        """Listens: at the same port as before."""
        self._server = Server(("127.0.0.1", self.port), handler(self))
        self.port = self._server.server_address[1]
        run = lambda: self._server.serve_forever(poll_interval=0.05)  # noqa: E731
        threading.Thread(target=run, daemon=True).start()

    def die(self) -> None:
        """Ends all connections, and refuses new ones."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.socket.close()
        threading.Thread(target=server.shutdown, daemon=True).start()
        with self._lock:
            for each in self._connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def faults(
        self,
        status: int,
        *words: str,
        body: bytes = b"",
        count: int = 10**6,
        then: Callable[[], None] = lambda: None,
    ) -> Iterator[Fault]:
        """Answers with `status` and `body`; 0: slowly, with the server's answer.

        `words` must all be in the request's line. Calls `then` before each answer.
        """
        fault = Fault(words, status, body, count, then)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    def fault_of(self, line: str) -> Fault | None:
        """Notes a request; returns what is to happen to it."""
        with self._lock:
            self.lines.append(line)
            for each in self._faults:
                if each.done < each.count and all(word in line for word in each.words):
                    each.done += 1
                    return each
        return None

    def connected(self, connection: socket.socket, *, is_open: bool) -> None:
        """Notes a connection."""
        with self._lock:
            (self._connections.add if is_open else self._connections.discard)(connection)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes):
        """Returns the server's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in NOT_FORWARDED:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


def handler(proxy: Proxy) -> type[http.server.BaseHTTPRequestHandler]:
    """The class that answers the requests of a proxy."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self):
            super().setup()
            proxy.connected(self.connection, is_open=True)

        def finish(self):
            with contextlib.suppress(OSError):
                super().finish()
            proxy.connected(self.connection, is_open=False)

        def handle_any(self):
            body = self._body()
            # Some uploads have the object's name in their body.
            named = NAME.search(body[:1000]) if self.command == "POST" else None
            named = f" {named[1].decode()}" if named else ""
            fault = proxy.fault_of(f"{self.command} {self.path}{named}")
            if fault is not None:
                fault.then()
                if fault.status:
                    return self._answer(fault.status, {}, fault.body)
                time.sleep(SLOW_SECONDS)
            headers = dict(self.headers.items())
            try:
                answer, data = proxy.forward(self.command, self.path, headers, body)
            except (OSError, http.client.HTTPException):  # the server is too busy
                return self._answer(502, {}, b"")
            self._answer(answer.status, dict(answer.getheaders()), data)

        def _body(self) -> bytes:
            if self.headers.get("Expect", "").lower() == "100-continue":
                pass  # the base class has answered that
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response_only(status)
            length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
            for name, value in headers.items():
                if name.lower() not in NOT_FORWARDED:
                    self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(data)

        def handle_one_request(self):
            with contextlib.suppress(OSError):
                return super().handle_one_request()
            self.close_connection = True

        def log_message(self, *args):
            pass

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = handle_any  # noqa: N815

    return Handler
