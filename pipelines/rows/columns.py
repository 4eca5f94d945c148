"""The columns of rows: their schemas and orders, how rows are cut, how many are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.kafka.partition import KeyPartitioner, SourcePartition
from sequitur.kafka.record_format import HEADER_LENGTHS
from sequitur.pipelines.spark.partition_blocks import packed
from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.kafka.record_format import RecordLimit

    Longs = np.ndarray[Any, np.dtype[np.int64]]


SOURCE_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
)  # fmt: skip
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""
OWN_TIME: Final = "own_time_ms"
"""The event time of a row that a bolt made, if it is not `event_time_ms`; else it is null."""
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


@dataclass(frozen=True, slots=True)
class RowLimits:
    # so much is sorted at once when a batch is staged; a task holds two or three times that
    chunk_bytes: int = 64 << 20
    slice_bytes: int = 32 << 20  # so much of what is due is read at once
    # most rows of a row group: small ones let a reader skip what it does not want
    row_group_rows: int = ROW_GROUP_ROWS
    # so much may stand in a row group with several output partitions: a reader of one of them reads
    # the others, too
    packed_bytes: int = 1 << 20

    @property
    def packed_rows(self) -> int:
        """Most rows of a row group with several output partitions.

        Each one costs about a millisecond to write and to read, as much as some hundred rows.
        """
        return max(1, self.row_group_rows // 4)


ROW_LIMITS: Final = RowLimits()
"""Those of a job."""


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


def spread(rows: pa.Table, partitions: int) -> pa.Table:
    """Place rows in so many output partitions, by key or else by source partition."""
    partitioner = KeyPartitioner(partitions)
    outputs = outputs_of(partitioner, rows["key"].to_pylist(), rows["partition"].to_numpy())
    place = rows.schema.get_field_index("output_partition")
    return rows.set_column(place, "output_partition", pa.array(outputs))


def sources(rows: pa.Table) -> Iterator[tuple[SourcePartition, Any]]:
    """Split rows by source partition; there is nearly always one."""
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


def in_ranges(offsets: Longs, firsts: Longs, stops: Longs) -> Any:
    """Tell which offsets are in ranges; the ranges are sorted and do not overlap."""
    place = np.searchsorted(firsts, offsets, side="right") - 1
    return (place >= 0) & (offsets < stops[np.maximum(place, 0)])


def tables_up_to(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    """Yield batches put together up to a size."""
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


def in_row_groups(rows: pa.Table, limits: RowLimits) -> Iterator[pa.Table]:
    """Sort rows by output partition, and cut them into the row groups of files."""
    outputs = rows["output_partition"].to_numpy()
    if (np.diff(outputs) < 0).any():
        order = np.argsort(outputs, kind="stable")
        rows, outputs = rows.take(pa.array(order)), outputs[order]
    sizes = payload_sizes(rows) if "value" in rows.column_names else np.zeros_like(outputs)
    for block in packed(outputs, sizes, limits.packed_rows, limits.packed_bytes):
        yield rows.slice(block.start, block.stop - block.start)


def payload_sizes(rows: pa.Table) -> Longs:
    """Return the bytes of each row's key, value and headers, with the overhead of headers."""
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
