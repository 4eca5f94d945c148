"""Reads rows of runs in tasks: those of some output partitions, slice after slice of time.

A run's row groups say which event times, output partitions and sources they hold, so only row
groups that matter are read. What a step releases may be far more than fits into memory (a drain, a
long delay, times that all fall on one day). So it is read in slices that are small enough, one by
one.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.rows.columns import ROW_LIMITS, SOURCE_ORDER, sources, spread
from sequitur.pipelines.rows.row_files import (
    ALL_TIME,
    footer_of,
    only_value,
    open_rows,
    reach,
    read_ahead,
    readers,
    side_by_side,
    size_of,
)
from sequitur.pipelines.rows.slices import counted_sources, counted_times, time_cuts
from sequitur.pipelines.spark.partition_blocks import halves
from sequitur.pipelines.store.part_files import hashes_of, newest_rows
from sequitur.pipelines.store.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.pipelines.rows.columns import RowLimits
    from sequitur.pipelines.rows.row_files import Footer, GroupFacts
    from sequitur.pipelines.rows.slices import SourceRanges
    from sequitur.pipelines.store.part_files import KeptRows
    from sequitur.pipelines.store.storage import Location

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]


_OF_KEYS: Final = ("topic", "partition", "key", "event_time_ms")
_FEW_KEYS: Final = 256
"""So many are looked for by their hashes first."""
_COPIED_BYTES: Final = 4 << 20
_SLICED_ROWS: Final = 8
"""To copy so few rows takes longer than to point to each."""
_MOST_SLICES: Final = 2
"""Of so many slices' size one may be, before it is counted what is in it and where to cut it, and
what was taken for one slice may turn out to be."""


@dataclass(frozen=True, slots=True)
class Part:
    files: tuple[Location, ...]
    first_ms: int = ALL_TIME[0]  # rows with an event time from here on
    last_ms: int = ALL_TIME[1]  # and up to here, itself included
    # rows with one of these reasons; None: without one; empty: whatever it is
    reasons: tuple[str, ...] | None = None
    untimed: bool = False  # rows without an event time, and no others


class RowGroup(NamedTuple):
    path: Location
    footer: Footer
    number: int
    part: Part
    rows: int
    size_bytes: int
    first_ms: int
    last_ms: int
    share: float
    partitions: tuple[int, int]

    def may_hold(self, ranges: SourceRanges) -> bool:
        low, high = reach(self.footer.statistics(self.number, "offset"))
        topic, number = (
            only_value(self.footer.statistics(self.number, name)) for name in SOURCE_ORDER[:2]
        )
        source = None if topic is None or number is None else SourcePartition(topic, number)
        return any(
            first <= high and last >= low
            for one, (first, last) in ranges.items()
            if source in {None, one}
        )

    def is_in(self, partitions: range) -> bool:
        first, last = self.partitions
        return first < partitions.stop and last >= partitions.start

    def wanted_bytes(self, partitions: range | None) -> float:
        """Return about how many of its bytes are of the wanted partitions."""
        first, last = self.partitions
        if partitions is None or self.partitions == ALL_TIME:
            return self.size_bytes * self.share
        own = min(last, partitions.stop - 1) - max(first, partitions.start) + 1
        return self.size_bytes * self.share * own / (last - first + 1)


class RunRows:
    """The rows of some parts that go to some output partitions.

    With `keys`, those of these keys alone; the key is then among the columns.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        partitions: range | None,
        columns: Sequence[str],
        limits: RowLimits = ROW_LIMITS,
        *,
        spread: int | None = None,
        keys: pa.BinaryArray | None = None,
    ) -> None:
        self._spread = spread
        self._keys = keys
        self._slice_bytes = limits.slice_bytes
        self.partitions = partitions
        self._columns = tuple(dict.fromkeys(columns))
        wanted = [(path, part) for part in parts for path in part.files]
        if any(is_remote(path) for path, _ in wanted):
            list(readers().map(footer_of, dict.fromkeys(path for path, _ in wanted)))
        self._groups = [group for path, part in wanted for group in self._matching(path, part)]

    @property
    def wanted_bytes(self) -> float:
        """About how many bytes the rows have."""
        return sum(group.wanted_bytes(self.partitions) for group in self._groups)

    def rows_at_most(self) -> int:
        return sum(group.rows for group in self._groups)

    def blocks(self) -> Iterator[Self]:
        """Cut the partitions so that the rows of a cut fit into a slice or are of one partition."""
        partitions = self.partitions
        if partitions is None:
            raise ValueError("of all partitions there are no blocks")
        if not self._groups:
            return
        if len(partitions) == 1 or self.wanted_bytes <= self._slice_bytes:
            yield self
            return
        for half in self._halves(partitions):
            yield from half.blocks()

    def together(self) -> Iterator[tuple[range, pa.Table | None]]:
        """Read the rows of some partitions at a time, as files have them, without empty ones.

        None stands for those of a single partition, which may be more than fit into memory. What
        footers say of several is an estimate: a block that turns out to be larger is cut again.
        """
        for block in self.blocks():
            partitions = block.partitions or range(0)
            if len(partitions) == 1:
                yield partitions, None
                continue
            found = _at_most(block.pieces(), _MOST_SLICES * self._slice_bytes)
            if found is None:
                for half in block._halves(partitions):  # noqa: SLF001 - ours
                    yield from half.together()
            elif found:
                yield partitions, pa.concat_tables(found)

    def _halves(self, partitions: range) -> Iterator[Self]:
        for half in halves(partitions):
            rows = copy.copy(self)
            rows.partitions = half
            rows._groups = [group for group in self._groups if group.is_in(half)]  # noqa: SLF001 - ours
            yield rows

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
        """Read the rows between two event times, in tables in source order."""
        groups = self._overlapping(first_ms, last_ms)
        if self._is_small(size_of(groups)):
            yield from _together(self._read(groups, self._columns, first_ms, last_ms))
            return
        narrow = self._read(groups, SOURCE_ORDER, first_ms, last_ms)
        for ranges in counted_sources(narrow, _row_bytes(groups), self._slice_bytes):
            own = [group for group in groups if group.may_hold(ranges)]
            yield from _together(self._read(own, self._columns, first_ms, last_ms, ranges))

    def pieces(self) -> Iterator[pa.Table]:
        """Read the rows in tables of about the size of a slice, as files have them."""
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
        """Cut a slice into smaller ones if its rows are spread unevenly."""
        groups = self._overlapping(first_ms, last_ms)
        if first_ms == last_ms or self._is_small(size_of(groups)):
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

    def _overlapping(self, first_ms: int, last_ms: int) -> list[RowGroup]:
        return [
            group
            for group in self._groups
            if group.first_ms <= last_ms and group.last_ms >= first_ms
        ]

    def _matching(self, path: Location, part: Part) -> Iterator[RowGroup]:
        footer = footer_of(path)
        first_ms, last_ms = footer.reach_ms
        if not part.untimed and (first_ms > part.last_ms or last_ms < part.first_ms):
            return
        for number, facts in enumerate(footer.groups):
            if not self._may_hold(facts, part):
                continue
            within = max(facts.first_ms, part.first_ms), min(facts.last_ms, part.last_ms)
            share = 1.0
            if (facts.first_ms, facts.last_ms) != ALL_TIME and not part.untimed:
                share = (within[1] - within[0] + 1) / (facts.last_ms - facts.first_ms + 1)
            outputs = facts.first_partition, facts.last_partition
            yield RowGroup(
                path=path,
                footer=footer,
                number=number,
                part=part,
                rows=facts.rows,
                size_bytes=facts.size_bytes,
                first_ms=within[0],
                last_ms=within[1],
                share=share,
                partitions=outputs if self._spread is None else (0, self._spread - 1),
            )

    def _may_hold(self, facts: GroupFacts, part: Part) -> bool:
        if part.untimed:
            if not facts.untimed:
                return False
        elif (
            facts.untimed == facts.rows
            or facts.first_ms > part.last_ms
            or facts.last_ms < part.first_ms
        ):
            return False
        if self.partitions is not None and self._spread is None:
            first, last = facts.first_partition, facts.last_partition
            if first >= self.partitions.stop or last < self.partitions.start:
                return False
        if part.reasons is None:
            return facts.unmarked != 0
        return not part.reasons or facts.unmarked != facts.rows

    def _read(
        self,
        groups: Sequence[RowGroup],
        columns: Sequence[str],
        first_ms: int,
        last_ms: int,
        ranges: SourceRanges | None = None,
    ) -> Iterator[pa.Table]:
        """Read the wanted rows: a table for a few row groups, so that memory stays small."""

        def read(several: Sequence[RowGroup]) -> pa.Table:
            return self._read_some(several, columns, (first_ms, last_ms), ranges)

        is_simple = ranges is None and self._spread is None
        found = [(group, newest_rows.get(group.path) if is_simple else None) for group in groups]
        for is_kept, some in itertools.groupby(found, key=lambda one: one[1] is not None):
            if is_kept:
                kept = ((group.part, rows[group.number]) for group, rows in some if rows)
                yield from self._chosen(kept, columns, (first_ms, last_ms))
                continue
            sought = side_by_side((group for group, _ in some), self._slice_bytes)
            for rows in read_ahead(sought, read, self._slice_bytes):
                own = rows if self._keys is None else rows.filter(pc.is_in(rows["key"], self._keys))
                if len(own):
                    yield own

    def _chosen(
        self,
        kept: Iterable[tuple[Part, KeptRows]],
        columns: Sequence[str],
        bounds: tuple[int, int],
    ) -> Iterator[pa.Table]:
        """Yield the wanted rows of row groups in memory, many at once; see `_read_some`."""
        hashes = None
        if self._keys is not None and len(self._keys) <= _FEW_KEYS:
            hashes = np.unique(hashes_of(self._keys))
        waiting: list[pa.RecordBatch] = []
        size = 0.0
        for part, group in kept:
            for rows in self._own_rows(part, group, columns, bounds, hashes):
                waiting.append(rows)
                size += group.row_bytes * rows.num_rows
            if size >= self._slice_bytes:
                yield _in_one(waiting, size)
                waiting, size = [], 0.0
        if waiting:
            yield _in_one(waiting, size)

    def _own_rows(
        self,
        part: Part,
        group: KeptRows,
        columns: Sequence[str],
        bounds: tuple[int, int],
        hashes: Longs | None,
    ) -> list[pa.RecordBatch]:
        """Return the wanted rows of a row group in memory, in pieces."""
        among = None if hashes is None else group.places_of(hashes)
        if among is not None and not len(among):
            return []
        rows = group.columns(columns)
        if self._keys is None and not part.untimed and not part.reasons:
            within = max(bounds[0], part.first_ms), min(bounds[1], part.last_ms)
            if (found := group.stretches(*within, self.partitions)) is not None:
                return [rows.slice(first, stop - first) for first, stop in found]
        places = _places_of(group, part, bounds, self.partitions, among)
        if self._keys is not None:
            places = _with_keys(group, places, self._keys, are_few=among is not None)
        if len(places) <= _SLICED_ROWS:
            return [rows.slice(place, 1) for place in places.tolist()]
        return [rows.take(pa.array(places)) if len(places) < rows.num_rows else rows]

    def _read_some(
        self,
        groups: Sequence[RowGroup],
        columns: Sequence[str],
        bounds: tuple[int, int],
        ranges: SourceRanges | None,
    ) -> pa.Table:
        footer, part = groups[0].footer, groups[0].part
        known = footer.places
        needed = [*columns, "event_time_ms", "output_partition", "reason"]
        if ranges is not None:
            needed += SOURCE_ORDER
        if self._spread is not None:
            needed += ("key", "partition")
        there = [name for name in dict.fromkeys(needed) if name in known]
        rows = _columns_of(groups[0].path, footer, [group.number for group in groups], there)
        wanted = np.ones(len(rows), np.bool_)
        if "event_time_ms" in known:
            within = max(bounds[0], part.first_ms), min(bounds[1], part.last_ms)
            wanted &= _in_time(rows["event_time_ms"], within, untimed=part.untimed)
        if part.reasons != ():
            wanted &= _is_marked(rows["reason"], part.reasons)
        if ranges is not None:
            wanted &= _in_ranges(rows, ranges)
        if self._spread is not None:
            rows = spread(rows.filter(pa.array(wanted)), self._spread)
            wanted = np.ones(len(rows), np.bool_)
        if self.partitions is not None:
            outputs = rows["output_partition"].to_numpy()
            wanted &= (outputs >= self.partitions.start) & (outputs < self.partitions.stop)
        for name in columns:
            if name not in known:
                rows = rows.append_column(name, pa.nulls(len(rows), pa.int64()))
        rows = rows.select(columns)
        return rows if wanted.all() else rows.filter(pa.array(wanted))


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows that are held while a batch is staged.

    Runs that hold some stay on disk until all steps before that of the batch are done.
    """

    folder: Location  # where runs are
    runs: tuple[Run, ...]
    frontier_ms: int  # all rows up to it come out before those of the batch

    def of_keys(self, keys: pa.BinaryArray, *, after_ms: int) -> Iterator[pa.Table]:
        """Read source, key and event time of the rows of some keys that are later than a time."""
        after_ms = max(after_ms, self.frontier_ms)
        files = tuple(
            self.folder / run.name / name
            for run in self.runs
            if run.is_live(after_ms)
            for name in run.files
        )
        part = Part(files, first_ms=after_ms + 1)
        yield from RunRows((part,), None, _OF_KEYS, keys=keys).pieces()


def _columns_of(
    path: Location, footer: Footer, numbers: Sequence[int], columns: Sequence[str]
) -> pa.Table:
    """Return columns of a file's row groups, from memory if they are there."""
    if (kept := newest_rows.get(path)) is not None:
        return pa.Table.from_batches([kept[number].rows.select(columns) for number in numbers])
    with (
        open_rows(path) as opened,
        pq.ParquetFile(opened, metadata=footer.metadata, pre_buffer=is_remote(path)) as file,
    ):
        return file.read_row_groups(numbers, columns=columns, use_threads=False)


