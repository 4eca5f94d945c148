"""Staging a batch in Spark's tasks: rows come as Arrow, and become one sorted Parquet file a task.

Which rows count as what says the late judge, `sequitur.consumer.lateness.judge`.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer import (
    LATE,
    QUARANTINE_REASONS,
    EventTimeSpec,
    SourcePartition,
    bin_limit_ms,
    is_behind,
    staging_rules,
)
from sequitur.consumer.time.adaptive_delay import LAST_BIN
from sequitur.kafka.partition import KeyPartitioner
from sequitur.kafka.record_format import HEADER_LENGTHS
from sequitur.pipelines.rows.columns import ROW_LIMITS, RowLimits, outputs_of
from sequitur.pipelines.rows.event_times import read_each, read_many
from sequitur.pipelines.spark.partition_blocks import packed
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequitur.consumer import EventClock, PartitionCounts, TimeBounds
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.store.files import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    AckedOffsets = Mapping[SourcePartition, tuple[Longs, Longs]]

SUMMARY_SCHEMA: Final = "summary binary"
LARGE_ROW_BYTES: Final = 16 << 10
"""A row with more than that in key, value and headers is large: it goes to Python by its size."""
_NO_REASON: Final = -1
_REASONS: Final = (LATE, *QUARANTINE_REASONS)
_LATE: Final = _REASONS.index(LATE)
_NO_TIME: Final = (1 << 63) - 1
"""Stands for a missing event time where rows are sorted: those rows come last."""
_BIN_LIMITS: Final = np.array([bin_limit_ms(number) for number in range(LAST_BIN + 1)])

RUN_ARROW_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("output_partition", pa.int32()),
        ("event_time_ms", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(slots=True)
class Summary:
    """What a task saw."""

    file: str | None = None  # name of the file it wrote; None when there were no rows
    size_bytes: int = 0
    read: int = 0
    left_out: int = 0  # rows without a topic: large ones, which are read by themselves
    large: int = 0  # rows that are large by their key and value
    reasons: dict[str, int] = field(default_factory=dict)  # rows of these by reason
    # smallest and greatest event time on time; None without any
    on_time_ms: tuple[int, int] | None = None
    # smallest and greatest event time behind the frontier; None without any
    behind_ms: tuple[int, int] | None = None
    # greatest usable event time of each source partition
    maxima: dict[SourcePartition, int] = field(default_factory=dict)
    # how late rows were, by source partition: rows, late rows, and rows by bin
    lateness: dict[SourcePartition, tuple[int, int, dict[int, int]]] = field(default_factory=dict)
    skipped: int = 0  # rows that are in no file, since the subscription had acked them
    # how many rows each source partition gave, those included, and bytes of them
    counted: dict[SourcePartition, tuple[int, int]] = field(default_factory=dict)
    max_timestamp_ms: int = -1  # greatest Kafka timestamp of a row


@dataclass(frozen=True, slots=True)
class RunWriter:
    """Writes the rows of a task as a part of a run; for `mapInArrow`.

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
    # by how many partitions rows go, where that depends on their event time; None where all go as
    # they come
    partition_counts: PartitionCounts | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches; give one row with the `Summary`."""
        summary = self.write(batches)
        yield pa.RecordBatch.from_pydict({"summary": [pickle.dumps(summary)]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> Summary:
        """Write batches into one file, each chunk of them sorted, and say what was in them.

        The driver names it in the log: one of a task that was given up, or comes too late, is
        never read.
        """
        summary = Summary()
        with PartFile(self.folder, RUN_ARROW_SCHEMA, self.limits.row_group_rows) as file:
            for chunk in tables_up_to(_with_topics(batches, summary), self.limits.chunk_bytes):
                if len(rows := self._not_acked(chunk, summary)):
                    for part in self._staged(rows, summary):
                        file.write(part)
        summary.file, summary.size_bytes = file.name, file.size_bytes
        return summary

    def _not_acked(self, rows: pa.Table, summary: Summary) -> pa.Table:
        """Count rows by source partition; return those that are not acked."""
        newest_ms = int(rows["timestamp_ms"].to_numpy().max())
        summary.max_timestamp_ms = max(summary.max_timestamp_ms, newest_ms)
        sizes, offsets = payload_sizes(rows), rows["offset"].to_numpy()
        is_acked = np.zeros(len(rows), np.bool_)
        for source, place in sources(rows):
            before, size = summary.counted.get(source, (0, 0))
            read = len(offsets[place])
            summary.counted[source] = before + read, size + int(sizes[place].sum())
            if source in self.acked:
                is_acked[place] = in_ranges(offsets[place], *self.acked[source])
        skipped = int(np.count_nonzero(is_acked))
        if not skipped:
            return rows
        summary.skipped += skipped
        summary.read += skipped
        return rows.filter(pa.array(~is_acked))

    def _staged(self, rows: pa.Table, summary: Summary) -> Iterator[pa.Table]:
        """Sort the rows of a chunk as they stand in the run, and count them in passing.

        Rows with a reason come first, in row groups of their own: whoever wants them reads no
        others.
        """
        times, reasons = self._event_times(rows)
        sizes = payload_sizes(rows)
        summary.large += int(np.count_nonzero(sizes > LARGE_ROW_BYTES))
        self._mark(rows, times, reasons, sizes)
        behind = reasons == _LATE
        usable = behind | (reasons == _NO_REASON)
        times[~usable] = _NO_TIME
        _count(summary, times, reasons, usable, behind)
        for source, place in sources(rows):
            self._look_at(summary, source, times[place][usable[place]])
        rows = self._placed(rows, times)
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
        sorted_rows = rows.select(RUN_ARROW_SCHEMA.names[:-2]).take(pa.array(order))
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

    def _placed(self, rows: pa.Table, times: Longs) -> pa.Table:
        """Have rows up to a cut go by the number of partitions that counts there."""
        by = self.partition_counts
        if by is None:
            return rows
        outputs = rows["output_partition"].to_numpy().copy()
        which = np.searchsorted(by.cuts_ms, times)
        for number, count in enumerate(by.counts[:-1]):
            if len(own := np.flatnonzero(which == number)):
                outputs[own] = spread(rows.take(pa.array(own)), count)["output_partition"]
        place = rows.schema.get_field_index("output_partition")
        return rows.set_column(place, "output_partition", pa.array(outputs))

    def _mark(self, rows: pa.Table, times: Longs, reasons: Any, sizes: Longs) -> None:
        """Mark the rows that have an event time with the reasons of the late judge."""
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
        """Return places in `_REASONS` of why times are not believed."""
        reasons = np.full(len(times), _NO_REASON, np.int8)
        if is_disbelieved.any():
            for reason, first, last in reversed(self.bounds.refusals()):
                reasons[(times >= first) & (times <= last)] = _REASONS.index(reason)
        return reasons

    def _event_times(self, rows: pa.Table) -> tuple[Longs, Any]:
        """Read event times, and places of reasons in `_REASONS`; with a reason there is no time."""
        reasons = np.full(len(rows), _NO_REASON, np.int8)
        times, found = read_many(self.event_time, rows)
        slow = np.flatnonzero(~found)
        if len(slow):
            read, why = read_each(self.event_time, rows, slow)
            times[slow] = [_NO_TIME if ms is None else ms for ms in read]
            reasons[slow] = [_NO_REASON if one is None else _REASONS.index(one) for one in why]
        return times, reasons

    def _look_at(self, summary: Summary, source: SourcePartition, times: Longs) -> None:
        """Take in the usable event times of rows of one source partition."""
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


def spread(rows: pa.Table, partitions: int) -> pa.Table:
    """Have rows go by so many output partitions, by key or else by source partition."""
    partitioner = KeyPartitioner(partitions)
    outputs = outputs_of(partitioner, rows["key"].to_pylist(), rows["partition"].to_numpy())
    place = rows.schema.get_field_index("output_partition")
    return rows.set_column(place, "output_partition", pa.array(outputs))


def in_ranges(offsets: Longs, firsts: Longs, stops: Longs) -> Any:
    """Tell of each offset whether it is in one of some ranges, which are sorted and apart."""
    place = np.searchsorted(firsts, offsets, side="right") - 1
    return (place >= 0) & (offsets < stops[np.maximum(place, 0)])


def _with_topics(batches: Iterator[pa.RecordBatch], summary: Summary) -> Iterator[pa.RecordBatch]:
    """Return the rows of batches that have a topic; the others are counted."""
    for batch in batches:
        topics = batch["topic"]
        summary.left_out += topics.null_count
        yield batch.filter(topics.is_valid()) if topics.null_count else batch


def tables_up_to(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    """Batches put together up to a size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size += batch.get_total_buffer_size()
        if size >= most_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def sources(rows: pa.Table) -> Iterator[tuple[SourcePartition, Any]]:
    """Split rows by source partition. There is nearly always one."""
    topics = rows["topic"].combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64)
    numbers = rows["partition"].to_numpy().astype(np.int64)
    both = codes << 32 | numbers
    if both.min() == both.max():
        yield SourcePartition(topics.dictionary[0].as_py(), int(numbers[0])), slice(None)
        return
    for one in np.unique(both).tolist():
        topic = topics.dictionary[one >> 32].as_py()
        yield SourcePartition(topic, one & 0xFFFFFFFF), both == one


