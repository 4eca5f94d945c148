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
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from benchmarks.peers import spark_kafka
from sequitur.pipelines.session import build_session

WINDOW_S: Final = 1
_SCHEMA: Final = "hostname string, cpu int, usage double, occurred_at long"


def main() -> None:
    """Run the query on what is in its topic now."""
    brokers, source, sink, folder, delay_s = sys.argv[1:]
    spark = build_session("spark native", options=spark_kafka.SESSION_OPTIONS)
    arrived = (
        spark_kafka.arrived(spark, brokers, source)
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
    _, seconds = spark_kafka.run(ordered, brokers, sink, folder)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
