"""The process that the processes of tasks are forked from, and what those do.

The driver has threads, clients and locks, and a fork would copy them in any state. This process has
only imported what tasks import. So a fork of it takes milliseconds, and shares that memory.

It also ends its forks when the driver is gone, whatever ended the driver and whatever the forks do.
It reads the end of its socket then. A fork of the driver may hold a copy of the socket: then the
driver's pidfd shows it. The kernel ends the forks when this process ends: they are children of its
first thread, and it has no other.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

from sequitur.base.standard_streams import reserve_descriptors
from sequitur.base.text import encodable, named
from sequitur.pipelines.attempts import begin_attempt
from sequitur.pipelines.local.arrow_pool import use_small_pool
from sequitur.pipelines.python_path import ModulesOfFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORK: Final = b"fork"
"""With the end of a socket for the fork; the answer is its process id."""
KILL: Final = b"kill"
"""With a process id; there is no answer."""
REAP: Final = b"reap"
"""With a process id, to kill and to wait for; the answer is its exit code."""
NO_FORK: Final = b"no fork"
"""The answer for a process of an earlier server."""
REQUEST_BYTES: Final = 64
DRIVERS_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""What a terminal and a service manager send to all processes, and the driver alone acts on."""

_PR_SET_PDEATHSIG: Final = 1
_prctl: Final = ctypes.CDLL(None, use_errno=True).prctl


def main(socket_fd: int, driver: int, modules: Sequence[str], files: Mapping[str, str]) -> None:
    """Import, then fork as the driver asks, until it is gone.

    Args:
        socket_fd: Where the driver asks.
        driver: Its process id.
        modules: What is imported.
        files: What tasks import from a file, by the name of the module.
    """
    reserve_descriptors()
    os.dup2(2, 1)  # what tasks print is not output of the program
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in DRIVERS_SIGNALS:
        # A handler and not SIG_IGN: a program that a task starts would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no fork can be waited for
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRIVERS_SIGNALS)
    faulthandler.enable()
    sys.meta_path.insert(0, ModulesOfFiles(files))
    for module in modules:
        importlib.import_module(module)
    use_small_pool()
    gc.collect()
    gc.freeze()
    ForkServer(socket.socket(fileno=socket_fd), driver).serve()


class ForkServer:
    def __init__(self, requests: socket.socket, driver: int) -> None:
        self._requests = requests
        self._pidfds = pidfds(driver)
        self._driver = driver
        self._forks: set[int] = set()

    def serve(self) -> None:
        """Serve the driver's requests until the driver is gone; then end all forks."""
        try:
            while os.getppid() == self._driver:
                if self._requests not in wait([self._requests, *self._pidfds]):
                    return
                request, fds, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, 1)
                if not request:
                    return
                kind, pid = request[:4], int(request[4:] or 0)
                if kind == FORK:
                    self._answer(self._fork(fds[0]))
                elif pid in self._forks:
                    _kill(pid)
                if kind == REAP:
                    self._answer(self._reap(pid))
        except ConnectionError:
            return  # the driver is gone
        finally:
            for pid in self._forks:
                _kill(pid)

    def _fork(self, channel: int) -> int:
        server = os.getpid()
        pid = os.fork()
        if pid:
            os.close(channel)
            self._forks.add(pid)
            return pid
        try:
            self._become_worker(server)
            work(Connection(channel))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of the server may run in its fork
            traceback.print_exc()
            os._exit(1)

    def _become_worker(self, server: int) -> None:
        """Die with the server, and lead a process group, so that one signal ends all of it."""
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(1)
        self._requests.close()
        for fd in self._pidfds:
            os.close(fd)

    def _reap(self, pid: int) -> int | None:
        if pid not in self._forks:
            return None
        self._forks.discard(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _answer(self, number: int | None) -> None:
        self._requests.send(NO_FORK if number is None else str(number).encode())


def pidfds(pid: int) -> list[int]:
    """Return descriptors that become readable when a process ends; empty if there are no pidfds."""
    with contextlib.suppress(OSError):
        return [os.pidfd_open(pid)]
    return []


def _kill(pid: int) -> None:
    """Kill a fork that nobody has waited for yet, with its process group."""
    for kill in (os.killpg, os.kill):  # it may not have made its group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def work(channel: Connection) -> None:
    """Run the driver's tasks in this thread, one after the other, until the driver is gone."""
    process = os.getpid()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            attempt, task = pickle.loads(channel.recv_bytes())  # noqa: S301 - the driver's
            answer = _answer(attempt, task)
            if os.getpid() != process:
                # Else the driver would take a second answer for that of the next task.
                raise RuntimeError("a process that a task has forked came back from it")
            channel.send_bytes(answer)


def _answer(attempt: int, task: bytes) -> bytes:
    """Return whether a task has a result, and the result or its error with the traceback."""
    import cloudpickle  # noqa: PLC0415 - the driver imports this file, and says who lacks it

    begin_attempt(attempt)
    try:
        answer: bytes = cloudpickle.dumps((True, pickle.loads(task)()))  # noqa: S301 - the driver's
    except BaseException as error:  # noqa: BLE001 - told by the driver
        where = encodable("".join(traceback.format_exception(error)))
        answer = pickle.dumps((False, (named(error), where)))
    return answer
