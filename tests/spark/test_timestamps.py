"""Kafka timestamps: those of the ordered topic, and those of the input that Spark cannot hold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from sequitur.consumer import LatePolicy
from sequitur.consumer.event_time import (
    EVENT_TIME_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_TIMESTAMP_HEADER,
)
from tests.spark.conftest import BOTH_WAYS
from tests.spark.kill_rounds import BY_DRIVER, BY_TASKS
from tests.support.events import T0, Event, by_partition, event, time_of
from tests.support.odd_headers import READ_BY_JAVA, send_odd_headers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sequitur.cli.topic_reader import TopicRecord
    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job, StorageFolder

pytestmark = pytest.mark.spark


_MINUTE_MS = 60_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _told(record: TopicRecord) -> int:
    """The event time as any reader has it: from the header, else from the timestamp."""
    header = record.header(EVENT_TIME_HEADER)
    return record.timestamp_ms if header is None else int(header)


_FLOOR_MS = 6 * 3_600_000


def _first_from(job: Job, partition: int, time_ms: int) -> int:
    """Where Kafka's index of times says that records of a time begin."""
    options = {**job.kafka.librdkafka(), "group.id": "seeks"}
    with contextlib.closing(Consumer(options)) as consumer:
        asked = TopicPartition(job.settings.output_topic, partition, time_ms)
        (found,) = consumer.offsets_for_times([asked], timeout=PATIENCE_S)
        return found.offset


def _sent_shuffled(job: Job, times: list[int]) -> None:
    """Two rows of each time, out of order by less than the delay."""
    mixed = [time for pair in zip(times[1::2], times[::2], strict=True) for time in pair]
    job.produce([event(time, key=f"k{n}", partition=n % 4) for n in range(8) for time in mixed])


@pytest.mark.test_all
@pytest.mark.promise("order-consumer-seeks-time")
def test_seeking_by_time_finds_what_happened_then(job: Job, spark: SparkSession) -> None:
    """By librdkafka and by Kafka's own consumer, which Spark reads with."""
    begin = _now_ms() - 20 * _MINUTE_MS
    times = [begin + 100 * n for n in range(1_000)]
    _sent_shuffled(job, times)
    job.run(drain=True)
    records = job.released()
    assert len(records) == 8_000
    wanted = begin + 50_000
    for partition, own in by_partition(records).items():
        assert [record.timestamp_ms for record in own] == sorted(time_of(record) for record in own)
        assert all(record.timestamp_ms == time_of(record) for record in own)
        assert all(record.header(EVENT_TIME_HEADER) is None for record in own)
        first = min(record.offset for record in own if time_of(record) >= wanted)
        assert _first_from(job, partition, wanted) == first
    read = (
        spark.read.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in job.kafka.java().items()})
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", job.settings.output_topic)
        .option("startingTimestamp", str(wanted))
        .option("startingOffsetsByTimestampStrategy", "latest")  # of partitions without such rows
        .load()
    )
    assert read.count() == sum(time_of(record) >= wanted for record in records)


