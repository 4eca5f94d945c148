"""A program run to its end, with the memory and processor time of it and all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SAMPLE_S: Final = 0.5
_END_TIMEOUT_S: Final = 60.0
_LINES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Look:
    """What a process and all that it started had at one moment.

    Attributes:
        at_s: The moment, by the monotonic clock.
        cpu_s: Processor time that they have spent, with that of those that have ended.
        pss_bytes: Their memory; what processes share is divided among them.
        processes: How many they are.
    """

    at_s: float
    cpu_s: float
    pss_bytes: int
    processes: int

    @classmethod
    def at(cls, pid: int) -> Self:
        """Look at the processes of a tree now."""
        at_s, cpu_s, pss_bytes, processes = time.monotonic(), 0.0, 0, 0
        root = psutil.Process(pid)
        for one in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                cpu_s += sum(one.cpu_times()[:4])  # with that of children that have ended
                pss_bytes += one.memory_full_info().pss
                processes += 1
        return cls(at_s, cpu_s, pss_bytes, processes)


@contextlib.contextmanager
def looking(pid: int, every_s: float) -> Iterator[list[Look]]:
    """Look at a tree of processes now and then, from the start of the block to its end."""
    looks = [Look.at(pid)]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(max(0.0, looks[-1].at_s + every_s - time.monotonic())):
            looks.append(Look.at(pid))

    # Not by whoever measures: a large process takes a while to look at.
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
    looks.append(Look.at(pid))


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program did.

    Attributes:
        lines: Those of its standard output, each with the seconds after which it came.
        seconds: From its start to its end.
        memory_bytes: What its process tree held, sampled twice a second.
        cpu_s: Processor time of the same processes: what each has had when it was last seen.
    """

    lines: Sequence[tuple[float, str]]
    seconds: float
    memory_bytes: Sequence[int]
    cpu_s: float = 0.0

    @property
    def peak_memory_bytes(self) -> int:
        """The most of all samples."""
        return max(self.memory_bytes, default=0)


def run_measured(command: Sequence[str], environ: Mapping[str, str]) -> Finished:
    """Run a program.

    Raises:
        RuntimeError: It ended with another status than 0; the message ends with its last lines.
    """
    with tempfile.TemporaryFile("w+") as complaints:
        began_s = time.monotonic()
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=complaints, text=True
        )
        samples: list[int] = []
        times: dict[tuple[int, float], float] = {}
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, samples, times, ended))
        sampler.start()
        try:
            assert process.stdout is not None
            with process.stdout as output:
                lines = [(time.monotonic() - began_s, line.rstrip("\n")) for line in output]
            process.wait()
        finally:
            seconds = time.monotonic() - began_s
            _end_tree(process)
            ended.set()
            sampler.join()
        complaints.seek(0)
        if process.returncode != 0:
            told = [*(line for _, line in lines), *complaints.read().splitlines()]
            shown = "\n".join(told[-_LINES_SHOWN:])
            raise RuntimeError(f"{command[:4]} ended with status {process.returncode}:\n{shown}")
    return Finished(lines, seconds, samples, sum(times.values()))


@contextlib.contextmanager
def running(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    output: Path = Path(os.devnull),
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program, ended by SIGTERM at the end of the block, and by force when that does not do.

    What it started and left behind ends with it.

    Args:
        command: It, and its arguments.
        environ: Its environment, if not that of this process.
        output: Where its standard output goes.
        folder: Where it runs, if not where this process does.
    """
    with output.open("wb") as written:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=written, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_tree(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Nothing of it outlives us, also when we are interrupted."""
    if process.poll() is not None:
        return
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait()


def _sample(
    pid: int, samples: list[int], times: dict[tuple[int, float], float], ended: threading.Event
) -> None:
    while not ended.wait(_SAMPLE_S):
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            held = 0
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    held += process.memory_info().rss
                    spent = process.cpu_times()
                    times[process.pid, process.create_time()] = spent.user + spent.system
            samples.append(held)
