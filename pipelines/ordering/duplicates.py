"""Duplicates of an event: rows with the id of one that was read before."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from sequitur.base.settings import milliseconds
from sequitur.consumer import BEFORE_ALL_TIME_MS
from sequitur.pipelines.ordering.duplicate_tasks import IdsTask, RepeatsTask, buckets_for
from sequitur.pipelines.ordering.key_tasks import files_of
from sequitur.pipelines.ordering.runs import (
    behind_ms,
    behind_part,
    reached_parts,
)
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.workers import blocks_for, done_here, in_blocks, is_small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer import Run, StagedStep, StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.duplicate_tasks import IdKind
    from sequitur.pipelines.ordering.key_tasks import Written
    from sequitur.pipelines.store.files import Location


class DuplicateFinder:
    """Finds duplicates by an id in a header or in the value."""

    def __init__(self, job: JobContext, output_partitions: int) -> None:
        self._job = job
        self._id = job.settings.duplicate_id
        self._partitions = output_partitions

    def looked_for_from_ms(self, frontier_ms: int) -> int | None:
        """Return how far back originals of duplicates are looked for, None when they are not."""
        if self._id is None:
            return None
        window_ms = milliseconds(self._job.settings.duplicate_window)
        return max(BEFORE_ALL_TIME_MS, frontier_ms - window_ms)

    def find(self, entry: StepEntry, staged: StagedStep) -> StepEntry:
        """Find the duplicates among the rows that a step is about to release or judge.

        Of rows with the same id in a step the first in the order of release stays. None stays when
        one with that id was there in an earlier step: for that, rows up to the frontier are looked
        through that are not older than the oldest row behind it, or than `deduplicated_ms`. So a
        duplicate must have the event time of its original.
        """
        if self._id is None or entry.deduplicated_ms is None:
            return entry
        checkpoint = self._job.checkpoint
        new = reached_parts(checkpoint, entry)
        after_ms = entry.previous_frontier_ms
        if staged.run is not None and staged.run.behind:
            after_ms = min(after_ms, staged.first_behind_ms)
            new.append(behind_part(checkpoint, entry))
        if not new:
            return entry
        after_ms = max(after_ms, entry.deduplicated_ms)
        earlier = [r for r in entry.runs if r.step != entry.step and r.reach_ms >= after_ms]
        out_ms = behind_ms(self._job.settings, entry.previous_frontier_ms)
        out = (Part(checkpoint.files(*earlier), after_ms, out_ms, reasons=()),)
        read = {run.name: run for run in (*entry.releasing_earlier, *earlier, entry.runs[-1])}
        found = self._written(entry, self._id, tuple(new), out, tuple(read.values()))
        late = entry.staged.late - sum(one.late for one in found)
        repeats = files_of(found)
        return replace(
            entry,
            staged=replace(entry.staged, late=late),
            duplicates=sum(repeats.values()),
            repeats=repeats,
        )

    def _written(
        self,
        entry: StepEntry,
        duplicate_id: tuple[IdKind, str],
        new: tuple[Part, ...],
        out: tuple[Part, ...],
        read: Sequence[Run],
    ) -> list[Written]:
        """Write the places of those rows that are new and repeat one that is, or that is out."""
        workers = self._job.workers
        # In a folder that no document names: it goes once the step is logged.
        ids = self._folder(self._job.checkpoint.new_name(entry.step))
        reads = sum(run.size_bytes for run in read)
        is_here = is_small(reads)
        tasks = len(blocks_for(workers, self._partitions, is_here=is_here))
        buckets = buckets_for(sum(run.rows + run.behind for run in read), tasks)
        task = IdsTask(ids, *duplicate_id, new, out, buckets)
        written = in_blocks(workers, task, self._partitions, reads=reads)
        files = tuple(ids / name for name in written if name is not None)
        repeats = RepeatsTask(self._folder(entry.name), files, buckets, tasks)
        if not files:
            return []
        if is_here:
            return [done_here(lambda: repeats(0))]
        return workers.run([functools.partial(repeats, number) for number in range(tasks)])

    def _folder(self, name: str) -> Location:
        return self._job.checkpoint.new_folder(f"repeats/{name}")
