"""A process held where it is, so that a test can look at its files while they are at rest."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from sequitur.embedded import is_at_rest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_POLL_S = 0.001
_POLLS = 100
_GO_ON_S = 0.05


@contextlib.contextmanager
def held(processes: Sequence[int]) -> Iterator[None]:
    """Stop processes (SIGSTOP), and let them go on at the end, if they are still there.

    A test that kills a process in the middle of something cannot tell by the clock when that is:
    it holds the process, looks, and kills it where it stands or lets it go on.
    """
    while not _are_stopped(processes):
        # One waits for its vfork child, which is stopped before it runs a program of its own.
        _signal(processes, signal.SIGCONT)
        time.sleep(_GO_ON_S)
    try:
        yield
    finally:
        _signal(processes, signal.SIGCONT)


def _are_stopped(processes: Sequence[int]) -> bool:
    """Stop processes; whether they came to rest, which a write that had begun may delay."""
    _signal(processes, signal.SIGSTOP)
    for _ in range(_POLLS):
        if all(is_at_rest(process) for process in processes):
            return True
        time.sleep(_POLL_S)
    return False


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
