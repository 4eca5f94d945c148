"""A job in a process group of its own: what it says is read, and it is held, ended or killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from tests.support.held import held
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_EXIT_TIMEOUT_S = 5 * PATIENCE_S
_MOST_SAID: Final = 1 << 24


class JobProcess:
    """One life of a job, from its start to its end or its killing.

    Args:
        command: What starts it.
        environment: The variables that it has.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            start_new_session=True,  # a process group of its own, as a terminal gives it
        )
        # Read at once: a job that nobody reads waits once the pipe is full.
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that was started, and of its group."""
        return self.process.pid

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Hold its group where it is; processes of tasks have another one."""
        return held([process for process in psutil.pids() if _group_of(process) == self.pid])

    def steps(self) -> Iterator[dict[str, Any]]:
        """What it says of each step, as it says it; at its end, the report."""
        yield from map(json.loads, self._lines())

    def complaints(self) -> str:
        """What it said so far beside its steps."""
        # Its place in the file is that of the job, which may be writing.
        return os.pread(self._complaints.fileno(), _MOST_SAID, 0).decode()

    def end(self, status: int = 0, *, within_s: float = _EXIT_TIMEOUT_S) -> str:
        """Wait until it has ended with this status; the rest of its standard output."""
        self.process.wait(timeout=within_s)
        assert self.process.returncode == status, self.complaints()
        return "".join(self._lines())

    def kill(self) -> None:
        """SIGKILL to the whole group, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._complaints.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.put(line)
        self._said.put(None)

    def _lines(self) -> Iterator[str]:
        while (line := self._said.get()) is not None:
            yield line
        self._said.put(None)  # for who asks again


def _group_of(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None
