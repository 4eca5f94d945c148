"""How Spark's own jobs read from Kafka what is there now, and write to it, in benchmarks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SESSION_OPTIONS: Final[dict[str, str]] = {
    "spark.driver.memory": "4g",
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""With them a session has room, and keeps state in RocksDB."""


def arrived(spark: SparkSession, brokers: str, topic: str, *, at_once: int = 500_000) -> DataFrame:
    """Return the rows of a topic from its first offset on, so many in a batch."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", at_once)
        .option("kafka.max.poll.records", 10_000)
        .load()
    )


def start(rows: DataFrame, brokers: str, topic: str, folder: str) -> StreamingQuery:
    """Begin to write rows to a topic until no more are there."""
    return (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", topic)
        .option("kafka.linger.ms", 5)
        .option("kafka.batch.size", 256 << 10)
        .option("kafka.compression.type", "lz4")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )


def run(rows: DataFrame, brokers: str, topic: str, folder: str) -> tuple[StreamingQuery, float]:
    """Write rows to a topic until no more are there; return the query, and its seconds."""
    begun_s = time.monotonic()
    query = start(rows, brokers, topic, folder)
    query.awaitTermination()
    return query, time.monotonic() - begun_s
