"""Which runs of steps counted: a bolt goes on only from a run that did."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_STEPS: Final = 64
"""A process that has not had a task for so many steps creates its bolts again."""


class CountedRuns:
    """The runs of the newest steps whose results counted, in one life of a job.

    A result counts until its step is begun again, and with it those of all later steps: these were
    made ahead. Steps may be begun in one thread, and be added in another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[int, frozenset[str]] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of these runs."""
        with self._lock:
            return frozenset().union(*self._runs.values())

    def begin(self, step: int) -> None:
        """Begin a step: what it and later ones came to before counts no more."""
        with self._lock:
            self._runs = {one: runs for one, runs in self._runs.items() if one < step}

    def add(self, step: int, runs: Iterable[str]) -> None:
        """Add the runs that the result of a step comes from."""
        with self._lock:
            self._runs[step] = self._runs.get(step, frozenset()).union(runs)
            for one in sorted(self._runs)[:-_MOST_STEPS]:
                del self._runs[one]
