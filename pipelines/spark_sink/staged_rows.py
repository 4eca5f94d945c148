"""The rows of a batch in Spark's tasks: staged in files, and sent from them.

Rows come in their order, and are placed, checked and kept in files, as columns. A row that the
topic does not take is told before anything of its batch is out. What is sent is read from the
files: the same rows in the same order, each time.
"""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import not_taken, payload_sizes, tables_up_to
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import RECORD, Selection
from sequitur.pipelines.spark.partition_blocks import packed, stretches
from sequitur.pipelines.spark.tasks import settle
from sequitur.pipelines.spark_sink.batch_documents import RowGroup, StagedFile
from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS, PartFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.record_layout import Headers
    from sequitur.pipelines.rows.selection import Batches
    from sequitur.pipelines.sink.block_writer import BlockWriter
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


STAGED_SCHEMA: Final = pa.schema(
    [
        ("output_partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
    ]
)
SUMMARY_SCHEMA: Final = "summary binary"
_SHOWN_KEY_BYTES: Final = 60
_SLICED_ROWS: Final = 64
"""So many rows at least are copied in less time than a stretch of them costs."""


@dataclass(frozen=True, slots=True)
class StagingLimits:
    group_rows: int = ROW_GROUP_ROWS
    group_bytes: int = 8 << 20  # about so many bytes of one
    # so much may stand in a row group with several partitions: a reader of one of them reads all
    packed_bytes: int = 1 << 20


STAGING_LIMITS: Final = StagingLimits()


@dataclass(frozen=True, slots=True)
class RowRules:
    topic: str
    partitions: int
    limit: RecordLimit  # what it takes of one row by size and key
    times_ms: tuple[int, int] | None  # timestamps must lie between these; None: all are taken

    def refused(self, rows: pa.Table) -> tuple[int, str] | None:
        """Return place and reason of the first row that the topic refuses; None without one."""
        found = [one for one in self._refusals(rows) if one is not None]
        return min(found, default=None)

    def _refusals(self, rows: pa.Table) -> Iterator[tuple[int, str] | None]:
        outputs = rows["output_partition"].to_numpy()
        yield _first(
            (outputs < 0) | (outputs >= self.partitions),
            f"its partition is not one of the {self.partitions} of the topic",
        )
        if self.limit.needs_key:
            yield _first(
                rows["key"].is_null().to_numpy(),
                "it has no key, and the topic is compacted (cleanup.policy)",
            )
        headers = rows["headers"].combine_chunks()
        if headers.null_count < len(headers):
            # A null for a header has a null name, too.
            nameless = pc.list_parent_indices(headers).filter(
                pc.is_null(pc.struct_field(headers.flatten(), 0))
            )
            if len(nameless):
                yield nameless[0].as_py(), "a header of it has no name"
        if large := not_taken(rows, payload_sizes(rows), self.limit):
            told = f"it is larger than the topic takes (max.message.bytes = {self.limit.max_bytes})"
            yield large[0], told
        if self.times_ms is not None:
            first, last = self.times_ms
            times = rows["timestamp_ms"].fill_null(last).to_numpy()
            told = (
                "its timestamp is not within what the topic takes and keeps, and what brokers "
                f"remember: from {first} to {last} (epoch ms). Leave the column 'timestamp' out, "
                "and it is the time of sending"
            )
            yield _first((times < first) | (times > last), told)


class RefusedRow(NamedTuple):
    partition: int
    place: int  # among the task's rows for this partition, from 0
    shown_key: str
    why: str


@dataclass(slots=True)
class StagedTask:
    file: StagedFile | None = None  # its file; None without rows
    refused: RefusedRow | None = None  # the first that is refused; None if no row is


@dataclass(frozen=True, slots=True)
class StagingWriter:
    """Writes a task's rows, which come in order; for `mapInArrow`.

    A row whose `output_partition` is null gets that of its key.
    """

    folder: Location
    rules: RowRules  # what the topic takes
    limits: StagingLimits = STAGING_LIMITS  # how much is written together

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches; yield one row with the `StagedTask`."""
        staged = self.write(batches)
        settle()
        yield pa.RecordBatch.from_pydict({"summary": [pickle.dumps(staged)]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> StagedTask:
        """Write batches into one file, by partition within each row group; say what is in it.

        The document names it: one of a task that was given up, or comes too late, is never read.
        """
        groups: list[RowGroup] = []
        counted: Counter[int] = Counter()
        with PartFile(self.folder, STAGED_SCHEMA, self.limits.group_rows) as file:
            for given in tables_up_to(batches, self.limits.group_bytes):
                rows = self._by_partition(_whole(given))
                refused = self.rules.refused(rows)
                if refused is not None:
                    return StagedTask(refused=_named(rows, *refused, counted))
                for group in self._groups(rows):
                    file.write(group)
                    outputs = group["output_partition"].to_numpy()
                    found = tuple(
                        (number, own.stop - own.start) for number, own in stretches(outputs)
                    )
                    groups.append(found)
                    counted.update(dict(found))
        if file.name is None:
            return StagedTask()
        return StagedTask(StagedFile(file.name, file.size_bytes, tuple(groups)))

    def _by_partition(self, rows: pa.Table) -> pa.Table:
        found = rows["output_partition"]
        if found.null_count:
            by_key = placed_by_key(self.rules.partitions, rows["key"].combine_chunks())
            found = pc.coalesce(found, by_key)
            rows = rows.set_column(0, STAGED_SCHEMA.field(0), found)
        outputs = found.to_numpy()
        if not (np.diff(outputs) < 0).any():
            return rows
        order, headers = pa.array(np.argsort(outputs, kind="stable")), rows["headers"]
        if headers.null_count < len(headers):
            return rows.take(order)
        # To copy nulls takes as long as to copy all other columns.
        place = STAGED_SCHEMA.get_field_index("headers")
        nulls = pa.nulls(len(rows), headers.type)
        others = rows.remove_column(place).take(order)
        return others.add_column(place, STAGED_SCHEMA.field(place), nulls)

    def _groups(self, rows: pa.Table) -> Iterator[pa.Table]:
        outputs = rows["output_partition"].to_numpy()
        limits = self.limits
        most_rows = max(1, limits.group_rows // 4)
        for block in packed(outputs, payload_sizes(rows), most_rows, limits.packed_bytes):
            for begin in range(block.start, block.stop, limits.group_rows):
                yield rows.slice(begin, min(limits.group_rows, block.stop - begin))


def _whole(given: pa.Table) -> pa.Table:
    """Return rows with all columns: one that they do not have is null, as headers of no row are."""
    has = dict(zip(given.column_names, given.columns, strict=True))
    headers = has.get("headers")
    if headers is not None and not pc.sum(pc.list_value_length(headers)).as_py():
        del has["headers"]
    columns = [
        # A session may have 64-bit offsets (spark.sql.execution.arrow.useLargeVarTypes).
        has[field.name].cast(field.type) if field.name in has else pa.nulls(len(given), field.type)
        for field in STAGED_SCHEMA
    ]
    return pa.table(columns, schema=STAGED_SCHEMA)


def placed_by_key(partitions: int, keys: pa.Array) -> pa.Array:
    """Return where Kafka's own clients send each key; null without a key."""
    found = _partitioner(partitions).each(keys.drop_null().to_pylist())
    if not keys.null_count:
        return pa.array(found, pa.int32())
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    outputs = np.zeros(len(keys), np.int32)
    outputs[has_key] = found
    return pa.array(outputs, mask=~has_key)


@functools.lru_cache(8)
def _partitioner(partitions: int) -> KeyPartitioner:
    """Return what knows the keys of tasks before: a process of Spark's runs many of them."""
    return KeyPartitioner(partitions)


def _named(rows: pa.Table, place: int, why: str, counted: Counter[int]) -> RefusedRow:
    outputs = rows["output_partition"].to_numpy()
    partition = int(outputs[place])
    number = counted[partition] + int(np.count_nonzero(outputs[:place] == partition))
    key = rows["key"][place].as_py()
    shown = "without a key" if key is None else f"with the key {key[:_SHOWN_KEY_BYTES]!r}"
    return RefusedRow(partition, number, shown, why)


def _first(is_refused: Any, why: str) -> tuple[int, str] | None:
    places = np.flatnonzero(is_refused)
    return (int(places[0]), why) if len(places) else None


@dataclass(frozen=True, slots=True)
class StagedRows:
    folder: Location
    files: tuple[StagedFile, ...]
    now_ms: int  # the timestamp of rows without one; epoch ms
    # no timestamp is older: a batch that is sent long after it was staged keeps to what brokers
    # remember
    earliest_ms: int

    def each(self, partitions: range) -> Iterator[Batches]:
        """Return the records of partitions, one after the other, without empty ones."""
        files = tuple(self.folder / file.name for file in self.files)
        rule = TimestampRule(OutputTimestamp.NOW, self.now_ms, self.now_ms - self.earliest_ms)
        # Rows have no reasons here, so none is left out.
        return _InFiles((Part(files, reasons=()),), order=()).each(partitions, rule)


class _InFiles(Selection):
    """All rows of files, in the order of the files and within each file's."""

    __slots__ = ()

    def tables(self, partition: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        return self._rows(range(partition, partition + 1), columns).pieces()

    def _by_partition(self, rows: pa.Table) -> tuple[pa.Table, list[tuple[int, slice]]]:
        outputs = rows["output_partition"].to_numpy()
        found = sorted(stretches(outputs), key=lambda one: one[0])
        if len(found) * _SLICED_ROWS > len(rows):
            return super()._by_partition(rows)
        # They are in long stretches: to point to these is cheaper than to copy rows one by one.
        slices = [rows.slice(own.start, own.stop - own.start) for _, own in found]
        return pa.concat_tables(slices), [*stretches(np.sort(outputs, kind="stable"))]

    def _columns(self, rule: TimestampRule) -> tuple[str, ...]:
        del rule
        return (*RECORD, "timestamp_ms")

    def _stamped(
        self, rows: pa.Table, headers: Headers, rule: TimestampRule
    ) -> tuple[Longs, Headers]:
        """Return timestamps of the rows' own, which may be newer than now."""
        times = rows["timestamp_ms"].fill_null(rule.now_ms).to_numpy()
        return np.maximum(times, rule.earliest_ms), headers


@dataclass(frozen=True, slots=True)
class SendStaged:
    writer: BlockWriter
    rows: StagedRows
    partitions: range

    def __call__(self) -> dict[int, int]:
        return self.writer.write(self.rows.each(self.partitions))
