"""Writes the rows that a task reads as one sorted Parquet file, its part of a run.

The late judge, `sequitur.consumer.reorder.lateness`, says what a row counts as.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer.reorder.lateness import is_behind, staging_rules
from sequitur.consumer.reorder.learned_delay import LAST_BIN, bin_limit_ms
from sequitur.consumer.reorder.reasons import LATE, MISSING, QUARANTINE_REASONS
from sequitur.pipelines.rows.columns import (
    READ_SCHEMA,
    ROW_LIMITS,
    RUN_ARROW_SCHEMA,
    in_ranges,
    not_taken,
    payload_sizes,
    sources,
    tables_up_to,
)
from sequitur.pipelines.rows.event_times import read_each, read_many
from sequitur.pipelines.spark.partition_blocks import packed
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sequitur.consumer.reorder import EventTimeSpec
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.time_bounds import TimeBounds
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.columns import RowLimits
    from sequitur.pipelines.rows.run_rows import HeldRows
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    AckedOffsets = Mapping[SourcePartition, tuple[Longs, Longs]]


_NO_REASON: Final = -1
_REASONS: Final = (LATE, *QUARANTINE_REASONS)
_LATE: Final = _REASONS.index(LATE)
_MISSING: Final = _REASONS.index(MISSING)
_BEFORE_ALL: Final = -1
_NO_TIME: Final = (1 << 63) - 1
"""Stands for a missing event time where rows are sorted: those rows come last."""
_BIN_LIMITS: Final = np.array([bin_limit_ms(number) for number in range(LAST_BIN + 1)])


@dataclass(slots=True)
class Summary:
    file: str | None = None  # name of the file it wrote; None when there were no rows
    size_bytes: int = 0
    is_synced: bool = True  # whether the file outlasts a power cut
    read: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # rows of these by reason
    # smallest and greatest event time on time; None without any
    on_time_ms: tuple[int, int] | None = None
    # smallest and greatest event time behind the frontier; None without any
    behind_ms: tuple[int, int] | None = None
    # greatest usable event time of each source partition
    maxima: dict[SourcePartition, int] = field(default_factory=dict)
    # how late rows were, by source partition: rows, late rows, and rows by bin
    lateness: dict[SourcePartition, tuple[int, int, dict[int, int]]] = field(default_factory=dict)
    skipped: int = 0  # rows that are in no file because the subscription had acked them
    # how many rows each source partition gave, those included, and bytes of them
    counted: dict[SourcePartition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunWriter:
    """Writes the rows of a task as a part of a run.

    The rows have the columns of a run but for `event_time_ms` and `reason`.
    """

    folder: Location
    event_time: EventTimeSpec
    frontier_ms: int  # rows behind it are marked
    bounds: TimeBounds  # rows of other times go to quarantine
    # count how late rows are against these clocks and their frontier
    clock: EventClock | None = None
    # what the output topic takes of one row; None when rows do not go there
    limit: RecordLimit | None = None
    limits: RowLimits = ROW_LIMITS
    # first offsets and stops of ranges that the subscription has acked: their rows are skipped
    acked: AckedOffsets = field(default_factory=dict)
    # whether tombstones without an event time have that of their record
    dates_tombstones: bool = False
    # rows that have to come out before tombstones; None: only those of the batch
    held: HeldRows | None = None
    keeps: bool = False  # whether the driver writes them, and keeps them in memory; see `PartFile`

    def write(self, batches: Iterator[pa.RecordBatch]) -> Summary:
        """Write batches into one file, each chunk of them sorted, and say what was in them.

        The driver names it in the log: one of a task that was given up, or comes too late, is
        never read.
        """
        summary, newest = Summary(), NewestOfKeys()
        with PartFile(
            self.folder, RUN_ARROW_SCHEMA, self.limits.row_group_rows, keeps=self.keeps
        ) as file:
            for chunk in tables_up_to(batches, self.limits.chunk_bytes):
                if (rows := self._not_acked(chunk, summary)) is not None:
                    for part in self._staged(rows, summary, newest):
                        file.write(part)
        summary.file, summary.size_bytes = file.name, file.size_bytes
        summary.is_synced = not self.keeps
        return summary

    def _not_acked(self, rows: pa.Table, summary: Summary) -> _Chunk | None:
        """Count rows by source partition; return those that are not acked, None without any."""
        chunk = _Chunk.of(rows)
        sizes, offsets = chunk.sizes, rows["offset"].to_numpy()
        is_acked = np.zeros(len(rows), np.bool_)
        for source, place in chunk.sources:
            before, size = summary.counted.get(source, (0, 0))
            read = len(offsets[place])
            summary.counted[source] = before + read, size + int(sizes[place].sum())
            if source in self.acked:
                is_acked[place] = in_ranges(offsets[place], *self.acked[source])
        skipped = int(np.count_nonzero(is_acked))
        if not skipped:
            return chunk
        summary.skipped += skipped
        summary.read += skipped
        kept = rows.filter(pa.array(~is_acked))
        return _Chunk.of(kept) if len(kept) else None

    def _staged(self, chunk: _Chunk, summary: Summary, newest: NewestOfKeys) -> Iterator[pa.Table]:
        """Sort the rows of a chunk as they stand in the run, and count them in passing.

        Rows with a reason come first, in row groups of their own, so that they can be read alone.
        """
        rows, sizes = chunk.rows, chunk.sizes
        times, reasons = self._event_times(rows)
        if self.dates_tombstones:
            self._date_tombstones(rows, times, reasons, newest)
        self._mark(rows, times, reasons, sizes)
        behind = reasons == _LATE
        usable = behind | (reasons == _NO_REASON)
        times[~usable] = _NO_TIME
        _count(summary, times, reasons, usable, behind)
        for source, place in chunk.sources:
            self._look_at(summary, source, times[place][usable[place]])
        outputs = rows["output_partition"].to_numpy()
        # Stable, so that rows of one source partition stay in the order of their offsets.
        order = np.argsort(times, kind="stable")
        if outputs.min() != outputs.max():
            order = order[np.argsort(outputs[order], kind="stable")]
        is_plain = reasons == _NO_REASON
        if not is_plain.all():
            order = order[np.argsort(is_plain[order], kind="stable")]
        times, reasons, usable, outputs, sizes = (
            one[order] for one in (times, reasons, usable, outputs, sizes)
        )
        sorted_rows = rows.select(READ_SCHEMA.names).take(pa.array(order))
        named = pa.nulls(len(order), pa.string())
        if (reasons != _NO_REASON).any():
            codes = pa.array(reasons, mask=reasons == _NO_REASON)
            named = pa.array(_REASONS, pa.string()).take(codes)
        sorted_rows = sorted_rows.append_column(
            "event_time_ms", pa.array(times, mask=None if usable.all() else ~usable)
        ).append_column("reason", named)
        marked = len(order) - int(np.count_nonzero(is_plain))
        for section in (slice(0, marked), slice(marked, len(order))):
            own = sorted_rows.slice(section.start, section.stop - section.start)
            limits = self.limits.packed_rows, self.limits.packed_bytes
            for block in packed(outputs[section], sizes[section], *limits):
                yield own.slice(block.start, block.stop - block.start)

    def _mark(self, rows: pa.Table, times: Longs, reasons: Any, sizes: Longs) -> None:
        """Mark the rows with an event time with the reasons of the late judge."""
        is_too_large, is_keyless = np.zeros((2, len(rows)), np.bool_)
        if self.limit is not None:
            is_too_large[not_taken(rows, sizes, self.limit)] = True
            if self.limit.needs_key:
                is_keyless = rows["key"].is_null().to_numpy()
        is_disbelieved = (times < self.bounds.earliest_ms) | (times > self.bounds.latest_ms)
        rules = staging_rules(
            times,
            self.frontier_ms,
            is_disbelieved=is_disbelieved,
            disbelief=self._disbelief(times, is_disbelieved),
            is_too_large=is_too_large,
            is_keyless=is_keyless,
        )
        is_open = reasons == _NO_REASON
        for holds, reason in rules:
            found = is_open & holds
            if not found.any():
                continue
            is_named = isinstance(reason, str)
            reasons[found] = _REASONS.index(reason) if is_named else reason[found]
            is_open &= ~found

    def _disbelief(self, times: Longs, is_disbelieved: Any) -> Any:
        """Return places in `_REASONS` for times that are not believed."""
        reasons = np.full(len(times), _NO_REASON, np.int8)
        if is_disbelieved.any():
            for reason, first, last in reversed(self.bounds.refusals()):
                reasons[(times >= first) & (times <= last)] = _REASONS.index(reason)
        return reasons

    def _event_times(self, rows: pa.Table) -> tuple[Longs, Any]:
        """Read event times, and places of reasons in `_REASONS`; a row with a reason has none."""
        reasons = np.full(len(rows), _NO_REASON, np.int8)
        times, found = read_many(self.event_time, rows)
        slow = np.flatnonzero(~found)
        if len(slow):
            read, why = read_each(self.event_time, rows, slow)
            times[slow] = [_NO_TIME if ms is None else ms for ms in read]
            reasons[slow] = [_NO_REASON if one is None else _REASONS.index(one) for one in why]
        return times, reasons

    def _date_tombstones(
        self, rows: pa.Table, times: Longs, reasons: Any, newest: NewestOfKeys
    ) -> None:
        """Give tombstones without an event time that of their record, or of a row before them."""
        stamps, keys = rows["timestamp_ms"].to_numpy(), rows["key"].combine_chunks()
        is_tombstone = (reasons == _MISSING) & (stamps >= 0)
        is_tombstone &= pc.and_(rows["value"].is_null(), keys.is_valid()).to_numpy()
        known = np.where(is_tombstone, stamps, times)
        counts = (reasons == _NO_REASON) & (times >= self.bounds.earliest_ms)
        counts = (counts | is_tombstone) & (known <= self.bounds.latest_ms)
        known[~counts] = _BEFORE_ALL
        if self.held is not None and is_tombstone.any():
            deleted = keys.filter(pa.array(is_tombstone)).unique()
            for held in self.held.of_keys(deleted, after_ms=int(stamps[is_tombstone].min())):
                newest.reached(held, held["event_time_ms"].to_numpy())
        known = newest.reached(rows, known)
        times[is_tombstone] = np.maximum(stamps, known)[is_tombstone]
        reasons[is_tombstone] = _NO_REASON

    def _look_at(self, summary: Summary, source: SourcePartition, times: Longs) -> None:
        if not len(times):
            return
        summary.maxima[source] = max(int(times.max()), summary.maxima.get(source, 0))
        known = None if self.clock is None else self.clock.partitions.get(source)
        if self.clock is None or known is None or known.max_event_time_ms is None:
            return
        lateness = known.max_event_time_ms - times
        numbers = np.searchsorted(_BIN_LIMITS, np.clip(lateness, 0, _BIN_LIMITS[-1]))
        rows, late, bins = summary.lateness.get(source, (0, 0, {}))
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            if number:
                bins[int(number)] = bins.get(int(number), 0) + int(count)
        late += int(np.count_nonzero(is_behind(times, self.clock.frontier_ms)))
        summary.lateness[source] = (rows + len(times), late, bins)


class _Chunk(NamedTuple):
    """Rows that are staged at once, and what is needed of them several times."""

    rows: pa.Table
    sizes: Longs
    sources: list[tuple[SourcePartition, Any]]  # see `columns.sources`

    @classmethod
    def of(cls, rows: pa.Table) -> _Chunk:
        return cls(rows, payload_sizes(rows), [*sources(rows)])


class NewestOfKeys:
    """The greatest event time of each key in the rows that a task has read so far."""

    def __init__(self) -> None:
        self._known: dict[SourcePartition, tuple[pa.BinaryArray, Longs]] = {}

    def reached(self, rows: pa.Table, times: Longs) -> Longs:
        """Return the greatest time of its key and source partition that each row is at or after.

        Args:
            rows: Those of each source partition in the order of their offsets.
            times: Their times; `_BEFORE_ALL` for rows that do not count.
        """
        keys, found = rows["key"].combine_chunks(), np.empty_like(times)
        for source, place in sources(rows):
            own = keys if isinstance(place, slice) else keys.filter(pa.array(place))
            found[place] = self._reached(source, own, times[place])
        return found

    def _reached(self, source: SourcePartition, keys: pa.BinaryArray, times: Longs) -> Longs:
        encoded = keys.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        no_keys = encoded.dictionary.slice(0, 0)
        before, maxima = self._known.get(source, (no_keys, np.zeros(0, np.int64)))
        place = pc.index_in(encoded.dictionary, before).fill_null(-1).to_numpy()
        is_known = place >= 0
        reached: Longs = _reached(codes, times)
        own = np.full(len(place) + 1, _BEFORE_ALL, np.int64)  # the last one of rows without a key
        own[:-1][is_known] = maxima[place[is_known]]
        reached = np.maximum(reached, own[codes])
        np.maximum.at(own, codes, times)
        maxima = np.concatenate((maxima, own[:-1][~is_known]))
        maxima[place[is_known]] = own[:-1][is_known]
        new = encoded.dictionary.filter(pa.array(~is_known))
        self._known[source] = pa.concat_arrays([before, new]), maxima
        return reached


def _reached(codes: Longs, times: Longs) -> Longs:
    """Return the running maximum of the times of each code."""
    order = np.argsort(codes, kind="stable")
    values, ranks = np.unique(times[order], return_inverse=True)
    # Each code begins above all ranks of the one before it.
    above = (codes[order] + 1) * len(values)
    highest = np.maximum.accumulate(ranks + above) - above
    reached = np.empty_like(times)
    reached[order] = values[highest]
    return reached


def _count(summary: Summary, times: Longs, reasons: Any, usable: Any, behind: Any) -> None:
    summary.read += len(times)
    for place, count in enumerate(np.bincount(reasons[reasons != _NO_REASON])):
        if count:
            reason = _REASONS[place]
            summary.reasons[reason] = summary.reasons.get(reason, 0) + int(count)
    summary.on_time_ms = _reach(summary.on_time_ms, times[usable & ~behind])
    summary.behind_ms = _reach(summary.behind_ms, times[behind])


def _reach(before: tuple[int, int] | None, times: Longs) -> tuple[int, int] | None:
    if not len(times):
        return before
    first, last = int(times.min()), int(times.max())
    return (first, last) if before is None else (min(first, before[0]), max(last, before[1]))