def in_row_groups(rows: pa.Table, limits: RowLimits) -> Iterator[pa.Table]:
    """Sort rows by output partition, and cut them as they stand in files."""
    outputs = rows["output_partition"].to_numpy()
    if (np.diff(outputs) < 0).any():
        order = np.argsort(outputs, kind="stable")
        rows, outputs = rows.take(pa.array(order)), outputs[order]
    sizes = payload_sizes(rows) if "value" in rows.column_names else np.zeros_like(outputs)
    for block in packed(outputs, sizes, limits.packed_rows, limits.packed_bytes):
        yield rows.slice(block.start, block.stop - block.start)


def payload_sizes(rows: pa.Table) -> Longs:
    """Measure key, value and headers of rows in bytes, with what headers take beside."""
    sizes = np.zeros(len(rows), np.int64)
    for name in ("key", "value"):
        sizes += pc.binary_length(rows[name]).fill_null(0).to_numpy()
    headers = rows["headers"].combine_chunks()
    if headers.null_count == len(headers):
        return sizes
    each = headers.flatten()
    lengths = np.full(len(each), HEADER_LENGTHS, np.int64)
    for number in (0, 1):
        lengths += pc.binary_length(pc.struct_field(each, number)).fill_null(0).to_numpy()
    counts = pc.list_value_length(headers).fill_null(0).to_numpy()
    reached = np.concatenate(([0], np.cumsum(lengths)))
    ends = np.cumsum(counts)
    sizes += reached[ends] - reached[ends - counts]
    return sizes


def not_taken(
    rows: pa.Table, sizes: Longs, limit: RecordLimit, added: Sequence[bytes] = ()
) -> list[int]:
    """Return the places of rows that a topic does not take as records."""
    found = []
    for place in np.flatnonzero(sizes > limit.surely_bytes).tolist():
        key, value, headers = (rows[name][place].as_py() for name in ("key", "value", "headers"))
        parts = [part for one in headers or () for part in (one["key"].encode(), one["value"])]
        if not limit.takes((key, value, *parts, *added), len(headers or ()) + len(added)):
            found.append(place)
    return found


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
