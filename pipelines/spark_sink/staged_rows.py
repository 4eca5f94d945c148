"""The rows of a batch in Spark's tasks: staged in files, and sent from them.

Rows come in their order, and are checked and kept in files. A row that the topic does not take is
told before anything of its batch is out. What is sent is read from the files: the same rows in the
same order, each time.
"""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequitur.pipelines.rows.columns import not_taken, payload_sizes, tables_up_to
from sequitur.pipelines.rows.record_layout import Headers, record_batches
from sequitur.pipelines.rows.row_files import open_rows
from sequitur.pipelines.spark.partition_blocks import packed, stretches
from sequitur.pipelines.spark_sink.batch_documents import RowGroup, StagedFile
from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS, PartFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.rows.selection import Batches
    from sequitur.pipelines.sink.block_writer import BlockWriter
    from sequitur.pipelines.store.storage import Location


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


@dataclass(slots=True)
class StagedTask:
    file: StagedFile | None = None  # its file; None without rows
    refused: str | None = None  # why a row of it is refused; None if no row is


@dataclass(frozen=True, slots=True)
class StagingWriter:
    """Writes a task's rows, which come by partition and in order; for `mapInArrow`."""

    folder: Location
    rules: RowRules  # what the topic takes
    limits: StagingLimits = STAGING_LIMITS  # how much is written together

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches; yield one row with the `StagedTask`."""
        yield pa.RecordBatch.from_pydict({"summary": [pickle.dumps(self.write(batches))]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> StagedTask:
        """Write batches into one file, and say what is in it.

        The document names it: one of a task that was given up, or comes too late, is never read.
        """
        groups: list[RowGroup] = []
        counted: Counter[int] = Counter()
        with PartFile(self.folder, STAGED_SCHEMA, self.limits.group_rows) as file:
            for given in tables_up_to(batches, self.limits.group_bytes):
                # A session may have 64-bit offsets (spark.sql.execution.arrow.useLargeVarTypes).
                rows = given.cast(STAGED_SCHEMA)
                refused = self.rules.refused(rows)
                if refused is not None:
                    return StagedTask(refused=self._named(rows, *refused, counted))
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

    def _groups(self, rows: pa.Table) -> Iterator[pa.Table]:
        outputs = rows["output_partition"].to_numpy()
        limits = self.limits
        most_rows = max(1, limits.group_rows // 4)
        for block in packed(outputs, payload_sizes(rows), most_rows, limits.packed_bytes):
            for begin in range(block.start, block.stop, limits.group_rows):
                yield rows.slice(begin, min(limits.group_rows, block.stop - begin))

    def _named(self, rows: pa.Table, place: int, why: str, counted: Counter[int]) -> str:
        """Name the refused row by its partition, its place there, and its key."""
        outputs = rows["output_partition"].to_numpy()
        partition = int(outputs[place])
        number = counted[partition] + int(np.count_nonzero(outputs[:place] == partition))
        key = rows["key"][place].as_py()
        shown = "without a key" if key is None else f"with the key {key[:_SHOWN_KEY_BYTES]!r}"
        return (
            f"topic {self.rules.topic!r} does not take the row {shown} that is number {number} of "
            f"those for partition {partition}: {why}. Nothing of its batch is out"
        )


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
        """Return the records of partitions, one after the other, without empty ones.

        What gives a partition's is to be used up before the next one's is taken.
        """
        for file in self.files:
            with (
                open_rows(self.folder / file.name) as opened,
                pq.ParquetFile(opened) as parquet,
            ):
                read = functools.lru_cache(1)(functools.partial(_group, parquet))
                for partition in _partitions_of(file, partitions):
                    yield partition, functools.partial(self._laid_out, file, read, partition)

    def _laid_out(
        self, file: StagedFile, read: Callable[[int], pa.Table], partition: int, limit: int
    ) -> Iterator[KafkaBatch]:
        for number, group in enumerate(file.groups):
            if partition not in dict(group):
                continue
            rows = read(number)
            if len(group) > 1:
                rows = rows.filter(pa.array(rows["output_partition"].to_numpy() == partition))
            times = rows["timestamp_ms"].fill_null(self.now_ms).to_numpy()
            headers = Headers.of(rows["headers"].combine_chunks())
            times = np.maximum(times, self.earliest_ms)
            yield from record_batches(rows["key"], rows["value"], headers, times, limit)


@dataclass(frozen=True, slots=True)
class SendStaged:
    writer: BlockWriter
    rows: StagedRows
    partitions: range

    def __call__(self) -> dict[int, int]:
        return self.writer.write(self.rows.each(self.partitions))


def _group(parquet: pq.ParquetFile, number: int) -> pa.Table:
    return parquet.read_row_group(number, use_threads=False)


def _partitions_of(file: StagedFile, partitions: range) -> list[int]:
    found = {number for group in file.groups for number, _rows in group}
    return sorted(found & {*partitions})
