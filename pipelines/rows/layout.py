"""What a process has read of files last, so that it is not read anew by each task.

A file is written once, under a name of its own, so what was read of it stays true. Python workers
live on from task to task.

A step of some thousand rows reads what the steps of the last seconds have staged: dozens of small
files, the same ones from step to step. By ranges each would cost several requests in each task, so
small ones of an object store are fetched once, whole.

Footers of Parquet files: what each row group holds, as columns; read once in a process.

Row groups that are read at once: beside each other in a file, and some files of a store.

Where rows are cut into slices that fit into memory: by row groups, or by what was counted.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.event_time import EVENT_TIME_HEADER
from sequitur.errors import CheckpointError
from sequitur.kafka.record_format import NO_HEADERS, NULL, RECORD_ATTRIBUTES, read_varint, varint
from sequitur.kafka.varint_arrays import TABLE_SIZE, varints
from sequitur.pipelines.rows.stage import RUN_ARROW_SCHEMA, sources
from sequitur.pipelines.spark.partition_blocks import stretches
from sequitur.pipelines.store.part_files import (
    FOOTERS_BYTES,
    KeptValues,
    footer_bytes,
    newest_footers,
)
from sequitur.pipelines.store.storage import OVERSIZED_FOLDER, is_remote, open_file, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from sequitur.consumer.reorder.event_time import TimestampRule
    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.rows.release import RowGroup
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


_SMALL_BYTES: Final = 16 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes 10 MiB."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""

_fetched: Final = KeptValues[pa.Buffer](_KEPT_BYTES)


def open_rows(path: Location) -> pa.NativeFile:
    """Open a file of rows for reading at any place in it."""
    if not is_remote(path):
        return open_file(path)
    content = _fetched.get(path)
    if content is None:
        file = open_file(path)
        if file.size() > _SMALL_BYTES:
            return file
        with file:
            content = file.read_buffer()
        _fetched.keep(path, content, content.size)
    return pa.BufferReader(content)


ALL_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_UNKNOWN: Final = -1


class GroupFacts(NamedTuple):
    """What a file says of a row group."""

    rows: int
    size_bytes: int
    first_ms: int  # smallest event time
    last_ms: int
    untimed: int  # rows without event time; -1 where that is not said
    unmarked: int  # rows without a reason; likewise
    first_partition: int  # smallest output partition
    last_partition: int


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a file says of its row groups."""

    metadata: pq.FileMetaData
    places: dict[str, int]  # where columns stand in it
    reach_ms: tuple[int, int]  # smallest and greatest event time of all row groups
    groups: tuple[GroupFacts, ...]

    def statistics(self, number: int, name: str) -> pq.Statistics | None:
        """Return what a row group says of a column; None where it says nothing."""
        return _statistics(self.metadata.row_group(number), self.places.get(name))


_known: Final = KeptValues[Footer](FOOTERS_BYTES)


def footer_of(path: Location) -> Footer:
    """Return a file's footer."""
    footer = _known.get(path)
    if footer is None:
        metadata = newest_footers.get(path)
        if metadata is None:
            with open_rows(path) as file:
                metadata = pq.read_metadata(file)
        footer = _read(metadata)
        _known.keep(path, footer, footer_bytes(metadata))
    return footer


def reach(statistics: pq.Statistics | None) -> tuple[int, int]:
    """Smallest and greatest number of a column; all there are where the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALL_TIME
    return statistics.min, statistics.max


def only_value(statistics: pq.Statistics | None) -> Any:
    """Return what a column has in all rows, where the file says so."""
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return statistics.min


def _read(metadata: pq.FileMetaData) -> Footer:
    places: dict[str, int] = {}
    for number in range(metadata.num_columns):
        # Flat columns, and the first part of each nested one.
        places.setdefault(metadata.schema.column(number).path.partition(".")[0], number)
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times = _statistics(group, places.get("event_time_ms"))
        reasons = _statistics(group, places.get("reason"))
        facts = GroupFacts(
            group.num_rows,
            group.total_byte_size,
            *reach(times),
            _nulls(times),
            _nulls(reasons),
            *reach(_statistics(group, places.get("output_partition"))),
        )
        found.append(facts)
    reach_ms = ALL_TIME
    if found:
        reach_ms = min(one.first_ms for one in found), max(one.last_ms for one in found)
    return Footer(metadata, places, reach_ms, tuple(found))


def _statistics(group: pq.RowGroupMetaData, place: int | None) -> pq.Statistics | None:
    return None if place is None else group.column(place).statistics


def _nulls(statistics: pq.Statistics | None) -> int:
    if statistics is None or not statistics.has_null_count:
        return _UNKNOWN
    nulls: int = statistics.null_count
    return nulls


_READERS: Final = 8
"""So many files of an object store are read at once: each answer takes a while to begin."""


@functools.cache
def readers() -> ThreadPoolExecutor:
    """Return this process's threads that wait for an object store."""
    return ThreadPoolExecutor(_READERS, thread_name_prefix="rows")


