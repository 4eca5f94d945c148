"""Small batches are read and staged in the driver: a round of tasks costs more than they do.

Such a batch is planned, logged and committed as any other. What it is to read are ranges of
offsets; here a reader of our own reads exactly these, and what is read is staged as a task would
stage it.

How much may be read is settled before it is: by offsets, of which a range has at least as many as
rows, and by the bytes of a row so far. What turns out larger all the same is not unpacked.

Tasks read whatever the driver cannot, and it is told why: so what becomes of offsets that are gone,
or of brokers that are away, has one rule.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from sequitur.errors import ReadTooLargeError, UnansweredError
from sequitur.kafka.arrow_records import binary, headers
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.rows.stage import READ_SCHEMA, outputs_of
from sequitur.pipelines.workers import done_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sequitur.consumer import ReorderSettings, SourcePartition
    from sequitur.kafka.reader import Reader
    from sequitur.kafka.stored_batches import RecordColumns
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.rows.stage import RunWriter, Summary

PATIENCE_S: Final = 10.0
"""So long the driver waits for records that do not come, before tasks do."""
_REST_S: Final = 60.0
"""So long tasks read everything after that."""
_OVERHEAD: Final = 64
"""Bytes of a row beside key, value and headers, at most, where it has few headers."""


class RangeReader(Protocol):
    """What reads the rows of batches in the driver."""

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> list[pa.RecordBatch]:
        """Return the rows of ranges as tasks are given them, to go to so many partitions.

        Raises:
            ReadTooLargeError: There are more bytes.
        """


class SmallBatches:
    """Stages the batches that are small enough for the driver."""

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

    def stage(self, writer: RunWriter, spans: Spans, partitions: int) -> Summary | None:
        """Read and stage a batch; None where tasks have to."""
        rows = self._read(spans, partitions) if self._is_small(spans) else None
        if rows is None:
            return None
        here = replace(writer, keeps=True)
        return done_here(lambda: here.write(iter(rows)))

    def learn(self, found: Sequence[Summary]) -> None:
        """Take note of how large the rows of a batch were, whoever has read it."""
        counted = [one for summary in found for one in summary.counted.values()]
        if rows := sum(count for count, _ in counted):
            self._row_bytes = _OVERHEAD + sum(size for _, size in counted) / rows

    def _is_small(self, spans: Spans) -> bool:
        most = sum(stop - first for first, stop in spans.values())
        is_small = most <= self._most_rows and most * self._row_bytes <= self._most_bytes
        return is_small and self._steady_s() >= self._rests_until_s

    def _read(self, spans: Spans, partitions: int) -> list[pa.RecordBatch] | None:
        """Return the rows of a batch before any of them is staged; None where that fails."""
        try:
            return self._reader.read(spans, partitions, self._most_bytes)
        except Exception as error:
            # Tasks meet it, too, where it is not ours alone.
            if self._is_stopping() and isinstance(error, UnansweredError):
                raise StopRequestedError from error
            self._rests_until_s = self._steady_s() + _REST_S
            if not isinstance(error, ReadTooLargeError):
                self._tell(
                    f"the driver cannot read a small batch: {error or type(error).__name__}. "
                    f"Tasks read it, and what comes within {_REST_S:.0f} s"
                )
            return None


class KafkaRanges:
    """Ranges of Kafka's offsets, as `RangeReader` reads them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._partitioner = KeyPartitioner(1)

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> list[pa.RecordBatch]:
        """See `RangeReader`."""
        return [*self.each(spans, partitions, most_bytes)]

    def each(
        self, spans: Spans, partitions: int, most_bytes: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges as they come; see `read`."""
        if self._partitioner.partitions != partitions:
            self._partitioner = KeyPartitioner(partitions)
        for where, columns in self._reader.columns(spans, most_bytes):
            yield rows_of(where, columns, self._partitioner)


def rows_of(
    where: SourcePartition, columns: RecordColumns, partitioner: KeyPartitioner
) -> pa.RecordBatch:
    """Return records of a partition as tasks are given rows."""
    count = len(columns)
    numbers = np.full(count, where.partition, np.int64)
    outputs = outputs_of(partitioner, columns.keys.each(), numbers)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(where.topic, pa.string()), count),
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
