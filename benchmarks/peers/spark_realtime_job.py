"""Spark's real-time mode, from Kafka to Kafka, as it comes: it has no order, and is at least once.

    python -m benchmarks.peers.spark_realtime_job BOOTSTRAP_SERVERS INPUT OUTPUT FOLDER

It only copies, and so tells what a row takes through Spark at the least.
"""

from __future__ import annotations

import sys

from sequitur.pipelines.session import build_session


def main() -> None:
    """Run until it is ended."""
    brokers, source, sink, folder = sys.argv[1:]
    # Each of the input's partitions has a task that never ends.
    spark = build_session("spark real-time", master="local[4]")
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", sink)
        .option("kafka.compression.type", "lz4")
        .option("checkpointLocation", folder)
        .outputMode("update")
        .trigger(realTime="5 seconds")  # type: ignore[call-overload] # no overload of pyspark has it
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