def size_of(groups: Iterable[RowGroup]) -> int:
    """Return the bytes of row groups."""
    return sum(group.size_bytes for group in groups)


def side_by_side(groups: Iterable[RowGroup], most_bytes: int) -> Iterator[list[RowGroup]]:
    """Bring together row groups of one file and part, not more than so many bytes if need not be.

    Each is read with one call.
    """
    some: list[RowGroup] = []
    size = 0
    for group in groups:
        size += group.size_bytes
        is_beside = some and group.path == some[0].path and group.part is some[0].part
        if some and (not is_beside or size > most_bytes):
            yield some
            some, size = [], group.size_bytes
        some.append(group)
    if some:
        yield some


def read_ahead(
    groups: Iterable[list[RowGroup]],
    read: Callable[[Sequence[RowGroup]], pa.Table],
    most_bytes: int,
) -> Iterator[pa.Table]:
    """Read row groups in their order; where they are far away, some of them at once."""
    waiting: deque[tuple[int, Future[pa.Table]]] = deque()
    ahead = 0
    for several in groups:
        if not is_remote(several[0].path):
            yield read(several)
            continue
        size = size_of(several)
        while waiting and (ahead + size > most_bytes or len(waiting) >= _READERS):
            freed, rows = waiting.popleft()
            ahead -= freed
            yield rows.result()
        waiting.append((size, readers().submit(read, several)))
        ahead += size
    while waiting:
        yield waiting.popleft()[1].result()


SourceRanges: TypeAlias = "Mapping[SourcePartition, tuple[int, int]]"
"""Offsets of source partitions: the first and the last that are meant."""

