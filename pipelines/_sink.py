"""Rows into a topic, in order, by Spark's own sink: at least once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from pipelines._rows import output_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from producer import KafkaSettings

_OPTIONS: Final = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",  # keeps the order of a partition through retries
    "kafka.linger.ms": "5",
    "kafka.batch.size": str(256 << 10),
    "kafka.compression.type": "lz4",
}


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic to write to, and its number of partitions."""

    name: str
    partitions: int


class TopicSink:
    """Writes rows to topics.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        self._spark = spark
        self._options = {f"kafka.{key}": value for key, value in kafka.java().items()} | _OPTIONS
        self._numbers = itertools.count()

    def write(self, rows: DataFrame, topic: OutputTopic, order: Sequence[str]) -> int:
        """Write rows to a topic, each partition of it sorted by `order`; how many were written.

        One task writes one partition through one idempotent producer, so what it writes stays in
        its order. Returns once the brokers have acknowledged all of it.
        """
        observed = Observation(f"{topic.name}-{next(self._numbers)}")
        (
            rows.withColumn("to", output_partition(self._spark, topic.partitions))
            .repartitionById(topic.partitions, "to")
            .sortWithinPartitions(*order)
            .select("key", "value", "headers", F.col("to").alias("partition"))
            .observe(observed, F.count(F.lit(1)).alias("rows"))
            .write.format("kafka")
            .mode("append")
            .options(**self._options)
            .option("topic", topic.name)
            .save()
        )
        return int(observed.get["rows"])
