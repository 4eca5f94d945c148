"""The retry policy: when a failed event is tried again, and when it is given up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sequitur.base.retry import Backoff
from sequitur.consumer.dead_letters import FailReason


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, and an end to it.

    Attributes:
        delay_ms: Before the second attempt.
        factor: Each further delay is so many times the one before.
        maximum_ms: No delay is longer, but for the jitter.
        jitter: A delay is up to this share shorter or longer.
        max_attempts: After so many the event is dead-lettered; 0 for never.
    """

    delay_ms: int = 100
    factor: float = 2.0
    maximum_ms: int = 60_000
    jitter: float = 0.2
    max_attempts: int = 5

    def gives_up(self, attempt: int, reason: FailReason) -> bool:
        """Return whether a failed event is given up. The one rule for it.

        Args:
            attempt: The attempt that failed; the first is 1.
            reason: Why. What kills its process is given up at once.
        """
        return 0 < self.max_attempts <= attempt or reason is FailReason.CRASH

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time at which an event that failed up to now is tried again.

        A later retry time was set by another clock, or by other settings.

        Args:
            now_ms: Now.
        """
        return now_ms + math.ceil(self.maximum_ms * (1 + self.jitter))

    def retry_at_ms(self, attempt: int, now_ms: int, random: float) -> int:
        """Return when to try again.

        Args:
            attempt: The attempt that failed; the first is 1.
            now_ms: Now.
            random: Drawn from [0, 1).
        """
        delay = Backoff(self.delay_ms, self.maximum_ms, self.jitter, self.factor)
        return now_ms + round(delay.delay_ms(attempt, random))
