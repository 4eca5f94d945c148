"""What is to be done again and again: every so often, and what fails is told and tried again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_TOLD_EACH_S: Final = 60.0


class ToldOnce:
    """Tells each line at most once a minute."""

    def __init__(
        self, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._told: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        now_s = self._clock()
        self._told = {one: at for one, at in self._told.items() if now_s - at < _TOLD_EACH_S}
        if line not in self._told:
            self._told[line] = now_s
            self._tell(line)


class Duty:
    """Some work, and when it is due. One thread at a time."""

    def __init__(
        self,
        work: Callable[[], object],
        *,
        every_s: float,
        passes: tuple[type[Exception], ...],
        tell: Callable[[Exception], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._every_s = every_s
        self._passes = passes
        self._tell = tell
        self._clock = clock
        self._due_s = float("-inf")

    def later(self) -> Duty:
        """Make it due after the interval instead of at once."""
        self._due_s = self._clock() + self._every_s
        return self

    def run(self) -> None:
        """Do the work if it is due. Tell of errors that pass, and try again later."""
        if self._clock() < self._due_s:
            return
        self.later()
        try:
            self._work()
        except self._passes as error:
            self._tell(error)