_BLOCK_BITS: Final = 6
"""Offsets are counted by blocks of 64: what is known of many rows has to be small."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """Rows of some event times."""

    first_ms: int  # the smallest event time
    last_ms: int
    size_bytes: int  # about so much


def time_cuts(spans: Sequence[tuple[int, int, int]], limit: int) -> list[int]:
    """Return the last event time of each slice, so that slices have about `limit` bytes.

    Rows are taken to be spread evenly over the time of their row group.
    """
    if not spans:
        return []
    first, last, size = np.array(spans, np.float64).T
    end = max(one[1] for one in spans)
    slices = int(size.sum() // limit)
    if not slices:
        return [end]
    times = np.unique(np.concatenate((first, last)))
    times = np.unique(np.concatenate((times, np.linspace(times[0], times[-1], 4 * slices + 2))))
    spread = np.maximum(last - first, 1.0)
    reached = np.array([(np.clip((at - first) / spread, 0, 1) * size).sum() for at in times])
    wanted = np.arange(1, slices + 1) * limit
    cuts = np.floor(np.interp(wanted, reached, times)).astype(np.int64)
    return [*np.unique(cuts[cuts < end]).tolist(), end]


def counted_times(pieces: Iterable[pa.Table], row_bytes: float, limit: int) -> Iterator[TimeSlice]:
    """Cut rows by event time; only a slice of a single event time is larger than `limit`."""
    found = [np.unique(rows["event_time_ms"].to_numpy(), return_counts=True) for rows in pieces]
    if not found:
        return
    times, place = np.unique(np.concatenate([one for one, _ in found]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([count for _, count in found]))
    ends = np.cumsum(counts * row_bytes)
    for begin, end in pairwise(bounds_of(ends, limit)):
        size = ends[end - 1] - (ends[begin - 1] if begin else 0)
        yield TimeSlice(int(times[begin]), int(times[end - 1]), int(size))


def counted_sources(
    pieces: Iterable[pa.Table], row_bytes: float, limit: int
) -> Iterator[SourceRanges]:
    """Cut rows by source, in the order of topic (its bytes), partition, offset."""
    found: dict[SourcePartition, list[tuple[Longs, Longs]]] = {}
    for rows in pieces:
        offsets = rows["offset"].to_numpy()
        for source, place in sources(rows):
            blocks, counts = np.unique(offsets[place] >> _BLOCK_BITS, return_counts=True)
            found.setdefault(source, []).append((blocks, counts))
    if not found:
        return
    ordered = sorted(found, key=lambda source: (source.topic.encode(), source.partition))
    owners: list[Longs] = []
    several_blocks: list[Longs] = []
    sizes: list[np.ndarray[Any, Any]] = []
    for number, source in enumerate(ordered):
        blocks, counts = (np.concatenate(column) for column in zip(*found[source], strict=True))
        own, place = np.unique(blocks, return_inverse=True)
        owners.append(np.full(len(own), number))
        several_blocks.append(own)
        sizes.append(np.bincount(place, counts) * row_bytes)
    owner, block = np.concatenate(owners), np.concatenate(several_blocks)
    for begin, end in pairwise(bounds_of(np.cumsum(np.concatenate(sizes)), limit)):
        own = block[begin:end]
        yield {
            ordered[number]: (
                int(own[here][0]) << _BLOCK_BITS,
                ((int(own[here][-1]) + 1) << _BLOCK_BITS) - 1,
            )
            for number, here in stretches(owner[begin:end])
        }


def bounds_of(ends: np.ndarray[Any, Any], limit: int, most: int | None = None) -> list[int]:
    """Return where slices begin, and where the last one ends; each has one element at least."""
    bounds = [0]
    while (begin := bounds[-1]) < len(ends):
        reached = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, reached + limit, side="right")), begin + 1)
        bounds.append(end if most is None else min(end, begin + most))
    return bounds


# Kafka's records, for columns of them, in the batches in which they go out.
#
# What stands where: `kafka.record_format`. The timestamp delta counts from the first record of the
# batch.
#
# Records that are not whole in a side topic, but in a file of the checkpoint, which these name.
#
# They are too large for it; or a bolt made them, and their values are pickled, which is for the
# eyes of their own job only::
#
#     oversized/<topic>/<partition>-<offset>-<sum>.parquet    one row, by where the event came from
#
# The sum of its bytes is in its name since a topic that is recreated gives places again.
# The file is there before the record that names it goes out, and the job never deletes it.


_SAME_TIMESTAMP: Final = varint(0)

MOST_RECORD_OVERHEAD: Final = 5 * 6
"""Bytes of a record beside its key, its value and its headers, at most."""
MOST_BATCH_ROWS: Final = TABLE_SIZE
_EVENT_TIME: Final = "event_time_ms"
_SOURCE: Final = "timestamp_ms"
PIECE_BYTES: Final = 4 << 20


class KafkaBatch(NamedTuple):
    """Records that go out as one batch."""

    records: memoryview  # their bytes, one record behind the other, numbered from 0
    rows: int
    base_ms: int  # what their timestamp deltas count from
    max_ms: int  # the newest of their timestamps

    def behind(self, rows: int) -> KafkaBatch:
        """Return the records behind the first so many, of which there are fewer than all."""
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
    """The headers of records, as they stand on the wire: how many, and their bytes."""

    def __init__(self, counts: Longs, data: pa.BinaryArray | None) -> None:
        self.counts = counts
        self.data = data

    @classmethod
    def of(cls, lists: pa.ListArray) -> Headers:
        """Take the headers of a column of lists of (key, value)."""
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
        # Those of a record stand one behind the other, so only its ends have to be known.
        ends = np.frombuffer(laid_out.buffers()[1], np.int32)[: len(laid_out) + 1]
        places = np.concatenate(([0], np.cumsum(counts)))
        offsets = pa.py_buffer(np.ascontiguousarray(ends[places]))
        data = pa.BinaryArray.from_buffers(
            pa.binary(), len(lists), [None, offsets, laid_out.buffers()[2]]
        )
        return cls(counts, data)

    def and_(self, added: Sequence[tuple[str, pa.Array]]) -> Headers:
        """These, and others behind: a name and a column of text, null where a record has none."""
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
        """Return those of some records."""
        data = None if self.data is None else self.data.slice(begin, end - begin)
        return Headers(self.counts[begin:end], data)

    def wire(self) -> list[Any]:
        """Return what a record ends with."""
        if self.data is None:
            return [NO_HEADERS]
        return [varints(self.counts), self.data]


def timestamp_columns(rule: TimestampRule) -> tuple[str, ...]:
    """Return the columns that timestamps and their headers are made from."""
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
    told = has_time & ((timestamps != times) | (not rule.is_kept))
    if told.any():
        headers = headers.and_([(EVENT_TIME_HEADER, pa.array(times, mask=~told))])
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
    """Lay records out as batches for the brokers; at some places a batch begins in any case."""
    sizes = _lengths(keys) + _lengths(values) + headers.sizes() + MOST_RECORD_OVERHEAD
    ends = np.cumsum(sizes)
    bounds = [0]
    for begin, end in pairwise((*begins, len(ends))):
        own = ends[begin:end] - (ends[begin - 1] if begin else 0)
        bounds += [begin + bound for bound in bounds_of(own, limit, MOST_BATCH_ROWS)[1:]]
    first = 0
    while first < len(bounds) - 1:
        begin = bounds[first]
        # Some batches at once: the fewer calls the better, but an array holds 2 GiB at most.
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
    """Return the records of batches that begin at these places; the last place is the end."""
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
    """Lengths and bytes; of a null the length -1 and no bytes."""
    lengths = varints(pc.binary_length(data).fill_null(0).to_numpy())
    if not data.null_count:
        return lengths, data
    return pc.if_else(data.is_valid(), lengths, NULL), data.fill_null(b"")


def _lengths(data: pa.ChunkedArray) -> Longs:
    lengths: Longs = pc.binary_length(data).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def _array(data: pa.ChunkedArray) -> pa.BinaryArray:
    return data.chunk(0) if data.num_chunks == 1 else pa.concat_arrays(data.chunks)


MOST_ADDED: Final = 1 << 10
"""Bytes of the headers that are added to a late or bad row, at most."""
MOST_KEY_BYTES: Final = 4 << 10
"""A longer key stands in the file alone."""
_LONGEST_FOLDER: Final = 249
"""Characters of a folder's name: as many as a topic's may have."""
_SCHEMA: Final = RUN_ARROW_SCHEMA.append(pa.field("detail", pa.string()))


class Whole(NamedTuple):
    """What was too large."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    detail: str | None  # the whole traceback of a dead letter
    place: tuple[str, int, int]  # where it came from: topic, partition, offset


