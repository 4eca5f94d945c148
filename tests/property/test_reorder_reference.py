"""The pure parts of the reorder job put out what the reference does, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import (
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
