"""Staged rows on their way out, in Spark's tasks: the same rows in the same order, each time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.pipelines.rows.layout import Headers, open_rows, record_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.pipelines.rows.layout import KafkaBatch
    from sequitur.pipelines.rows.release import Batches
    from sequitur.pipelines.sink.block_writer import BlockWriter
    from sequitur.pipelines.spark_sink.batch_documents import StagedFile
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of some partitions."""

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
    """Sends the staged rows of some partitions, in a task."""

    writer: BlockWriter
    rows: StagedRows
    partitions: range

    def __call__(self) -> dict[int, int]:
        """Send them; how many each partition has."""
        return self.writer.write(self.rows.each(self.partitions))


def _group(parquet: pq.ParquetFile, number: int) -> pa.Table:
    return parquet.read_row_group(number, use_threads=False)


def _partitions_of(file: StagedFile, partitions: range) -> list[int]:
    found = {number for group in file.groups for number, _rows in group}
    return sorted(found & {*partitions})
