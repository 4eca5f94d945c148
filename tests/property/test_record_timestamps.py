"""Which timestamps output records get: the rule, and the same of columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER, TimestampRule, now_of_step
from sequitur.kafka.record_batch import NO_STAMP, idempotent_batch, records_of
from sequitur.pipelines.rows.record_layout import Headers, record_batches, with_timestamps
from tests.support.values import replace

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FLOOR_MS = 21_600_000
_NOW_MS = 1_763_000_000_000

_TIMES = st.integers(0, 2 * _NOW_MS) | st.integers(_NOW_MS - _FLOOR_MS - 2, _NOW_MS + 2)
_RULES = st.builds(
    TimestampRule,
    taken_from=st.sampled_from(OutputTimestamp),
    now_ms=st.just(_NOW_MS) | st.integers(0, _FLOOR_MS),
    floor_ms=st.just(_FLOOR_MS),
    is_kept=st.booleans(),
    tells_event_time=st.booleans(),
)


@pytest.mark.promise("order-consumer-seeks-time", "order-step-completed-days")
@given(
    st.lists(_TIMES),
    st.lists(st.integers(-100_000, 1_000), min_size=1, max_size=3),
    _RULES,
)
def test_timestamps_fall_where_rows_fall_and_nowhere_else(
    times: list[int], steps: list[int], rule: TimestampRule
) -> None:
    """Of rows in the order of their times, over steps that follow each other, none is before one.

    All are within the floor of their step, also when the clock is set back by minutes.
    """
    rule = replace(rule, taken_from=OutputTimestamp.EVENT_TIME)
    given_out: list[int] = []
    times.sort()
    clock_ms = rule.now_ms
    for number, passed_ms in enumerate(steps):
        clock_ms = max(0, clock_ms + passed_ms)
        rule = replace(rule, now_ms=now_of_step(clock_ms, rule.now_ms))
        own = times[number * len(times) // len(steps) : (number + 1) * len(times) // len(steps)]
        found = [rule.of(time, 0)[0] for time in own]
        assert all(rule.earliest_ms <= time <= rule.now_ms for time in found)
        given_out += found
    assert given_out == sorted(given_out)


@pytest.mark.promise("order-machine-clock-hours")
@given(_TIMES, _TIMES)
def test_now_of_a_step_is_near_the_clock(clock_ms: int, before_ms: int) -> None:
    """It goes back only where the step before took what is minutes ahead: of a clock put right."""
    now_ms = now_of_step(clock_ms, before_ms)
    assert clock_ms <= now_ms <= clock_ms + 300_000
    assert now_ms >= before_ms or before_ms > clock_ms + 300_000


@pytest.mark.promise("order-consumer-seeks-time")
@given(_TIMES, _TIMES, _RULES)
def test_no_event_time_is_lost(event_time: int, source: int, rule: TimestampRule) -> None:
    timestamp_ms, is_told = replace(rule, tells_event_time=True).of(event_time, source)
    assert is_told or (rule.is_kept and timestamp_ms == event_time)


def test_what_is_taken() -> None:
    """The event time, the source's timestamp, or now; a row without a time has that of now."""
    rule = TimestampRule(OutputTimestamp.EVENT_TIME, now_ms=_NOW_MS, floor_ms=_FLOOR_MS)
    event_time, source = _NOW_MS - 7, _NOW_MS - 5
    assert rule.of(event_time, source) == (event_time, False)
    assert rule.of(None, source) == (_NOW_MS, False)
    assert replace(rule, taken_from=OutputTimestamp.SOURCE).of(event_time, source) == (source, True)
    assert replace(rule, taken_from=OutputTimestamp.NOW).of(event_time, source) == (_NOW_MS, True)
    assert rule.of(0, source) == (_NOW_MS - _FLOOR_MS, True)
    assert rule.of(_NOW_MS + 1, source) == (_NOW_MS, True)


@given(
    st.lists(st.tuples(st.none() | _TIMES, _TIMES, st.booleans()), min_size=1, max_size=8), _RULES
)
def test_columns_agree_with_the_rule(
    rows: list[tuple[int | None, int, bool]], rule: TimestampRule
) -> None:
    """Timestamps and headers of many records are those of each, behind headers of their own."""
    count = len(rows)
    own = [[{"key": "a", "value": b"1"}] if has_own else None for _, _, has_own in rows]
    table = pa.table(
        {
            "event_time_ms": pa.array([time for time, _, _ in rows], pa.int64()),
            "timestamp_ms": pa.array([source for _, source, _ in rows], pa.int64()),
        }
    )
    timestamps, headers = with_timestamps(table, Headers.of(pa.array(own, _HEADERS)), rule)
    nothing = pa.chunked_array([pa.nulls(count, pa.binary())])
    (batch,) = record_batches(nothing, nothing, headers, timestamps, 1 << 20)
    raw = idempotent_batch(
        batch.records, count, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=NO_STAMP
    )
    for (time, source, has_own), record in zip(rows, records_of(raw), strict=True):
        timestamp_ms, is_told = rule.of(time, source)
        assert record.timestamp_ms == timestamp_ms
        told = [(EVENT_TIME_HEADER, b"%d" % (time or 0))] if is_told else []
        assert list(record.headers) == ([("a", b"1")] if has_own else []) + told
    assert batch.max_ms == int(np.max(timestamps))