def _places_of(
    kept: KeptRows,
    part: Part,
    bounds: tuple[int, int],
    partitions: range | None,
    among: Longs | None = None,
) -> Longs:
    """Return the places of the wanted rows of a row group in memory, or of those in `among`."""
    own: Longs | slice = slice(None) if among is None else among
    wanted = np.ones(kept.rows.num_rows if among is None else len(among), np.bool_)
    if "event_time_ms" in kept.names:
        untimed = kept.are_null("event_time_ms")[own]
        if part.untimed:
            wanted &= untimed
        else:
            times = kept.numbers("event_time_ms")[own]
            wanted &= times >= max(bounds[0], part.first_ms)
            wanted &= times <= min(bounds[1], part.last_ms)
            if untimed.any():
                wanted &= ~untimed
    if part.reasons is None:
        wanted &= kept.are_null("reason")[own]
    elif part.reasons:
        named = pc.is_in(kept.rows.column("reason"), pa.array(part.reasons, pa.string()))
        wanted &= named.to_numpy(zero_copy_only=False)[own]
    if partitions is not None:
        first, last = kept.reach("output_partition")
        if first < partitions.start or last >= partitions.stop:
            outputs = kept.numbers("output_partition")[own]
            wanted &= (outputs >= partitions.start) & (outputs < partitions.stop)
    places: Longs = wanted.nonzero()[0] if among is None else among[wanted]
    return places


