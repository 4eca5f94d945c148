"""Run by spark-submit: an output partition whose first attempt hangs, for a copy to write it.

    speculation_job.py BOOTSTRAP_SERVERS TOPIC APP JOB ROWS

The topic has one partition. Prints how many rows Spark was told of in the end.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.pipelines.rows.record_timestamps import TIMESTAMP_COLUMN
from sequitur.pipelines.sink.partition_writer import WRITTEN_SCHEMA, PartitionWriter
from sequitur.pipelines.sink.record_columns import with_records
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_BATCH_ROWS = 1024
_TIMEOUT_S = 300.0


def main(bootstrap_servers: str, topic: str, app: str, job: str, rows: str) -> None:
    """Write that many rows as step 0."""
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
    writer = PartitionWriter(
        kafka=kafka,
        app=app,
        job=job,
        topic=topic,
        partitions=1,
        step=0,
        base_ms=0,
        batch_rows=_BATCH_ROWS,
        transaction_timeout_ms=60_000,
    )

    def hanging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is None or context.attemptNumber() > 0:
            return
        # Its rows are sent, and its transaction is open. It must not end by itself: a failure that
        # reached Spark before the copy's success would end the job.
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
        raise TimeoutError("no copy of this task has written the partition")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return writer(hanging(batches))

    spark = SparkSession.builder.getOrCreate()
    sent = spark.range(int(rows), numPartitions=1).selectExpr(
        "cast(cast(id as string) as binary) key",
        "cast(cast(id as string) as binary) value",
        "cast(array() as array<struct<key: string, value: binary>>) headers",
        f"id {TIMESTAMP_COLUMN}",
    )
    laid_out = with_records(sent, _BATCH_ROWS, F.lit(0))
    written = laid_out.mapInArrow(write, WRITTEN_SCHEMA).collect()
    print("written", sum(row["rows"] for row in written))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
