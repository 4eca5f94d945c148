"""A step of the reorder job: staged, and finished.

1. `Steps.stage` writes a batch's rows into files. It logs the files, and how far the batch moves
   the frontier.
2. `Steps.finish_step` finishes staged steps in their order. It decides what becomes of the rows,
   has a topology process them, writes what goes out, accounts for it, and marks the step as done.

A step may be finished again, by this life or a later one. If it was decided before, the decision is
read back. The rows come from the step's files, up to the logged frontier: the same rows in the same
order, each under the sequence that the step's plan has for it. Rows that the output topic has
already are left out.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.late_policy import ROUTES, Output
from sequitur.consumer.reorder.step_log import (
    StagedStep,
    StepEntry,
    StepKind,
    Totals,
    finish,
    late_rows_to,
)
from sequitur.consumer.reorder.timestamps import now_of_step
from sequitur.errors import LateRowError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.duplicates import DuplicateFinder, without_acked
from sequitur.pipelines.ordering.frontier import Frontier
from sequitur.pipelines.ordering.input_ends import InputEnds
from sequitur.pipelines.ordering.job_input import rows_lost, topic_ids
from sequitur.pipelines.ordering.key_history import KeyHistory
from sequitur.pipelines.ordering.on_step import OnStep
from sequitur.pipelines.ordering.quarantine_watch import QuarantineWatch
from sequitur.pipelines.ordering.steps_ahead import StepsAhead
from sequitur.pipelines.sink.sink import Outgoing
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.consumer.reorder.step_log import Step, StepDone
    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job_input import Lost
    from sequitur.pipelines.ordering.logged_steps import LoggedSteps
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.rows.run_writer import AckedOffsets
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import Processing, StepAhead


_MOST_WAITING: Final = 1
"""Steps that wait for the one before them: what is staged and not out takes memory and disk."""


class Steps:
    """Stages steps, one at a time, and finishes them, one at a time.

    The thread that holds the engine's lock stages steps. The thread of `Finisher` finishes them.
    While that has nothing to do, the thread with the lock does.
    """

    def __init__(
        self,
        job: JobContext,
        log: LoggedSteps,
        runs: SortedRuns,
        outputs: Outputs,
        partitions: int,
        *,
        processing: Processing | None = None,
        steady_s: Callable[[], float] | None = None,
    ) -> None:
        self._job = job
        self._log = log
        self._runs = runs
        self._outputs = outputs
        self._partitions = partitions
        self._processing = processing
        self._frontier = Frontier(job.settings, job.outages, is_bounded=job.is_bounded)
        self._history = KeyHistory(job, partitions)
        self._duplicates = DuplicateFinder(job, partitions)
        self._on_step = OnStep.of(job, partitions)
        self.quarantines = QuarantineWatch(job.settings.event_time, job.outages.tell)
        most_ahead = 0 if processing is None else processing.most_ahead
        self._ahead = StepsAhead(log, most_ahead, self._process_ahead)
        self._begun_s: dict[int, float] = {}
        self._ticked = -1, EventClock()
        self.input_ends = InputEnds(job, steady_s or job.steady_s)

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        sides = (self._outputs.late, self._outputs.quarantine)
        if self._processing is not None:
            return (*self._processing.topics, *sides)
        return (self._outputs.released, *sides)

    def open(self) -> None:
        """Compare the topics with the log before anything is written."""
        newest = -1 if self._log.entry is None else self._log.entry.step
        subscription, done = self._job.subscription, self._log.done
        if self._processing is not None:
            former = NO_FORMER_JOB if subscription is None else subscription.former
            self._processing.open(done.step, newest, former)
        # The subscription knows what a lost checkpoint has written.
        takes_over = subscription is not None
        self._job.sink.open(self.topics, newest=newest, done=done, takes_over=takes_over)

    @property
    def most_waiting(self) -> int:
        """How many staged steps may wait for the step before them."""
        most_ahead = 0 if self._processing is None else self._processing.most_ahead
        return max(_MOST_WAITING, most_ahead)

    def stage(self, batch_id: int) -> StagedStep:
        """Stage a micro-batch, and log that, with how far it moves the frontier.

        It needs nothing of the step before but its clocks, so that one may still be at work.
        """
        begun_s = time.monotonic()
        before = self._log.head
        step = 0 if before is None else before.step + 1
        clock = EventClock() if before is None else self._clock_since(before)
        source = self._log.plans_folder
        planned = self._job.checkpoint.spark.planned_offsets(source, batch_id)
        name = self._job.checkpoint.new_name(step)
        try:
            found = self._runs.write_run(
                step,
                self._spans(clock, planned, source),
                name=name,
                clock=clock,
                learns=self._frontier.is_learned,
                acked=self._acked(clock, planned),
                holding=self._log.holding,
            )
        except Exception:
            self._job.checkpoint.drop_attempt(f"runs/{name}")  # the disk may be full
            raise
        # After the staging: an id that has not changed by now was the same while rows were read.
        topics = topic_ids(self._job, before, {where.topic for where in planned})
        # Rows that arrived meanwhile must count as unread.
        now_ms = self._job.now_ms()
        ends = self.input_ends.look(planned)
        after = self._frontier.looked_at(clock, planned, ends, now_ms, found.max_event_time_ms)
        learned = self._frontier.learn(
            None if before is None else before.learned, clock, after, found.lateness
        )
        self._begun_s[step] = begun_s
        staged = StagedStep(
            step=step,
            kind=StepKind.BATCH,
            batch_id=batch_id,
            previous_frontier_ms=clock.frontier_ms,
            clock=self._frontier.advance(after, learned, now_ms, (*self._log.holding, found.run)),
            counts=found.totals,
            run=found.run,
            first_behind_ms=found.first_behind_ms,
            learned=learned,
            owner=self._job.checkpoint.owner,
            source=source,
            planned=planned,
            topics=topics,
            counted=found.counted,
            output_partitions=self._partitions,
        )
        self._log.write_staged(staged, is_run_synced=found.is_synced)
        return staged

    def _spans(
        self, clock: EventClock, planned: Mapping[SourcePartition, int], source: str
    ) -> dict[SourcePartition, tuple[int, int]]:
        """Return the offsets that a batch has of each source partition."""
        begins = {where: known.position for where, known in clock.partitions.items()}
        if planned.keys() - begins.keys():
            begins = {**self._job.checkpoint.spark.first_offsets(source), **begins}
        # Spark reads a new partition from offset 0, and fails if that offset is gone.
        return {where: (begins.get(where, 0), end) for where, end in planned.items()}

    def _acked(self, clock: EventClock, planned: Mapping[SourcePartition, int]) -> AckedOffsets:
        if self._job.subscription is None:
            return {}
        before = {where: known.position for where, known in clock.partitions.items()}
        return self._job.subscription.acked(before, planned)

    def decide(self, staged: StagedStep, before: StepEntry | None = None) -> StepEntry:
        """Decide what becomes of a staged step's rows, once the step before it is decided."""
        before = self._log.entry if before is None else before
        name = self._job.checkpoint.new_name(staged.step)
        if staged.run is None:
            runs = () if before is None else before.kept_runs
            keys = None if before is None else before.keys
        else:
            runs, keys = self._history.begin(before, staged.step, name)
            runs = (*runs, staged.run)
        entry = StepEntry.of(
            staged,
            owner=self._job.checkpoint.owner,
            runs=runs,
            before=self._log.done.totals,
            logged_ms=self._job.now_ms(),
            late_policy=self._job.settings.late_policy,
            keys=keys,
            deduplicated_ms=self._duplicates.looked_for_from_ms(staged.previous_frontier_ms),
            name=name,
        )
        entry = without_acked(self._job, self._duplicates.find(entry, staged))
        entry = self._history.judge(entry, staged)
        if entry.counts.late and ROUTES[entry.late_policy].ends_job:
            raise LateRowError(self._runs.describe_late(entry))
        return entry

    def run(self, staged: StagedStep) -> None:
        """Log a step without new rows, and finish it; all steps before it are done."""
        self._begun_s[staged.step] = time.monotonic()
        self._log.write_staged(staged)
        self.finish_step(staged)

    def finish_all(self) -> None:
        """Finish the step that is decided and those that are staged after it."""
        if not self._log.is_entry_done:
            self.finish_step()
        for staged in self._log.staged:
            self.finish_step(staged)

    def finish_step(self, staged: StagedStep | None = None) -> None:
        """Finish the first step that is not done: one that is staged, else the one that is decided.

        It decides, processes, writes, accounts, marks as done, acknowledges and calls `on_done`.
        """
        ahead = None if staged is None else self._ahead.take(staged)
        if staged is not None:
            self._log.write_entry(self._decided(staged, ahead))
        entry = self._log.entry
        assert entry is not None
        begun_s = self._begun_s.pop(entry.step, time.monotonic())
        if self._job.subscription is not None:
            self._job.subscription.confirm()
        with self._failing():
            due, times = self._runs.due(entry), self._times()
            processed = self._processed(entry, due, ahead)
            written = self._write(entry, self._outgoing(entry, due, processed), times)
            if self._on_step is not None and due is not None and written.get(Output.RELEASED):
                self._on_step.call(entry, due)
            done = self._accounted(entry, written, processed)
        seconds = round(time.monotonic() - begun_s, 3)
        self._log.mark_done(replace(done, stamped_ms=times[0], seconds=seconds))
        self.acknowledge()
        self.quarantines.step_is_done(
            entry.counts, lambda reason: self._runs.some_quarantined(entry, reason)
        )
        self._job.on_done(entry, self._log.done)

    def _decided(self, staged: StagedStep, ahead: StepAhead | None) -> StepEntry:
        if ahead is not None:
            return replace(ahead.entry, before=self._log.done.totals)
        with self._failing():
            return self.decide(staged)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """If the block fails, forget what is processed ahead, and name a missing file."""
        try:
            yield
        except BaseException as error:
            self._ahead.drop()
            if isinstance(error, Exception):
                self._log.check_files()
            raise

    def _times(self) -> tuple[int, int]:
        """Return what a step takes for now, epoch ms, and the wall clock.

        A repeat may come days later, and has a time of its own. Rows that are out keep their
        timestamps. Other rows get timestamps that brokers take now.
        """
        clock_ms, before = self._job.now_ms(), self._log.done
        now_ms = now_of_step(clock_ms, before.stamped_ms)
        if now_ms < before.stamped_ms:
            self._job.outages.tell(
                f"this machine's clock is {(before.stamped_ms - clock_ms) / 1000:.0f} s earlier "
                f"than when step {before.step} was written: timestamps go back to it"
            )
        return now_ms, clock_ms

    def _processed(
        self, entry: StepEntry, due: Selection | None, ahead: StepAhead | None
    ) -> Processed | None:
        """Have the topology process what a step releases; None without a topology."""
        if self._processing is None:
            return None

        def committing(processed: Processed, *, is_again: bool) -> None:
            if is_again:
                self._ahead.drop()
            self._ahead.go_on_behind(entry, processed)

        return self._processing.process(entry, due, ahead, committing)

    def _outgoing(
        self, entry: StepEntry, due: Selection | None, processed: Processed | None
    ) -> dict[Output | int, Outgoing]:
        found: dict[Output | int, Outgoing] = {}
        reads = _sizes(*entry.runs[-1:])
        if self._processing is not None and processed is not None:
            found |= enumerate(self._processing.outgoing(processed))
        elif due is not None:
            timestamps = self._job.settings.output_timestamp
            of = reads + _sizes(*entry.releasing_earlier, entry.releasing_own)
            found[Output.RELEASED] = Outgoing(due, self._outputs.released, timestamps, reads=of)
        if late_rows_to(Output.LATE, entry):
            late = self._runs.late(entry)
            found[Output.LATE] = Outgoing(late, self._outputs.late, reads=reads)
        if entry.counts.quarantined:
            bad = self._runs.quarantined(entry)
            found[Output.QUARANTINE] = Outgoing(bad, self._outputs.quarantine, reads=reads)
        return found

    def _write(
        self, entry: StepEntry, outgoing: Mapping[Output | int, Outgoing], times: tuple[int, int]
    ) -> dict[Output | int, int]:
        """Write what goes out; return how many rows of the step each topic has."""
        if not outgoing:
            return {}
        written = self._job.sink.write([*outgoing.values()], entry.step, *times)
        return dict(zip(outgoing, written, strict=True))

    def _accounted(
        self, entry: StepEntry, written: Mapping[Output | int, int], processed: Processed | None
    ) -> StepDone:
        done = finish(
            entry,
            released=written.get(Output.RELEASED, 0) if processed is None else processed.taken,
            late=written.get(Output.LATE, 0),
            quarantined=written.get(Output.QUARANTINE, 0),
        )
        totals = None if processed is None else asdict(processed.totals)
        return replace(done, processed=totals, sent=self._job.sink.sent)

    def acknowledge(self) -> None:
        """Ack what has left the job with the newest step, if that step is done."""
        subscription, entry = self._job.subscription, self._log.entry
        if subscription is None or entry is None or not self._log.is_entry_done:
            return
        waiting: tuple[Location, ...] = ()
        transactions = (0, "")
        if self._processing is not None:
            waiting, transactions = self._processing.waiting, self._processing.transactions
        subscription.step_is_done(
            self._job.checkpoint,
            entry,
            waiting=waiting,
            transactions=transactions,
            now_ms=self._job.now_ms(),
        )

    def close(self) -> None:
        """End the work ahead; call it when no more steps are finished."""
        self._ahead.close()
        if self._processing is not None:
            self._processing.close()

    def _process_ahead(
        self, staged: StagedStep, before: StepEntry, processed: Processed
    ) -> StepAhead | None:
        assert self._processing is not None
        entry = self.decide(staged, before)
        return self._processing.process_ahead(entry, self._runs.due(entry), processed)

    def run_quiet(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> bool:
        """Run a step without new rows if it has something to do; return whether it had."""
        staged = self.quiet(kind, before, clock, now_ms, is_due=self.is_process_due)
        if staged is not None:
            self.run(staged)
        return staged is not None

    def drain(self) -> bool:
        """Release everything held; return whether there was anything."""
        entry = self._log.settled()
        if entry is None or not entry.live_runs:
            return False
        clock = entry.clock.drain()
        if clock.frontier_ms == entry.frontier_ms:
            return False
        return self.run_quiet(StepKind.DRAIN, entry, clock, self._job.now_ms())

    def close_windows(self) -> bool:
        """Close the windows of bolts, at the end of a drain; return whether there may be any."""
        before = self._log.settled()
        if before is None or self._processing is None or not self._processing.has_windows:
            return False
        self.run(self._next(StepKind.CLOSE, before, before.clock))
        return True

    def is_process_due(self, now_ms: int) -> bool:
        """Tell whether a retry or a tick is due."""
        if self._processing is None:
            return False
        due = (self._processing.due_ms(now_ms), self._processing.tick_due_ms)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def are_timers_due(self, before: StepEntry, clock: EventClock) -> bool:
        """Tell whether a timer of a key is due by what clocks have reached."""
        return self._processing is not None and self._processing.are_timers_due(
            clock, has_held=bool(before.live_runs)
        )

    def wait_for_room(self, wait: Callable[[float], bool]) -> None:
        """Try events again, and read no new ones, while too many wait.

        At most until as many are settled as waited before: each step may make as many new ones.
        """
        processing = self._processing
        if processing is None:
            return
        enough = processing.totals.settled + processing.totals.waiting
        while processing.is_full and processing.totals.settled < enough:
            if not self.try_again(wait):
                return

    def try_again(self, wait: Callable[[float], bool], kind: StepKind = StepKind.TICK) -> bool:
        """Wait until an event is due again, and process it; return whether there was one."""
        before, now_ms = self._log.settled(), self._job.now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self.run_quiet(kind, before, before.clock, self._job.now_ms())
        return True

    def ticked(self, before: StepEntry, now_ms: int) -> EventClock:
        clock = self._clock_since(before)
        positions = {where: known.position for where, known in clock.partitions.items()}
        ends = self.input_ends.look(positions)
        clock = self._frontier.looked_at(clock, positions, ends, now_ms)
        self._ticked = before.step, clock
        return self._frontier.advance(clock, before.learned, now_ms, before.runs)

    def _clock_since(self, before: Step) -> EventClock:
        """Return the clocks after a step, with the looks of later ticks that logged nothing."""
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
        """Return a step without new rows; None if it has nothing to do."""
        releases = any(
            run.may_release(before.frontier_ms, clock.frontier_ms) for run in before.runs
        )
        is_more = releases or is_due(now_ms) or self.are_timers_due(before, clock)
        return self._next(kind, before, clock) if is_more else None

    def reset(
        self, before: StepEntry, clock: EventClock, topics: Mapping[str, str], lost: Lost
    ) -> StagedStep:
        """Return a step behind which Spark's part begins again where the log ends."""
        following = self._next(StepKind.RESET, before, clock)
        return replace(
            following,
            batch_id=-1,
            source=f"{FIRST_SPARK_FOLDER}-{self._job.checkpoint.new_name(following.step)}",
            planned={where: one.position for where, one in clock.partitions.items()},
            topics=topics,
            counts=Totals(missing=rows_lost(lost)),
            lost=lost,
        )

    def first_of(
        self, begins: Mapping[SourcePartition, int], topics: Mapping[str, str], frontier_ms: int
    ) -> StagedStep:
        """Return the first step of a job that begins at its subscription's cursors."""
        now_ms = self._job.now_ms()
        ends = self.input_ends.look(begins)
        clock = self._frontier.looked_at(EventClock(frontier_ms), begins, ends, now_ms)
        return StagedStep(
            step=0,
            kind=StepKind.RESET,
            batch_id=-1,
            previous_frontier_ms=frontier_ms,
            clock=clock,
            owner=self._job.checkpoint.owner,
            source=f"{FIRST_SPARK_FOLDER}-{self._job.checkpoint.new_name(0)}",
            planned=dict(begins),
            topics=topics,
            output_partitions=self._partitions,
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
            owner=self._job.checkpoint.owner,
            source=before.source,
            planned=before.planned,
            topics=before.topics,
            output_partitions=self._partitions,
        )


def _sizes(*runs: Run | None) -> int:
    return sum(run.size_bytes for run in runs if run is not None)
