"""The rows of the reorder job as Spark gives them to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql.classic.column import Column as ClassicColumn

from sequitur.base.settings import milliseconds
from sequitur.consumer import EventTimeSource
from sequitur.consumer.time.time_text import AUTO_LIMITS, MAX_EVENT_TIME_MS, TimeUnit
from sequitur.kafka.record_format import HEADER_LENGTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.consumer import EventTimeSpec, ReorderSettings
    from sequitur.kafka.partition import KeyPartitioner
    from sequitur.kafka.settings import KafkaSettings

    Longs = np.ndarray[Any, np.dtype[np.int64]]

SOURCE_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
)  # fmt: skip
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""

_SHOWN_ROWS: Final = 16
_MOST_SECONDS: Final = MAX_EVENT_TIME_MS // 1000
_FETCH_BYTES: Final = 256 << 10
"""Packed bytes of an answer: what a poll unpacks may be a thousand times as much. More gains
nothing, since the next answer is on its way while the rows of this one are taken."""
_FETCH_WAIT_MS: Final = 10
"""So long a broker keeps a consumer waiting at the end of a partition. Spark reads only what is
there, and asks behind it where the partition ends: an answer that waits for its turn."""


def read_source(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    starting_offsets: str | None = None,
    records_a_poll: int = 10_000,
    most_rows: int | None = None,
) -> DataFrame:
    """Return the input topics as a stream of `SOURCE_COLUMNS`.

    Spark looks for new partitions, and new topics of a pattern, before each batch, and reads them
    from their beginning.

    The stream carries a watermark, so that Spark's progress shows event times: those of one row in
    `_SHOWN_ROWS`, since reading one costs Spark as much as all else that it does to a row, and that
    are written in a usual way. Nothing that keeps state follows, so the watermark drops nothing.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in kafka.java().items()})
        .option(*_subscription(settings))
        .option("startingOffsets", starting_offsets or settings.starting_offsets)
        .option("includeHeaders", value=True)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.poll.records", records_a_poll)
        .option("kafka.max.partition.fetch.bytes", _FETCH_BYTES)
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
    )
    if most_rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", most_rows)
    rows = reader.load().withColumn("timestamp_ms", F.unix_millis("timestamp"))
    is_shown = F.col("offset") % _SHOWN_ROWS == 0
    in_time = F.col("_shown_ms") <= F.col("timestamp_ms") + F.lit(
        milliseconds(settings.max_future_skew)
    )
    return (
        rows.withColumn("_shown_ms", F.when(is_shown, _shown_time_ms(settings.event_time)))
        .withColumn("event_time", F.timestamp_millis(F.when(in_time, F.col("_shown_ms"))))
        .select(*SOURCE_COLUMNS, "event_time")
        .withWatermark("event_time", f"{milliseconds(settings.longest_delay)} milliseconds")
    )


def _shown_time_ms(spec: EventTimeSpec) -> Column:
    """Return the event time, epoch ms, of a whole number or an ISO 8601 time; else null."""
    if spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        return _by_unit(F.col("timestamp_ms"), spec.format.unit)
    if spec.source is EventTimeSource.HEADER:
        named = F.filter("headers", lambda header: header["key"] == F.lit(spec.path[0]))
        text = F.try_element_at(named, F.lit(-1))["value"].cast("string")
    else:
        path = "$" + "".join(f"['{part}']" for part in spec.path)
        text = F.get_json_object(F.col("value").cast("string"), path)
    return F.coalesce(
        _by_unit(text.try_cast("bigint"), spec.format.unit),
        F.unix_millis(text.try_cast("timestamp")),
    )


def _by_unit(number: Column, unit: TimeUnit | None) -> Column:
    """Return epoch ms of a whole number that is not negative, in a unit."""
    ways = {
        TimeUnit.S: F.least(number, F.lit(_MOST_SECONDS)) * 1000,
        TimeUnit.MS: number,
        TimeUnit.US: F.call_function("div", number, F.lit(1_000)),
        TimeUnit.NS: F.call_function("div", number, F.lit(1_000_000)),
    }
    chosen = ways[TimeUnit.NS if unit is TimeUnit.AUTO else unit or TimeUnit.MS]
    if unit is TimeUnit.AUTO:
        for one, limit in reversed(AUTO_LIMITS):
            chosen = F.when(number < limit, ways[one]).otherwise(chosen)
    return F.when(number >= 0, chosen)


def payload_bytes() -> Column:
    """Measure key, value and headers of a row in bytes, with what headers take beside."""

    def joined(part: str) -> Column:
        # Of all ways to add up an array's lengths the one that Spark generates code for.
        return F.octet_length(F.array_join(F.col(f"headers.{part}").cast("array<string>"), ""))

    headers = F.size("headers") * HEADER_LENGTHS  # of null -1
    parts = [
        F.octet_length("key"),
        F.octet_length("value"),
        headers,
        *map(joined, ("key", "value")),
    ]
    none = F.lit(0)
    return sum((F.coalesce(part, none) for part in parts), start=none)


def _subscription(settings: ReorderSettings) -> tuple[str, str]:
    if settings.input_pattern is not None:
        # Spark takes a name that holds a match, so `orders` would read `orders.ordered`, too.
        return "subscribePattern", rf"\A(?:{settings.input_pattern})\z"
    return "subscribe", ",".join(settings.input_topics)


def output_partition(spark: SparkSession, partitions: int) -> Column:
    """Return the partition a row goes to: where Java's default partitioner sends its key.

    So the output is partitioned as the input of a Java producer (or ours) on as many partitions.
    Rows without a key go by their source partition, which keeps them together.
    """
    hashed = _murmur2(spark, F.col("key")).bitwiseAND(F.lit(0x7FFFFFFF))
    return F.coalesce(hashed, F.col("partition")) % F.lit(partitions)


def outputs_of(partitioner: KeyPartitioner, keys: Sequence[bytes | None], numbers: Longs) -> Longs:
    """Return the partition that each row goes to, as `output_partition` does."""
    outputs: Longs = numbers.astype("int64") % partitioner.partitions
    if keyed := [place for place, key in enumerate(keys) if key is not None]:
        outputs[keyed] = partitioner.each([key for key in keys if key is not None])
    return outputs


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
