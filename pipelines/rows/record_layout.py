"""Lays out columns of rows as Kafka's records, in the batches in which they go out.

`kafka.record_format` says what stands where. The timestamp delta counts from the first record of
the batch.
"""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.kafka.record_format import NO_HEADERS, NULL, RECORD_ATTRIBUTES, read_varint, varint
from sequitur.kafka.varint_arrays import TABLE_SIZE, varints
from sequitur.pipelines.rows.slices import bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.reorder.timestamps import TimestampRule

    Longs = np.ndarray[Any, np.dtype[np.int64]]


_SAME_TIMESTAMP: Final = varint(0)
MOST_RECORD_OVERHEAD: Final = 5 * 6
"""Bytes of a record beside its key, its value and its headers, at most."""
MOST_BATCH_ROWS: Final = TABLE_SIZE
_EVENT_TIME: Final = "event_time_ms"
_SOURCE: Final = "timestamp_ms"
PIECE_BYTES: Final = 4 << 20


class KafkaBatch(NamedTuple):
    records: memoryview  # their bytes, one record behind the other, numbered from 0
    rows: int
    base_ms: int  # what their timestamp deltas count from
    max_ms: int  # the newest of their timestamps

    def behind(self, rows: int) -> KafkaBatch:
        """Return the records behind the first `rows`, which are fewer than all."""
        records, at, found, newest = self.records, 0, bytearray(), 0
        for number in range(self.rows):
            length, body = read_varint(records, at)
            at = body + length
            if number < rows:
                continue
            delta, behind_time = read_varint(records, body + 1)
            _number, rest = read_varint(records, behind_time)
            newest = delta if number == rows else max(newest, delta)
            record = b"".join((records[body:behind_time], varint(number - rows), records[rest:at]))
            found += varint(len(record)) + record
        return KafkaBatch(memoryview(found), self.rows - rows, self.base_ms, self.base_ms + newest)


class Headers:
    """Headers of records as on the wire: how many, and their bytes."""

    def __init__(self, counts: Longs, data: pa.BinaryArray | None) -> None:
        self.counts = counts
        self.data = data

    @classmethod
    def of(cls, lists: pa.ListArray) -> Headers:
        """Take headers from a column of lists of (key, value)."""
        if lists.null_count == len(lists):
            return cls(np.zeros(len(lists), np.int64), None)
        counts = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
        if not counts.any():
            return cls(counts, None)
        each = lists.flatten()
        names, values = (pc.struct_field(each, number) for number in (0, 1))
        laid_out = pc.binary_join_element_wise(
            *_sized(names.cast(pa.binary())), *_sized(values), b""
        )
        # A record's headers are adjacent, so only their ends have to be known.
        ends = np.frombuffer(laid_out.buffers()[1], np.int32)[: len(laid_out) + 1]
        places = np.concatenate(([0], np.cumsum(counts)))
        offsets = pa.py_buffer(np.ascontiguousarray(ends[places]))
        data = pa.BinaryArray.from_buffers(
            pa.binary(), len(lists), [None, offsets, laid_out.buffers()[2]]
        )
        return cls(counts, data)

    def and_(self, added: Sequence[tuple[str, pa.Array]]) -> Headers:
        """Return these and more headers: a name and a column of text, null if a record has none."""
        if not added:
            return self
        parts: list[Any] = [] if self.data is None else [self.data]
        counts = self.counts.copy()
        for name, column in added:
            raw = column.cast(pa.string()).cast(pa.binary())
            named = varint(len(name.encode())) + name.encode()
            lengths = pc.binary_length(raw).fill_null(0).to_numpy()
            header = pc.binary_join_element_wise(named, varints(lengths), raw, b"")
            parts.append(header.fill_null(b""))
            counts += raw.is_valid().to_numpy(zero_copy_only=False)
        return Headers(counts, pc.binary_join_element_wise(*parts, b""))

    def sizes(self) -> Longs | int:
        """Return bytes of each record's headers, without their number."""
        return 0 if self.data is None else pc.binary_length(self.data).to_numpy()

    def slice(self, begin: int, end: int) -> Headers:
        data = None if self.data is None else self.data.slice(begin, end - begin)
        return Headers(self.counts[begin:end], data)

    def wire(self) -> list[Any]:
        if self.data is None:
            return [NO_HEADERS]
        return [varints(self.counts), self.data]


def timestamp_columns(rule: TimestampRule) -> tuple[str, ...]:
    """Return the columns that timestamps and their headers need."""
    if rule.taken_from is OutputTimestamp.SOURCE:
        return (_EVENT_TIME, _SOURCE)
    return (_EVENT_TIME,)


