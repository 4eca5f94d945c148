"""Kafka timestamps: those of the ordered topic, and those of the input that Spark cannot hold."""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from sequitur.consumer.reorder import LatePolicy
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from tests.support.events import by_partition, event, time_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sequitur.cli.topic_reader import TopicRecord
    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job
    from tests.support.broker_job import StorageFolder

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
