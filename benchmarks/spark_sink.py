"""A stream of one's own from Kafka to Kafka: Spark's own sink, and `ExactlyOnceKafka`.

    python -m benchmarks.spark_sink [--events N] [--turns N]

Spark's sink writes at least once, and rows as they come. `ExactlyOnceKafka` stages each batch, and
writes it once; with and without an order. All in one session, in turns, each into a topic of its
own of `PARTITIONS` partitions; the seconds are from the query's start to its end. Writes
build/bench/spark_sink.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from benchmarks.broker import bench_broker
from benchmarks.peers import spark_kafka
from benchmarks.reorder import OUTPUT, Bench
from benchmarks.reorder_check import read_written
from benchmarks.reorder_input import PARTITIONS, Workload
from sequitur.pipelines.session import build_session
from sequitur.spark import ExactlyOnceKafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TOPIC: Final = "sink"
_AT_ONCE: Final = 250_000


def _arrived(spark: SparkSession, brokers: str) -> DataFrame:
    return spark_kafka.arrived(spark, brokers, _TOPIC, at_once=_AT_ONCE).select(
        "key",
        "value",
        F.get_json_object(F.col("value").cast("string"), "$.occurred_at").alias("at"),
    )


def _plain(rows: DataFrame, brokers: str, topic: str, folder: str) -> StreamingQuery:
    rows = rows.select("key", "value")
    return spark_kafka.start(rows, brokers, topic, f"{folder}/spark")


def _exactly_once(*order: str) -> Callable[[DataFrame, str, str, str], StreamingQuery]:
    def start(rows: DataFrame, brokers: str, topic: str, folder: str) -> StreamingQuery:
        sink = ExactlyOnceKafka(topic, checkpoint=f"{folder}/sink", kafka=brokers, order_by=order)
        return (
            rows.select("key", "value", *order)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", f"{folder}/spark")
            .trigger(availableNow=True)
            .start()
        )

    return start


_CONTENDERS: Final[dict[str, Callable[[DataFrame, str, str, str], StreamingQuery]]] = {
    "spark.at_least_once": _plain,
    "sequitur.exactly_once": _exactly_once(),
    "sequitur.exactly_once.ordered": _exactly_once("at"),
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
    with bench_broker() as brokers:
        Bench(brokers).fill(_TOPIC, Workload(events=given.events))
        spark = build_session("spark sink", options={"spark.driver.memory": "2g"})
        admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
        for turn in range(given.turns + 1):  # the first warms up
            for name, start in _CONTENDERS.items():
                topic = f"{_TOPIC}-{name}-{turn}"
                admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
                with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
                    begun_s = time.monotonic()
                    start(_arrived(spark, brokers), brokers, topic, folder).awaitTermination()
                    took_s = time.monotonic() - begun_s
                if (there := read_written(brokers, topic).rows) != given.events:
                    raise RuntimeError(f"{name}: {there} rows of {given.events}")
                if turn:
                    seconds[name].append(took_s)
                print(f"{name}: {given.events / took_s:,.0f} records/s")
        spark.stop()
    plain_s = statistics.median(seconds["spark.at_least_once"])
    found = [
        {
            "name": name,
            "records_per_s": round(given.events / statistics.median(each)),
            "of_spark": round(plain_s / statistics.median(each), 2),
        }
        for name, each in seconds.items()
    ]
    for one in found:
        print(one)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "spark_sink.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
