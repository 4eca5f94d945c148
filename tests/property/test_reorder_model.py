"""The clock and the steps under random disorder, silence and rereading."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import EventClock, SourcePartition
from tests.support.reorder_model import ReorderModel, Row

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