def _with_keys(kept: KeptRows, places: Longs, keys: pa.BinaryArray, *, are_few: bool) -> Longs:
    """Return the places of the rows that have one of these keys."""
    if not len(places):
        return places
    found = kept.rows.column("key")
    if are_few:
        named = pc.is_in(found.take(pa.array(places)), keys).to_numpy(zero_copy_only=False)
    else:
        # For all rows: looking each up is cheaper than copying some.
        named = pc.is_in(found, keys).to_numpy(zero_copy_only=False)[places]
    own: Longs = places[named]
    return own


def _in_one(several: Sequence[pa.RecordBatch], size: float) -> pa.Table:
    """Return one table; small batches are copied: each call into Arrow costs by the chunk."""
    rows = pa.Table.from_batches(several)
    if size > _COPIED_BYTES:
        return rows
    for place, column in enumerate(rows.schema):
        # Mostly all are null, and copying nulls takes as long as copying all other columns.
        if pa.types.is_nested(column.type) and rows[place].null_count == len(rows):
            rows = rows.set_column(place, column, pa.nulls(len(rows), column.type))
    return rows.combine_chunks()


def _at_most(tables: Iterable[pa.Table], most_bytes: int) -> list[pa.Table] | None:
    """Return all tables; None if they have more than `most_bytes`."""
    found = []
    for table in tables:
        most_bytes -= table.nbytes
        if most_bytes < 0:
            return None
        found.append(table)
    return found


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    several = list(tables)
    if several:
        yield pa.concat_tables(several)


def _row_bytes(groups: Sequence[RowGroup]) -> float:
    return size_of(groups) / max(1, sum(group.rows for group in groups))


def _is_marked(found: pa.ChunkedArray, reasons: tuple[str, ...] | None) -> Bools:
    """Tell which rows have one of these reasons; with None, which have no reason."""
    if reasons is None:
        unmarked: Bools = found.is_null().to_numpy()
        return unmarked
    marked: Bools = pc.is_in(found, pa.array(reasons, pa.string())).to_numpy()
    return marked


def _in_ranges(rows: pa.Table, ranges: SourceRanges) -> Bools:
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
    """Tell which event times lie within bounds; with `untimed`, which are missing."""
    if untimed:
        missing: Bools = times.is_null().to_numpy()
        return missing
    wanted = times.is_valid().to_numpy()
    numbers = times.fill_null(bounds[0]).to_numpy()
    within: Bools = wanted & (numbers >= bounds[0]) & (numbers <= bounds[1])
    return within
