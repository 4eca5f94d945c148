"""How long to wait before the next attempt: exponential backoff with jitter (KIP-580).

For a producer 100 ms, doubling to 1 s, each spread by 20 % either way, so that a thousand producers
that lost the same broker do not come back in the same instant. A job asks alone, and spreads
nothing. A topology's failed events wait by this rule, too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass


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
