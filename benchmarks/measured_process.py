"""A program run to its end, with the memory that it and all it started held meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SAMPLE_S: Final = 0.5
_LINES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program did.

    Attributes:
        output: Its standard output.
        seconds: From its start to its end.
        memory_bytes: What its process tree held, sampled twice a second.
    """

    output: str
    seconds: float
    memory_bytes: Sequence[int]

    @property
    def peak_memory_bytes(self) -> int:
        """The most of all samples."""
        return max(self.memory_bytes, default=0)


def run_measured(command: Sequence[str], environ: Mapping[str, str]) -> Finished:
    """Run a program.

    Raises:
        RuntimeError: It ended with another status than 0; the message ends with its last lines.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        began_s = time.monotonic()
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=complaints)
        samples: list[int] = []
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, samples, ended))
        sampler.start()
        try:
            process.wait()
        finally:
            seconds = time.monotonic() - began_s
            _end_tree(process)
            ended.set()
            sampler.join()
        output.seek(0)
        complaints.seek(0)
        said = output.read()
        if process.returncode != 0:
            lines = [*said.splitlines(), *complaints.read().splitlines()][-_LINES_SHOWN:]
            shown = "\n".join(lines)
            raise RuntimeError(f"{command[:4]} ended with status {process.returncode}:\n{shown}")
    return Finished(said, seconds, samples)


def _end_tree(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Nothing of it outlives us, also when we are interrupted."""
    if process.poll() is not None:
        return
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait()


def _sample(pid: int, samples: list[int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_S):
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            held = 0
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    held += process.memory_info().rss
            samples.append(held)
