"""The log of the reorder job's steps: what it says, and that nothing goes missing unnoticed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder import LatePolicy
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.key_state import KeyState
from sequitur.consumer.reorder.learned_delay import LearnedDelays, StepLateness
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import (
    StagedStep,
    StepDone,
    StepEntry,
    StepKind,
    Totals,
    finish,
)
from sequitur.errors import ConservationError, StateFormatError
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

A = SourcePartition("readings", 0)


def _entry(**changes: Any) -> StepEntry:
    entry = StepEntry(
        step=3,
        kind=StepKind.BATCH,
        batch_id=2,
        previous_frontier_ms=10,
        clock=EventClock(frontier_ms=50).observe(
            A, max_event_time_ms=60, position=1, high_watermark=2, now_ms=5
        ),
        counts=Totals(read=9, late=2, quarantined={"event-time-missing": 3}),
        runs=(Run(2, rows=5, min_event_time_ms=11, max_event_time_ms=60), Run(3, 4, 20, 40)),
        before=Totals(read=20, released=15),
        logged_ms=1_700_000_000_000,
    )
    return replace(entry, **changes)


def test_entry_and_mark_survive_json() -> None:
    """What is written to disk reads back the same."""
    learned = LearnedDelays().learn(
        A,
        StepLateness(rows=7, late=1, behind={30: 2}),
        reached_ms=60,
        half_life_ms=10,
        is_backlog=False,
    )
    learning = _entry(learned=learned)
    assert learning == load(StepEntry, json.loads(json.dumps(dump(learning))))
    entry, done = _entry(), StepDone(3, Totals(read=9, quarantined={"event-time-missing": 3}))
    assert entry == load(StepEntry, json.loads(json.dumps(dump(entry))))
    entry = _entry(
        late_policy=LatePolicy.EMIT,
        rescued=1,
        keys=KeyState(horizon_ms=3),
        deduplicated_ms=4,
        duplicates=2,
        judged={"judged-0.parquet": 4},
        repeats={"repeats-0.parquet": 2},
        owner=7,
        name="000000000003-000007-0",
        source="spark-000000000001-000006-2",
        planned={A: 17},
        topics={"in": "an id"},
        lost={A: (3, 9)},
    )
    assert entry == load(StepEntry, json.loads(json.dumps(dump(entry))))
    assert done == load(StepDone, json.loads(json.dumps(dump(done))))
    done = replace(done, seconds=1.5, processed={"acked": 3}, stamped_ms=77)
    assert done == load(StepDone, json.loads(json.dumps(dump(done))))


@pytest.mark.parametrize("run", [None, Run(3, rows=4, min_event_time_ms=20, max_event_time_ms=40)])
def test_staged_step_survives_json(run: Run | None) -> None:
    """A step without new rows has no run."""
    staged = StagedStep(
        step=3,
        kind=StepKind.BATCH if run else StepKind.TICK,
        batch_id=2,
        previous_frontier_ms=10,
        clock=_entry().clock,
        counts=_entry().counts,
        output_partitions=4,
        run=run,
        first_behind_ms=7,
    )
    assert staged == load(StagedStep, json.loads(json.dumps(dump(staged))))


def test_rows_that_are_placed_by_several_numbers_of_partitions_are_refused() -> None:
    """Placed by one of them, the rows of a key would be in two partitions, and out of order."""
    document = dump(_entry(output_partitions=4))
    assert load(StepEntry, document).output_partitions == 4
    document["partition_counts"] = [[4, 900], [6, None]]
    with pytest.raises(StateFormatError, match=r"up to event time 900 go by 4 .* later ones by 6"):
        load(StepEntry, document)


def test_frontier_of_a_step_can_be_read_off_its_document() -> None:
    """It is the clock's, and stands beside it for those who query checkpoints."""
    document = dump(_entry())
    assert (document["frontier_ms"], document["clock"]["frontier_ms"]) == (50, 50)


def test_runs_stand_in_an_entry_without_their_files() -> None:
    """They stand beside the files, and an entry grows by a line for each run."""
    run = Run(2, 5, 11, 60, size_bytes=7, name="run", files={"part-0": 3, "part-1": 2})
    document = dump(_entry(runs=(run,)))
    assert document["runs"] == [dump(run)]
    assert load(StepEntry, document).runs == (replace(run, files={}),)


@pytest.mark.parametrize("kind", [StepEntry, StepDone])
def test_newer_step_format_is_refused(kind: type[StepEntry | StepDone]) -> None:
    with pytest.raises(StateFormatError, match="format 99"):
        load(kind, {"format": 99})


def test_run_is_live_until_the_frontier_reaches_its_maximum() -> None:
    """A run is kept while a row of it is ahead of the frontier, and no longer."""
    run = Run(0, rows=1, min_event_time_ms=5, max_event_time_ms=9)
    assert [run.is_live(frontier_ms) for frontier_ms in (8, 9, 10)] == [True, False, False]
    assert not Run(0, 0, -1, -1).is_live(-1)


def test_run_may_release_while_the_frontier_moves_through_it() -> None:
    """Not before its first row is reached, nor behind its last one, nor while it stands still."""
    run = Run(0, rows=2, min_event_time_ms=5, max_event_time_ms=9)
    moves = [(1, 4), (1, 5), (5, 8), (8, 9), (9, 10), (7, 7)]
    assert [run.may_release(*move) for move in moves] == [False, True, True, True, False, False]


