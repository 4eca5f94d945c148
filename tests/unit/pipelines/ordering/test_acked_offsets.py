"""What a step's cursors are made of: what is acked before a batch is read, what is held behind it.

And the rows that are held when the subscription acks them.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepEntry, StepKind, Totals
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.pipelines.ordering.duplicates import PLACES_SCHEMA, without_acked
from sequitur.pipelines.ordering.job_subscription import acked_between, held_offsets
from sequitur.pipelines.ordering.runs import duplicates_files, reached_parts
from sequitur.pipelines.rows.columns import SOURCE_ORDER
from sequitur.pipelines.rows.left_out import Places
from sequitur.pipelines.rows.run_rows import RunRows
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.store.storage import LocalStorage, new_folder
from tests.support.examples import examples
from tests.support.staged_rows import BASE_MS, Row, is_usable, rows_of_sources, staged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.store.storage import Location

_PLACES = st.sets(st.integers(0, 45))
_ROOMY = settings(max_examples=examples(0.3))


@contextmanager
def _checkpoint() -> Iterator[Checkpoint]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(LocalStorage(Path(folder)))
        checkpoint.claim(JobIdentity(("in",), None, "json:at", "out", 3, "ordered"))
        yield checkpoint
        checkpoint.close()


def _run(checkpoint: Checkpoint, step: int, rows: Sequence[Row], frontier: int) -> Run | None:
    """Stage rows as a step does whose frontier is so much after the base."""
    name = checkpoint.new_name(step)
    summary = staged(checkpoint.location(f"runs/{name}"), rows, frontier)  # type: ignore[arg-type]
    if summary.file is None:
        return None
    times = [row.time for row in _on_time(rows, frontier)]
    first, last = (BASE_MS + min(times), BASE_MS + max(times)) if times else (-1, -1)
    return Run(step, len(times), first, last, name=name, files={summary.file: len(rows)})


def _on_time(rows: Sequence[Row], frontier: int) -> list[Any]:
    found: list[Any] = [row for row in rows if is_usable(row)]
    return [row for row in found if row.time >= frontier]  # at the frontier a row is on time


def _entry(step: int, runs: Sequence[Run | None], before: int, after: int) -> StepEntry:
    return StepEntry(
        step=step,
        kind=StepKind.BATCH,
        batch_id=step,
        previous_frontier_ms=BASE_MS + before,
        clock=EventClock(frontier_ms=BASE_MS + after),
        counts=Totals(read=1_000, skipped=2),
        runs=tuple(run for run in runs if run is not None),
        before=Totals(),
        logged_ms=0,
        name=f"step-{step}",
    )


def _write_places(folder: Location, rows: Sequence[Row]) -> dict[str, int]:
    """Write where rows came from, as tasks that look for duplicates do."""
    new_folder(folder)
    with PartFile(folder, PLACES_SCHEMA) as file:
        if rows:
            places = [{name: getattr(row, name) for name in SOURCE_ORDER} for row in rows]
            file.write(pa.Table.from_pylist(places, PLACES_SCHEMA))
    return {} if file.name is None else {file.name: file.rows}


def _place(row: Row) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


@pytest.mark.parametrize(
    ("first", "stop", "ranges"),
    [
        (0, 20, [(0, 3), (5, 8), (10, 12)]),
        (3, 20, [(5, 8), (10, 12)]),
        (2, 3, [(0, 3)]),
        (6, 11, [(5, 8), (10, 12)]),
        (8, 10, []),
        (12, 20, []),
        (3, 5, []),
    ],
)
def test_what_is_acked_in_a_batch(first: int, stop: int, ranges: list[tuple[int, int]]) -> None:
    """Ranges that reach into it, whole; everything before the mark-delete position is one."""
    cursor = Cursor(CursorIdentity("billing", "orders", 0), start=3)
    cursor.ack_range(5, 8, end=20)
    cursor.ack_range(10, 12, end=20)
    firsts, stops = acked_between(cursor, first, stop)
    assert list(zip(firsts.tolist(), stops.tolist(), strict=True)) == ranges


def test_nothing_is_acked_of_a_new_subscription() -> None:
    """No range without offsets is given."""
    firsts, stops = acked_between(Cursor(CursorIdentity("billing", "orders", 0)), 0, 10)
    assert (len(firsts), len(stops)) == (0, 0)


@_ROOMY
@given(
    earlier=rows_of_sources(),
    own=rows_of_sources(),
    waiting=rows_of_sources(),
    frontiers=st.tuples(st.integers(-1, 32), st.integers(0, 32)),
)
def test_held_is_what_is_on_time_and_not_due(
    earlier: list[Row], own: list[Row], waiting: list[Row], frontiers: tuple[int, int]
) -> None:
    """Of all runs, and what waits; not what was late, in quarantine, or is out."""
    before, further = frontiers
    after = before + further
    own = [Row(row.topic, row.partition, row.offset + 100, row.key, row.time) for row in own]
    with _checkpoint() as checkpoint:
        runs = [_run(checkpoint, 0, earlier, -1), _run(checkpoint, 1, own, before)]
        folder = checkpoint.location("waiting")
        files = [folder / name for name in _write_places(folder, waiting)]
        found = held_offsets(checkpoint, _entry(1, runs, before, after), files)
    held = [row for row in (*_on_time(earlier, -1), *_on_time(own, before)) if row.time > after]
    assert sorted(
        (*where, offset) for where, offsets in found.items() for offset in offsets.tolist()
    ) == sorted(map(_place, (*held, *waiting)))


@_ROOMY
@given(
    earlier=rows_of_sources(),
    own=rows_of_sources(),
    frontiers=st.tuples(st.integers(-1, 32), st.integers(0, 32)),
    repeated=_PLACES,
    acked=_PLACES,
)
def test_acked_rows_that_are_due_are_skipped_once(
    earlier: list[Row],
    own: list[Row],
    frontiers: tuple[int, int],
    repeated: set[int],
    acked: set[int],
) -> None:
    """Beside the duplicates: a row that is both is a duplicate, and is counted as such."""
    before, further = frontiers
    own = [Row(row.topic, row.partition, row.offset + 20, row.key, row.time) for row in own]
    earlier = [row for row in earlier if row.offset < 20]

    def acked_among(_: SourcePartition, offsets: Any) -> Any:
        return np.isin(offsets, list(acked))

    due = [row for row in _on_time(earlier, -1) if before < row.time <= before + further]
    due += [row for row in _on_time(own, before) if row.time <= before + further]
    duplicates = [row for row in due if row.offset in repeated]
    with _checkpoint() as checkpoint:
        runs = [_run(checkpoint, 0, earlier, -1), _run(checkpoint, 1, own, before)]
        entry = _entry(1, runs, before, before + further)
        repeats = _write_places(checkpoint.location(f"repeats/{entry.name}"), duplicates)
        entry = StepEntry.of(
            entry,
            runs=entry.runs,
            before=Totals(),
            logged_ms=0,
            name=entry.name,
            repeats=repeats,
            duplicates=len(duplicates),
        )
        job: Any = SimpleNamespace(
            checkpoint=checkpoint,
            subscription=SimpleNamespace(skips_held=True, acked_among=acked_among),
        )
        decided = without_acked(job, entry)
        places = Places(duplicates_files(checkpoint, decided))
        parts = reached_parts(checkpoint, decided)
        out = [
            _place(Row(one["topic"], one["partition"], one["offset"], None, None))
            for rows in (RunRows(parts, None, SOURCE_ORDER).pieces() if parts else ())
            for one in places.without(rows).to_pylist()
        ]
    skipped = [row for row in due if row.offset in acked - repeated]
    assert decided.counts.skipped == 2 + len(skipped)
    assert decided.duplicates == len(duplicates)
    assert sum(decided.repeats.values()) == len(duplicates) + len(skipped)
    assert sorted(out) == sorted(_place(row) for row in due if row.offset not in acked | repeated)


@pytest.mark.parametrize("subscription", [None, SimpleNamespace(skips_held=False)])
def test_without_anything_to_skip_a_step_stays_as_it_is(subscription: Any) -> None:
    """No subscription, or one that acks only what is out: not a file is read."""
    entry = _entry(0, [Run(0, 5, BASE_MS, BASE_MS, name="gone", files={"gone": 5})], -1, 5)
    job: Any = SimpleNamespace(subscription=subscription)
    assert without_acked(job, entry) is entry