def write_oversized(root: Location, row: Mapping[str, Any]) -> str:
    """Write a row into a file of its own; the file's path in the checkpoint.

    Once this returns the row survives a power cut. Written again, it takes the file's place.
    """
    found = zlib.crc32(row.get("value") or b"", zlib.crc32(row.get("key") or b""))
    place = f"{row['partition']}-{row['offset']}-{found:08x}"
    # No topic has a character that is quoted; what a bolt made has its component in its place.
    folder = quote(row["topic"], safe="").replace("%", "~")
    if len(folder) > _LONGEST_FOLDER:  # a bolt's name may be longer than a file's
        folder = "~" + hashlib.sha256(folder.encode()).hexdigest()
    name = f"{OVERSIZED_FOLDER}/{folder}/{place}.parquet"
    content = io.BytesIO()
    table = pa.Table.from_pylist([dict(row)], _SCHEMA)
    pq.write_table(table, content, compression="zstd", store_schema=False)
    write_whole(root / name, content.getvalue())
    return name


def read_oversized(root: Location, name: str) -> Whole:
    """Return the record that a file of the checkpoint holds."""
    path = root / name
    if not name.startswith(f"{OVERSIZED_FOLDER}/") or ".." in name.split("/"):
        raise CheckpointError(f"{name!r} names no file of {OVERSIZED_FOLDER}/ in {root}")
    try:
        with open_file(path) as file:
            (row,) = pq.ParquetFile(file).read().to_pylist()
        headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
        place = row["topic"], row["partition"], row["offset"]
        return Whole(row["key"], row["value"], headers, row["detail"], place)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(f"{path}, which holds a record whole, cannot be read: {error}") from (
            error
        )
