"""`sequitur.spark.ExactlyOnceKafka`: rows of a user's own, each into the topic once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.errors import ColumnsError, RowRefusedError, SinkError, TopicError
from sequitur.pipelines import workers
from sequitur.pipelines.spark_sink.placed_rows import rows_to_stage
from tests.spark.spark_sink import PARTITIONS, Sink, check_records, numbered
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from tests.conftest import MakeTopic
    from tests.support.broker_job import StorageFolder

pytestmark = pytest.mark.spark


def _plain(sink: Sink, rows: DataFrame, **options: Any) -> Any:
    return sink.new(order_by=(), **options).write(rows, name="one")


def test_rows_of_a_stream_are_there_once_and_in_order(sink: Sink, tmp_path: Path) -> None:
    """Of a real query, over several batches and lives; and the session is left as it was."""
    (tmp_path / "input").mkdir()
    before = {name: sink.spark.conf.get(name) for name in sink.spark.conf.getAll}

    def live(first: int, last: int) -> None:
        numbered(sink.spark, range(first, last)).coalesce(1).write.mode("append").parquet(
            str(tmp_path / "input")
        )
        rows = sink.spark.readStream.schema("n long, key string, value string")
        query = (
            rows.option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / "input"))
            .writeStream.foreachBatch(sink.new())
            .option("checkpointLocation", str(tmp_path / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    live(0, 300)
    live(300, 400)
    sink.check(400)
    assert {name: sink.spark.conf.get(name) for name in sink.spark.conf.getAll} == before


@pytest.mark.test_all
def test_a_second_dataframe_of_a_batch_is_refused(sink: Sink, tmp_path: Path) -> None:
    """It would look like the batch again, and be left out; what failed may be repeated."""
    numbered(sink.spark, range(100)).coalesce(1).write.parquet(str(tmp_path / "input"))
    one = sink.new()

    def halves(rows: DataFrame, batch_id: int) -> None:
        with pytest.raises(ColumnsError):
            one(rows.drop("value"), batch_id)
        one(rows.where("n % 2 = 0"), batch_id)
        one(rows.where("n % 2 = 1"), batch_id)

    rows = sink.spark.readStream.schema("n long, key string, value string")
    query = (
        rows.parquet(str(tmp_path / "input"))
        .writeStream.foreachBatch(halves)
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="batch 0 was given to this sink already"):
        query.awaitTermination()
    assert len(sink.records()) == 50


@pytest.mark.test_all
def test_checkpoint_stands_where_it_is_told(sink: Sink, storage: StorageFolder) -> None:
    """On a path, or in an object store; a life after it goes on there."""
    sink.options = {"checkpoint": storage.uri}
    sink.batch(0, range(100))
    sink.new()
    sink.batch(0, range(100))
    sink.batch(1, range(100, 150))
    sink.check(150)


@pytest.mark.test_all
def test_large_batches_are_sent_by_tasks(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver sends small ones."""
    monkeypatch.setattr(workers, "_SMALL_BYTES", 0)
    sink.batch(0, range(500))
    sink.batch(1, range(500, 900))
    sink.check(900)


@pytest.mark.test_all
def test_empty_batches_are_steps_too(sink: Sink) -> None:
    """A stream with state has batches without rows: before the first rows, and behind."""
    for batch_id, rows in enumerate([range(0), range(20), range(0), range(20, 40)]):
        sink.batch(batch_id, rows)
        sink.new()
    sink.check(40)


@pytest.mark.test_all
def test_records_have_what_rows_have(sink: Sink) -> None:
    """Key, value and headers byte for byte, null or not; partition and timestamp where given."""
    now_ms = time.time_ns() // 1_000_000
    rows = sink.spark.createDataFrame(
        [
            (b"k\xff", b"v\x00", [("h", b"1"), ("h", None)], 3, now_ms - 1000),
            (b"", b"", [], 2, now_ms - 2000),
            (None, None, None, 1, now_ms - 3000),
        ],
        "key binary, value binary, headers array<struct<key string, value binary>>, "
        "partition int, at long",
    ).withColumn("timestamp", F.timestamp_millis("at"))
    _plain(sink, rows)
    found = {one.partition: one for one in sink.records()}
    assert [(found[n].key, found[n].value) for n in (1, 2, 3)] == [
        (None, None),
        (b"", b""),
        (b"k\xff", b"v\x00"),
    ]
    assert [(name, value) for name, value in found[3].headers] == [("h", b"1"), ("h", None)]
    assert [found[n].timestamp_ms for n in (1, 2, 3)] == [now_ms - n * 1000 for n in (3, 2, 1)]


