"""How many rows a batch may have: few at first, then as many as are worth a step.

A large batch costs a row less, since a step costs about the same whatever is in it; but its first
row goes out when its last one is read. So a query begins with a small batch, which also warms the
JVM up, and each following one may be some times as large. What memory a batch takes does not grow
with it; the disk and the time that it takes do, so it is bounded by bytes, too.
"""

from __future__ import annotations

from typing import Final

_FIRST_ROWS: Final = 200_000
_FIRST_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30
_GROWTH: Final = 4


class BatchSize:
    """The most rows of a query's batches, one after the other."""

    def __init__(self, most_rows: int, row_bytes: float) -> None:
        self._most_rows = most_rows
        self.rows = min(most_rows, _FIRST_ROWS, _fitting(_FIRST_BYTES, row_bytes))

    def take(self, rows: int, size_bytes: int) -> None:
        """Take note of a batch."""
        if rows:
            most = min(self._most_rows, _fitting(_MOST_BYTES, size_bytes / rows))
            self.rows = min(most, self.rows * _GROWTH)


def _fitting(size_bytes: int, row_bytes: float) -> int:
    return max(1, int(size_bytes / max(1.0, row_bytes)))