def with_timestamps(rows: pa.Table, headers: Headers, rule: TimestampRule) -> tuple[Longs, Headers]:
    """Return the timestamps of records, and their headers with what the timestamps do not say.

    `event_time.TimestampRule.of` is the reference; a test holds the two together.
    """
    event_times = rows[_EVENT_TIME]
    has_time = event_times.is_valid().to_numpy()
    times: Longs = event_times.fill_null(rule.now_ms).to_numpy()
    match rule.taken_from:
        case OutputTimestamp.EVENT_TIME:
            wanted = times
        case OutputTimestamp.SOURCE:
            wanted = rows[_SOURCE].to_numpy()
        case OutputTimestamp.NOW:
            wanted = np.full(len(rows), rule.now_ms, np.int64)
    timestamps: Longs = np.clip(wanted, rule.earliest_ms, rule.now_ms)
    if not rule.tells_event_time:
        return timestamps, headers
    in_header = has_time & ((timestamps != times) | (not rule.is_kept))
    if in_header.any():
        headers = headers.and_([(EVENT_TIME_HEADER, pa.array(times, mask=~in_header))])
    return timestamps, headers


def record_batches(
    keys: pa.ChunkedArray,
    values: pa.ChunkedArray,
    headers: Headers,
    timestamps: Longs,
    limit: int,
    *,
    piece_bytes: int = PIECE_BYTES,
    begins: Sequence[int] = (0,),
) -> Iterator[KafkaBatch]:
    """Lay records out as batches for the brokers; a batch begins at each of `begins`."""
    sizes = _lengths(keys) + _lengths(values) + headers.sizes() + MOST_RECORD_OVERHEAD
    ends = np.cumsum(sizes)
    bounds = [0]
    for begin, end in pairwise((*begins, len(ends))):
        own = ends[begin:end] - (ends[begin - 1] if begin else 0)
        bounds += [begin + bound for bound in bounds_of(own, limit, MOST_BATCH_ROWS)[1:]]
    first = 0
    while first < len(bounds) - 1:
        begin = bounds[first]
        # Several batches at once: fewer calls are better, but an array holds 2 GiB at most.
        last = first + 1
        reached = ends[begin] + piece_bytes
        while last + 1 < len(bounds) and ends[bounds[last + 1] - 1] <= reached:
            last += 1
        places = [bound - begin for bound in bounds[first : last + 1]]
        count = bounds[last] - begin
        yield from _laid_out(
            _array(keys.slice(begin, count)),
            _array(values.slice(begin, count)),
            headers.slice(begin, bounds[last]),
            timestamps[begin : bounds[last]],
            places,
        )
        first = last


def _laid_out(
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    headers: Headers,
    timestamps: Longs,
    places: Sequence[int],
) -> Iterator[KafkaBatch]:
    """Yield the records of batches that begin at these places; the last place is the end."""
    count = len(values)
    begins, sizes = np.asarray(places[:-1]), np.diff(places)
    numbers = np.arange(count) - np.repeat(begins, sizes)
    deltas = timestamps - np.repeat(timestamps[begins], sizes)
    stamp = varints(deltas) if deltas.any() else _SAME_TIMESTAMP
    key_parts, value_parts = _sized(keys), _sized(values)
    last_parts = headers.wire()
    parts = (RECORD_ATTRIBUTES, stamp, varints(numbers), *key_parts, *value_parts, *last_parts)
    lengths = np.zeros(count, np.int64)
    for part in parts:
        lengths += len(part) if isinstance(part, bytes) else pc.binary_length(part).to_numpy()
    records = pc.binary_join_element_wise(varints(lengths), *parts, b"")
    _validity, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int32)
    view = memoryview(data)
    newest = np.maximum.reduceat(timestamps, begins)
    for batch, (begin, end) in enumerate(itertools.pairwise(places)):
        yield KafkaBatch(
            view[ends[begin] : ends[end]], end - begin, int(timestamps[begin]), int(newest[batch])
        )


def _sized(data: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return lengths and bytes; a null has the length -1 and no bytes."""
    lengths = varints(pc.binary_length(data).fill_null(0).to_numpy())
    if not data.null_count:
        return lengths, data
    return pc.if_else(data.is_valid(), lengths, NULL), data.fill_null(b"")


def _lengths(data: pa.ChunkedArray) -> Longs:
    lengths: Longs = pc.binary_length(data).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def _array(data: pa.ChunkedArray) -> pa.BinaryArray:
    return data.chunk(0) if data.num_chunks == 1 else pa.concat_arrays(data.chunks)
