"""Records in Arrow's memory, cut into what Kafka's batches may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_CONTINUED: Final = 0x80
_DELTAS_BEFORE: Final = 2
"""Bytes of a record between its length and its offset delta: attributes and timestamp delta."""


def cut(
    records: pa.BinaryArray, before: int, batch_rows: int, limit: int
) -> Iterator[tuple[memoryview, int]]:
    """The records of an array as batches: their bytes, and how many.

    An array that is one batch as the JVM numbered it, and not too large, is given as it stands in
    memory. Any other is cut by size and numbered anew, row by row.

    Args:
        records: As `_record_columns` makes them, without nulls.
        before: How many records of the task came before.
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
        yield view[first:last], len(records)
        return
    batch = bytearray()
    count = 0
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if count and len(batch) + end - start > limit:
            yield memoryview(batch), count
            batch, count = bytearray(), 0
        batch += numbered(view[start:end], count)
        count += 1
    yield memoryview(batch), count


def numbered(record: memoryview, number: int) -> bytes:
    """A record with another offset delta."""
    body = _after_varint(record, 0)
    delta = body + _DELTAS_BEFORE
    rest = record[_after_varint(record, delta) :]
    head = bytes(record[body:delta]) + varint(number)
    return b"".join((varint(len(head) + len(rest)), head, rest))


def varint(number: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    zigzag = 2 * number
    found = bytearray()
    while zigzag >= _CONTINUED:
        found.append(zigzag & 0x7F | _CONTINUED)
        zigzag >>= 7
    found.append(zigzag)
    return bytes(found)


def _after_varint(record: memoryview, at: int) -> int:
    while record[at] & _CONTINUED:
        at += 1
    return at + 1
