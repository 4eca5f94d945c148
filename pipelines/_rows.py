"""The rows of the reorder job: as they come from Kafka, as they wait in a run, as they go out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql.classic.column import Column as ClassicColumn

from consumer import (
    FRONTIER_HEADER,
    LATE,
    LATE_BY_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from pipelines._event_time_columns import event_time_columns
from producer.settings import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from consumer import ReorderSettings
    from producer import KafkaSettings

RUN_SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, event_time_ms bigint, reason string"
)
RUN_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
    "event_time_ms", "reason",
)  # fmt: skip
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""

_FETCH_BYTES: Final = 8 << 20
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def read_source(spark: SparkSession, kafka: KafkaSettings, settings: ReorderSettings) -> DataFrame:
    """The input topics as a stream of `RUN_COLUMNS`; `reason` is set where there is no event time.

    The stream carries a watermark, so that Spark's progress shows event times. Nothing that keeps
    state follows, so the watermark drops nothing.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in kafka.java().items()})
        .option("subscribe", ",".join(settings.input_topics))
        .option("startingOffsets", settings.starting_offsets)
        .option("includeHeaders", value=True)
        .option("kafka.isolation.level", "read_committed")
        # The consumer's default of 500 rows a poll costs two thirds of the source's speed.
        .option("kafka.max.poll.records", 10_000)
        .option("kafka.max.partition.fetch.bytes", _FETCH_BYTES)
    )
    if settings.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
    timestamp_ms = F.unix_millis("timestamp")
    event_time = event_time_columns(
        settings.event_time,
        value=F.col("value"),
        headers=F.col("headers"),
        kafka_timestamp_ms=timestamp_ms,
        # In a stream this is the time the batch was planned, and the same when it is repeated.
        latest_ms=F.unix_millis(F.current_timestamp())
        + F.lit(milliseconds(settings.max_future_skew)),
    )
    return (
        reader.load()
        .select(
            "topic",
            "partition",
            "offset",
            timestamp_ms.alias("timestamp_ms"),
            "key",
            "value",
            "headers",
            event_time.ms.alias("event_time_ms"),
            event_time.reason.alias("reason"),
        )
        .withColumn("event_time", F.timestamp_millis("event_time_ms"))
        .withWatermark("event_time", f"{milliseconds(settings.delay)} milliseconds")
    )


def staged_rows(rows: DataFrame, frontier_ms: int) -> DataFrame:
    """A batch's rows as they are staged: those behind the frontier are marked late."""
    is_late = F.col("event_time_ms") < F.lit(frontier_ms)
    reason = F.coalesce("reason", F.when(is_late, F.lit(LATE)))
    return rows.withColumn("reason", reason).select(*RUN_COLUMNS)


def output_partition(spark: SparkSession, partitions: int) -> Column:
    """The partition a row goes to: where Java's default partitioner sends its key.

    So the output is partitioned as the input of a Java producer (or ours) on as many partitions.
    Rows without a key go by their source partition, which keeps them together.
    """
    hashed = _murmur2(spark, F.col("key")).bitwiseAND(F.lit(0x7FFFFFFF))
    return F.coalesce(hashed, F.col("partition")) % F.lit(partitions)


def with_reason_headers(rows: DataFrame, frontier_ms: int) -> DataFrame:
    """Rows of a side output, with what happened to them in headers behind their own."""
    late_by = F.lit(frontier_ms) - F.col("event_time_ms")
    added = F.filter(
        F.array(
            _header(REASON_HEADER, F.col("reason")),
            _header(LATE_BY_HEADER, F.when(F.col("reason") == LATE, late_by)),
            _header(FRONTIER_HEADER, F.lit(frontier_ms)),
            _header(SOURCE_TOPIC_HEADER, F.col("topic")),
            _header(SOURCE_PARTITION_HEADER, F.col("partition")),
            _header(SOURCE_OFFSET_HEADER, F.col("offset")),
        ),
        lambda header: header["value"].isNotNull(),
    )
    own = F.coalesce("headers", F.array().cast(_HEADERS))
    return rows.withColumn("headers", F.concat(own, added.cast(_HEADERS)))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _murmur2(spark: SparkSession, key: Column) -> Column:
    """Kafka's own murmur2 of a binary column, called as generated code calls it; null of null."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no function for a static method
    column: Any = key
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kafka = loader.loadClass("org.apache.kafka.common.utils.Utils")
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    call = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        kafka,
        jvm.org.apache.spark.sql.types.DataTypes.IntegerType,
        "murmur2",
        jvm.PythonUtils.toSeq([expressions.expression(column._jc)]),  # noqa: SLF001
        jvm.PythonUtils.toSeq([]),
        True,  # null of null
        False,  # never null of a key
        True,  # deterministic
        jvm.scala.Option.empty(),
    )
    return ClassicColumn(expressions.column(call))
