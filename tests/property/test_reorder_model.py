"""The pure parts of the reorder job under random disorder put out what the reference does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import (
    EventClock,
    SourcePartition,
    TimeBounds,
    TimeUnit,
    parse_event_time_spec,
    read_event_time,
)
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS, PARTITIONS, histories
from tests.support.reorder_model import ReorderModel, Row
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
    assert clock == EventClock.from_document(json.loads(json.dumps(clock.to_document())))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[list[Row] | None], dict[SourcePartition, int]]:
    """Batches (None: a tick) that read some partitions to the end, each at its own speed."""
    ends = dict.fromkeys(_PARTITIONS, 0)
    steps: list[list[Row] | None] = []
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            rows = []
            for partition in _PARTITIONS:
                for time_ms in draw(st.lists(_times, max_size=4)):
                    rows.append(Row(time_ms, partition, ends[partition]))
                    ends[partition] += 1
            steps.append(rows)
        else:
            steps.append(None)
    return steps, ends


@given(_histories(), st.integers(0, 20), st.integers(0, 50), st.integers(0, 40))
def test_every_row_comes_out_once_and_in_order(
    history: tuple[list[list[Row] | None], dict[SourcePartition, int]],
    delay_ms: int,
    idle_ms: int,
    step_ms: int,
) -> None:
    """Released and late rows are the rows read; the released ones ascend; the late ones were."""
    steps, ends = history
    model = ReorderModel(delay_ms=delay_ms, idle_timeout_ms=idle_ms, ends=ends)
    now_ms = 0
    read: list[Row] = []
    for rows in steps:
        now_ms += step_ms
        if rows is None:
            model.tick(now_ms=now_ms)
            continue
        frontier_ms, late_before = model.clock.frontier_ms, len(model.late)
        model.batch(rows, now_ms=now_ms)
        read += rows
        assert all(row.event_time_ms < frontier_ms for row in model.late[late_before:])
        assert sorted(read) == sorted(model.released + model.late + model.held)
    model.drain()
    assert model.held == []
    assert sorted(read) == sorted(model.released + model.late)
    times = [row.event_time_ms for row in model.released]
    assert sorted(times) == times


@given(_histories(), st.integers(0, 20))
def test_no_row_is_late_that_a_merged_reader_would_not_call_late(
    history: tuple[list[list[Row] | None], dict[SourcePartition, int]], delay_ms: int
) -> None:
    """With every partition live, lateness means: behind each partition's maximum by the delay."""
    steps, ends = history
    # One row ahead of us in each partition: nobody is idle.
    behind = {partition: end + 1 for partition, end in ends.items()}
    model = ReorderModel(delay_ms=delay_ms, idle_timeout_ms=0, ends=behind)
    seen = dict.fromkeys(_PARTITIONS, -1)
    for rows in filter(None, steps):
        late_before = len(model.late)
        model.batch(rows, now_ms=0)
        for row in model.late[late_before:]:
            assert all(row.event_time_ms < seen[p] - delay_ms for p in _PARTITIONS)
        for row in rows:
            seen[row.source] = max(seen[row.source], row.event_time_ms)


_SPEC = parse_event_time_spec("json:at")
_EARLIEST_MS = 946_684_800_000
_SOURCES = [SourcePartition("t", number) for number in PARTITIONS]


@pytest.mark.promise("order-random-disorder-silence")
@given(histories(max_steps=12, max_sent=8), st.booleans())
def test_the_pure_parts_put_out_what_the_reference_does(history: History, is_bounded: bool) -> None:
    """Frontier, released, late and quarantined rows agree row for row, restarts at any step."""
    reference = Reference(
        delay_ms=history.delay_ms,
        idle_timeout_ms=history.idle_timeout_ms,
        max_future_skew_ms=MAX_FUTURE_SKEW_MS,
        rescue=False,
        is_bounded=is_bounded,
    )
    model = ReorderModel(
        delay_ms=history.delay_ms,
        idle_timeout_ms=history.idle_timeout_ms,
        ends=dict.fromkeys(_SOURCES, 0),
        is_bounded=is_bounded,
    )
    offsets = dict.fromkeys(_SOURCES, 0)
    quarantined: list[tuple[Record, str]] = []
    now_ms = history.start_ms
    for step in history.steps:
        now_ms += step.passed_ms
        records: list[Record] = []
        rows: list[Row] = []
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
                rows.append(Row(time.ms, source, record.offset))
        unread = {_SOURCES[number] for number in step.unread}
        model.positions.update(offsets)
        model.ends.update({s: offsets[s] + (s in unread) for s in _SOURCES})
        if step.dies:
            model.restart()
        if rows:
            model.batch(rows, now_ms=now_ms)
        else:
            model.tick(now_ms=now_ms)
        reference.step(records, _SOURCES, now_ms=now_ms, unread=unread)
        assert model.clock.frontier_ms == reference.frontier_ms
        assert _places(model.released) == _places(reference.released)
        assert sorted(_places(model.late)) == sorted(_places(reference.late))
    model.drain()
    reference.drain()
    assert _places(model.released) == _places(reference.released)
    assert sorted(map(repr, quarantined)) == sorted(map(repr, reference.quarantined))


def _places(rows: list[Row] | list[Record]) -> list[tuple[int, int]]:
    return [
        (row.source.partition if isinstance(row, Row) else row.partition, row.offset)
        for row in rows
    ]