@pytest.mark.test_all
def test_spark_writes_no_null_lists_for_tasks(sink: Sink) -> None:
    """For a batch with null lists its writer of Arrow takes time by the square of its rows."""
    rows = numbered(sink.spark, range(3)).select("key", "value")
    assert rows_to_stage(rows, PARTITIONS, ()).columns == ["output_partition", "key", "value"]
    nulls = rows.withColumn(
        "headers", F.lit(None).cast("array<struct<key: string, value: binary>>")
    )
    found = rows_to_stage(nulls, PARTITIONS, ()).select("headers").collect()
    assert [one["headers"] for one in found] == [[], [], []]


def test_rows_without_headers_are_taken_whatever_type_spark_gives_empty_lists(sink: Sink) -> None:
    name = "spark.sql.legacy.createEmptyCollectionUsingStringType"
    before = str(sink.spark.conf.get(name))
    sink.spark.conf.set(name, "true")
    try:
        rows = numbered(sink.spark, range(2)).select("value", "n")
        header = F.struct(F.lit("h").alias("key"), F.lit(b"1").alias("value"))
        rows = rows.withColumn("headers", F.when(F.col("n") == 1, F.array(header)))
        found = rows_to_stage(rows, PARTITIONS, ()).orderBy("value").collect()
    finally:
        sink.spark.conf.set(name, before)
    assert [one["headers"] for one in found] == [[], [("h", b"1")]]


@pytest.mark.test_all
def test_rows_without_a_key_go_where_their_value_says(sink: Sink) -> None:
    """In whatever order and in however many parts Spark has them."""
    rows = sink.spark.range(200).select(F.col("id").cast("string").alias("value"))
    sink.new(order_by=())
    sink.write("one", rows)
    sink.write("two", rows.repartition(5).orderBy(F.rand()))
    placed = [(one.value, one.partition) for one in sink.records()]
    assert len(placed) == 400
    assert len({*placed}) == 200
    assert {partition for _, partition in placed} == {0, 1, 2, 3}


@pytest.mark.test_all
def test_rows_keep_the_order_they_have(sink: Sink) -> None:
    """Those of an input partition, where nothing is said of the order."""
    rows = sink.spark.range(0, 400, 1, 1).select(
        F.lit("k").alias("key"), F.col("id").cast("string").alias("value")
    )
    _plain(sink, rows)
    assert [int(one.value or b"") for one in sink.records()] == [*range(400)]


@pytest.mark.test_all
@pytest.mark.parametrize("order", ["descending", "several"])
def test_rows_are_sorted_as_spark_sorts(sink: Sink, order: str) -> None:
    """By columns of any kind, downwards too."""
    rows = sink.spark.range(100).select(
        F.lit("k").alias("key"),
        F.col("id").cast("string").alias("value"),
        (F.col("id") % 3).alias("third"),
    )
    by: list[str | Column] = [F.col("value").cast("int").desc()]
    wanted = sorted(range(100), reverse=True)
    if order == "several":
        by = ["third", *by]
        wanted.sort(key=lambda n: n % 3)
    sink.new(order_by=by)
    sink.write("one", rows)
    assert [int(one.value or b"") for one in sink.records()] == wanted


_WRONG_TYPES = [
    ({"value": "1"}, "column 'value' is int, expected string or binary"),
    ({"value": "'v'", "key": "1L"}, "column 'key' is bigint, expected string or binary"),
    ({"value": "'v'", "partition": "1L"}, "column 'partition' is bigint, expected int"),
    ({"value": "'v'", "headers": "'h'"}, "column 'headers' is string, expected array<struct"),
    ({"value": "'v'", "timestamp": "1L"}, "column 'timestamp' is bigint, expected timestamp"),
]


@pytest.mark.promise("sink-topic-take-row")
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"n": "1"}, "there is no column 'value'"),
        *(pytest.param(*case, marks=pytest.mark.test_all) for case in _WRONG_TYPES),
    ],
)
def test_wrong_columns_are_refused_by_name(sink: Sink, columns: dict[str, str], told: str) -> None:
    rows = sink.spark.range(1).select(*(F.expr(is_).alias(name) for name, is_ in columns.items()))
    with pytest.raises(ColumnsError, match=told):
        _plain(sink, rows)
    assert [*(sink.checkpoint / "staged").iterdir()] == []


@pytest.mark.test_all
def test_an_order_that_is_none_is_refused_by_name(sink: Sink) -> None:
    with pytest.raises(ColumnsError, match=r"order_by: the rows cannot be sorted so: .*nowhere"):
        sink.new(order_by="nowhere").write(numbered(sink.spark, range(3)), name="one")
    with pytest.raises(ColumnsError, match="order_by: expected columns or their names, not 3"):
        sink.beside(order_by=[3])


