"""The rows of the reorder job: as they come from Kafka, as they wait in a run, as they go out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql.classic.column import Column as ClassicColumn

from sequitur.consumer import (
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE_BY_HEADER,
    OVERSIZED_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
    late_against,
    staging_rules,
)
from sequitur.pipelines.rows.event_time_columns import with_event_time
from sequitur.producer.kafka.record_limit import HEADER_LENGTHS
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.consumer import EventTimeSpec, ReorderSettings, TimeBounds
    from sequitur.producer import KafkaSettings
    from sequitur.producer.kafka.record_limit import RecordLimit

RUN_SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, output_partition int, "
    "event_time_ms bigint, reason string"
)
DUPLICATES_SCHEMA: Final = "topic string, partition int, offset bigint"
BEHIND_SCHEMA: Final = f"{RUN_SCHEMA}, last_released_ms bigint"
RUN_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
    "output_partition", "event_time_ms", "reason",
)  # fmt: skip
SOURCE_COLUMNS: Final = RUN_COLUMNS[:7]
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""

_SHOWN_ROWS: Final = 16
_FETCH_BYTES: Final = 8 << 20
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def read_source(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    starting_offsets: str | None = None,
    records_a_poll: int = 10_000,
) -> DataFrame:
    """Return the input topics as a stream of `SOURCE_COLUMNS`.

    Spark looks for new partitions, and new topics of a pattern, before each batch, and reads them
    from their beginning.

    The stream carries a watermark, so that Spark's progress shows event times: those of one row in
    `_SHOWN_ROWS`, since reading one costs Spark as much as all else that it does to a row. Nothing
    that keeps state follows, so the watermark drops nothing.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        starting_offsets: Where a query without a checkpoint begins, in Spark's JSON; None as the
            settings say.
        records_a_poll: How many records Spark's consumers take at once.
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
    )
    if settings.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
    rows = reader.load().select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
    )
    is_shown = F.col("offset") % _SHOWN_ROWS == 0
    looked_at = rows.withColumns(
        {"_value": F.col("value"), "value": F.when(is_shown, F.col("value"))}
    )
    skew = F.lit(milliseconds(settings.max_future_skew))
    in_time = is_shown & (F.col("event_time_ms") <= F.col("timestamp_ms") + skew)
    return (
        with_event_time(looked_at, settings.event_time)
        .withColumns({"event_time": F.timestamp_millis(F.when(in_time, F.col("event_time_ms")))})
        .withColumns({"value": F.col("_value")})
        .select(*SOURCE_COLUMNS, "event_time")
        .withWatermark("event_time", f"{milliseconds(settings.longest_delay)} milliseconds")
    )


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


def staged_rows(
    rows: DataFrame,
    event_time: EventTimeSpec,
    output: Column,
    *,
    frontier_ms: int,
    bounds: TimeBounds,
    limit: RecordLimit | None,
) -> DataFrame:
    """Return a batch's rows as they are staged, with the reason of those late or quarantined.

    Args:
        rows: The batch, as `read_source` gives it.
        event_time: Where the event time stands.
        output: The output partition, see `output_partition`.
        frontier_ms: Rows behind it are late.
        bounds: Rows of other times go to quarantine.
        limit: What the output topic takes of a row, uncompressed; None when rows do not go there.
    """
    too_large = keyless = F.lit(False)
    if limit is not None:
        too_large = payload_bytes() > limit.surely_bytes
        keyless = F.col("key").isNull() if limit.needs_key else keyless
    time_ms = F.col("event_time_ms")
    outside = (time_ms < F.col("_earliest")) | (time_ms > F.col("_latest"))
    refused = F.coalesce(
        *(
            F.when(
                (time_ms >= varying_number(first)) & (time_ms <= varying_number(last)),
                F.lit(reason),
            )
            for reason, first, last in bounds.refusals()
        )
    )
    marked = F.when(F.col("reason").isNotNull(), F.col("reason"))
    for holds, reason in staging_rules(
        time_ms,
        F.col("_frontier"),
        is_disbelieved=F.col("_outside"),
        disbelief=refused,
        is_too_large=F.col("_too_large"),
        is_keyless=F.col("_keyless"),
    ):
        marked = marked.when(holds, F.lit(reason) if isinstance(reason, str) else reason)
    is_taken = ~(F.col("_outside") | F.col("_too_large") | F.col("_keyless"))
    return (
        with_event_time(rows, event_time)
        .withColumn("output_partition", output)
        .withColumn("_frontier", varying_number(frontier_ms))
        .withColumn("_earliest", varying_number(bounds.earliest_ms))
        .withColumn("_latest", varying_number(bounds.latest_ms))
        .withColumn("_outside", outside)
        .withColumn("_too_large", too_large)
        .withColumn("_keyless", keyless)
        .withColumn("reason", marked)
        .withColumn("event_time_ms", F.when(is_taken, time_ms))
        .select(*RUN_COLUMNS)
    )


def output_partition(spark: SparkSession, partitions: int) -> Column:
    """Return the partition a row goes to: where Java's default partitioner sends its key.

    So the output is partitioned as the input of a Java producer (or ours) on as many partitions.
    Rows without a key go by their source partition, which keeps them together.
    """
    hashed = _murmur2(spark, F.col("key")).bitwiseAND(F.lit(0x7FFFFFFF))
    return F.coalesce(hashed, F.col("partition")) % F.lit(partitions)


def with_reason_headers(rows: DataFrame, frontier_ms: int, file: Column) -> DataFrame:
    """Add headers behind a row's own that say why it went to a side topic.

    Args:
        rows: `RUN_COLUMNS` and `last_released_ms`.
        frontier_ms: The frontier they were held against.
        file: Where a row that is too large for its topic is whole; null of others.
    """
    time_ms, last_ms = F.col("event_time_ms"), F.col("last_released_ms")
    late_by = F.coalesce(
        *(
            F.when(F.col("reason") == reason, against - time_ms)
            for reason, against in late_against(varying_number(frontier_ms), last_ms).items()
        )
    )
    added = F.filter(
        F.array(
            _header(REASON_HEADER, F.col("reason")),
            _header(LATE_BY_HEADER, late_by),
            _header(FRONTIER_HEADER, F.lit(frontier_ms)),
            _header(LAST_RELEASED_HEADER, last_ms),
            _header(SOURCE_TOPIC_HEADER, F.col("topic")),
            _header(SOURCE_PARTITION_HEADER, F.col("partition")),
            _header(SOURCE_OFFSET_HEADER, F.col("offset")),
            _header(SOURCE_TIMESTAMP_HEADER, F.col("timestamp_ms")),
            _header(OVERSIZED_HEADER, file),
        ),
        lambda header: header["value"].isNotNull(),
    )
    own = F.coalesce("headers", F.array().cast(_HEADERS))
    return rows.withColumn("headers", F.concat(own, added.cast(_HEADERS)))


def varying_number(value: int) -> Column:
    """Return a number that differs from batch to batch.

    As a plain literal it would stand in the code that Spark generates, and Spark and the JVM would
    compile all of that anew for each batch. An array is handed to the code from outside. For a
    filter on a file this is no good: Parquet can skip by a literal only.
    """
    # Not a constant index, else the optimizer takes the number out again.
    return F.get(F.array(F.lit(value).cast("bigint")), F.col("partition") * 0)


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
