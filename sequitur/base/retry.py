"""Asking again while what fails is expected to pass: how long to wait, and until when.

Exponential backoff with jitter (KIP-580): for a producer 100 ms, doubling to 1 s, each spread by
20 % either way, so that a thousand producers that lost the same broker do not come back in the same
instant. A job asks alone, and spreads nothing. A topology's failed events wait by this rule, too.

All requests that the driver makes to Kafka share one `Outages`. It knows how long to wait, logs
each wait, and tells the metrics since when the job has been waiting.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.errors import SendUnansweredError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The rule of a growing wait.

    Attributes:
        initial_ms: Wait after the first failure.
        maximum_ms: Wait that is never exceeded, but for the jitter.
        jitter: Share by which each wait is spread to either side.
        factor: Each wait is so many times the one before; at least 1.
    """

    initial_ms: float = 100
    maximum_ms: float = 1_000
    jitter: float = 0.2
    factor: float = 2.0

    def delay_ms(self, failures: int, random: float = 0.5) -> float:
        """Return the wait after some failures in a row.

        Args:
            failures: How many, from 1.
            random: Drawn from [0, 1); the middle without jitter.
        """
        try:
            growth = self.factor ** (max(failures, 1) - 1)
        except OverflowError:
            growth = sys.float_info.max
        return min(self.initial_ms * growth, self.maximum_ms) * (
            1 - self.jitter + 2 * self.jitter * random
        )


_BETWEEN_QUESTIONS: Final = Backoff(initial_ms=5, maximum_ms=500, jitter=0)


class Attempts:
    """Attempts at one thing."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failures = 0
        self._deadline_s = 0.0

    def succeed(self) -> None:
        """Take note of a success: patience begins anew."""
        self._failures = 0

    async def pause(self, why: str) -> None:
        """Wait before the next attempt."""
        now_s = asyncio.get_running_loop().time()
        if self._failures == 0:
            self._deadline_s = now_s + self._patience_s
        elif now_s > self._deadline_s:
            raise SendUnansweredError(why)
        self._failures += 1
        await asyncio.sleep(_BETWEEN_QUESTIONS.delay_ms(self._failures) / 1000)


_BETWEEN_ATTEMPTS: Final = Backoff(initial_ms=50, maximum_ms=2_000, jitter=0)
_BETWEEN_RESTARTS: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0)
_BRIEFLY_S: Final = 30.0
_TOLD_EACH_S: Final = 30.0
_TOLD_AFTER_S: Final = 1.0
"""A leader that moves is not worth a line."""


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the job's log


def _sleep(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False


def brief_outages() -> Outages:
    """Return outages for requests outside of a job: half a minute, and nothing logged."""
    return Outages(_BRIEFLY_S, 0, wait=_sleep, tell=len)


class Outages:
    """How long to wait for what is expected to pass, and how much of that is left."""

    def __init__(
        self,
        patience_s: float,
        restarts: int,
        *,
        wait: Callable[[float], bool],
        tell: Callable[[str], object] = _print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restarted = 0
        self._patience_s = patience_s
        self._restarts = restarts
        self._wait = wait
        self.tell = tell
        self._clock = clock
        self._waits: dict[object, float] = {}
        self._fruitless = 0

    @property
    def waiting_s(self) -> float:
        """For how long the job has been waiting now; 0 when it is not."""
        # Steps that are staged and steps that go out wait side by side.
        since_s = min(self._waits.copy().values(), default=None)
        return 0.0 if since_s is None else self._clock() - since_s

    @property
    def is_over(self) -> bool:
        """Whether waiting is to be given up."""
        return self._wait(0)

    def outlast(self, ask: Callable[[], T], passes: Callable[[Exception], str | None]) -> T:
        """Return the answer to a question; ask again while what fails is expected to pass."""
        begun_s, this = self._clock(), object()
        told_s, failures = begun_s + _TOLD_AFTER_S - _TOLD_EACH_S, 0
        is_told = False
        try:
            while True:
                try:
                    answer = ask()
                except Exception as error:
                    why, now_s = passes(error), self._clock()
                    left_s = begun_s + self._patience_s - now_s
                    if why is None or left_s <= 0:
                        raise
                    self._waits[this] = begun_s
                    if now_s - told_s >= _TOLD_EACH_S:
                        self.tell(f"waiting for Kafka, {left_s:.0f} s more at most: {why}")
                        told_s, is_told = now_s, True
                    failures += 1
                    if self._wait(_BETWEEN_ATTEMPTS.delay_ms(failures) / 1000):
                        raise
                else:
                    if is_told:
                        self.tell(f"Kafka answers again, after {self._clock() - begun_s:.0f} s")
                    return answer
        finally:
            self._waits.pop(this, None)

    def step_is_done(self) -> None:
        """Note that a step is done: all restarts are allowed again."""
        self._fruitless = 0

    def may_restart(self, why: str) -> bool:
        """Wait before the query is restarted; False when no restart is left, or it is to stop."""
        if self._fruitless >= self._restarts:
            return False
        self._fruitless += 1
        pause_s = _BETWEEN_RESTARTS.delay_ms(self._fruitless) / 1000
        self.restarted += 1
        self.tell(
            f"the query restarts in {pause_s:g} s ({self._fruitless} of {self._restarts} "
            f"times without a step): {why}"
        )
        return not self.pause(pause_s)

    def pause(self, seconds: float) -> bool:
        """Wait; whether waiting is to be given up."""
        this = object()
        self._waits[this] = self._clock()
        try:
            return self._wait(seconds)
        finally:
            del self._waits[this]
