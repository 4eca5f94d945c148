"""How many rows a batch may have: few at first, then as many as are worth a step.

A step costs about the same whatever is in it, so rows cost less in a large batch. But the first row
of a batch goes out after its last one is read. So a query begins with a small batch, which also
warms the JVM up, and each following batch may be some times as large. A large batch takes more disk
and time, and no more memory, so batches are bounded by bytes, too. Some rows are read before the
query begins, to learn how large they are.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from sequitur.errors import SequiturError
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.settings import KafkaSettings


_FIRST_ROWS: Final = 200_000
_FIRST_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30
_GROWTH: Final = 4
_LOOKED_AT: Final = 500
_LOOK_S: Final = 0.5
_FIRST_S: Final = 10.0
"""So long a first row is waited for: a broker may be slow, and without any nothing is known."""
_MOST_PARTITIONS: Final = 64
_FETCH_BYTES: Final = 16 << 10
"""Little, since the client unpacks all of an answer before it hands out its first row."""


class BatchSize:
    def __init__(self, most_rows: int, row_bytes: float) -> None:
        self._most_rows = most_rows
        self.rows = min(most_rows, _FIRST_ROWS, _fitting(_FIRST_BYTES, row_bytes))

    def take(self, rows: int, size_bytes: int) -> None:
        if rows:
            most = min(self._most_rows, _fitting(_MOST_BYTES, size_bytes / rows))
            self.rows = min(most, self.rows * _GROWTH)


def _fitting(size_bytes: int, row_bytes: float) -> int:
    return max(1, int(size_bytes / max(1.0, row_bytes)))


def mean_row_bytes(
    kafka: KafkaSettings, unread: Mapping[SourcePartition, tuple[int, int]]
) -> float:
    """Return the mean size of some unread rows; 0 without rows."""
    left = [(where, span) for where, span in sorted(unread.items()) if span[0] < span[1]]
    row_bytes = 0.0
    # Rows in an open transaction are as large as others, so it is not waited for.
    reader = Reader(
        kafka=kafka,
        is_committed=False,
        passes_deleted=True,
        patience_s=_FIRST_S,
        partition_bytes=_FETCH_BYTES,
    )
    with contextlib.suppress(SequiturError):
        # Rows at the beginning, and rows in the middle: they may be of two kinds.
        for share in (0.0, 0.5):
            spans = {
                where: (int(first + share * (last - first)), last)
                for where, (first, last) in left[:_MOST_PARTITIONS]
            }
            row_bytes = max(row_bytes, _mean_bytes(reader, spans))
    return row_bytes


def _mean_bytes(reader: Reader, spans: Mapping[SourcePartition, tuple[int, int]]) -> float:
    """Return the mean size of some rows; 0 if only ends of transactions are left."""
    count = size = 0
    until_s = time.monotonic() + _LOOK_S
    for _, record in reader.rows(spans):
        parts = [record.key, record.value, *(value for _, value in record.headers)]
        count += 1
        size += sum(len(part) for part in parts if part)
        if count == _LOOKED_AT or time.monotonic() > until_s:
            break
    return size / max(1, count)