def test_runs_that_a_step_releases_from() -> None:
    """Of earlier steps those through which the frontier moves; its own from its first row on."""
    through, ahead, own = Run(1, 5, 11, 60), Run(2, 5, 51, 60), Run(3, 4, 50, 70)
    entry = _entry(runs=(through, ahead, own))
    assert (entry.releasing_earlier, entry.releasing_own) == ((through,), own)
    for none in (replace(own, min_event_time_ms=51), replace(own, rows=0)):
        assert replace(entry, runs=(through, none)).releasing_own is None
    assert replace(entry, runs=(through,)).releasing_own is None


def test_step_accounts_for_its_rows() -> None:
    """Read = released + late + quarantined + held, before and after."""
    done = finish(_entry(), released=8, late=2, quarantined=3)
    assert Totals(read=29, released=23, late=2, quarantined={"event-time-missing": 3}) == (
        done.totals
    )
    assert done.totals.held == 1


@pytest.mark.promise("order-row-unaccounted")
@pytest.mark.parametrize("written", [
    {"released": 9, "late": 2, "quarantined": 3},  # the run ahead of the frontier is not empty
    {"released": 3, "late": 2, "quarantined": 3},  # more is held than its runs have rows
    {"released": 8, "late": 1, "quarantined": 3},
    {"released": 8, "late": 2, "quarantined": 4},
])  # fmt: skip
def test_rows_unaccounted_for_stop_the_job(written: dict[str, int]) -> None:
    """A row lost or doubled on its way is noticed in the step that did it."""
    with pytest.raises(ConservationError, match="step 3"):
        finish(_entry(), **written)


def test_nothing_may_be_held_without_a_run() -> None:
    """When all runs are through, each row must be out."""
    with pytest.raises(ConservationError, match="none were left"):
        finish(_entry(clock=EventClock(frontier_ms=60)), released=8, late=2, quarantined=3)


@pytest.mark.parametrize(("policy", "released", "late"), [
    (LatePolicy.TOPIC, 8, 2),
    (LatePolicy.EMIT, 10, 0),
    (LatePolicy.DROP, 8, 0),
])  # fmt: skip
def test_late_rows_count_as_late_under_each_policy(
    policy: LatePolicy, released: int, late: int
) -> None:
    entry = _entry(late_policy=policy)
    done = finish(entry, released=released, late=late, quarantined=3)
    assert (done.totals.released, done.totals.late, done.totals.held) == (23, 2, 1)
    with pytest.raises(ConservationError):
        finish(entry, released=released, late=late + 1, quarantined=3)


def test_repeats_are_accounted_for() -> None:
    """Rows dropped as repeats are neither held nor released."""
    done = finish(_entry(duplicates=3), released=5, late=2, quarantined=3)
    assert (done.totals.duplicates, done.totals.released, done.totals.held) == (3, 20, 1)


def test_rows_that_are_gone_from_the_input_are_missing() -> None:
    """Those of this step have to be what was lost; they add to those of earlier steps."""
    entry = _entry(
        counts=replace(_entry().counts, missing=6),
        before=replace(_entry().before, missing=2),
        lost={A: (3, 9)},
    )
    done = finish(entry, released=8, late=2, quarantined=3)
    assert (done.totals.missing, done.totals.held) == (8, 1)
    with pytest.raises(ConservationError, match=r"^step 3: 6 rows missing, 5 lost: Totals\("):
        finish(replace(entry, lost={A: (3, 8)}), released=8, late=2, quarantined=3)


def test_each_row_unaccounted_for_is_told_of() -> None:
    told = r"^step 3: 2 rows late, 1 written; 3 rows quarantined, 4 written: Totals\("
    with pytest.raises(ConservationError, match=told):
        finish(_entry(), released=8, late=1, quarantined=4)


@pytest.mark.parametrize(("rescued", "number"), [(None, 2), (4, 6)])
def test_rows_behind_the_frontier_must_come_out(rescued: int | None, number: int) -> None:
    """The late ones that go to the output topic, and the rescued ones."""
    entry = _entry(late_policy=LatePolicy.EMIT, rescued=rescued)
    told = rf"{number} rows older than the frontier to write out, {number - 1} written"
    with pytest.raises(ConservationError, match=told):
        finish(entry, released=number - 1, late=0, quarantined=3)


def test_rescued_rows_must_come_out() -> None:
    """A step that wrote fewer rows than it rescued has lost one."""
    with pytest.raises(ConservationError, match="4 rows older than the frontier to write out"):
        finish(_entry(rescued=4), released=3, late=2, quarantined=3)


def test_runs_are_kept_for_what_they_tell_of_keys_and_repeats() -> None:
    """Besides live runs those are kept that are to be folded, or may hold a repeat's original."""
    live, through, old = Run(2, 5, 11, 60), Run(1, 5, 11, 40), Run(0, 0, -1, -1, 4, 20)
    empty = Run(3, 0, -1, -1)
    entry = _entry(runs=(old, through, live, empty))
    assert entry.kept_runs == (live,)
    entry = replace(entry, keys=KeyState(horizon_ms=20))
    assert (entry.kept_runs, entry.folding_runs) == ((old, through, live), (old, through))
    assert replace(entry, keys=KeyState(horizon_ms=21)).kept_runs == (through, live)
    entry = replace(entry, deduplicated_ms=40)
    assert (entry.kept_runs, entry.folding_runs) == ((old, through, live), (old,))
    assert replace(entry, keys=None).kept_runs == (through, live)
