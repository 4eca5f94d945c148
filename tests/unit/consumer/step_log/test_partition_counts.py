"""By how many partitions rows go to an output topic that has grown."""

from __future__ import annotations

import json

import pytest

from sequitur.consumer import EventClock, SourcePartition
from sequitur.consumer.lateness import Fold, KeyState, Run
from sequitur.consumer.step_log import PartitionCounts, StepEntry, StepKind, Totals

_GROWN = PartitionCounts((2,)).grown(3, 100).grown(7, 250)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 99, (2,)),
        (0, 100, (2,)),
        (100, 101, (2, 3)),
        (101, 250, (3,)),
        (0, 251, (2, 3, 7)),
        (251, 1 << 62, (7,)),
    ],
)
def test_numbers_by_which_rows_of_some_times_go(
    first: int, last: int, expected: tuple[int, ...]
) -> None:
    """A row at a cut goes by the older one."""
    assert _GROWN.within(first, last) == expected


def test_number_that_no_row_has_gone_by_is_forgotten() -> None:
    """The topic has grown twice, and nothing was staged in between."""
    assert PartitionCounts((2,)).grown(3, 100).grown(4, 100) == PartitionCounts((2, 4), (100,))


@pytest.mark.parametrize(
    ("before", "frontier", "reached"),
    [(-1, 99, 99), (-1, 300, 100), (99, 100, 100), (100, 300, 250), (250, 300, 300)],
)
def test_no_step_releases_rows_on_both_sides_of_a_cut(
    before: int, frontier: int, reached: int
) -> None:
    """What goes by the older number is out before anything that goes by the newer."""
    assert _GROWN.reached(before, frontier) == reached


@pytest.mark.parametrize("counts", [None, PartitionCounts((5,)), _GROWN])
def test_step_says_by_how_many_partitions(counts: PartitionCounts | None) -> None:
    entry = _entry(counts)
    assert StepEntry.from_document(json.loads(json.dumps(entry.to_document()))) == entry


@pytest.mark.promise("order-output-topic-gains")
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"frontier_ms": 900}, 900),
        ({"seen_ms": 901}, 901),
        ({"on_time_ms": 902}, 902),
        ({"behind_ms": 903}, 903),
        ({"folded_ms": 904}, 904),
    ],
)
def test_cut_is_behind_all_that_was_staged(told: dict[str, int], expected: int) -> None:
    """Held or out, behind the frontier or folded: what stands in files stands by the older number.

    The clocks do not say it alone: those of a topic that was made anew are forgotten.
    """
    assert _entry(None, **told).reach_ms == expected


def _entry(
    counts: PartitionCounts | None,
    *,
    frontier_ms: int = 10,
    seen_ms: int = 20,
    on_time_ms: int = 20,
    behind_ms: int = 9,
    folded_ms: int = 8,
) -> StepEntry:
    clock = EventClock(frontier_ms=frontier_ms).observe(
        SourcePartition("in", 0),
        max_event_time_ms=seen_ms,
        position=1,
        high_watermark=1,
        now_ms=0,
    )
    return StepEntry(
        step=3,
        kind=StepKind.GROWTH,
        batch_id=2,
        previous_frontier_ms=5,
        clock=clock,
        runs=(Run(2, 1, on_time_ms, on_time_ms, behind=1, max_behind_ms=behind_ms),),
        before=Totals(),
        logged_ms=0,
        keys=KeyState(folds=(Fold(1, 1, 1, folded_ms),)),
        partition_counts=counts,
    )
