"""Which rows of files go out in a step, and their way from there into Kafka's batches."""

from __future__ import annotations

import functools
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.base.copy_headers import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.consumer.reorder.lateness import late_against
from sequitur.consumer.reorder.reasons import (
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE_BY_HEADER,
    OVERSIZED_HEADER,
    REASON_HEADER,
)
from sequitur.pipelines.rows.columns import (
    OWN_TIME,
    RELEASE_ORDER,
    ROW_LIMITS,
    RUN_ARROW_SCHEMA,
    SOURCE_ORDER,
    not_taken,
    payload_sizes,
)
from sequitur.pipelines.rows.left_out import Places, Roots
from sequitur.pipelines.rows.oversized import MOST_ADDED, MOST_KEY_BYTES, write_oversized
from sequitur.pipelines.rows.record_layout import (
    PIECE_BYTES,
    Headers,
    record_batches,
    timestamp_columns,
    with_timestamps,
)
from sequitur.pipelines.rows.row_order import order_of
from sequitur.pipelines.rows.run_rows import RunRows
from sequitur.pipelines.spark.partition_blocks import stretches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sequitur.consumer.reorder.timestamps import TimestampRule
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.columns import RowLimits
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.rows.run_rows import Part
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    _Added: TypeAlias = "list[tuple[str, pa.Array]]"
    Batches: TypeAlias = "tuple[int, Callable[[int], Iterator[KafkaBatch]]]"
    """A partition, and what gives its records in batches of not more than so many bytes."""


LAST_RELEASED: Final = "last_released_ms"
"""In files of rows that were judged; in others it is null."""
_WHY: Final = (*RELEASE_ORDER, "timestamp_ms", "reason", LAST_RELEASED)
RECORD: Final = ("key", "value", "headers")
_ROWS_AT_ONCE: Final = 1 << 16
"""So many sorted rows are copied at once: a slice need not be in memory twice."""


