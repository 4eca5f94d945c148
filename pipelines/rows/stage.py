"""The columns of rows as tasks are given them, what they are sorted by, how many are in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer.reorder import EventTimeSource, EventTimeSpec, TimeUnit
from sequitur.consumer.reorder.clock import LAST_BIN, bin_limit_ms
from sequitur.consumer.reorder.event_time import LATE, MISSING, QUARANTINE_REASONS, read_event_time
from sequitur.consumer.reorder.lateness import is_behind, staging_rules
from sequitur.kafka.partition import KeyPartitioner, SourcePartition
from sequitur.kafka.record_format import HEADER_LENGTHS
from sequitur.pipelines.spark.partition_blocks import packed
from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS, PartFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.event_time import TimeBounds
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.release import HeldRows
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]

    Bools = np.ndarray[Any, np.dtype[np.bool_]]

    AckedOffsets = Mapping[SourcePartition, tuple[Longs, Longs]]


SOURCE_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
)  # fmt: skip
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""


def outputs_of(partitioner: KeyPartitioner, keys: Sequence[bytes | None], numbers: Longs) -> Longs:
    """Return the partition that each row goes to: where Java's default partitioner sends its key.

    So the output is partitioned as the input of a Java producer (or ours) on as many partitions.
    Rows without a key go by their source partition, which keeps them together.
    """
    if None not in keys:
        return partitioner.each(keys).astype(np.int64)  # type: ignore[arg-type] # as it says
    outputs: Longs = numbers.astype("int64") % partitioner.partitions
    if keyed := [place for place, key in enumerate(keys) if key is not None]:
        outputs[keyed] = partitioner.each([key for key in keys if key is not None])
    return outputs


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Bounds on what a task has in memory."""

    # so much is sorted at once when a batch is staged; a task holds two or three times that
    chunk_bytes: int = 64 << 20
    slice_bytes: int = 32 << 20  # so much of what is due is read at once
    # most rows of a row group: small ones let a reader skip what it does not want
    row_group_rows: int = ROW_GROUP_ROWS
    # so much may stand in a row group with several output partitions: whoever wants one of them
    # reads the others, too
    packed_bytes: int = 1 << 20

    @property
    def packed_rows(self) -> int:
        """Most rows of a row group with several output partitions.

        Each one costs about a millisecond to write and to read, as much as some hundred rows.
        """
        return max(1, self.row_group_rows // 4)


ROW_LIMITS: Final = RowLimits()
"""Those of a job."""


# Event times of many records at once, read by Arrow where it can be sure of them.
#
# - **In the value.** Most events are JSON objects whose event time is a whole number of 13 digits
# (2001 to 2286, in milliseconds), or of 10, 16 or 19 in other units. Passes over the bytes find it:
# a regular expression without a group says which values are one valid object with the field in its
# place, without escapes, control characters, or nesting that goes deeper; in such a value the only
# place of the field's name in quotes is the field, where a colon is the very next byte; and the
# digits behind it are added up as columns. - **In a header.** The last one of the name, where it is
# digits and nothing else. - **Kafka's own timestamp.** As it is.
#
# All other rows are left to the reference, `sequitur.consumer.read_event_time`, one by one.


_BLANK: Final = r"[ \t\r\n]*"
_STRING: Final = r'"[^"\\\x00-\x1f]*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
_SCALAR: Final = f"{_STRING}|{_NUMBER}|true|false|null"


def _several(one: str) -> str:
    """Match none or more, with commas between them."""
    return f"(?:{one}(?:,{_BLANK}{one})*)?"


def _member(value: str) -> str:
    return f"{_STRING}{_BLANK}:{_BLANK}(?:{value}){_BLANK}"


_PLAIN_OBJECT: Final = rf"^\{{{_BLANK}{_several(_member(_SCALAR))}\}}$"
"""For RE2, which reads a value once, whatever is in it."""
_SHALLOW: Final = (
    rf"{_SCALAR}|\{{{_BLANK}{_several(_member(_SCALAR))}\}}"
    rf"|\[{_BLANK}{_several(f'(?:{_SCALAR}){_BLANK}')}\]"
)
"""What may stand beside the field, and beside what it is in."""
_MOST_NAMES: Final = 4
"""Paths that are longer are left to the reference: the expression grows with each name."""

_DIGITS: Final = {TimeUnit.S: 10, TimeUnit.MS: 13, TimeUnit.US: 16, TimeUnit.NS: 19}
"""How long whole numbers of each unit are; with `auto` a number of one length has its unit."""
_MOST: Final = 2**63 - 1
_MOST_SECONDS: Final = _MOST // 1000
_ENDS: Final = np.isin(np.arange(256), list(b" \t\r\n,}"))
"""Which bytes may follow the number, by their code."""
_SPACE: Final = 0x20
_COLON: Final = ord(":")
_NOT_PLAIN: Final = re.compile(r'[,:"\\\x00-\x1f\ufffd]')
"""Names with these are left to the reference. Between the end of a string and the begin of the next
there is a comma or a colon, so no other name in quotes is found there. What JSON would have to
escape is in no plain object, and what bytes that are not UTF-8 are read as is in none, either.
"""


def read_many(spec: EventTimeSpec, rows: pa.Table) -> tuple[Longs, Bools]:
    """Return the event time of each row in epoch ms, and whether it was found here.

    What is found is what `sequitur.consumer.read_event_time` gives; what is not, has to be asked
    there (`read_each`).
    """
    match spec.source:
        case EventTimeSource.JSON:
            return plain_json_times(spec, rows["value"].combine_chunks())
        case EventTimeSource.HEADER:
            return _of_headers(spec, rows["headers"].combine_chunks())
        case EventTimeSource.KAFKA_TIMESTAMP:
            numbers = rows["timestamp_ms"].to_numpy()
            most = _MOST_SECONDS if spec.format.unit is TimeUnit.S else _MOST
            if spec.format.unit is None or spec.format.unit is TimeUnit.AUTO:
                return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
            found: Bools = (numbers >= 0) & (numbers <= most)
            return _in_ms(np.where(found, numbers, 0), spec.format.unit), found


def read_each(
    spec: EventTimeSpec, rows: pa.Table, places: Longs
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """Return event times by the reference, and the reasons of rows without one."""
    some = rows.select(["value", "headers", "timestamp_ms"]).take(pa.array(places))
    found = [
        read_event_time(
            spec,
            value=value,
            headers=[(one["key"], one["value"]) for one in headers or ()],
            kafka_timestamp_ms=timestamp_ms,
        )
        for value, headers, timestamp_ms in zip(
            *(some[name].to_pylist() for name in some.column_names), strict=True
        )
    ]
    return [one.ms for one in found], [one.reason for one in found]


def plain_json_times(spec: EventTimeSpec, values: pa.BinaryArray) -> tuple[Longs, Bools]:
    """Return the event time in each JSON object in epoch ms, and whether it was found here."""
    count = len(values)
    times, found = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    left = np.arange(count)
    for pattern, name in _patterns(spec):
        if len(left):
            own = values if len(left) == count else values.take(pa.array(left))
            times[left], found[left] = _of_objects(spec, own, pattern, name)
            left = left[~found[left]]
    return times, found


def _patterns(spec: EventTimeSpec) -> list[tuple[str, str]]:
    """Return expressions for values that have the field, and its name in them.

    A plain object holds no other: the only field of it that a path of several names may be is the
    one whose name they are, joined by dots.
    """
    if not _digits(spec) or any(map(_NOT_PLAIN.search, spec.path)):
        return []
    found = []
    if len(spec.path) == 1 or not spec.is_pointer:
        found.append((_PLAIN_OBJECT, ".".join(spec.path)))
    if len(spec.path) <= _MOST_NAMES:
        found.append((_with_field(spec.path), spec.path[-1]))
    return found


def _of_objects(
    spec: EventTimeSpec, values: pa.BinaryArray, pattern: str, name: str
) -> tuple[Longs, Bools]:
    needle = f'"{name}"'.encode()
    count = len(values)
    place = pc.find_substring(values, needle).fill_null(-1).to_numpy()
    found: Bools = place >= 0
    matches = pc.match_substring_regex(values, pattern).fill_null(False)
    found &= matches.to_numpy(zero_copy_only=False)
    if pattern is not _PLAIN_OBJECT:
        # The name may be one of another object, too. Of a flat one the first place counts.
        found &= pc.count_substring(values, needle).fill_null(0).to_numpy() == 1
    times = np.zeros(count, np.int64)
    rows = np.flatnonzero(found)
    if not len(rows):
        return times, found
    _validity, offsets, data = values.buffers()
    begin = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count]
    raw = np.frombuffer(data, np.uint8)
    first = begin[rows].astype(np.int64) + place[rows] + len(needle)
    named = raw[first] == _COLON
    first = np.minimum(first + 1, len(raw) - 1)
    first += raw[first] == _SPACE
    rows, first = rows[named], first[named]
    found[:] = False
    for unit, digits in _digits(spec).items():
        number, is_whole = _numbers(raw, first, digits)
        is_whole &= _ENDS[raw[np.minimum(first + digits, len(raw) - 1)]]
        own = rows[is_whole]
        times[own] = _in_ms(number[is_whole], unit)
        found[own] = True
    return times, found


def _with_field(path: Sequence[str]) -> str:
    """Return the expression for an object with a number at a path."""
    value = "[1-9][0-9]*"
    beside = _member(_SHALLOW)
    for name in reversed(path):
        field = f'"{re.escape(name)}"{_BLANK}:{_BLANK}{value}{_BLANK}'
        value = rf"\{{{_BLANK}(?:{beside},{_BLANK})*{field}(?:,{_BLANK}{beside})*\}}"
    return f"^{value}$"


def _of_headers(spec: EventTimeSpec, lists: pa.ListArray) -> tuple[Longs, Bools]:
    """Read the last header of a name."""
    times, found = np.zeros(len(lists), np.int64), np.zeros(len(lists), np.bool_)
    values = header_values(lists, spec.path[0], last=True)
    if values.null_count == len(values):
        return times, found
    lengths = pc.binary_length(values).fill_null(0).to_numpy()
    _validity, offsets, data = values.buffers()
    first = np.frombuffer(offsets, np.int32)[: len(values)].astype(np.int64)
    raw = np.frombuffer(data or b"", np.uint8)
    for unit, digits in _digits(spec).items():
        number, is_whole = _numbers(raw, first, digits)
        is_whole &= lengths == digits
        times[is_whole] = _in_ms(number[is_whole], unit)
        found |= is_whole
    return times, found


def header_values(lists: pa.ListArray, name: str, *, last: bool) -> pa.BinaryArray:
    """Return the value of each row's first or last header of a name; null without one."""
    each = lists.flatten()
    named = pc.equal(pc.struct_field(each, 0), name).fill_null(False)
    places = np.flatnonzero(named.to_numpy(zero_copy_only=False))[:: 1 if last else -1]
    wanted = np.full(len(lists), -1)
    # Of several places of one row the one that comes last here is kept.
    wanted[pc.list_parent_indices(lists).to_numpy()[places]] = places
    return pc.struct_field(each, 1).take(pa.array(wanted, mask=wanted < 0))


def _digits(spec: EventTimeSpec) -> dict[TimeUnit, int]:
    """Return how long whole numbers are that have a unit for sure."""
    unit = spec.format.unit
    return {one: digits for one, digits in _DIGITS.items() if unit in {one, TimeUnit.AUTO}}


def _numbers(raw: np.ndarray[Any, Any], first: Longs, digits: int) -> tuple[Longs, Bools]:
    """Whole numbers of so many digits that begin at some places of the bytes, where there are."""
    numbers, is_whole = np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
    places = np.flatnonzero(first <= len(raw) - digits)
    if not len(places):
        return numbers, is_whole
    seen = np.lib.stride_tricks.sliding_window_view(raw, digits)[first[places]]
    each = seen - np.uint8(ord("0"))
    whole = (each <= 9).all(axis=1)  # noqa: PLR2004 - a digit
    front = each[:, :-1] @ (10 ** np.arange(digits - 2, -1, -1, dtype=np.int64))
    whole &= front < _MOST // 10  # the rest are more than 64 bits hold, or nearly
    # Without a leading zero: JSON has none, and the length would say another unit.
    whole &= each[:, 0] > 0
    numbers[places] = np.where(whole, front, 0) * 10 + np.where(whole, each[:, -1], 0)
    is_whole[places] = whole
    return numbers, is_whole


def _in_ms(numbers: Longs, unit: TimeUnit) -> Longs:
    """Epoch ms of whole numbers that are not negative."""
    if unit is TimeUnit.S:
        return numbers * 1000
    factor = {TimeUnit.MS: 1, TimeUnit.US: 1_000, TimeUnit.NS: 1_000_000}[unit]
    return numbers if factor == 1 else numbers // factor


# Staging a batch in tasks: rows come as Arrow, and become one sorted Parquet file a task.
#
# Which rows count as what says the late judge, `sequitur.consumer.reorder.lateness`.


_NO_REASON: Final = -1
_REASONS: Final = (LATE, *QUARANTINE_REASONS)
_LATE: Final = _REASONS.index(LATE)
_MISSING: Final = _REASONS.index(MISSING)
_BEFORE_ALL: Final = -1
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
READ_SCHEMA: Final = pa.schema(list(RUN_ARROW_SCHEMA)[:-2])
"""The columns of rows that are read, and not staged yet."""


@dataclass(slots=True)
class Summary:
    """What a task saw."""

    file: str | None = None  # name of the file it wrote; None when there were no rows
    size_bytes: int = 0
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
    skipped: int = 0  # rows that are in no file, since the subscription had acked them
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
    # the rows that tombstones must not come out before; None: those of the batch alone
    held: HeldRows | None = None
    keeps: bool = False  # whether this process keeps the rows in memory, too, as it reads them soon

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
                if len(rows := self._not_acked(chunk, summary)):
                    for part in self._staged(rows, summary, newest):
                        file.write(part)
        summary.file, summary.size_bytes = file.name, file.size_bytes
        return summary

    def _not_acked(self, rows: pa.Table, summary: Summary) -> pa.Table:
        """Count rows by source partition; return those that are not acked."""
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

    def _staged(self, rows: pa.Table, summary: Summary, newest: NewestOfKeys) -> Iterator[pa.Table]:
        """Sort the rows of a chunk as they stand in the run, and count them in passing.

        Rows with a reason come first, in row groups of their own: whoever wants them reads no
        others.
        """
        times, reasons = self._event_times(rows)
        if self.dates_tombstones:
            self._date_tombstones(rows, times, reasons, newest)
        sizes = payload_sizes(rows)
        self._mark(rows, times, reasons, sizes)
        behind = reasons == _LATE
        usable = behind | (reasons == _NO_REASON)
        times[~usable] = _NO_TIME
        _count(summary, times, reasons, usable, behind)
        for source, place in sources(rows):
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


class NewestOfKeys:
    """The greatest event time of each key among the rows that a task has read so far."""

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