_LARGE = "concat_ws('', transform(sequence(1, 1000), x -> sha2(cast(x as string), 256)))"
"""64,000 bytes of which compression leaves more than half."""
_REFUSED: Any = [
    ({}, {"value": _LARGE}, "it is larger than the topic takes"),
    ({"cleanup_policy": "compact"}, {"key": "null"}, "it has no key, and the topic is compacted"),
    ({}, {"partition": "9"}, "its partition is not one of the 4 of the topic"),
    ({}, {"timestamp": "timestamp_millis(5)"}, "its timestamp is not within"),
    ({}, {"timestamp": "now() + interval 2 hours"}, "its timestamp is not within"),
    ({}, {"headers": "array(struct(null, null))"}, "a header of it has no name"),
]


@pytest.mark.test_all
@pytest.mark.promise("sink-topic-take-row")
@pytest.mark.parametrize(("config", "column", "told"), _REFUSED)
def test_a_row_that_the_topic_does_not_take_is_named_before_anything_is_out(
    sink: Sink,
    make_topic: MakeTopic,
    config: dict[str, str],
    column: dict[str, str],
    told: str,
) -> None:
    """With its key and place; and the batch without it goes out."""
    sink.topic = make_topic(partitions=PARTITIONS, max_message_bytes=20_000, **config)
    types = {
        "key": "string",
        "value": "string",
        "partition": "int",
        "timestamp": "timestamp",
        "headers": "array<struct<key string, value binary>>",
    }
    usual = {"key": "concat('k-', n)", "value": "cast(n as string)"}
    usual |= {name: "null" for name in column if name not in usual}
    is_bad = F.col("n") == 70
    rows = sink.spark.range(100).withColumnRenamed("id", "n")
    for name, is_ in usual.items():
        bad = F.expr(column.get(name, is_))
        rows = rows.withColumn(name, F.when(is_bad, bad).otherwise(F.expr(is_)).cast(types[name]))
    named = "without a key" if "key" in column else "with the key b'k-70'"
    with pytest.raises(RowRefusedError, match=f"batch 'a': .* {named} that is number .*: {told}"):
        sink.write("a", rows)
    assert sink.records() == []
    assert [*(sink.checkpoint / "rows").iterdir()] == []
    assert sink.write("a", rows.where(~is_bad)).rows == 99
    assert len(sink.records()) == 99


@pytest.mark.test_all
@pytest.mark.promise("sink-topic-take-row")
def test_a_refused_row_is_counted_from_the_first_task_on(sink: Sink) -> None:
    rows = sink.spark.range(0, 90, 1, 3).select(
        F.when(F.col("id") == 70, 9).otherwise(3).cast("int").alias("partition"),
        F.col("id").cast("string").alias("value"),
    )
    with pytest.raises(RowRefusedError, match="number 0 of those for partition 9"):
        _plain(sink, rows)
    at = F.when(F.col("id") == 70, F.timestamp_millis(F.lit(5)))
    rows = sink.spark.range(0, 90, 1, 3).select(
        F.lit("k").alias("key"), F.col("id").cast("string").alias("value"), at.alias("timestamp")
    )
    with pytest.raises(RowRefusedError, match="key b'k' that is number 70 of those"):
        _plain(sink, rows)


@pytest.mark.test_all
def test_a_topic_has_to_be_there(sink: Sink) -> None:
    sink.topic = "nowhere"
    with pytest.raises(TopicError, match="topic 'nowhere' does not exist"):
        sink.write("a", range(3))


@pytest.mark.test_all
def test_partitions_that_are_added_get_rows(sink: Sink) -> None:
    """Keys go where Kafka's own clients send them from then on."""
    sink.write("a", range(50))
    admin = AdminClient(sink.kafka.librdkafka())
    admin.create_partitions([NewPartitions(sink.topic, 8)])[sink.topic].result(PATIENCE_S)
    sink.write("b", range(50, 400))
    sink.new()
    sink.write("c", range(400, 500))
    found = sink.records()
    assert len(found) == 500
    assert len({one.value for one in found}) == 500
    assert max(one.partition for one in found) > 3


@pytest.mark.test_all
def test_rows_of_spark_connect_are_refused(sink: Sink) -> None:
    rows: Any = object()
    with pytest.raises(SinkError, match="Spark Connect"):
        sink.new().write(rows, name="a")


@pytest.mark.test_all
def test_two_streams_of_one_driver_do_not_meet(sink: Sink, make_topic: MakeTopic) -> None:
    other = Sink(
        sink.spark,
        sink.kafka,
        make_topic(partitions=PARTITIONS),
        sink.checkpoint.with_name("other"),
        "query-2",
    )

    def run(one: Sink) -> None:
        for batch_id in range(5):
            one.batch(batch_id, range(100 * batch_id, 100 * batch_id + 100))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, one) for one in (sink, other)]:
            done.result()
    check_records(sink.records(), 500)
    check_records(other.records(), 500)
    other.close()
