"""Spark's own way to event-time order, from Kafka to Kafka: windows of each key, sorted.

    python -m benchmarks.spark_native_job BOOTSTRAP_SERVERS INPUT OUTPUT FOLDER DELAY_S

`withWatermark`, a window of a second by key, `collect_list`, and the lists sorted and taken apart
again. Rows behind the watermark are dropped without a word, what the watermark has not passed at
the end stays in the state, and two windows of a key that end in one batch may come out in either
order. Prints one line of JSON: the seconds from the start of the query to its end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.pipelines.session import build_session

WINDOW_S: Final = 1
_SCHEMA: Final = "hostname string, cpu int, usage double, occurred_at long"
_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_OPTIONS: Final = {
    "spark.driver.memory": "4g",
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def main() -> None:
    """Run the query on what is in its topic now."""
    brokers, source, sink, folder, delay_s = sys.argv[1:]
    spark = build_session("spark native", options=_OPTIONS)
    arrived = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500_000)
        .option("kafka.max.poll.records", 10_000)
        .load()
        .select("key", "value", F.from_json(F.col("value").cast("string"), _SCHEMA).alias("event"))
        .withColumn("at", F.timestamp_millis("event.occurred_at"))
        .withWatermark("at", f"{delay_s} seconds")
    )
    row = F.struct(F.col("event.occurred_at").alias("ms"), "value")
    ordered = (
        arrived.groupBy("key", F.window("at", f"{WINDOW_S} seconds"))
        .agg(F.array_sort(F.collect_list(row)).alias("rows"))
        .select("key", F.explode("rows").alias("row"))
        .select("key", "row.value")
    )
    ready_s = time.monotonic()
    query = (
        ordered.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", sink)
        .option("kafka.linger.ms", 5)
        .option("kafka.batch.size", 256 << 10)
        .option("kafka.compression.type", "lz4")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ended_s = time.monotonic()
    print(json.dumps({"seconds": ended_s - ready_s}))


if __name__ == "__main__":
    main()
