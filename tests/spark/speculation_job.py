"""Run by spark-submit: an output partition whose first attempt hangs until a copy has written it.

    speculation_job.py BOOTSTRAP_SERVERS TOPIC APP JOB ROWS

The topic has one partition. Prints how many rows Spark was told of in the end.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pipelines._committed_tokens import token_consumer_options
from pipelines._partition_writer import WRITTEN_SCHEMA, PartitionWriter
from producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_TIMEOUT_S = 60.0


def main(bootstrap_servers: str, topic: str, app: str, job: str, rows: str) -> None:
    """Write that many rows as step 0."""
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
    writer = PartitionWriter(
        producer_options=kafka.librdkafka(),
        consumer_options=token_consumer_options(kafka, app),
        app=app,
        job=job,
        topic=topic,
        partitions=1,
        step=0,
    )

    def hanging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Consumer  # noqa: PLC0415 - in the task only

        from consumer import OutputPartition  # noqa: PLC0415
        from pipelines._committed_tokens import committed_tokens  # noqa: PLC0415

        yield from batches
        context = TaskContext.get()
        if context is None or context.attemptNumber() > 0:
            return
        where = OutputPartition(topic, 0)
        consumer = Consumer(token_consumer_options(kafka, app))
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            token = committed_tokens(consumer, [where])[where]
            if token is not None and token.step == 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError("no copy of this task has written the partition")
            time.sleep(0.05)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return writer(hanging(batches))

    spark = SparkSession.builder.getOrCreate()
    sent = spark.range(int(rows), numPartitions=1).selectExpr(
        "cast(id as string) key",
        "cast(cast(id as string) as binary) value",
        "cast(array() as array<struct<key: string, value: binary>>) headers",
    )
    # The second partition is done at once: only beside one that is done can another be slow.
    quick = sent.limit(0).repartition(1)
    written = sent.union(quick).mapInArrow(write, WRITTEN_SCHEMA).collect()
    print("written", sum(row["rows"] for row in written))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
