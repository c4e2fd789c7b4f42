"""How a job of several processes ends: what ends one process ends the others, within seconds.

A process that ends early says so in the job's key-value store, which process 0 holds for all. Each
process has a thread that looks there. Without it, the others would wait in their next collective
until the failed process has missed its heartbeats.
"""

import contextlib
import json
import os
import platform
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import jax
from jax._src import distributed  # the store and the preemption service have no public names

from experiment.command_line import BAD_INPUT
from experiment.schema import ConfigError
from storage.mirror import with_urls
from training.exits import AT_ONCE, DIED, EndedError

KEY = "backbone/ends/"
LOOK_SECONDS = 0.5  # between two looks at the store
GRACE_SECONDS = 2.0  # for a process to end for the same reason, with its own message
FAREWELL_SECONDS = 5.0  # for which process 0 keeps the store alive, so that the others read it
STOPS = (signal.SIGTERM, signal.SIGINT)
UNEXPECTED = 1  # the exit code of an exception without one of its own
MOST_TEXT = 4000  # characters of a message to the other processes

# What errors say if a collective or the store lost its connection to another process.
LOST = (
    "gloo", "connection closed by peer", "connection reset", "connection refused", "socket closed",
    "coordination service", "coordinationservice", "heartbeat", "nccl remote", "unavailable:",
)  # fmt: skip

_watch: "Watch | None" = None  # of this process, within `ending_together`


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Within this context, an early end of one process ends the whole job.

    Ends that all processes reach by themselves, at the same step, pass through as exceptions. Of
    the others, this context prints the message and ends the process at once: at a normal exit, jax
    waits for all processes of the job.
    """
    global _watch
    if not jax.distributed.is_initialized():
        yield
        return
    state = distributed.global_state
    _watch = watch = Watch(state.client, state.process_id, state.num_processes)
    try:
        with watch:
            yield
    except SystemExit:
        raise
    except KeyboardInterrupt:
        watch.end(AT_ONCE, "stopped by Ctrl-C before the end of the first step")
    except ConfigError as error:
        print(with_urls(str(error)), file=sys.stderr)
        watch.end(BAD_INPUT, with_urls(str(error)))
    except Exception as error:
        if isinstance(error, EndedError) and error.is_joint:
            raise
        if lost_process(error):
            watch.follow()
            print(f"another process of the job died: {_first_line(error)}", file=sys.stderr)
            watch.end(DIED, "ended because another process of the job died")
        if isinstance(error, EndedError):
            print(error, file=sys.stderr)
            watch.end(error.exit_code, str(error))
        traceback.print_exc()
        watch.end(UNEXPECTED, _first_line(error))
    finally:
        _watch = None


def first_step_is_done() -> None:
    """From now on, stop signals are for the loop: the job saves before it ends."""
    if _watch is not None:
        _watch.leave_signals()


class Watch:
    """A thread that ends this process if another one has ended, or on a stop signal.

    It takes signals only until the first step is done: there is nothing to save before. Python's
    own handlers run in the main thread, which may be waiting for another process; but the number of
    a signal is written to a pipe at once.
    """

    def __init__(self, client, index: int, count: int):
        self._client, self._index, self._count = client, index, count
        self._left, self._ending = threading.Event(), threading.Lock()
        self._pipe, self._handlers = None, {}
        self._thread = threading.Thread(target=self._run, name="job_ends", daemon=True)

    def __enter__(self) -> "Watch":
        if threading.current_thread() is threading.main_thread():
            self._take_signals()
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._left.set()
        self._forget_signals()

    def _take_signals(self) -> None:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # SIGINT keeps Python's handler, KeyboardInterrupt, where the main thread can run it.
        self._handlers = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: None)}
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget_signals)

    def leave_signals(self) -> None:
        """Gives the handlers back; SIGTERM then goes to jax's preemption service."""
        if not self._handlers:
            return
        self._forget_signals()
        jax.config.update("jax_enable_preemption_service", True)
        if distributed.global_state.preemption_sync_manager is None:
            distributed.global_state.initialize_preemption_sync_manager()

    def _forget_signals(self) -> None:
        """Restores the handlers: a child process must not write to its parent's pipe."""
        handlers, self._handlers = self._handlers, {}
        if handlers:
            signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _run(self) -> None:
        while not self._left.is_set():
            if number := self._signal():
                self._stop(number)
            if self._left.is_set():
                return
            if self._ends() and not self._left.wait(GRACE_SECONDS):
                self.follow()

    def follow(self) -> None:
        """Ends this process like another one that has said why it ends; returns if none says so."""
        until = time.monotonic() + GRACE_SECONDS
        while not (ends := self._ends()) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS / 5)
        for index, end in ends.items():
            code = DIED if end["code"] == UNEXPECTED else end["code"]
            said = f"process {index} on {end['host']}: {end['text']}"
            print(said, file=sys.stderr, flush=True)
            self.end(code, f"ended because of process {index}")

    def _signal(self) -> int:
        """Waits for the time between two looks, or until a stop signal arrives."""
        if self._pipe is None:
            self._left.wait(LOOK_SECONDS)
            return 0
        if not select.select([self._pipe[0]], [], [], LOOK_SECONDS)[0]:
            return 0
        stops = [number for number in os.read(self._pipe[0], 64) if number in STOPS]
        return stops[0] if stops and self._handlers else 0

    def _stop(self, number: int) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self._left.wait(GRACE_SECONDS):
            return  # the main thread ends by KeyboardInterrupt
        text = f"{name} before the end of the first step: nothing to save"
        print(text, file=sys.stderr, flush=True)
        self.end(AT_ONCE if number == signal.SIGINT else 128 + number, text)

    def _ends(self) -> dict[int, dict]:
        """What other processes that have ended say, by index."""
        try:
            found = self._client.key_value_dir_get(KEY)
        except Exception:  # process 0 is gone: jax ends this process (DIED)
            return {}
        ends = {int(key.rsplit("/", 1)[1]): json.loads(value) for key, value in found}
        return {index: end for index, end in ends.items() if index != self._index}

    def end(self, code: int, text: str) -> None:
        """Ends the process, once the others can know why. Does not return."""
        self._ending.acquire()  # never released: the first reason counts
        farewell = threading.Thread(target=self._tell, args=(code, text), daemon=True)
        farewell.start()
        farewell.join(FAREWELL_SECONDS)
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        if code == DIED:
            abort()
        os._exit(code)

    def _tell(self, code: int, text: str) -> None:
        said = {"code": code, "host": platform.node(), "text": text[:MOST_TEXT]}
        with contextlib.suppress(Exception):  # process 0 is gone
            self._client.key_value_set(f"{KEY}{self._index}", json.dumps(said))
        while self._index == 0 and len(self._ends()) < self._count - 1:
            time.sleep(LOOK_SECONDS / 5)


def lost_process(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that another process is gone."""
    while error is not None:
        # jax's own errors are among these; those of a web server are not.
        if isinstance(error, RuntimeError | ValueError):
            text = str(error).lower()
            if any(sign in text for sign in LOST):
                return True
        error = error.__cause__ or error.__context__
    return False


def abort() -> None:
    """Ends the process as jax's runtime does when it notices first, so that the code is the same.

    Without a core dump, which of a process of a training job is large and useless.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]
