"""The rows of a job as Spark reads them: by its own source for Kafka, but for those it cannot hold.

Small batches need no job of Spark's: `small_batches`.

Spark moves rows to its Python tasks, which write them. What is on its way to Python is bounded by
bytes. To have Spark do that for each row costs ten times what a small row costs in all; so small
rows go by number, and large ones, which are rare, go after them and by size. Where they are not
rare, all rows go by size at once.

Spark counts times in microseconds. Kafka counts its timestamps in milliseconds, and takes any that
its topic allows: brokers before 4.0 take those of a producer that writes nanoseconds. One of them
overflows in Spark's source, which then fails at each try, for good. So the offsets that Spark has
planned are read here, as any consumer reads them.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql.classic.column import Column as ClassicColumn

from sequitur.base.settings import milliseconds
from sequitur.base.time_format import AUTO_LIMITS, MAX_EVENT_TIME_MS, TimeUnit
from sequitur.consumer import EventTimeSource
from sequitur.consumer.subscription.partition_reader import PartitionReader
from sequitur.errors import ConservationError, TopicError, UnansweredError
from sequitur.kafka.arrivals import headers_of
from sequitur.kafka.reader import Reader
from sequitur.kafka.record_format import HEADER_LENGTHS
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.small_batches import PATIENCE_S, KafkaRanges, SmallBatches
from sequitur.pipelines.rows.stage import (
    LARGE_ROW_BYTES,
    READ_SCHEMA,
    SOURCE_COLUMNS,
    SUMMARY_SCHEMA,
    spread,
)
from sequitur.pipelines.spark.tasks import SparkWorkers, in_few_tasks, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka import Message
    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.base.retry import Outages
    from sequitur.consumer import EventTimeSpec, ReorderSettings
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.rows.stage import RunWriter, Summary

_SHOWN_ROWS: Final = 16
_MOST_SECONDS: Final = MAX_EVENT_TIME_MS // 1000
_FETCH_BYTES: Final = 256 << 10
"""Packed bytes of an answer: what a poll unpacks may be a thousand times as much. More gains
nothing, since the next answer is on its way while the rows of this one are taken."""
_FETCH_WAIT_MS: Final = 10
"""So long a broker keeps a consumer waiting at the end of a partition. Spark reads only what is
there, and asks behind it where the partition ends: an answer that waits for its turn."""
_BATCH_ROWS: Final = 1024
"""Rows that go to Python together: 16 MiB where none of them is large."""
_BATCH_BYTES: Final = 16 << 20
"""Bytes that do, where there is a bound; the row that reaches it is still among them."""
_UNBOUNDED_BYTES: Final = (1 << 31) - 1
"""What Spark takes for no bound. With any other it measures the whole batch again for each row,
which takes 17 us where there is a column of headers."""
_MOST_FOR_A_LARGE: Final = 16
"""When one of so many rows is large, the next batch goes by size as a whole."""
FAR_MS: Final = (2**63 - 1) // 1000
"""The greatest timestamp that Spark can hold."""
_FAILS: Final = re.compile(r"ArithmeticException: long overflow|overflows when converting to Spark")
_RECORDS: Final = 500
_POLL_S: Final = 0.1
_SILENCE_S: Final = 60.0
_GRACE_S: Final = 3.0
"""So long tasks may read once the job is to stop; the next start reads what they did not stage."""


class SparkSource:
    """The input topics, as Spark reads them."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        topics: KafkaTopics,
        outages: Outages,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._topics = topics
        self._outages = outages
        self._small = SmallBatches(
            KafkaRanges(Reader(kafka=kafka, patience_s=PATIENCE_S, is_stopping=self._is_stopping)),
            settings,
            outages.tell,
            is_stopping=self._is_stopping,
        )
        self._expects_large = False
        self._expects_far = False

    def _is_stopping(self) -> bool:
        return self._outages.is_over

    def stage(
        self, rows: DataFrame, writer: RunWriter, *, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        """See `Source`."""
        here = self._small.stage(writer, spans, partitions)
        found = self._by_tasks(rows, writer, step, spans, partitions) if here is None else [here]
        self._small.learn(found)
        read = sum(one.read for one in found)
        self._expects_large = _MOST_FOR_A_LARGE * sum(one.large for one in found) > read
        return found

    def matcher(self, pattern: str) -> Callable[[str], bool]:
        """See `Source`; Spark matches by Java's rules, so these have to tell."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's patterns
        try:
            compiled = jvm.java.util.regex.Pattern.compile(pattern)
        except (Py4JError, PySparkException) as error:
            raise TopicError(
                f"input_pattern {pattern!r} is not a Java regular expression"
            ) from error
        return lambda topic: bool(compiled.matcher(topic).matches())

    def _by_tasks(
        self, rows: DataFrame, writer: RunWriter, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        rows = in_few_tasks(rows, sum(first < stop for first, stop in spans.values()))
        rows = rows.withColumn("output_partition", output_partition(self._spark, partitions))
        found = None
        if not self._expects_far:
            # A broker that hangs holds a task for two minutes.
            with SparkWorkers(self._spark).ended_at(self._is_stopping, _GRACE_S):
                found = self._by_spark(rows, step, writer)
        if found is None:
            found = [writer.write(self._read(spans, partitions))]
            self._expects_far = found[0].max_timestamp_ms > FAR_MS
        return found

    def _by_spark(self, rows: DataFrame, step: int, writer: RunWriter) -> list[Summary] | None:
        """Write what Spark reads; None where it cannot, for the timestamp of a row."""
        columns = [*SOURCE_COLUMNS, "output_partition"]
        try:
            # A tombstone's event time depends on the rows before it, large ones among them.
            if self._expects_large or writer.dates_tombstones:
                return _written(rows.select(*columns), writer, by_size=True)
            rows = rows.withColumn("is_large", payload_bytes() > LARGE_ROW_BYTES)
            found = _written(rows.select(*_without_large(columns)), writer)
            if large := sum(one.left_out for one in found):
                rest = rows.where("is_large").select(*columns)
                found += (behind := _written(rest, writer, by_size=True))
                if (read := sum(one.read for one in behind)) != large:
                    raise ConservationError(f"step {step}: {large} large rows, {read} were read")
        except (Py4JError, PySparkException) as error:
            if not is_far(error):
                raise
            self._outages.tell(
                "a row has a Kafka timestamp that Spark cannot hold, as of a producer that writes "
                "nanoseconds: its batch is read without Spark's source, and what follows until a "
                "batch has none"
            )
            return None
        return found

    def _read(self, spans: Spans, partitions: int) -> Iterator[pa.RecordBatch]:
        """Yield the committed rows of some offsets, those of each partition in order."""
        left = {where: stop for where, (first, stop) in spans.items() if first < stop}
        reader = PartitionReader(self._kafka, self._topics, "sequitur-reader")
        with contextlib.closing(reader):
            reader.add({where: spans[where][0] for where in left})
            heard_s = time.monotonic()
            while left:
                found: list[Message] = []
                for one in reader.read(_RECORDS, _POLL_S):
                    if one.where not in left:
                        continue  # what has come since, and is not waited for
                    heard_s, stop = time.monotonic(), left[one.where]
                    found += [
                        message
                        for offset, message in zip(one.offsets, one.messages, strict=True)
                        if offset < stop
                    ]
                    # The last offsets may be markers: then its end, or a later record, says so.
                    if one.offsets.stop >= stop:
                        del left[one.where]
                if found:
                    yield from spread(_table(found), partitions).cast(READ_SCHEMA).to_batches()
                elif self._is_stopping():
                    raise StopRequestedError
                elif time.monotonic() - heard_s > _SILENCE_S:
                    raise UnansweredError(
                        f"no records for {_SILENCE_S:.0f} s of partitions {sorted(left)}"
                    )
        # Else they may have been passed over.
        for where, begins in self._topics.low_watermarks(spans).items():
            if begins > spans[where][0]:
                raise TopicError(f"{where} begins at offset {begins}, and not at {spans[where][0]}")


def is_far(error: BaseException) -> bool:
    """Tell whether Spark's source has failed of such a timestamp."""
    return _FAILS.search(text_of(error)) is not None


def _table(found: Sequence[Message]) -> pa.Table:
    return pa.table(
        {
            "topic": [one.topic() for one in found],
            "partition": [one.partition() for one in found],
            "offset": [one.offset() for one in found],
            "timestamp_ms": [one.timestamp()[1] for one in found],
            "key": [one.key() for one in found],
            "value": [one.value() for one in found],
            "headers": [
                [{"key": name, "value": said} for name, said in headers_of(one)] or None
                for one in found
            ],
            "output_partition": [0] * len(found),
        },
        schema=READ_SCHEMA,
    )


def _without_large(columns: Sequence[str]) -> list[Column]:
    """Return the columns of rows, with nothing that is large in them: a large row has no topic."""
    return [
        F.when(~F.col("is_large"), F.col(name)).alias(name)
        if name in {"topic", "key", "value", "headers"}
        else F.col(name)
        for name in columns
    ]


def _written(rows: DataFrame, writer: RunWriter, *, by_size: bool = False) -> list[Summary]:
    """Have tasks write rows as parts of a run; what each of them saw.

    What goes to Python together is bound by rows, and with `by_size` by bytes, too.
    """
    conf = rows.sparkSession.conf  # a query has a session of its own
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _BATCH_ROWS)
    most_bytes = _BATCH_BYTES if by_size else _UNBOUNDED_BYTES
    conf.set("spark.sql.execution.arrow.maxBytesPerBatch", most_bytes)
    answers = rows.mapInArrow(writer, SUMMARY_SCHEMA).collect()
    return [pickle.loads(answer["summary"]) for answer in answers]  # noqa: S301 - our own tasks' answers


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
        paths = [spec.path] if spec.is_pointer else [spec.path, (".".join(spec.path),)]
        text = F.coalesce(*map(_json_text, dict.fromkeys(paths)))
    return F.coalesce(
        _by_unit(text.try_cast("bigint"), spec.format.unit),
        F.unix_millis(text.try_cast("timestamp")),
    )


def _json_text(names: tuple[str, ...]) -> Column:
    """Return the text of a field; null where names have characters that Spark's paths cannot."""
    if any(set("'*?") & set(name) for name in names):
        return F.lit(None).cast("string")
    path = "$" + "".join(f"['{name}']" for name in names)
    return F.get_json_object(F.col("value").cast("string"), path)


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
