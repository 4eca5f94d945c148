"""Reading rows of runs in Spark's tasks: those of one output partition, slice after slice of time.

A run's row groups say which event times, output partitions and sources they hold, so only those are
read that matter. What a step releases may be far more than fits into memory (a drain, a long delay,
times that all fall on one day): so it is read in slices that are small enough, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequitur.consumer import SourcePartition
from sequitur.pipelines.rows.columns import SOURCE_ORDER
from sequitur.pipelines.rows.limits import ROW_LIMITS, RowLimits
from sequitur.pipelines.rows.run_writer import sources
from sequitur.pipelines.rows.slice_bounds import counted_sources, counted_times, time_cuts
from sequitur.pipelines.store.files import is_remote, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.pipelines.rows.slice_bounds import SourceRanges
    from sequitur.pipelines.store.files import Location

    Bools = np.ndarray[Any, np.dtype[np.bool_]]

ALL_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_MOST_SLICES: Final = 2
"""Of so many slices' size one may be, before it is counted what is in it and where to cut it."""
_FEW_GROUPS: Final = 4
_MOST_REMEMBERED: Final = 1024
_remembered: dict[Location, pq.FileMetaData] = {}
"""Footers of this process's files: Python workers live on from task to task."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of some files.

    Attributes:
        files: Where Parquet files are; all of them have to be there.
        first_ms: Rows with an event time from here on.
        last_ms: And up to here, itself included.
        reasons: Rows with one of these reasons; None: without one; empty: whatever it is.
        untimed: Rows without an event time, and no others.
    """

    files: tuple[Location, ...]
    first_ms: int = ALL_TIME[0]
    last_ms: int = ALL_TIME[1]
    reasons: tuple[str, ...] | None = None
    untimed: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that may hold rows wanted."""

    path: Location
    metadata: pq.FileMetaData
    number: int
    part: Part
    rows: int
    size_bytes: int
    first_ms: int
    last_ms: int

    def is_beside(self, other: _Group) -> bool:
        """Tell whether both are read from one file for one part."""
        return self.path == other.path and self.part is other.part

    def may_hold(self, ranges: SourceRanges) -> bool:
        """Tell whether some of its rows may come from there."""
        group, places = self.metadata.row_group(self.number), _places(self.metadata)
        low, high = _reach(_statistics(group, places.get("offset")))
        topic, number = (_only(_statistics(group, places.get(name))) for name in SOURCE_ORDER[:2])
        source = None if topic is None or number is None else SourcePartition(topic, number)
        return any(
            first <= high and last >= low
            for one, (first, last) in ranges.items()
            if source in {None, one}
        )


class RunRows:
    """The rows of some parts that go to one output partition.

    Args:
        parts: The parts.
        partition: The output partition; None for all.
        columns: What is wanted of a row; event time, reason and output partition are read anyway
            where they are needed. A number that a file does not have is null.
        limits: How much is in memory at once.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        partition: int | None,
        columns: Sequence[str],
        limits: RowLimits = ROW_LIMITS,
    ) -> None:
        self._slice_bytes = limits.slice_bytes
        self._partition = partition
        self._columns = tuple(columns)
        self._groups = [
            group for part in parts for path in part.files for group in self._matching(path, part)
        ]

    def rows_at_most(self) -> int:
        """Return how many rows there are, at most."""
        return sum(group.rows for group in self._groups)

    def slices(self) -> Iterator[pa.Table]:
        """Read the rows in tables that follow each other in release order; not sorted within.

        That is by event time, and by source where a table is one of many of a single event time.
        """
        first = min((group.first_ms for group in self._groups), default=0)
        spans = [(group.first_ms, group.last_ms, group.size_bytes) for group in self._groups]
        for last in time_cuts(spans, self._slice_bytes):
            yield from self._cut_down(first, last)
            first = last + 1

    def in_source_order(
        self, first_ms: int = ALL_TIME[0], last_ms: int = ALL_TIME[1]
    ) -> Iterator[pa.Table]:
        """Read the rows between two event times, in tables that follow each other by source."""
        groups = self._overlapping(first_ms, last_ms)
        if self._is_small(_size(groups)):
            yield from _together(self._read(groups, self._columns, first_ms, last_ms))
            return
        narrow = self._read(groups, SOURCE_ORDER, first_ms, last_ms)
        for ranges in counted_sources(narrow, _row_bytes(groups), self._slice_bytes):
            own = [group for group in groups if group.may_hold(ranges)]
            yield from _together(self._read(own, self._columns, first_ms, last_ms, ranges))

    def pieces(self) -> Iterator[pa.Table]:
        """Read the rows in tables of about the size of a slice, in no order."""
        waiting: list[pa.Table] = []
        size = 0
        for rows in self._read(self._groups, self._columns, *ALL_TIME):
            waiting.append(rows)
            size += rows.nbytes
            if size >= self._slice_bytes:
                yield pa.concat_tables(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting)

    def _cut_down(self, first_ms: int, last_ms: int) -> Iterator[pa.Table]:
        """Cut a slice into smaller ones if its rows are not spread evenly."""
        groups = self._overlapping(first_ms, last_ms)
        if first_ms == last_ms or self._is_small(_size(groups)):
            yield from self.in_source_order(first_ms, last_ms)
            return
        narrow = self._read(groups, ("event_time_ms",), first_ms, last_ms)
        for one in counted_times(narrow, _row_bytes(groups), self._slice_bytes):
            if self._is_small(one.size_bytes):
                own = self._overlapping(one.first_ms, one.last_ms)
                yield from _together(self._read(own, self._columns, one.first_ms, one.last_ms))
            else:
                yield from self.in_source_order(one.first_ms, one.last_ms)

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= _MOST_SLICES * self._slice_bytes

    def _overlapping(self, first_ms: int, last_ms: int) -> list[_Group]:
        return [
            group
            for group in self._groups
            if group.first_ms <= last_ms and group.last_ms >= first_ms
        ]

    def _matching(self, path: Location, part: Part) -> Iterator[_Group]:
        metadata = _metadata(path)
        places = _places(metadata)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            times = _statistics(group, places.get("event_time_ms"))
            first, last = _reach(times)
            untimed = times.null_count if times is not None and times.has_null_count else None
            if untimed == (0 if part.untimed else group.num_rows):
                continue
            if not part.untimed and (first > part.last_ms or last < part.first_ms):
                continue
            if self._partition is not None:
                low, high = _reach(_statistics(group, places.get("output_partition")))
                if not low <= self._partition <= high:
                    continue
            yield _Group(
                path=path,
                metadata=metadata,
                number=number,
                part=part,
                rows=group.num_rows,
                size_bytes=group.total_byte_size,
                first_ms=max(first, part.first_ms),
                last_ms=min(last, part.last_ms),
            )

    def _read(
        self,
        groups: Sequence[_Group],
        columns: Sequence[str],
        first_ms: int,
        last_ms: int,
        ranges: SourceRanges | None = None,
    ) -> Iterator[pa.Table]:
        """Read the rows wanted, a table for a few row groups each, so that memory stays small."""
        for several in _side_by_side(groups, self._slice_bytes):
            rows = self._read_some(several, columns, (first_ms, last_ms), ranges)
            if len(rows):
                yield rows

    def _read_some(
        self,
        groups: Sequence[_Group],
        columns: Sequence[str],
        bounds: tuple[int, int],
        ranges: SourceRanges | None,
    ) -> pa.Table:
        metadata, part = groups[0].metadata, groups[0].part
        known = _places(metadata)
        needed = [*columns, "event_time_ms", "output_partition", "reason"]
        if ranges is not None:
            needed += SOURCE_ORDER
        path = groups[0].path
        with (
            open_file(path) as opened,
            pq.ParquetFile(opened, metadata=metadata, pre_buffer=is_remote(path)) as file,
        ):
            rows = file.read_row_groups(
                [group.number for group in groups],
                columns=[name for name in dict.fromkeys(needed) if name in known],
                use_threads=False,
            )
        wanted = np.ones(len(rows), np.bool_)
        if "event_time_ms" in known:
            within = max(bounds[0], part.first_ms), min(bounds[1], part.last_ms)
            wanted &= _in_time(rows["event_time_ms"], within, untimed=part.untimed)
        if self._partition is not None:
            wanted &= rows["output_partition"].to_numpy() == self._partition
        if part.reasons is None:
            wanted &= rows["reason"].is_null().to_numpy()
        elif part.reasons:
            among = pc.is_in(rows["reason"], pa.array(part.reasons, pa.string()))
            wanted &= among.to_numpy()
        if ranges is not None:
            wanted &= _in_ranges(rows, ranges)
        for name in columns:
            if name not in known:
                rows = rows.append_column(name, pa.nulls(len(rows), pa.int64()))
        rows = rows.select(columns)
        return rows if wanted.all() else rows.filter(pa.array(wanted))


