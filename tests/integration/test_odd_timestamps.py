"""Records whose Kafka timestamps are no milliseconds, as of a producer that writes nanoseconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from sequitur.base.copy_headers import SOURCE_OFFSET_HEADER, SOURCE_TIMESTAMP_HEADER
from sequitur.consumer.reorder.reasons import REASON_HEADER
from tests.support.broker_job import BOTH_WAYS
from tests.support.events import T0, Event, by_partition, event, time_of
from tests.support.odd_headers import READ_BY_JAVA, send_odd_headers
from tests.support.values import replace

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob

_FAR: Final = T0 * 1_000_000
"""T0 in nanoseconds, which a broker takes for milliseconds."""


def _any_timestamp(make_topic: MakeTopic) -> list[str]:
    """Return a topic that takes any from the beginning: a broker takes time for a change."""
    return [make_topic(message_timestamp_after_max_ms=2**63 - 1)]


@pytest.mark.promise("order-record-kafka-timestamp")
@BOTH_WAYS
def test_row_with_a_timestamp_in_nanoseconds_keeps_its_place(
    job: BrokerJob, make_topic: MakeTopic, way: dict[str, int]
) -> None:
    """It comes out in its order with all others, and so does what is read after it."""
    job = job.with_settings(input_topics=_any_timestamp(make_topic))
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
def test_timestamp_in_nanoseconds_is_no_event_time(
    job: BrokerJob, make_topic: MakeTopic, way: dict[str, int]
) -> None:
    """With `kafka-timestamp` the row is quarantined, and says what it had."""
    job = job.with_settings(
        input_topics=_any_timestamp(make_topic),
        event_time="kafka-timestamp",
        timestamp_floor="1 h",
        **way,
    )
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
