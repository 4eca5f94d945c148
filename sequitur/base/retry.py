"""Asking again while what fails is expected to pass: how long to wait, and until when.

Exponential backoff with jitter (KIP-580): for a producer 100 ms, doubling to 1 s, each spread by
20 % either way, so that a thousand producers that lost the same broker do not come back in the same
instant. A job asks alone, and spreads nothing. A topology's failed events wait by this rule, too.

All requests that the driver makes to Kafka share one `Outages`. It knows how long to wait, logs
each wait, and tells the metrics since when the job has been waiting.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The rule of a growing wait.

    Attributes:
        initial_ms: Wait after the first failure.
        maximum_ms: Longest wait, without the jitter.
        jitter: Each wait is up to this share shorter or longer.
        factor: Each wait is the wait before, times this. At least 1.
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


Passes: TypeAlias = "Callable[[Exception], str | None]"
"""Return why an error is expected to pass, None if it is not."""


def any_of(*kinds: type[Exception]) -> Passes:
    """Return a test that says that errors of some kinds pass, in their own words."""
    return lambda error: str(error) if isinstance(error, kinds) else None


def _sleep(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Asks again after growing pauses, while the failure is expected to pass."""

    patience_s: float = math.inf  # how long, from the first question on
    most: float = math.inf  # how often
    backoff: Backoff = Backoff(initial_ms=50, maximum_ms=2_000, jitter=0)
    random: Callable[[], float] = lambda: 0.5
    # called before a pause with the reason, and with the longest remaining time in seconds
    tell: Callable[[str, float], object] = lambda _why, _left_s: None
    # called when an answer comes after a reported pause, with the seconds since the first question
    tell_over: Callable[[float], object] = lambda _waited_s: None
    told_after_s: float = 0.0  # a shorter wait is not worth a line
    told_each_s: float = 0.0
    wait: Callable[[float], bool] = _sleep  # returns whether to stop; only `run` uses it
    clock: Callable[[], float] | None = None  # by default the clock of threads or of the event loop

    def run(self, ask: Callable[[], T], passes: Passes, begun_s: float | None = None) -> T:
        """Return the answer to a question; raise what does not pass, or not in time.

        Patience counts from now on, or from `begun_s`.
        """
        clock = self.clock or time.monotonic
        attempts = Attempts(self, clock, clock() if begun_s is None else begun_s)
        while True:
            try:
                answer = ask()
            except Exception as error:  # noqa: BLE001 - raised below, if it does not pass
                failed = error
            else:
                attempts.succeed()
                return answer
            # The error is no longer being handled here: if confluent_kafka raises while another
            # error is handled, it keeps that error and all objects of its frames for good.
            try:
                pause_s = attempts.pause_s(passes(failed))
                if pause_s is None or self.wait(pause_s):
                    raise failed
            finally:
                del failed

    async def run_async(self, ask: Callable[[], Awaitable[T]], passes: Passes) -> T:
        """Do the same in an event loop."""
        clock = self.clock or _loop_s
        attempts = Attempts(self, clock, clock())
        while True:
            try:
                answer = await ask()
            except Exception as error:
                pause_s = attempts.pause_s(passes(error))
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)
            else:
                attempts.succeed()
                return answer

    def attempts(self, clock: Callable[[], float] | None = None) -> Attempts:
        """Return attempts for a caller's own loop, by the event loop's clock."""
        return Attempts(self, clock or _loop_s)