def _metadata(path: Location) -> pq.FileMetaData:
    """Read a file's footer; those of small files are remembered, as they are many."""
    metadata = _remembered.get(path)
    if metadata is None:
        with open_file(path) as file:
            metadata = pq.read_metadata(file)
        if metadata.num_row_groups <= _FEW_GROUPS:
            _remembered[path] = metadata
            if len(_remembered) > _MOST_REMEMBERED:
                # The oldest: files are written once, under names of their own.
                del _remembered[next(iter(_remembered))]
    return metadata


def _side_by_side(groups: Sequence[_Group], slice_bytes: int) -> Iterator[list[_Group]]:
    """Group row groups that are read at once: of one file, not more than a slice has."""
    some: list[_Group] = []
    size = 0
    for group in groups:
        size += group.size_bytes
        if some and (size > slice_bytes or not group.is_beside(some[0])):
            yield some
            some, size = [], group.size_bytes
        some.append(group)
    if some:
        yield some


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put them into one table, if there are any."""
    several = list(tables)
    if several:
        yield pa.concat_tables(several)


def _size(groups: Iterable[_Group]) -> int:
    return sum(group.size_bytes for group in groups)


def _row_bytes(groups: Sequence[_Group]) -> float:
    return _size(groups) / max(1, sum(group.rows for group in groups))


def _in_ranges(rows: pa.Table, ranges: SourceRanges) -> Bools:
    """Tell which rows come from there."""
    wanted = np.zeros(len(rows), np.bool_)
    if not len(rows):
        return wanted
    offsets = rows["offset"].to_numpy()
    for source, place in sources(rows):
        if source in ranges:
            first, last = ranges[source]
            wanted[place] = (offsets[place] >= first) & (offsets[place] <= last)
    return wanted


def _in_time(times: pa.ChunkedArray, bounds: tuple[int, int], *, untimed: bool) -> Bools:
    """Tell which event times lie within bounds, or which are missing."""
    if untimed:
        missing: Bools = times.is_null().to_numpy()
        return missing
    wanted = times.is_valid().to_numpy()
    numbers = times.fill_null(bounds[0]).to_numpy()
    within: Bools = wanted & (numbers >= bounds[0]) & (numbers <= bounds[1])
    return within


def _places(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return where the flat columns stand in the file, and the first part of each nested one."""
    places: dict[str, int] = {}
    for number in range(metadata.num_columns):
        places.setdefault(metadata.schema.column(number).path.partition(".")[0], number)
    return places


def _statistics(group: pq.RowGroupMetaData, place: int | None) -> pq.Statistics | None:
    return None if place is None else group.column(place).statistics


def _only(statistics: pq.Statistics | None) -> Any:
    """Return what a column has in all rows, where the file says so."""
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return statistics.min


def _reach(statistics: pq.Statistics | None) -> tuple[int, int]:
    """Smallest and greatest number of a column; all there are where the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALL_TIME
    return statistics.min, statistics.max
