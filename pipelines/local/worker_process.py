"""The driver's side of processes that run tasks: the server that forks them, and each of them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

from sequitur.base.standard_streams import reserve_descriptors
from sequitur.errors import ReorderError
from sequitur.pipelines.local.fork_server import (
    DRIVERS_SIGNALS,
    FORK,
    KILL,
    NO_FORK,
    REAP,
    REQUEST_BYTES,
    pidfds,
)
from sequitur.pipelines.python_path import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_END_S: Final = 1.0
"""So long a server that is to end may take: it only has to kill its forks."""
_BEGIN: Final = (
    "import sys; sys.path[:] = {path!r}; from sequitur.pipelines.local.fork_server import main; "
    "main({fd}, {driver}, {modules!r}, {files!r})"
)


class ProcessDiedError(Exception):
    """A process ended before its answer came. The text says how it ended."""


class WorkerProcess:
    def __init__(self, server: ServerProcess) -> None:
        here, there = socket.socketpair()
        with here, there:
            self.pid = server.fork(there)
            self._channel = Connection(here.detach())
        self._server = server
        # A process that a task has forked may hold the other end of the channel: then the channel
        # does not show the end of the task's process.
        self._pidfds = pidfds(self.pid)

    def answer(self, attempt: int, task: bytes) -> bytes:
        """Have a task done, and return what `fork_server.work` answers.

        Raises:
            ProcessDiedError: The process has ended.
        """
        try:
            self._channel.send_bytes(pickle.dumps((attempt, task)))
            wait([self._channel, *self._pidfds])
            if self._channel.poll():
                return self._channel.recv_bytes()
        except (EOFError, OSError):
            pass
        raise ProcessDiedError(f"Python worker exited unexpectedly ({_end_text(self.end())})")

    def kill(self) -> None:
        """Kill it. A thread that waits for its answer gets an error."""
        self._server.kill(self.pid)

    def end(self) -> int | None:
        """End the process if it has not ended yet, and forget it; return how it ended."""
        self._channel.close()
        for fd in self._pidfds:
            os.close(fd)
        return self._server.reap(self.pid)


def _end_text(code: int | None) -> str:
    if code is None:
        return "with all others"
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name if -code in [*signal.Signals] else f"signal {-code}"
    return f"{name}: does it have enough memory?" if -code == signal.SIGKILL else name


class ServerProcess:
    """The process that forks the others; see `fork_server`.

    Args:
        modules: What it imports before it forks.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._forks = 0
        self._is_closed = False

    def start(self) -> None:
        """Start the process and its imports, if it does not run yet."""
        with self._lock:
            self._start()

    def fork(self, channel: socket.socket) -> int:
        """Return the process id of a new process that answers by a socket.

        Raises:
            ReorderError: There is no server, and none can be started.
        """
        with self._lock:
            for _ in range(2):  # the first may find out that the server has died
                self._start()
                pid = self._asked(FORK, [channel.fileno()])
                if pid is not None:
                    self._forks += 1
                    return pid
                code = self._forget()
        raise ReorderError(
            f"no Python process can be started for tasks (exit status {code}): what it said stands "
            "on standard error"
        )

    def kill(self, pid: int) -> None:
        """Kill a process; to be waited for by `reap`.

        It takes no lock: the thread that holds it may wait for the server.
        """
        requests = self._requests
        with contextlib.suppress(OSError):
            if requests is not None:
                requests.send(KILL + str(pid).encode())

    def reap(self, pid: int) -> int | None:
        """Return how a process has ended; None if it ended with the server."""
        with self._lock:
            code = self._asked(REAP + str(pid).encode())
            self._forks -= code is not None
            return code

    def rest(self) -> None:
        """End it if it has no forks; the next fork starts it again."""
        with self._lock:
            if not self._forks:
                self._forget()

    def close(self) -> None:
        """End it and all its forks."""
        requests, self._is_closed = self._requests, True
        if requests is not None:
            # Not `close`: a fork of this process may have the socket, too. And without the lock:
            # the thread that holds it may wait for the server.
            with contextlib.suppress(OSError):
                requests.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._forget()

    def _start(self) -> None:
        if self._is_closed:
            raise ReorderError("the processes for tasks have been ended")
        if self._process is not None:
            return
        reserve_descriptors()  # else the socket could be one of them
        self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begin = _BEGIN.format(
            path=[entry for entry in sys.path if isinstance(entry, str)],  # Python imports by these
            fd=there.fileno(),
            driver=os.getpid(),
            modules=self._modules,
            files=FILES,
        )
        # Arrow and what computes for NumPy take as many threads as there are cores, each for
        # itself; here each core has a process.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with there, _held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-c", begin],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                env=environment,
                start_new_session=True,
            )

    def _asked(self, request: bytes, fds: Sequence[int] = ()) -> int | None:
        """Return the server's answer; None if the server is gone."""
        if self._requests is None:
            return None
        try:
            socket.send_fds(self._requests, [request], fds)
            answer = self._requests.recv(REQUEST_BYTES)
        except OSError:
            return None
        return int(answer) if answer not in {b"", NO_FORK} else None

    def _forget(self) -> int | None:
        """Forget a server that has died or is to end. Return how it ended."""
        process, requests = self._process, self._requests
        self._process = self._requests = None
        self._forks = 0
        if process is None or requests is None:
            return None
        requests.close()
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel kills its forks
            return process.wait()


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Hold back signals until the new process has handlers for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
