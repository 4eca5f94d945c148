"""What passes by itself is waited for: brokers that are away, partitions without a leader.

One `Outages` is shared by all that asks Kafka something in the driver. It keeps the patience, tells
of each wait, and knows for the metrics since when the job has been waiting.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from sequitur.producer.kafka.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_BETWEEN_ATTEMPTS: Final = Backoff(initial_ms=50, maximum_ms=2_000, jitter=0)
_BETWEEN_RESTARTS: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0)
_BRIEFLY_S: Final = 30.0
_TOLD_EACH_S: Final = 30.0
_TOLD_AFTER_S: Final = 1.0
"""A leader that moves is no news."""


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the job's log


def _sleep(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False


def brief_outages() -> Outages:
    """For whoever asks outside of a job: half a minute, and not a word."""
    return Outages(_BRIEFLY_S, 0, wait=_sleep, tell=len)


class Outages:
    """Patience, and how much of it is left.

    Args:
        patience_s: How long one thing is waited for.
        restarts: How often the query may be started anew until a step is done.
        wait: Waits for so many seconds; whether waiting is to be given up.
        tell: Gets a line for whoever reads the log.
        clock: Monotonic seconds.

    Attributes:
        restarted: How often the query was started anew in all.
        tell: Gets a line for whoever reads the log.
    """

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

    def outlast(self, ask: Callable[[], T], passes: Callable[[Exception], str | None]) -> T:
        """The answer to a question, which is asked again as long as what fails passes by itself.

        Args:
            ask: Asks it.
            passes: Says in words what is waited for; None of an error that nothing will change.

        Raises:
            Exception: What `ask` raised last: it does not pass, it has not passed for as long as
                the patience goes, or waiting is to be given up.
        """
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
        """To be told of each step: what was wrong has passed, and all restarts are there again."""
        self._fruitless = 0

    def may_restart(self, why: str) -> bool:
        """Wait before the query is started anew; False when it must not be, or is not to be.

        Args:
            why: What it died of.
        """
        if self._fruitless >= self._restarts:
            return False
        self._fruitless += 1
        pause_s = _BETWEEN_RESTARTS.delay_ms(self._fruitless) / 1000
        self.restarted += 1
        self.tell(
            f"the query is started anew in {pause_s:g} s ({self._fruitless} of {self._restarts} "
            f"times without a step): {why}"
        )
        this = object()
        self._waits[this] = self._clock()
        try:
            return not self._wait(pause_s)
        finally:
            del self._waits[this]