class Attempts:
    """Attempts at one thing. If they have no beginning, patience counts from a failure on."""

    def __init__(
        self, retry: Retry, clock: Callable[[], float], begun_s: float | None = None
    ) -> None:
        self._retry = retry
        self._clock = clock
        self._failures = 0
        self._begun_s = begun_s
        self._told_s: float | None = None

    def succeed(self) -> None:
        """Note a success: patience begins again."""
        if self._told_s is not None and self._begun_s is not None:
            self._retry.tell_over(self._clock() - self._begun_s)
        self._failures, self._begun_s, self._told_s = 0, None, None

    def pause_s(self, why: str | None) -> float | None:
        """Return how long to wait after a failure; None if it does not pass or patience is over."""
        retry, now_s = self._retry, self._clock()
        if self._begun_s is None:
            self._begun_s = now_s
        left_s = self._begun_s + retry.patience_s - now_s
        self._failures += 1
        if why is None or left_s <= 0 or self._failures >= retry.most:
            return None
        due_s = self._begun_s + retry.told_after_s
        if now_s >= (due_s if self._told_s is None else self._told_s + retry.told_each_s):
            retry.tell(why, left_s)
            self._told_s = now_s
        pause_s = retry.backoff.delay_ms(self._failures, retry.random()) / 1000
        return min(pause_s, left_s)

    def sleep(self, error: Exception) -> None:
        """Wait in this thread before the next attempt; raise the error once patience is over."""
        pause_s = self.pause_s(str(error))
        if pause_s is None:
            raise error
        time.sleep(pause_s)

    async def pause(self, error: Exception | None = None) -> None:
        """Wait before the next attempt; raise the error once patience is over."""
        pause_s = self.pause_s("no answer yet" if error is None else str(error))
        if pause_s is None:
            raise error or TimeoutError
        await asyncio.sleep(pause_s)


_BETWEEN_RESTARTS: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0)
_BRIEFLY_S: Final = 30.0
_TOLD_EACH_S: Final = 30.0
_TOLD_AFTER_S: Final = 1.0
"""A shorter wait, such as a leader's move, is not worth a log line."""


def print_line(line: str) -> None:
    """Write a line to the log of a job."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def brief_outages() -> Outages:
    """Return outages for requests outside of a job: half a minute of patience, and no log."""
    return Outages(_BRIEFLY_S, 0, wait=_sleep, tell=len)


class Outages:
    """How long to wait for failures that are expected to pass, and how much of that is left."""

    def __init__(
        self,
        patience_s: float,
        restarts: int,
        *,
        wait: Callable[[float], bool],
        tell: Callable[[str], object] = print_line,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restarted = 0
        self._restarts = restarts
        self._wait = wait
        self.tell = tell
        self._clock = clock
        self._begun_s: float | None = None
        self._waits: dict[object, float] = {}
        self._fruitless = 0
        self._retry = Retry(
            patience_s=patience_s,
            tell=self._tell_wait,
            tell_over=self._tell_answer,
            told_after_s=_TOLD_AFTER_S,
            told_each_s=_TOLD_EACH_S,
            wait=wait,
            clock=clock,
        )

    @property
    def waiting_s(self) -> float:
        """How long the job has been waiting now; 0 if it is not waiting."""
        # Steps that are staged wait beside steps that go out.
        since_s = min(self._waits.copy().values(), default=None)
        return 0.0 if since_s is None else self._clock() - since_s

    @property
    def is_over(self) -> bool:
        return self._wait(0)

    def as_one(self) -> Outages:
        """Return outages for one undertaking: its questions share one patience, from now on.

        A question that is asked while another one waits adds no patience of its own.
        """
        one = copy(self)
        one._begun_s = self._clock()  # noqa: SLF001 - its own
        return one

    def outlast(self, ask: Callable[[], T], passes: Passes) -> T:
        """Return the answer to a question. Ask again while the failure is expected to pass."""
        begun_s, this = self._begun_s, object()
        if begun_s is None:
            begun_s = self._clock()

        def noted(error: Exception) -> str | None:
            self._waits[this] = begun_s
            return passes(error)

        try:
            return self._retry.run(ask, noted, begun_s)
        finally:
            self._waits.pop(this, None)

    def _tell_wait(self, why: str, left_s: float) -> None:
        self.tell(f"waiting for Kafka, {left_s:.0f} s more at most: {why}")

    def _tell_answer(self, waited_s: float) -> None:
        self.tell(f"Kafka answers again, after {waited_s:.0f} s")

    def step_is_done(self) -> None:
        """Note that a step is done, so that all restarts are allowed again."""
        self._fruitless = 0

    def may_restart(self, why: str) -> bool:
        """Wait before a restart of the query; False if none is left or the job has to stop."""
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
        """Wait; return whether to give up waiting."""
        this = object()
        self._waits[this] = self._clock()
        try:
            return self._wait(seconds)
        finally:
            del self._waits[this]
