"""Which rows of local files go out in a step, and their way from there into Kafka's batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer import (
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE_BY_HEADER,
    OVERSIZED_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
    late_against,
)
from sequitur.pipelines.rows.columns import RELEASE_ORDER, SOURCE_ORDER
from sequitur.pipelines.rows.limits import ROW_LIMITS, RowLimits
from sequitur.pipelines.rows.oversized import MOST_ADDED, MOST_KEY_BYTES, write_oversized
from sequitur.pipelines.rows.record_layout import Headers, record_batches
from sequitur.pipelines.rows.record_timestamps import timestamp_columns, with_timestamps
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import (
    RUN_ARROW_SCHEMA,
    not_taken,
    payload_sizes,
    sources,
)
from sequitur.producer.batching.partitioner import KeyPartitioner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from sequitur.consumer import TimestampRule
    from sequitur.pipelines.rows.record_batches import KafkaBatch
    from sequitur.producer.kafka.record_limit import RecordLimit

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    _Added: TypeAlias = "list[tuple[str, pa.Array]]"

RECORD: Final = ("key", "value", "headers")
_ROOT: Final = ("root",)
_ROWS_AT_ONCE: Final = 1 << 16
"""So many sorted rows are copied at once: a slice need not be in memory twice."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of files in an order, such as those that a step releases.

    Attributes:
        parts: The rows.
        duplicates: Files with the places of rows to leave out.
        order: Columns they are sorted by, event time first.
        unfinished: Files with the roots of rows to leave out.
        limits: How much is in memory at once.
    """

    parts: tuple[Part, ...]
    duplicates: tuple[str, ...] = ()
    order: tuple[str, ...] = RELEASE_ORDER
    unfinished: tuple[str, ...] = ()
    limits: RowLimits = ROW_LIMITS

    def batches(self, partition: int, limit: int, rule: TimestampRule) -> Iterator[KafkaBatch]:
        """Return the records of an output partition as batches.

        Args:
            partition: The output partition.
            limit: Most bytes of a batch.
            rule: Which timestamps they get.
        """
        for some in self.tables(partition, (*RECORD, *timestamp_columns(rule))):
            headers = Headers.of(some["headers"].combine_chunks())
            yield from _laid_out(some, headers, limit, rule)

    def rows_at_most(self, partition: int) -> int:
        """Return how many rows an output partition has at most, by the footers of files."""
        return RunRows(self.parts, partition, ()).rows_at_most()

    def tables(self, partition: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Return the rows of an output partition in their order, some at a time.

        Args:
            partition: The output partition.
            columns: What is wanted of them.
        """
        left_out, unfinished = Places(self.duplicates, self.limits), Roots(self.unfinished)
        read = tuple(dict.fromkeys((*self.order, *columns)))
        for found in RunRows(self.parts, partition, read, self.limits).slices():
            rows = unfinished.without(left_out.without(found))
            order = _order(rows, self.order)
            for begin in range(0, len(order), _ROWS_AT_ONCE):
                yield rows.select(columns).take(pa.array(order[begin : begin + _ROWS_AT_ONCE]))


