"""What the next step decides: of a batch, a tick, a drain or a reset. Nothing is logged here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sequitur.consumer import EventClock, StepEntry, StepKind, Totals
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.ordering.data_loss import rows_lost
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from sequitur.consumer import ReorderSettings
    from sequitur.pipelines.ordering.behind import BehindRows
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.ordering.frontier import Frontier
    from sequitur.pipelines.ordering.input_checks import InputChecks
    from sequitur.pipelines.ordering.input_offsets import InputOffsets
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.store.checkpoint import Checkpoint


class Steps:
    """Works out the entry of the step behind the newest.

    Args:
        settings: The job's settings.
        checkpoint: The job's folder.
        newest: The newest step.
        frontier: Moves the frontier.
        runs: Stages batches.
        behind: Judges rows behind the frontier, and finds duplicates.
        checks: Holds the input against the log.
        offsets: Asks for the input's ends.
        now_ms: The wall clock.
    """

    def __init__(
        self,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
        newest: NewestStep,
        *,
        frontier: Frontier,
        runs: SortedRuns,
        behind: BehindRows,
        checks: InputChecks,
        offsets: InputOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        self._bounds = settings.bounds
        self._late_policy = settings.late_policy
        self._checkpoint = checkpoint
        self._newest = newest
        self._frontier = frontier
        self._runs = runs
        self._behind = behind
        self._checks = checks
        self._offsets = offsets
        self._now_ms = now_ms

    def batch(self, rows: DataFrame, batch_id: int) -> StepEntry:
        """Stage a micro-batch, and give what the step decides.

        Args:
            rows: The batch.
            batch_id: Its number.

        Raises:
            CheckpointError: The step before is not done, or the input is another.
            LateRowError: A row is late, and that is to end the job.
        """
        before = self._newest.entry
        if before is not None and not self._newest.is_done:
            raise CheckpointError(
                f"{self._checkpoint.root}: batch {batch_id} begins, "
                f"but step {before.step} has no done mark"
            )
        step = 0 if before is None else before.step + 1
        name = self._checkpoint.new_name(step)
        clock = EventClock() if before is None else before.clock
        runs, keys = self._behind.begin(before, step, name)
        source = self._newest.source
        planned = self._checkpoint.spark.planned_offsets(source, batch_id)
        staged = self._runs.stage(
            rows,
            step,
            sorted(planned),
            name=name,
            frontier_ms=self._behind.behind_ms(clock.frontier_ms),
            bounds=self._bounds(self._now_ms()),
            learn_from=clock if self._frontier.is_learned else None,
        )
        # Behind the staging: an id that is the same now was the same while the rows were read.
        topics = self._checks.topic_ids(before, {where.topic for where in planned})
        # And what arrived meanwhile must count as not read yet.
        now_ms = self._now_ms()
        ends = self._offsets.ends(planned)
        after = clock
        for partition, position in planned.items():
            after = after.observe(
                partition,
                max_event_time_ms=staged.max_event_time_ms.get(partition),
                position=position,
                high_watermark=ends[partition],
                now_ms=now_ms,
            )
        learned = self._frontier.learn(
            None if before is None else before.learned, clock, after, staged.lateness
        )
        entry = StepEntry(
            step=step,
            kind=StepKind.BATCH,
            batch_id=batch_id,
            previous_frontier_ms=clock.frontier_ms,
            clock=self._frontier.advance(after, learned, now_ms, (*runs, staged.run)),
            staged=staged.totals,
            runs=(*runs, staged.run),
            before=self._newest.done.totals,
            logged_ms=now_ms,
            learned=learned,
            late_policy=self._late_policy,
            keys=keys,
            deduplicated_ms=self._behind.deduplicated_ms(clock.frontier_ms),
            owner=self._checkpoint.owner,
            name=name,
            source=source,
            planned=planned,
            topics=topics,
        )
        return self._behind.judge(self._behind.deduplicate(entry, staged), staged)

    def ticked(self, before: StepEntry, now_ms: int) -> EventClock:
        """Return the clocks once time has passed without new rows.

        Args:
            before: The newest step.
            now_ms: Wall-clock time.

        Raises:
            TopicError: The brokers do not answer.
        """
        clock = before.clock
        ends = self._offsets.ends(clock.partitions)
        for partition, known in before.clock.partitions.items():
            clock = clock.observe(
                partition,
                max_event_time_ms=None,
                position=known.position,
                high_watermark=ends[partition],
                now_ms=now_ms,
            )
        return self._frontier.advance(clock, before.learned, now_ms, before.runs)

    def quiet(
        self,
        kind: StepKind,
        before: StepEntry,
        clock: EventClock,
        now_ms: int,
        *,
        is_due: Callable[[int], bool],
    ) -> StepEntry | None:
        """Return what a step without new rows decides; None when there is nothing for it to do.

        Args:
            kind: What made it.
            before: The newest step.
            clock: The clocks after it.
            now_ms: Wall-clock time.
            is_due: Whether a topology has something to do at a time.
        """
        entry = self._next(kind, before, clock, now_ms)
        releases = clock.frontier_ms != before.frontier_ms and entry.releasing_earlier
        return self._behind.deduplicate(entry) if releases or is_due(now_ms) else None

    def reset(
        self, before: StepEntry, clock: EventClock, topics: Mapping[str, str], lost: Lost
    ) -> StepEntry:
        """Return a step behind which Spark's part begins again where the log has got to.

        Args:
            before: The newest step.
            clock: The clocks after it: Spark begins at their positions.
            topics: Ids of the input topics.
            lost: What the input has lost that was never read.
        """
        entry = self._next(StepKind.RESET, before, clock, self._now_ms())
        return replace(
            entry,
            batch_id=-1,
            source=f"{FIRST_SPARK_FOLDER}-{entry.name}",
            planned={where: one.position for where, one in clock.partitions.items()},
            topics=topics,
            staged=Totals(missing=rows_lost(lost)),
            lost=lost,
        )

    def _next(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> StepEntry:
        """Return a step without new rows."""
        step = before.step + 1
        return StepEntry(
            step=step,
            kind=kind,
            batch_id=before.batch_id,
            previous_frontier_ms=before.frontier_ms,
            clock=clock,
            staged=Totals(),
            runs=before.kept_runs,
            before=self._newest.done.totals,
            logged_ms=now_ms,
            learned=before.learned,
            keys=before.keys,
            deduplicated_ms=self._behind.deduplicated_ms(before.frontier_ms),
            owner=self._checkpoint.owner,
            name=self._checkpoint.new_name(step),
            source=before.source,
            planned=before.planned,
            topics=before.topics,
        )
