"""What the next step stages and decides: of a batch, a tick, a drain or a reset.

Nothing is logged here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from sequitur.consumer import (
    LONGEST_TICK_MS,
    EventClock,
    SourcePartition,
    StagedStep,
    StepEntry,
    StepKind,
    Totals,
)
from sequitur.consumer.lateness.policy import ROUTES
from sequitur.errors import LateRowError
from sequitur.pipelines.ordering.data_loss import rows_lost
from sequitur.pipelines.ordering.duplicates import DuplicateFinder
from sequitur.pipelines.ordering.frontier import Frontier
from sequitur.pipelines.ordering.input_checks import topic_ids
from sequitur.pipelines.ordering.keys import KeyHistory
from sequitur.pipelines.ordering.skipped_rows import without_acked
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from sequitur.consumer import LearnedDelays, PartitionCounts, Run, Step
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.rows.run_writer import AckedOffsets


class Steps:
    """Works out the step behind the newest, and what a staged step decides."""

    def __init__(
        self,
        job: JobContext,
        newest: NewestStep,
        runs: SortedRuns,
        output_partitions: int,
        counts: PartitionCounts,
        *,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._checkpoint = job.checkpoint
        self._newest = newest
        self._frontier = Frontier(job.settings, job.outages, is_bounded=job.is_bounded)
        self._runs = runs
        self._history = KeyHistory(job, output_partitions)
        self._duplicates = DuplicateFinder(job, output_partitions)
        self._ticked = -1, EventClock()
        self._counts = counts
        self._steady_s = steady_s
        self._looked_s = -inf

    @property
    def counts(self) -> PartitionCounts:
        """By how many partitions the rows of the next step go to the output topic."""
        head = self._newest.head
        return (None if head is None else head.partition_counts) or self._counts

    def stage(self, rows: DataFrame, batch_id: int) -> StagedStep:
        """Stage a micro-batch, and give how far it moves the frontier.

        It needs nothing of the step before but its clocks, so that one may still be at work.
        """
        before = self._newest.head
        step = 0 if before is None else before.step + 1
        clock = EventClock() if before is None else self._clock_since(before)
        source = self._newest.source
        planned = self._checkpoint.spark.planned_offsets(source, batch_id)
        name = self._checkpoint.new_name(step)
        try:
            staged = self._runs.stage(
                rows,
                step,
                self._spans(clock, planned, source),
                name=name,
                clock=clock,
                learns=self._frontier.is_learned,
                acked=self._acked(clock, planned),
                by=self.counts,
            )
        except Exception:
            self._checkpoint.drop_run(name)  # the disk may be full
            raise
        # Behind the staging: an id that is the same now was the same while the rows were read.
        topics = topic_ids(self._job, before, {where.topic for where in planned})
        # And what arrived meanwhile must count as not read yet.
        now_ms = self._job.now_ms()
        ends = self._ends(planned)
        after = self._frontier.looked_at(clock, planned, ends, now_ms, staged.max_event_time_ms)
        learned = self._frontier.learn(
            None if before is None else before.learned, clock, after, staged.lateness
        )
        return StagedStep(
            step=step,
            kind=StepKind.BATCH,
            batch_id=batch_id,
            previous_frontier_ms=clock.frontier_ms,
            clock=self._advanced(after, learned, now_ms, (*self._newest.holding, staged.run)),
            staged=staged.totals,
            run=staged.run,
            first_behind_ms=staged.first_behind_ms,
            learned=learned,
            owner=self._checkpoint.owner,
            source=source,
            planned=planned,
            topics=topics,
            counted=staged.counted,
            partition_counts=self.counts,
        )

    def _spans(
        self, clock: EventClock, planned: Mapping[SourcePartition, int], source: str
    ) -> dict[SourcePartition, tuple[int, int]]:
        """Return which offsets a batch has of each source partition."""
        begins = {where: known.position for where, known in clock.partitions.items()}
        if planned.keys() - begins.keys():
            begins = {**self._checkpoint.spark.first_offsets(source), **begins}
        if new := planned.keys() - begins.keys():  # Spark reads it from its beginning
            begins |= self._job.topics.low_watermarks(new)
        return {where: (begins[where], end) for where, end in planned.items()}

    def _acked(self, clock: EventClock, planned: Mapping[SourcePartition, int]) -> AckedOffsets:
        """Return what the subscription has acked among the rows of a batch."""
        if self._job.subscription is None:
            return {}
        before = {where: known.position for where, known in clock.partitions.items()}
        return self._job.subscription.acked(before, planned)

    def decide(self, staged: StagedStep, before: StepEntry | None = None) -> StepEntry:
        """Settle what becomes of the rows of a staged step, once the step before it is decided."""
        before = self._newest.entry if before is None else before
        name = self._checkpoint.new_name(staged.step)
        if staged.run is None:
            runs = () if before is None else before.kept_runs
            keys = None if before is None else before.keys
        else:
            runs, keys = self._history.begin(before, staged.step, name)
            runs = (*runs, staged.run)
        entry = StepEntry.of(
            staged,
            owner=self._checkpoint.owner,
            runs=runs,
            before=self._newest.done.totals,
            logged_ms=self._job.now_ms(),
            late_policy=self._job.settings.late_policy,
            keys=keys,
            deduplicated_ms=self._duplicates.looked_for_from_ms(staged.previous_frontier_ms),
            name=name,
        )
        entry = without_acked(self._job, self._duplicates.find(entry, staged))
        entry = self._history.judge(entry, staged)
        if entry.staged.late and ROUTES[entry.late_policy].ends_job:
            raise LateRowError(self._runs.describe_late(entry))
        return entry

    def ticked(self, before: StepEntry, now_ms: int) -> EventClock:
        """Return the clocks once time has passed without new rows."""
        clock = self._clock_since(before)
        positions = {where: known.position for where, known in clock.partitions.items()}
        ends = self._ends(positions)
        clock = self._frontier.looked_at(clock, positions, ends, now_ms)
        self._ticked = before.step, clock
        return self._advanced(clock, before.learned, now_ms, before.runs)

    def drained(self, before: StepEntry) -> EventClock:
        """Return the clocks of a step that releases what is held."""
        return self._to_next_cut(before.clock, before.clock.drain())

    def _advanced(
        self,
        clock: EventClock,
        learned: LearnedDelays | None,
        now_ms: int,
        runs: Sequence[Run],
    ) -> EventClock:
        return self._to_next_cut(clock, self._frontier.advance(clock, learned, now_ms, runs))

    def is_at_cut(self, entry: StepEntry) -> bool:
        """Tell whether a step has stopped where rows go by another number of partitions."""
        return entry.frontier_ms in self.counts.cuts_ms

    def _to_next_cut(self, before: EventClock, after: EventClock) -> EventClock:
        return replace(
            after, frontier_ms=self.counts.reached(before.frontier_ms, after.frontier_ms)
        )

    def is_look_due(self) -> bool:
        """Tell whether the input has not been looked at for as long as a tick may take.

        By a clock that nobody sets: the wall clock may be set back for an hour.
        """
        return self._steady_s() - self._looked_s >= LONGEST_TICK_MS / 1000

    def _ends(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """Look where partitions end now."""
        ends = self._job.topics.high_watermarks(partitions)
        self._looked_s = self._steady_s()
        return ends

    def _clock_since(self, before: Step) -> EventClock:
        """Return the clocks after a step, with the looks of ticks of which nothing was logged."""
        step, clock = self._ticked
        return clock if step == before.step else before.clock

    def quiet(
        self,
        kind: StepKind,
        before: StepEntry,
        clock: EventClock,
        now_ms: int,
        *,
        is_due: Callable[[int], bool],
    ) -> StagedStep | None:
        """Return a step without new rows; None when there is nothing for it to do."""
        releases = any(
            run.may_release(before.frontier_ms, clock.frontier_ms) for run in before.runs
        )
        return self._next(kind, before, clock) if releases or is_due(now_ms) else None

    def grown(self, before: StepEntry, partitions: int) -> StagedStep:
        """Return a step from which on rows go by the output topic's new partitions."""
        following = self._next(StepKind.GROWTH, before, before.clock)
        counts = self.counts.grown(partitions, before.reach_ms)
        return replace(following, partition_counts=counts)

    def reset(
        self, before: StepEntry, clock: EventClock, topics: Mapping[str, str], lost: Lost
    ) -> StagedStep:
        """Return a step behind which Spark's part begins again where the log has got to."""
        following = self._next(StepKind.RESET, before, clock)
        return replace(
            following,
            batch_id=-1,
            source=f"{FIRST_SPARK_FOLDER}-{self._checkpoint.new_name(following.step)}",
            planned={where: one.position for where, one in clock.partitions.items()},
            topics=topics,
            staged=Totals(missing=rows_lost(lost)),
            lost=lost,
        )

    def first_of(
        self, begins: Mapping[SourcePartition, int], topics: Mapping[str, str], frontier_ms: int
    ) -> StagedStep:
        """Return the first step of a job that begins where its subscription has got to."""
        now_ms = self._job.now_ms()
        ends = self._ends(begins)
        clock = self._frontier.looked_at(EventClock(frontier_ms), begins, ends, now_ms)
        return StagedStep(
            step=0,
            kind=StepKind.RESET,
            batch_id=-1,
            previous_frontier_ms=frontier_ms,
            clock=clock,
            owner=self._checkpoint.owner,
            source=f"{FIRST_SPARK_FOLDER}-{self._checkpoint.new_name(0)}",
            planned=dict(begins),
            topics=topics,
            partition_counts=self.counts,
        )

    def _next(self, kind: StepKind, before: StepEntry, clock: EventClock) -> StagedStep:
        """Return a step without new rows."""
        return StagedStep(
            step=before.step + 1,
            kind=kind,
            batch_id=before.batch_id,
            previous_frontier_ms=before.frontier_ms,
            clock=clock,
            learned=before.learned,
            owner=self._checkpoint.owner,
            source=before.source,
            planned=before.planned,
            topics=before.topics,
            partition_counts=self.counts,
        )
