"""Rows that a subscription had acked are counted, so that read rows are still accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder import LatePolicy
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind, Totals, finish
from sequitur.errors import ConservationError
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

_COUNTS = st.integers(0, 1 << 40)
_TOTALS = st.builds(
    Totals,
    read=_COUNTS,
    released=_COUNTS,
    late=_COUNTS,
    quarantined=st.dictionaries(st.sampled_from(["a", "b", "c"]), _COUNTS),
    duplicates=_COUNTS,
    skipped=_COUNTS,
    missing=_COUNTS,
)


@given(one=_TOTALS, two=_TOTALS)
def test_held_is_what_is_nowhere_else(one: Totals, two: Totals) -> None:
    """A row that was skipped is not held; counts of two steps add up."""
    both = one.plus(two)
    assert both.skipped == one.skipped + two.skipped
    assert both.held == one.held + two.held
    aside = both.late + sum(both.quarantined.values()) + both.duplicates + both.skipped
    assert both.read == both.held + both.released + aside


def _entry(*, skipped: int, runs: tuple[Run, ...] = ()) -> StepEntry:
    return StepEntry(
        step=0,
        kind=StepKind.BATCH,
        batch_id=0,
        previous_frontier_ms=0,
        clock=EventClock(),
        counts=Totals(read=10, late=1, quarantined={"event-time-missing": 2}, skipped=skipped),
        runs=runs,
        before=Totals(),
        logged_ms=0,
    )


def test_skipped_rows_are_accounted_for_when_a_step_is_done() -> None:
    """Of ten one is late, two are in quarantine, three skipped: four came out."""
    done = finish(_entry(skipped=3), released=4, late=1, quarantined=2)
    assert (done.totals.skipped, done.totals.released, done.totals.held) == (3, 4, 0)
    assert load(StepDone, dump(done)) == done


@pytest.mark.parametrize("rescued", [None, 2])
def test_rows_behind_the_frontier_come_out_at_once(rescued: int | None) -> None:
    """The late row, and those that were rescued; the other seven are held."""
    entry = replace(
        _entry(skipped=0, runs=(Run(0, 7, 1, 2),)), late_policy=LatePolicy.EMIT, rescued=rescued
    )
    least = 1 + (rescued or 0)
    done = finish(entry, released=least, late=0, quarantined=2)
    assert (done.totals.late, done.totals.released) == (1, rescued or 0)
    with pytest.raises(ConservationError, match=f"{least} rows older than the frontier"):
        finish(entry, released=least - 1, late=0, quarantined=2)


@pytest.mark.parametrize("released", [3, 5])
def test_a_row_too_few_or_too_many_is_noticed(released: int) -> None:
    """A row that was skipped and came out, too, or one that did neither."""
    with pytest.raises(ConservationError, match="rows held"):
        finish(_entry(skipped=3), released=released, late=1, quarantined=2)


def test_a_step_document_says_what_was_counted() -> None:
    """Rows and bytes of each partition that was read."""
    counted = {SourcePartition("in", 0): (7, 700), SourcePartition("in", 1): (0, 0)}
    entry = StepEntry.of(_entry(skipped=3), counted=counted, runs=(), before=Totals(), logged_ms=0)
    assert load(StepEntry, dump(entry)) == entry
    assert dump(entry)["counted"] == [["in", 0, 7, 700], ["in", 1, 0, 0]]
