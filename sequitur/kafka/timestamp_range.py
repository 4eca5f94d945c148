"""When it is at a broker, by what it says of a record that it refuses for its timestamp.

Kafka's LogValidator names the range that the timestamp should be in: from the broker's time less
the topic's `message.timestamp.before.max.ms`, to its time and `message.timestamp.after.max.ms`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_RANGE: Final = re.compile(r"should be within \[(-?\d+), (-?\d+)\]")
_JAVA_LONGS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class TimestampRange:
    """Which timestamps a broker takes."""

    first_ms: int  # the oldest, epoch milliseconds
    last_ms: int

    def broker_ms(self, after_max_ms: int) -> int:
        """Return the broker's time, epoch milliseconds."""
        return (self.last_ms - after_max_ms) % _JAVA_LONGS


def timestamp_range(text: str) -> TimestampRange | None:
    """Return the range that a broker's text names; None if there is none in it."""
    found = _RANGE.search(text)
    return None if found is None else TimestampRange(int(found[1]), int(found[2]))