@dataclass(frozen=True, slots=True)
class Selection:
    parts: tuple[Part, ...]
    duplicates: tuple[Location, ...] = ()  # files with the places of rows to leave out
    order: tuple[str, ...] = RELEASE_ORDER  # columns they are sorted by, event time first
    unfinished: tuple[Location, ...] = ()  # files with the roots of rows to leave out
    # what late rows among them were held against: they get headers that say why they are late. None
    # where there are none
    flagged_ms: int | None = None
    # what the topic takes of one row, where rows are flagged: one that was staged before late rows
    # were to be emitted goes without the headers if they make it too large
    limit: RecordLimit | None = None
    limits: RowLimits = ROW_LIMITS

    def batches(self, partition: int, limit: int, rule: TimestampRule) -> Iterator[KafkaBatch]:
        """Yield the records of an output partition, in batches of at most `limit` bytes."""
        for some in self.tables(partition, self._columns(rule)):
            yield from self._laid_out(some, limit, rule)

    def each(self, partitions: range, rule: TimestampRule) -> Iterator[Batches]:
        """Return the records of some output partitions, one after the other, without empty ones.

        Rows of several partitions that fit into a slice are read at once, and sorted at once.
        """
        columns = ("output_partition", *self._columns(rule))
        left_out, unfinished = Places(self.duplicates, self.limits), Roots(self.unfinished)
        for block, found in self._rows(partitions, columns).together():
            if found is None:
                yield block.start, functools.partial(self.batches, block.start, rule=rule)
                continue
            rows, own_rows = self._by_partition(unfinished.without(left_out.without(found)))
            if rows.nbytes <= PIECE_BYTES:
                at_once = _LaidOutOnce(self, rows, rule, [own.start for _, own in own_rows])
                for place, (partition, _) in enumerate(own_rows):
                    yield partition, functools.partial(at_once.batches, place)
                continue
            for partition, own in own_rows:
                yield partition, functools.partial(self._laid_out, rows[own], rule=rule)

    def tables(self, partition: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of an output partition in order, some at a time."""
        left_out, unfinished = Places(self.duplicates, self.limits), Roots(self.unfinished)
        for found in self._slices(self._rows(range(partition, partition + 1), columns)):
            rows = unfinished.without(left_out.without(found))
            order = order_of(rows, self.order)
            for begin in range(0, len(order), _ROWS_AT_ONCE):
                yield rows.select(columns).take(pa.array(order[begin : begin + _ROWS_AT_ONCE]))

    def over(self, partitions: int) -> Self:
        """Return the same rows for a topic of so many partitions; rows keep their partitions."""
        del partitions
        return self

    def rows_at_most(self, partition: int) -> int:
        """Return how many rows an output partition has at most, by the footers of files."""
        return RunRows(self.parts, range(partition, partition + 1), ()).rows_at_most()

    def _by_partition(self, rows: pa.Table) -> tuple[pa.Table, list[tuple[int, slice]]]:
        """Return the rows of several partitions in order, and where those of each stand."""
        order = order_of(rows, self.order)
        outputs = rows["output_partition"].to_numpy()
        order = order[np.argsort(outputs[order], kind="stable")]
        return rows.take(pa.array(order)), [*stretches(outputs[order])]

    def _rows(self, partitions: range, columns: Sequence[str]) -> RunRows:
        return RunRows(self.parts, partitions, (*self.order, *columns), self.limits)

    def _slices(self, rows: RunRows) -> Iterator[pa.Table]:
        return rows.slices()

    def _columns(self, rule: TimestampRule) -> tuple[str, ...]:
        why = () if self.flagged_ms is None else _WHY
        return tuple(dict.fromkeys((*RECORD, *timestamp_columns(rule), *why)))

    def _laid_out(
        self, rows: pa.Table, limit: int, rule: TimestampRule, begins: Sequence[int] = (0,)
    ) -> Iterator[KafkaBatch]:
        """Yield the records of rows; another partition begins at each of `begins`."""
        added = [] if self.flagged_ms is None else _reason_headers(rows, self.flagged_ms)
        rows, added = self._fitting(rows, added)
        headers = Headers.of(rows["headers"].combine_chunks()).and_(added)
        timestamps, headers = self._stamped(rows, headers, rule)
        yield from record_batches(
            rows["key"], rows["value"], headers, timestamps, limit, begins=begins
        )

    def _stamped(
        self, rows: pa.Table, headers: Headers, rule: TimestampRule
    ) -> tuple[Longs, Headers]:
        return with_timestamps(rows, headers, rule)

    def _fitting(self, rows: pa.Table, added: _Added) -> tuple[pa.Table, _Added]:
        too_large = self._too_large(rows) if added else []
        if not too_large:
            return rows, added
        fits = np.ones(len(rows), np.bool_)
        fits[too_large] = False
        return rows, _of_some(added, pa.array(fits))

    def _too_large(self, rows: pa.Table) -> list[int]:
        """Return the places of rows that are too large with the added headers."""
        if self.limit is None:
            return []
        return not_taken(rows, payload_sizes(rows) + MOST_ADDED, self.limit, (bytes(MOST_ADDED),))


@dataclass(slots=True)
class _LaidOutOnce:
    """Records of partitions with few rows: a call into Arrow costs as much as for many."""

    selection: Selection
    rows: pa.Table
    rule: TimestampRule
    begins: Sequence[int]  # where the rows of each partition begin
    _found: list[list[KafkaBatch]] | None = None

    def batches(self, place: int, limit: int) -> Iterator[KafkaBatch]:
        """Yield the batches of a partition, by its place among them; the limit is the same."""
        if self._found is None:
            found: list[list[KafkaBatch]] = [[] for _ in self.begins]
            reached = 0
            for batch in self.selection._laid_out(self.rows, limit, self.rule, self.begins):  # noqa: SLF001 - ours
                found[bisect_right(self.begins, reached) - 1].append(batch)
                reached += batch.rows
            self._found = found  # only once it is whole: after an error no call may get a part
        return iter(self._found[place])


class OutputSelection(Selection):
    """Rows that bolts made. Some have event times of their own, by which they are not sorted."""

    __slots__ = ()

    def _columns(self, rule: TimestampRule) -> tuple[str, ...]:
        return (*super()._columns(rule), OWN_TIME)

    def _stamped(
        self, rows: pa.Table, headers: Headers, rule: TimestampRule
    ) -> tuple[Longs, Headers]:
        own = rows[OWN_TIME]
        if own.null_count < len(own):
            place = rows.schema.get_field_index("event_time_ms")
            times = pc.coalesce(own, rows["event_time_ms"])
            rows = rows.set_column(place, "event_time_ms", times)
        return with_timestamps(rows, headers, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSelection(Selection):
    """Rows that a step sends to a side topic, in source order, with headers that say why."""

    order: tuple[str, ...] = SOURCE_ORDER
    limit: RecordLimit  # the side topic's limit on one row
    root: Location  # the checkpoint, where a row that is too large is left whole
    placed: int  # by so many partitions all rows were placed when they were staged
    spread: int | None = None

    def over(self, partitions: int) -> Self:
        return replace(self, spread=None if partitions == self.placed else partitions)

    def _rows(self, partitions: range, columns: Sequence[str]) -> RunRows:
        return RunRows(self.parts, partitions, columns, self.limits, spread=self.spread)

    def _slices(self, rows: RunRows) -> Iterator[pa.Table]:
        return rows.in_source_order()

    def _columns(self, rule: TimestampRule) -> tuple[str, ...]:
        del rule
        return (*RUN_ARROW_SCHEMA.names, LAST_RELEASED)

    def _fitting(self, rows: pa.Table, added: _Added) -> tuple[pa.Table, _Added]:
        """Make rows as their topic takes them: too large ones keep only the added headers."""
        too_large = self._too_large(rows)
        if not too_large:
            return rows, added
        names: list[str | None] = [None] * len(rows)
        for place in too_large:
            (row,) = rows.slice(place, 1).to_pylist()
            names[place] = write_oversized(self.root, row)
        has_key = pc.fill_null(pc.less_equal(pc.binary_length(rows["key"]), MOST_KEY_BYTES), True)
        fits = pa.array([name is None for name in names])
        kept = {"key": pc.or_(fits, has_key.combine_chunks()), "value": fits, "headers": fits}
        for name, are_kept in kept.items():
            places = pc.if_else(are_kept, np.arange(len(rows)), None)
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, name, rows[name].take(places))
        return rows, [*added, (OVERSIZED_HEADER, pa.array(names, pa.string()))]


def _reason_headers(rows: pa.Table, frontier_ms: int) -> _Added:
    """Return headers with the reasons of late and bad rows, from `_WHY`; null for other rows."""
    columns = {name: rows[name].combine_chunks() for name in _WHY}
    reasons, last = columns["reason"], columns[LAST_RELEASED]
    frontier = pa.repeat(pa.scalar(frontier_ms, pa.int64()), len(rows))
    against = late_against(frontier, last)
    late_by = pc.case_when(
        pc.make_struct(*(pc.equal(reasons, reason).fill_null(False) for reason in against)),
        *(pc.subtract(numbers, columns["event_time_ms"]) for numbers in against.values()),
    )
    added = [
        (REASON_HEADER, reasons),
        (LATE_BY_HEADER, late_by),
        (FRONTIER_HEADER, frontier),
        (LAST_RELEASED_HEADER, last),
        (SOURCE_TOPIC_HEADER, columns["topic"]),
        (SOURCE_PARTITION_HEADER, columns["partition"]),
        (SOURCE_OFFSET_HEADER, columns["offset"]),
        (SOURCE_TIMESTAMP_HEADER, columns["timestamp_ms"]),
    ]
    if not reasons.null_count:
        return added
    return _of_some(added, reasons.is_valid())


def _of_some(added: _Added, are_meant: pa.BooleanArray) -> _Added:
    """Remove the added headers from rows that are not meant."""
    none = pa.scalar(None, pa.string())
    return [(name, pc.if_else(are_meant, column.cast(pa.string()), none)) for name, column in added]