@dataclass(frozen=True, slots=True)
class SideSelection:
    """Rows that a step sends to a side topic, in source order, with headers that say why.

    Attributes:
        part: The rows.
        frontier_ms: What they were held against.
        is_judged: Whether it is known of them how far their keys had been released.
        partitions: Partitions of the side topic.
        limit: What the side topic takes of one row.
        root: The checkpoint, where a row that is too large is left whole.
        duplicates: Files with the places of rows to leave out.
        limits: How much is in memory at once.
    """

    part: Part
    frontier_ms: int
    is_judged: bool
    partitions: int
    limit: RecordLimit
    root: str
    duplicates: tuple[str, ...] = ()
    limits: RowLimits = ROW_LIMITS

    def batches(self, partition: int, limit: int, rule: TimestampRule) -> Iterator[KafkaBatch]:
        """Return the records as batches, see `Selection.batches`."""
        known = ("last_released_ms",) if self.is_judged else ()
        columns = (*RUN_ARROW_SCHEMA.names, *known)
        left_out = Places(self.duplicates, self.limits)
        for found in RunRows((self.part,), None, columns, self.limits).in_source_order():
            rows = left_out.without(found)
            rows = rows.filter(pa.array(self._outputs(rows) == partition))
            rows = rows.take(pa.array(_order(rows, SOURCE_ORDER)))
            if len(rows):
                rows, added = self._fitting(rows, self._added(rows))
                headers = Headers.of(rows["headers"].combine_chunks()).and_(added)
                yield from _laid_out(rows, headers, limit, rule)

    def _fitting(self, rows: pa.Table, added: _Added) -> tuple[pa.Table, _Added]:
        """Make rows as their topic takes them: of a large one only what is added is left."""
        sizes = payload_sizes(rows) + MOST_ADDED
        too_large = not_taken(rows, sizes, self.limit, (bytes(MOST_ADDED),))
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

    def _outputs(self, rows: pa.Table) -> Longs:
        """Return each row's partition of the side topic: as `output_partition`."""
        keys = rows["key"].to_pylist()
        outputs: Longs = rows["partition"].to_numpy().astype(np.int64) % self.partitions
        keyed = [place for place, key in enumerate(keys) if key is not None]
        outputs[keyed] = KeyPartitioner(self.partitions).each([keys[place] for place in keyed])
        return outputs

    def _added(self, rows: pa.Table) -> _Added:
        """Return the headers that are added: as `with_reason_headers`."""
        count = len(rows)
        times = rows["event_time_ms"].combine_chunks()
        reasons = rows["reason"].combine_chunks()
        last = pa.nulls(count, pa.int64())
        if self.is_judged:
            last = rows["last_released_ms"].combine_chunks()
        frontier = pa.repeat(pa.scalar(self.frontier_ms, pa.int64()), count)
        against = late_against(frontier, last)
        late_by = pc.case_when(
            pc.make_struct(*(pc.equal(reasons, reason) for reason in against)),
            *(pc.subtract(numbers, times) for numbers in against.values()),
        )
        return [
            (REASON_HEADER, reasons),
            (LATE_BY_HEADER, late_by),
            (FRONTIER_HEADER, frontier),
            (LAST_RELEASED_HEADER, last),
            (SOURCE_TOPIC_HEADER, rows["topic"].combine_chunks()),
            (SOURCE_PARTITION_HEADER, rows["partition"].combine_chunks()),
            (SOURCE_OFFSET_HEADER, rows["offset"].combine_chunks()),
            (SOURCE_TIMESTAMP_HEADER, rows["timestamp_ms"].combine_chunks()),
        ]


def _laid_out(
    rows: pa.Table, headers: Headers, limit: int, rule: TimestampRule
) -> Iterator[KafkaBatch]:
    timestamps, headers = with_timestamps(rows, headers, rule)
    yield from record_batches(rows["key"], rows["value"], headers, timestamps, limit)


class Places:
    """Rows to be left out, by where they came from.

    Args:
        files: Where their places stand.
        limits: How much is in memory at once.
    """

    def __init__(self, files: tuple[str, ...], limits: RowLimits = ROW_LIMITS) -> None:
        found: dict[tuple[str, int], list[Longs]] = {}
        for rows in RunRows((Part(files, reasons=()),), None, SOURCE_ORDER, limits).pieces():
            offsets = rows["offset"].to_numpy()
            for source, place in sources(rows):
                found.setdefault(source, []).append(offsets[place])
        self._offsets = {source: np.concatenate(several) for source, several in found.items()}

    def without(self, rows: pa.Table) -> pa.Table:
        """Return the other rows."""
        if not self._offsets or not len(rows):
            return rows
        offsets = rows["offset"].to_numpy()
        left_out = np.zeros(len(rows), np.bool_)
        for source, place in sources(rows):
            left_out[place] = np.isin(offsets[place], self._offsets.get(source, ()))
        return rows.filter(pa.array(~left_out))


class Roots:
    """Rows to be left out, by the roots of the trees they came from.

    Args:
        files: Where the roots' ids stand.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        found = RunRows((Part(files, reasons=()),), None, _ROOT).pieces()
        self._roots = np.concatenate([np.empty(0, np.uint64), *(_roots(rows) for rows in found)])

    def without(self, rows: pa.Table) -> pa.Table:
        """Return the other rows."""
        if not len(self._roots) or not len(rows):
            return rows
        return rows.filter(pa.array(~np.isin(_roots(rows), self._roots)))


def _roots(rows: pa.Table) -> Any:
    return rows["root"].to_numpy()


def _order(rows: pa.Table, names: Sequence[str]) -> Longs:
    """Return places of the rows in the order of some columns, the first of them deciding first."""
    keys = []
    for name in reversed(names):
        column = rows[name].combine_chunks()
        numbers = _ranks(column) if pa.types.is_string(column.type) else column.to_numpy()
        if len(numbers) and numbers.min() != numbers.max():
            keys.append(numbers)
    order: Longs = np.lexsort(keys) if keys else np.arange(len(rows))
    return order


def _ranks(texts: pa.StringArray) -> Longs:
    """Return numbers that are in the order of the texts' bytes, as Spark compares them."""
    encoded = texts.dictionary_encode()
    different = [text.encode() for text in encoded.dictionary.to_pylist()]
    places = {text: number for number, text in enumerate(sorted(different))}
    ranks = np.array([places[text] for text in different], np.int64)
    taken: Longs = ranks[encoded.indices.to_numpy()]
    return taken
