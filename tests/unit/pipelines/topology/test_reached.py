"""How far a step has given all out: the frontier, and in silence the time beyond it."""

from __future__ import annotations

import pytest

from sequitur.consumer import EventClock, Look, SourcePartition, StepEntry, StepKind, Totals
from sequitur.pipelines.topology.step_runs import reached_ms

_AT_MS = 1_700_000_000_000
_IDLE_MS = 60_000
_WHERE = SourcePartition("in", 0)


def _silent_since(clock: EventClock, silent_ms: int) -> EventClock:
    """The clock once the partition, read to its end, has given nothing for so long."""
    now_ms = _AT_MS + silent_ms
    look = Look(5, 5, None if clock.partitions else _AT_MS)
    seen = clock.looked_at({_WHERE: look}, now_ms=now_ms, longest_ms=silent_ms)
    return seen.advance(now_ms=now_ms, delay_ms=0, idle_timeout_ms=_IDLE_MS)


def _decided(clock: EventClock, logged_ms: int) -> StepEntry:
    return StepEntry(
        step=1,
        kind=StepKind.TICK,
        batch_id=0,
        previous_frontier_ms=clock.frontier_ms,
        clock=clock,
        staged=Totals(),
        runs=(),
        before=Totals(),
        logged_ms=logged_ms,
    )


def test_silence_counts_from_when_a_partition_is_idle() -> None:
    """Until then more may come of it; from then on time goes on without events."""
    clock = _silent_since(EventClock(), 0)
    assert reached_ms(_decided(EventClock(), _AT_MS)) is None
    assert reached_ms(_decided(clock, _AT_MS)) == _AT_MS
    clock = _silent_since(clock, _IDLE_MS + 7_000)
    assert reached_ms(_decided(clock, _AT_MS + _IDLE_MS + 7_000)) == _AT_MS + 7_000


@pytest.mark.promise("process-step-staged-silence")
def test_silence_counts_up_to_the_last_look_at_the_input() -> None:
    """A step that the next life decides, hours later, says nothing of what has come meanwhile.

    That would be behind the watermark when it is read: late for windows, though it came in time.
    """
    clock = _silent_since(_silent_since(EventClock(), 0), _IDLE_MS + 7_000)
    clock = EventClock.from_document(clock.to_document())
    assert reached_ms(_decided(clock, _AT_MS + 8 * 3_600_000)) == _AT_MS + 7_000
    assert reached_ms(_decided(clock.drain(), _AT_MS + 8 * 3_600_000)) == _AT_MS + 7_000