@pytest.mark.test_all
@pytest.mark.promise("order-backfill-years-ago")
def test_backfill_stays_within_the_floor(job: Job) -> None:
    """Rows of years ago and of a moment ahead are clamped, never fall, and say when they were."""
    begun = _now_ms()
    old = [1_700_000_000_000 + n for n in range(50)]
    recent = [begun - 2 * _FLOOR_MS + n * _FLOOR_MS // 50 for n in range(102)]
    job.produce([event(time, key=f"k{n % 9}", partition=0) for n, time in enumerate(old)])
    job.run()
    job.produce([event(time, key=f"k{n % 9}", partition=0) for n, time in enumerate(recent)])
    job.run(drain=True)
    ended = _now_ms()
    records = job.released()
    assert len(records) == 152
    for own in by_partition(records).values():
        assert all(one.timestamp_ms <= other.timestamp_ms for one, other in pairwise(own))
    for record in records:
        assert begun - _FLOOR_MS <= record.timestamp_ms <= ended
        assert _told(record) == time_of(record)
    clamped = [record for record in records if record.header(EVENT_TIME_HEADER) is not None]
    assert {time_of(record) for record in clamped} >= {*old, recent[-1]}
    assert len(clamped) < len(records) - 40


@pytest.mark.test_all
@pytest.mark.promise("order-consumer-seeks-time")
def test_topic_that_sets_timestamps_itself_gets_the_header(job: Job, make_topic: MakeTopic) -> None:
    """With `message.timestamp.type = LogAppendTime` ours are thrown away."""
    output = make_topic(partitions=2, message_timestamp_type="LogAppendTime")
    appended = job.with_settings(output_topic=output, app=output)
    begin = _now_ms() - _MINUTE_MS
    job.produce([event(begin + n, partition=0) for n in range(20)])
    appended.run(drain=True)
    records = appended.released()
    assert [_told(record) for record in records] == [begin + n for n in range(20)]
    assert all(record.timestamp_ms > begin + 20 for record in records)


@pytest.mark.test_all
@pytest.mark.promise("order-consumer-seeks-time")
def test_late_rows_that_are_emitted_get_a_timestamp_that_brokers_take(
    job: Job, storage: StorageFolder
) -> None:
    """Their event time is in the header, where it is too old for one."""
    planned = job.with_settings(checkpoint=storage.uri, late_policy=LatePolicy.EMIT, rescue=False)
    begin = _now_ms() - 10 * _MINUTE_MS
    old = 1_700_000_000_000
    job.produce([event(begin + n * 1_000, partition=0) for n in range(40)])
    planned.run(drain=True)
    job.produce([event(old, partition=0), event(begin + 40_000, partition=0)])
    planned.run(drain=True)
    records = planned.released()
    times = [begin + n * 1_000 for n in range(40)]
    assert [_told(record) for record in records] == [*times, old, begin + 40_000]
    is_time = [record.timestamp_ms == time_of(record) for record in records]
    assert is_time == [True] * 40 + [False, True]
    assert all(record.timestamp_ms >= begin - _FLOOR_MS for record in records)


@pytest.mark.test_all
@pytest.mark.promise("order-machine-clock-hours")
def test_clock_that_was_ahead_and_is_put_right_stops_nothing(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """Brokers refuse what is an hour ahead: the next step takes the clock's time, and says so."""
    now_ms = _now_ms()
    job.produce([event(now_ms - 5_000 + n, partition=0) for n in range(20)])
    job.run(drain=True, now_ms=lambda: _now_ms() + 5 * 3_600_000)
    job.produce([event("no time", partition=0)])
    job.run()
    (bad,) = job.quarantined()
    assert bad.timestamp_ms <= _now_ms()
    assert "timestamps go back to it" in capfd.readouterr().err


_FAR: Final = T0 * 1_000_000
"""T0 in nanoseconds, which a broker takes for milliseconds."""


def _take_any_timestamp(job: Job) -> None:
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        job.topic,
        incremental_configs=[
            ConfigEntry(
                "message.timestamp.after.max.ms",
                str(2**63 - 1),
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    admin = AdminClient(job.kafka.librdkafka())
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@pytest.mark.promise("order-record-kafka-timestamp")
@pytest.mark.parametrize(
    "way", [BY_DRIVER, pytest.param(BY_TASKS, marks=pytest.mark.test_all)], ids=["driver", "tasks"]
)
def test_row_with_a_timestamp_in_nanoseconds_keeps_its_place(job: Job, way: dict[str, int]) -> None:
    """It comes out in its order with all others; what is read after it, too, by Spark again."""
    _take_any_timestamp(job)
    sent = [event(T0 + 10 * (n ^ 1), key=f"k{n % 7}", partition=n % 2, n=n) for n in range(200)]
    for n in (20, 21, 57):
        sent[n] = replace(sent[n], timestamp_ms=_FAR, headers=[("a", b"1")])
    sent[30] = replace(sent[30], value=b"no time", key=None)
    job.produce(sent)
    # Spark's client reads headers whose names are no UTF-8, and the one that stands in does not.
    odd = [event(T0 + 10 * n).value for n in range(3)]
    assert all(odd)
    asyncio.run(
        send_odd_headers(job.kafka.bootstrap_servers, job.topic, [*filter(None, odd)], partition=2)
    )
    job = job.with_settings(max_offsets_per_trigger=60, **way)
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (203, 202, 0)
    found = job.released()
    named = [one for one in found if one.header(READ_BY_JAVA) == b"1"]
    assert [one.value for one in named] == odd
    found = [one for one in found if one not in named]
    for records in by_partition(found).values():
        times = [time_of(record) for record in records]
        assert times == sorted(times)
    assert sorted(map(time_of, found)) == sorted(T0 + 10 * (n ^ 1) for n in range(200) if n != 30)
    marked = [one for one in found if any(name == "a" for name, _ in one.headers)]
    assert sorted(map(time_of, marked)) == [T0 + 10 * (n ^ 1) for n in (21, 20, 57)]
    (bad,) = job.quarantined()
    assert bad.value == b"no time"
    job.produce([event(T0 + 5000 + n, partition=n % 2) for n in range(20)])
    assert job.run(drain=True).totals.released == 222


@pytest.mark.test_all
@pytest.mark.promise("order-record-kafka-timestamp")
@BOTH_WAYS
def test_timestamp_in_nanoseconds_is_no_event_time(job: Job, way: dict[str, int]) -> None:
    """With `kafka-timestamp` the row is quarantined, and says what it had."""
    _take_any_timestamp(job)
    job = job.with_settings(event_time="kafka-timestamp", timestamp_floor="1 h", **way)
    job.produce(
        Event(value=b"%d" % n, key=b"k", partition=0, timestamp_ms=_FAR if n == 5 else T0 + n)
        for n in range(10)
    )
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released) == (10, 9)
    assert [record.value for record in job.released()] == [b"%d" % n for n in range(10) if n != 5]
    (bad,) = job.quarantined()
    assert bad.value == b"5"
    assert bad.header(REASON_HEADER) is not None
    assert bad.header(SOURCE_OFFSET_HEADER) == b"5"
    assert bad.header(SOURCE_TIMESTAMP_HEADER) == b"%d" % _FAR
