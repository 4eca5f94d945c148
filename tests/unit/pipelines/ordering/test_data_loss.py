"""What of the input was lost before it was read, and where reading goes on."""

from __future__ import annotations

import pytest

from sequitur.consumer.reorder.clock import EventClock
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_input import lost_offsets, rows_lost

_READ = SourcePartition("in", 0)
_GONE = SourcePartition("gone", 0)
_NEW = SourcePartition("in", 1)
_NEW_AND_WHOLE = SourcePartition("in", 2)


def _clock() -> EventClock:
    clock = EventClock()
    for where, position in ((_READ, 10), (_GONE, 3)):
        clock = clock.observe(
            where, max_event_time_ms=100, position=position, high_watermark=12, now_ms=0
        )
    return clock


@pytest.mark.promise("order-partition-new-last")
def test_what_is_gone_counts_from_where_it_was_to_be_read() -> None:
    """From the position, to the known end of what is not there any more, and of a new one all."""
    lost = lost_offsets(_clock(), {_READ: 14, _NEW: 5, _NEW_AND_WHOLE: 0})
    assert lost == {_READ: (10, 14), _GONE: (3, 12), _NEW: (0, 5)}
    assert rows_lost(lost) == 4 + 9 + 5


@pytest.mark.promise("order-partition-new-last")
def test_reading_goes_on_behind_what_is_gone() -> None:
    """Then nothing counts as lost any more, and each partition that is there has a place."""
    first = {_READ: 14, _NEW: 5, _NEW_AND_WHOLE: 0}
    clock = _clock().passed_over(first, now_ms=7)
    positions = {where: one.position for where, one in clock.partitions.items()}
    assert positions == first
    assert clock.partitions[_READ].max_event_time_ms == 100
    assert clock.partitions[_NEW].max_event_time_ms is None
    assert lost_offsets(clock, first) == {}
