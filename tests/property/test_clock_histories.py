"""The clock under random disorder: the frontier that it computes is the reference's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder import TimeUnit, parse_event_time_spec
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.event_time import read_event_time
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.kafka.partition import SourcePartition
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS, PARTITIONS, histories
from tests.support.reorder_reference import Record, Reference

if TYPE_CHECKING:
    from tests.support.reorder_histories import History


_PARTITIONS = [SourcePartition("readings", number) for number in range(3)]
_times = st.integers(0, 60)
_observations = st.lists(
    st.tuples(
        st.sampled_from(_PARTITIONS),
        st.none() | _times,
        st.integers(0, 5),  # rows that we are behind
        st.integers(0, 30),  # time that passes before
    ),
    max_size=30,
)


@given(_observations, st.integers(0, 20), st.integers(0, 50))
def test_frontier_never_moves_back(
    observations: list[tuple[SourcePartition, int | None, int, int]], delay_ms: int, idle_ms: int
) -> None:
    """Whatever is seen, the frontier only grows, and never beyond the greatest event time seen."""
    clock, now_ms = EventClock(), 0
    for partition, time_ms, behind, passed_ms in observations:
        now_ms += passed_ms
        before = clock.frontier_ms
        clock = clock.observe(
            partition,
            max_event_time_ms=time_ms,
            position=10,
            high_watermark=10 + behind,
            now_ms=now_ms,
        ).advance(now_ms=now_ms, delay_ms=delay_ms, idle_timeout_ms=idle_ms)
        assert before <= clock.frontier_ms <= clock.max_event_time_ms


@given(_observations)
def test_clock_survives_json(
    observations: list[tuple[SourcePartition, int | None, int, int]],
) -> None:
    clock = EventClock()
    for partition, time_ms, behind, now_ms in observations:
        clock = clock.observe(
            partition,
            max_event_time_ms=time_ms,
            position=3,
            high_watermark=3 + behind,
            now_ms=now_ms,
        ).advance(now_ms=now_ms, delay_ms=5, idle_timeout_ms=10)
    assert clock == load(EventClock, json.loads(json.dumps(dump(clock))))


_SPEC = parse_event_time_spec("json:at")
_EARLIEST_MS = 946_684_800_000
_SOURCES = [SourcePartition("t", number) for number in PARTITIONS]


@pytest.mark.promise("order-random-disorder-silence")
@given(histories(max_steps=12, max_sent=8), st.booleans())
def test_the_frontier_is_the_references(history: History, is_bounded: bool) -> None:
    """In a backlog, too, whoever of the partitions is idle, whichever rows have bad times."""
    reference = Reference(
        delay_ms=history.delay_ms,
        idle_timeout_ms=history.idle_timeout_ms,
        max_future_skew_ms=MAX_FUTURE_SKEW_MS,
        rescue=False,
        is_bounded=is_bounded,
    )
    clock, now_ms = EventClock(), history.start_ms
    offsets = dict.fromkeys(_SOURCES, 0)
    quarantined: list[tuple[Record, str]] = []
    for step in history.steps:
        now_ms += step.passed_ms
        records: list[Record] = []
        newest: dict[SourcePartition, int] = {}
        for sent in step.sent:
            source = _SOURCES[sent.partition]
            record = Record(*source, offsets[source], sent.key, sent.value.encode())
            offsets[source] += 1
            records.append(record)
            time = read_event_time(
                _SPEC,
                value=record.value,
                headers=None,
                kafka_timestamp_ms=-1,
                bounds=TimeBounds(_EARLIEST_MS, now_ms + MAX_FUTURE_SKEW_MS, TimeUnit.MS),
            )
            if time.reason is not None:
                quarantined.append((record, time.reason))
            else:
                assert time.ms is not None
                newest[source] = max(time.ms, newest.get(source, 0))
        unread = {_SOURCES[number] for number in step.unread}
        for source in _SOURCES:
            clock = clock.observe(
                source,
                max_event_time_ms=newest.get(source),
                position=offsets[source],
                high_watermark=offsets[source] + (source in unread),
                now_ms=now_ms,
            )
        clock = clock.advance(
            now_ms=now_ms,
            delay_ms=history.delay_ms,
            idle_timeout_ms=history.idle_timeout_ms,
            is_bounded=is_bounded,
        )
        if step.dies:
            clock = load(EventClock, json.loads(json.dumps(dump(clock))))
        reference.step(records, _SOURCES, now_ms=now_ms, unread=unread)
        assert clock.frontier_ms == reference.frontier_ms
    reference.drain()
    assert clock.drain().frontier_ms == reference.frontier_ms
    assert sorted(map(repr, quarantined)) == sorted(map(repr, reference.quarantined))
