"""Small batches are read and staged in the driver: a round of tasks costs more than they do.

Such a batch is planned, logged and committed as any other. It has ranges of offsets: a reader of
our own reads exactly these, and its rows are staged as a task would stage them.

The local runner plans batches itself. So it has them read first, and then plans what was read: a
leader that hangs keeps back no rows but its own.

Whether a batch is small is settled before it is read: by its offsets, which are at least as many as
its rows, and by the mean bytes of rows so far. A batch that turns out larger is not unpacked.

If the driver cannot read a batch, tasks read it, and the job's log says why. So one rule covers
offsets that are gone and brokers that are away.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from sequitur.errors import ReadTooLargeError, UnansweredError
from sequitur.kafka.arrow_records import binary, headers
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.rows.columns import READ_SCHEMA, outputs_of
from sequitur.pipelines.workers import done_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.reader import Reader
    from sequitur.kafka.stored_batches import RecordColumns
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.rows.run_writer import RunWriter, Summary

PATIENCE_S: Final = 10.0
"""So long the driver waits for records that do not come, before tasks do."""
_REST_S: Final = 60.0
"""So long tasks read everything after that."""
_OVERHEAD: Final = 64
"""Bytes of a row beside key, value and headers, at most, where it has few headers."""


class RowsRead(NamedTuple):
    """What was read of some ranges.

    Attributes:
        rows: The rows, with the columns of `READ_SCHEMA`.
        spans: The ranges that they are all rows of.
        silence: Why these end before what was asked for; None where they do not.
    """

    rows: Sequence[pa.RecordBatch]
    spans: Spans
    silence: UnansweredError | None = None


class RangeReader(Protocol):
    """Reads the rows of batches in the driver."""

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> RowsRead:
        """Return the rows of ranges that leaders have sent, to go to so many partitions.

        Raises:
            ReadTooLargeError: There are more bytes.
        """


class SmallBatches:
    def __init__(
        self,
        reader: RangeReader,
        settings: ReorderSettings,
        tell: Callable[[str], object],
        steady_s: Callable[[], float] = time.monotonic,
        *,
        is_stopping: Callable[[], bool] = bool,
    ) -> None:
        self._is_stopping = is_stopping
        self._reader = reader
        self._most_rows = settings.small_batch_rows
        self._most_bytes = settings.small_batch_bytes
        self._tell = tell
        self._steady_s = steady_s
        self._row_bytes = 0.0
        self._rests_until_s = 0.0
        self._ahead: tuple[int, RowsRead] | None = None

    def read_ahead(self, spans: Spans, partitions: int) -> Spans | None:
        """Read a batch that is not planned yet; return what was read, None where tasks have to.

        Its rows are kept until they are staged.
        """
        self._ahead = None
        read = self._read(spans, partitions, may_be_short=True) if self._is_small(spans) else None
        if read is None:
            return None
        self._ahead = partitions, read
        return read.spans

    def read_into(self, writer: RunWriter, spans: Spans, partitions: int) -> Summary | None:
        """Read a batch, and write its rows as a part of a run; None if tasks have to."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead[0], ahead[1].spans) == (partitions, spans):
            read: RowsRead | None = ahead[1]
        else:
            read = self._read(spans, partitions) if self._is_small(spans) else None
        if read is None:
            return None
        rows, here = read.rows, replace(writer, keeps=True)
        return done_here(lambda: here.write(iter(rows)))

    def learn(self, found: Sequence[Summary]) -> None:
        """Note how large the rows of a batch were; the driver or tasks have read it."""
        counted = [one for summary in found for one in summary.counted.values()]
        if rows := sum(count for count, _ in counted):
            self._row_bytes = _OVERHEAD + sum(size for _, size in counted) / rows

    def _is_small(self, spans: Spans) -> bool:
        most = sum(stop - first for first, stop in spans.values())
        is_small = most <= self._most_rows and most * self._row_bytes <= self._most_bytes
        return is_small and self._steady_s() >= self._rests_until_s

    def _read(
        self, spans: Spans, partitions: int, *, may_be_short: bool = False
    ) -> RowsRead | None:
        """Return the rows of a batch before any of them is staged; None if that fails."""
        try:
            read = self._reader.read(spans, partitions, self._most_bytes)
            return self._checked(read, may_be_short=may_be_short)
        except Exception as error:
            # Tasks meet the same error, if it is not only ours.
            if self._is_stopping() and isinstance(error, UnansweredError):
                raise StopRequestedError from error
            self._rests_until_s = self._steady_s() + _REST_S
            if not isinstance(error, ReadTooLargeError):
                self._tell(
                    f"the driver cannot read a small batch: {error or type(error).__name__}. "
                    f"Tasks read it, and what comes within {_REST_S:.0f} s"
                )
            return None

    def _checked(self, read: RowsRead, *, may_be_short: bool) -> RowsRead:
        """Return what was read; raise why rows are missing, unless `may_be_short`."""
        if read.silence is not None:
            if not may_be_short or self._is_stopping():
                raise read.silence
            self._tell(f"{read.silence}. The job goes on with the rows of others meanwhile")
        return read


class KafkaRanges:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._partitioner = KeyPartitioner(1)

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> RowsRead:
        rows: list[pa.RecordBatch] = []
        reached = {where: first for where, (first, _) in spans.items()}
        try:
            rows.extend(self.each(spans, partitions, most_bytes, reached))
        except UnansweredError as error:
            read = {where: (first, reached[where]) for where, (first, _) in spans.items()}
            return RowsRead(rows, read, error)
        return RowsRead(rows, spans)

    def each(
        self,
        spans: Spans,
        partitions: int,
        most_bytes: int | None = None,
        reached: dict[SourcePartition, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges as they arrive; see `read` and `Reader.together`."""
        if self._partitioner.partitions != partitions:
            self._partitioner = KeyPartitioner(partitions)
        for parts, columns in self._reader.together(spans, most_bytes, reached):
            yield rows_of(parts, columns, self._partitioner)


def rows_of(
    parts: Sequence[tuple[SourcePartition, int]],
    columns: RecordColumns,
    partitioner: KeyPartitioner,
) -> pa.RecordBatch:
    """Return records as rows, with the columns of `READ_SCHEMA`.

    Args:
        parts: How many of the records are of which partition, in their order.
        columns: The records.
        partitioner: Places them in the output.
    """
    counts = [count for _, count in parts]
    numbers = np.repeat(np.array([where.partition for where, _ in parts], np.int64), counts)
    topics = [pa.repeat(pa.scalar(where.topic, pa.string()), count) for where, count in parts]
    outputs = outputs_of(partitioner, columns.keys.each(), numbers)
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays([pa.array([], pa.string()), *topics]),
            pa.array(numbers, pa.int32()),
            pa.array(columns.offsets, pa.int64()),
            pa.array(columns.timestamps_ms, pa.int64()),
            binary(columns.keys),
            binary(columns.values),
            headers(columns),
            pa.array(outputs, pa.int32()),
        ],
        schema=READ_SCHEMA,
    )
