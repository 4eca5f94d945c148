"""A stream of your own into Kafka, exactly once: readings from files, to their host's partition.

Nothing of Sequitur's jobs is around it: an ordinary Spark program, whose session has no settings
and no jars for this. Each file of the folder has a reading a line::

    {"hostname": "web-1", "usage": 93.5, "occurred_at": 1700000000000}

Run it, kill it whenever you like, and run it again: each reading is in the topic once, and those of
a partition that Spark read in one batch are in the order of their time::

    python exactly_once_stream.py FOLDER TOPIC --kafka 127.0.0.1:9092 --checkpoint state
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.spark import ExactlyOnceKafka

SCHEMA = "hostname string, usage double, occurred_at long"


def main() -> None:
    """Write what there is, and what comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("topic")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--available-now", action="store_true")
    given = parser.parse_args()

    spark = SparkSession.builder.appName("exactly-once-stream").getOrCreate()
    readings = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 20).json(given.folder)
    records = readings.select(
        "occurred_at",
        F.col("hostname").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
    sink = ExactlyOnceKafka(
        given.topic,
        checkpoint=f"{given.checkpoint}/sink",  # the sink's own, beside Spark's
        kafka=given.kafka,
        order_by="occurred_at",
    )
    writer = records.writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", f"{given.checkpoint}/spark")
    if given.available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
