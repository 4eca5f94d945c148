"""Timestamps of ordered rows; on brokers: tests/spark/test_timestamps.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from tests.support.events import Event, event

if TYPE_CHECKING:
    from tests.support.list_job import ListJob, Written


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _told(record: Written) -> int:
    """The event time as any reader has it: from the header, else from the timestamp."""
    header = record.header(EVENT_TIME_HEADER)
    return record.timestamp_ms if header is None else int(header)


_MINUTE_MS = 60_000


@pytest.mark.promise("order-consumer-seeks-time")
def test_kafka_timestamps_are_not_lost(job: ListJob) -> None:
    stamped = job.with_settings(event_time="kafka-timestamp")
    begin = _now_ms() - _MINUTE_MS
    job.produce([Event(value=b"%d" % n, partition=0, timestamp_ms=begin + n) for n in range(100)])
    stamped.run(drain=True)
    assert [record.timestamp_ms for record in stamped.released()] == [begin + n for n in range(100)]


def test_timestamps_of_the_source_and_of_now(job: ListJob) -> None:
    """What the setting names; the event time is then in the header."""
    begin = _now_ms() - 30 * _MINUTE_MS
    events = [
        Event(value=event(begin + n).value, key=b"k", partition=0, timestamp_ms=begin + 7_000 + n)
        for n in range(20)
    ]
    job.produce(events)
    source = job.with_settings(output_timestamp=OutputTimestamp.SOURCE)
    source.run(drain=True)
    assert [record.timestamp_ms for record in job.released()] == [
        begin + 7_000 + n for n in range(20)
    ]
    assert [_told(record) for record in job.released()] == [begin + n for n in range(20)]
    job.produce([event(begin + _MINUTE_MS, partition=0)])
    now_ms = job.tester.now_ms
    job.with_settings(output_timestamp=OutputTimestamp.NOW).run(drain=True)
    last = job.released()[-1]
    assert last.timestamp_ms == now_ms
    assert _told(last) == begin + _MINUTE_MS
