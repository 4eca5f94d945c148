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
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.pipelines.rows.stage import sources
from sequitur.pipelines.spark.partition_blocks import stretches
from sequitur.pipelines.store.files import is_remote, open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from sequitur.consumer import SourcePartition
    from sequitur.pipelines.rows.release import RowGroup
    from sequitur.pipelines.store.files import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]

_SMALL_BYTES: Final = 2 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes some of these."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""
_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by file, the oldest of which go first; the newest one is always kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[Location, tuple[_T, int]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, path: Location) -> _T | None:
        """Return a file's value; None where it is not kept."""
        found = self._kept.get(path)
        return None if found is None else found[0]

    def keep(self, path: Location, value: _T, size_bytes: int) -> None:
        """Keep a file's value, unless another thread has done so."""
        with self._lock:
            if path in self._kept:
                return
            self._kept[path] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._most_bytes and len(self._kept) > 1:
                self._size_bytes -= self._kept.pop(next(iter(self._kept)))[1]


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
_MOST_BYTES: Final = 4 << 20
"""Of footers that a process remembers, as they are in files: in memory they are some times that."""


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a file says of its row groups; the columns have an element for each."""

    metadata: pq.FileMetaData
    places: dict[str, int]  # where columns stand in it
    rows: Longs
    size_bytes: Longs
    first_ms: Longs  # smallest event time
    last_ms: Longs
    untimed: Longs  # rows without event time; -1 where that is not said
    unmarked: Longs  # rows without a reason; likewise
    first_partition: Longs  # smallest output partition
    last_partition: Longs

    def statistics(self, number: int, name: str) -> pq.Statistics | None:
        """Return what a row group says of a column; None where it says nothing."""
        return _statistics(self.metadata.row_group(number), self.places.get(name))


_known: Final = KeptValues[Footer](_MOST_BYTES)


def footer_of(path: Location) -> Footer:
    """Return a file's footer."""
    footer = _known.get(path)
    if footer is None:
        with open_rows(path) as file:
            footer = _read(pq.read_metadata(file))
        _known.keep(path, footer, footer.metadata.serialized_size)
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
    found = np.empty((8, metadata.num_row_groups), np.int64)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times = _statistics(group, places.get("event_time_ms"))
        reasons = _statistics(group, places.get("reason"))
        found[:, number] = (
            group.num_rows,
            group.total_byte_size,
            *reach(times),
            _nulls(times),
            _nulls(reasons),
            *reach(_statistics(group, places.get("output_partition"))),
        )
    return Footer(metadata, places, *found)


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
