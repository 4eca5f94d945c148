"""Records in Arrow's memory, cut into what Kafka's batches may hold."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sequitur.producer.kafka.record_format import after_varint, varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    Longs = np.ndarray[Any, np.dtype[np.int64]]


class KafkaBatch(NamedTuple):
    """Records that go out as one batch.

    Attributes:
        records: Their bytes, one record behind the other, numbered from 0.
        rows: How many.
        base_ms: What their timestamp deltas count from.
        max_ms: The newest of their timestamps.
    """

    records: memoryview
    rows: int
    base_ms: int
    max_ms: int


def cut(
    records: pa.BinaryArray,
    timestamps: Longs,
    before: int,
    *,
    base_ms: int,
    batch_rows: int,
    limit: int,
) -> Iterator[KafkaBatch]:
    """Return the records of an array as batches.

    An array that is one batch as the JVM numbered it, and not too large, is given as it stands in
    memory. Any other is cut by size and numbered anew, row by row.

    Args:
        records: As `sink.record_columns` makes them, without nulls.
        timestamps: Of each record.
        before: How many records of the task came before.
        base_ms: What the timestamp deltas in the records count from.
        batch_rows: The JVM began to number anew each so many records.
        limit: Most bytes of a batch; a record that is larger goes alone.
    """
    _validity, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[
        records.offset : records.offset + len(records) + 1
    ]
    view = memoryview(data)
    first, last = int(ends[0]), int(ends[-1])
    if before % batch_rows == 0 and len(records) <= batch_rows and last - first <= limit:
        yield KafkaBatch(view[first:last], len(records), base_ms, int(timestamps.max()))
        return
    batch = bytearray()
    begin = 0
    for place, (start, end) in enumerate(pairwise(ends.tolist())):
        if place > begin and len(batch) + end - start > limit:
            newest = int(timestamps[begin:place].max())
            yield KafkaBatch(memoryview(batch), place - begin, base_ms, newest)
            batch, begin = bytearray(), place
        batch += numbered(view[start:end], place - begin)
    newest = int(timestamps[begin:].max())
    yield KafkaBatch(memoryview(batch), len(records) - begin, base_ms, newest)


def numbered(record: memoryview, number: int) -> bytes:
    """A record with another offset delta."""
    body = after_varint(record, 0)
    delta = after_varint(record, body + 1)  # behind attributes and timestamp delta
    rest = record[after_varint(record, delta) :]
    head = bytes(record[body:delta]) + varint(number)
    return b"".join((varint(len(head) + len(rest)), head, rest))
