"""Steps that overlap: the next batch is read, and others are processed, while one goes out.

While one step's rows go out, or its bolts wait, the next batch is read and staged. A step that is
staged is on disk: if the driver dies, its next life finishes it, though Spark never gives its rows
again. So what a batch costs Spark is its staging alone.

Of a transactional topology the processing phases of several steps may be under way beside the
commit phase of one. What is done ahead is in memory, and in files that no document names: it counts
once it is the step's turn. Where a step before it fails, it is done again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import inf
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from uuid import uuid4

from sequitur.base.settings import format_duration
from sequitur.consumer.reorder.clock import LONGEST_TICK_MS, EventClock
from sequitur.consumer.reorder.event_time import now_of_step
from sequitur.consumer.reorder.lateness import ROUTES, Output
from sequitur.consumer.reorder.step_log import (
    StagedStep,
    StepEntry,
    StepKind,
    Totals,
    finish,
    late_rows_to,
)
from sequitur.errors import LateRowError, StepFunctionError, UnansweredError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.duplicates import DuplicateFinder, without_acked
from sequitur.pipelines.ordering.frontier import Frontier
from sequitur.pipelines.ordering.job_input import rows_lost, topic_ids
from sequitur.pipelines.ordering.progress import QuarantineWatch
from sequitur.pipelines.ordering.runs import KeyHistory
from sequitur.pipelines.rows.stage import SOURCE_COLUMNS
from sequitur.pipelines.sink.sink import Outgoing
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from sequitur.consumer.reorder.lateness import Run
    from sequitur.consumer.reorder.step_log import Step, StepDone
    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job_input import Lost
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.ordering.step_log import StepLog
    from sequitur.pipelines.rows.release import Selection
    from sequitur.pipelines.rows.stage import AckedOffsets
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import Processing, StepAhead


_LOOK_S: Final = 0.1
_LOOK_AHEAD_S: Final = 0.05


class Finisher:
    """Finishes staged batches in their order, in a thread of its own.

    A step without new rows is staged and finished by the thread that runs it. For a moment it is
    staged, too. So this thread takes only steps that it was given.
    """

    def __init__(self, log: StepLog, steps: Steps) -> None:
        self.error: Exception | None = None
        self._given = -1  # the newest step that it was given
        self._log = log
        self._steps = steps
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_at_work = False
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        """Whether all steps are done, and nothing is left to do behind their done marks.

        Commit tokens are renewed there: no other step may write meanwhile.
        """
        return self._log.is_done and not self._is_at_work

    def give(self, staged: StagedStep) -> None:
        """Have a step finished that was staged, once all before it are."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="steps", daemon=True)
            self._thread.start()
        with self._changed:
            self._given = staged.step
            self._changed.notify_all()

    def wait_for_room(self, is_stopping: Callable[[], bool]) -> None:
        """Return once another step may be staged."""
        self._wait(lambda: self._log.undone <= self._steps.most_waiting, is_stopping)

    def wait_until_idle(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Return once all steps are done; see `wait_for_room`."""
        self._wait(lambda: self.is_idle, is_stopping)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Run steps in the caller's thread; where one fails, it is the last of this life.

        It may be logged and not done. A step that is logged behind it would take it for done.
        """
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Let the steps that are staged end; to be called when no more are added."""
        if self._thread is not None:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()
            self._thread = None
            self._is_closing = False
        self._steps.close()

    def _wait(self, is_over: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        with self._changed:
            while not is_over():
                if self.error is not None:
                    raise self.error
                if is_stopping():
                    raise StopRequestedError
                self._changed.wait(_LOOK_S)
            if self.error is not None:
                raise self.error

    def _finish(self) -> None:
        while (staged := self._next()) is not None:
            try:
                self._steps.finish_step(staged)
            except Exception as error:  # noqa: BLE001 - the query's thread raises it
                self.error = error
            with self._changed:
                self._is_at_work = False
                self._changed.notify_all()
            if self.error is not None:
                return

    def _next(self) -> StagedStep | None:
        """Wait for a step that was given; None when there is none and none will come."""
        with self._changed:
            while not (staged := self._log.staged) or staged[0].step > self._given:
                if self._is_closing:
                    return None
                self._changed.wait()
            self._is_at_work = True
            return staged[0]


class StepsAhead:
    """Processes staged steps ahead of their turn, in a thread of its own."""

    def __init__(
        self,
        log: StepLog,
        most: int,
        process: Callable[[StagedStep, StepEntry, Processed], StepAhead | None],
    ) -> None:
        self._log = log
        self._most = most
        self._process = process
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._head: tuple[StepEntry, Processed] | None = None
        self._ready: deque[StepAhead] = deque()
        self._busy: int | None = None
        self._generation = 0

    def go_on_behind(self, entry: StepEntry, processed: Processed) -> None:
        """Process the steps behind one that is about to be committed."""
        if not self._most:
            return
        with self._changed:
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
                self._thread.start()
            if self._head is None:
                self._head = entry, processed
            self._changed.notify_all()

    def take(self, staged: StagedStep) -> StepAhead | None:
        """Return what was made of a step whose turn it is; None if it is to be done now."""
        with self._changed:
            while self._busy == staged.step:
                self._changed.wait()
            if self._ready and self._ready[0].entry.step == staged.step:
                found = self._ready.popleft()
                self._changed.notify_all()
                return found
            self._forget()
            return None

    def drop(self) -> None:
        """Forget all that is ahead: a step before it has failed, and may come to something else."""
        with self._changed:
            self._forget()

    def close(self) -> None:
        """End once the step that is in work is processed; forget all that is ahead."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._forget()
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _forget(self) -> None:
        self._generation += 1
        self._head = None
        self._ready.clear()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            staged, entry, processed, generation = found
            made = None
            try:
                made = self._process(staged, entry, processed)
            except Exception:  # noqa: BLE001 - it fails again when it is its turn, and is told then
                made = None
            with self._changed:
                self._busy = None
                if generation == self._generation:
                    if made is None:
                        self._head = None
                    else:
                        self._ready.append(made)
                        self._head = made.entry, made.processed
                self._changed.notify_all()

    def _next(self) -> tuple[StagedStep, StepEntry, Processed, int] | None:
        """Wait for a step that may be processed; None when there will be none."""
        with self._changed:
            while not self._is_closing:
                if self._head is not None and len(self._ready) < self._most:
                    entry, processed = self._head
                    behind = entry.step + 1
                    staged = next((one for one in self._log.staged if one.step == behind), None)
                    if staged is not None:
                        self._busy = behind
                        return staged, entry, processed, self._generation
                self._changed.wait(_LOOK_AHEAD_S)
            return None


# What a job of one's own is given of a step: its ordered rows, and an id to write them by.


ORDERED_COLUMNS: Final = ("event_time_ms", *SOURCE_COLUMNS)
_DOCUMENT: Final = "given.json"


@dataclass(frozen=True, slots=True)
class OrderedStep:
    """The rows that a step released, in their order.

    ::

        def write(step):
            for partition in range(step.partitions):
                for rows in step.tables(partition):
                    print(step.id, rows["event_time_ms"], rows["key"], rows["value"])

    The job calls the function again with the same id and the same rows in the same order until it
    has noted that the function returned. Numbers grow from step to step. Steps without rows are
    left out.

    Attributes:
        id: Unique name of the step, `<app>/<checkpoint>/<step>`, to store with the rows. No other
            step has it, in this job or in one with another checkpoint.
        step: Number of the step.
        frontier_ms: Event time, epoch ms, up to which all rows on time have been released with this
            step.
        partitions: How many partitions the output topic has.
    """

    id: str
    step: int
    frontier_ms: int
    partitions: int
    _due: Selection = field(repr=False)

    def tables(self, partition: int) -> Iterator[pa.Table]:
        """Yield the rows of a partition of the output topic, some at a time.

        They are read as they are asked for, which has to be within the call, at most 65,536 rows a
        table. From the first table to the last they are in the order of (event_time_ms, topic,
        partition, offset). All rows with one key are in one partition, but where the topic has
        gained partitions: then those up to an event time are in one, and later ones in one.

        Args:
            partition: From 0.

        Returns:
            Tables of these columns: event_time_ms (int64), and of the record that was read: topic
            (string), partition (int32), offset (int64), timestamp_ms (int64), key (binary, may be
            null), value (binary, may be null), headers (list of structs of key and value, may be
            null).

        Raises:
            IndexError: There is no such partition.
        """
        if not 0 <= partition < self.partitions:
            raise IndexError(f"partition {partition}: there are {self.partitions}, from 0")
        return (some for some in self._due.tables(partition, ORDERED_COLUMNS) if len(some))


StepFunction: TypeAlias = Callable[[OrderedStep], object]
"""Gets each step that has released rows, in the driver, one after the other."""


class GivenSteps:
    """Gives steps to a function."""

    def __init__(
        self, function: StepFunction, checkpoint: Checkpoint, *, app: str, partitions: int
    ) -> None:
        self._function = function
        self._checkpoint = checkpoint
        self._app = app
        self._partitions = partitions
        self._id: str | None = None

    @classmethod
    def of(cls, job: JobContext, partitions: int) -> Self | None:
        """Return what gives a job's steps; None without a function."""
        if job.on_step is None:
            return None
        return cls(job.on_step, job.checkpoint, app=job.settings.app_name, partitions=partitions)

    def give(self, entry: StepEntry, due: Selection) -> None:
        """Give a step, whose rows are in the output topic."""
        if self._id is None:
            self._id = self._checkpoint_id()
        name = f"{self._app}/{self._id}/{entry.step}"
        step = OrderedStep(name, entry.step, entry.frontier_ms, self._partitions, due)
        try:
            self._function(step)
        except BaseException as error:
            # One that ends a thread would leave the job waiting for it for ever; a Ctrl-C is not
            # the function's, and comes to the main thread alone.
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise
            raise StepFunctionError(
                f"step {entry.step}: on_step raised {error!r}. The next start calls it with the "
                f"same step, as {name!r}"
            ) from error

    def _checkpoint_id(self) -> str:
        """Names the checkpoint, wherever it is moved to: another one counts steps from 0, too."""
        found = self._checkpoint.read_document(_DOCUMENT, lambda document: str(document["id"]))
        if found is None:
            found = uuid4().hex[:12]
            self._checkpoint.write_document(_DOCUMENT, {"id": found})
        return found


# A step of the reorder job: staged, and finished.
#
# `stage` writes a batch's rows into files, and how far they move the frontier into the log. What is
# staged is finished by `finish_step`, in the order of steps: it decides what becomes of the rows,
# has a topology process them, writes what goes out, accounts for it, and marks the step as done.
#
# A step may be finished again, by this life or a later one. Where it was decided, what was decided
# is read back. Rows come from its files, up to the logged frontier, so they are the same rows in
# the same order, each under the sequence that the step's plan gives it: what is there already is
# left out.


_MOST_WAITING: Final = 1
"""Steps that wait for the one before them: what is staged and not out takes memory and disk."""


class Steps:
    """Stages steps, one at a time, and finishes them, one at a time.

    Steps are staged by whoever holds the engine's lock. They are finished by the thread of
    `Finisher`, and where that has nothing to do by whoever holds the lock.
    """

    def __init__(
        self,
        job: JobContext,
        log: StepLog,
        runs: SortedRuns,
        outputs: Outputs,
        partitions: int,
        *,
        processing: Processing | None = None,
        steady_s: Callable[[], float] = time.monotonic,
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
        self._given = GivenSteps.of(job, partitions)
        self.quarantines = QuarantineWatch(job.settings.event_time, job.outages.tell)
        most_ahead = 0 if processing is None else processing.most_ahead
        self._ahead = StepsAhead(log, most_ahead, self._process_ahead)
        self._begun_s: dict[int, float] = {}
        self._ticked = -1, EventClock()
        self._steady_s = steady_s
        self._looked_s = -inf
        self._silent_s: dict[SourcePartition, float] = {}  # since when leaders do not answer

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        """All topics that are written."""
        sides = (self._outputs.late, self._outputs.quarantine)
        if self._processing is not None:
            return (*self._processing.topics, *sides)
        return (self._outputs.released, *sides)

    def open(self) -> None:
        """Compare what the topics hold with the log, before anything is written."""
        newest = -1 if self._log.entry is None else self._log.entry.step
        subscription, done = self._job.subscription, self._log.done
        if self._processing is not None:
            former = NO_FORMER_JOB if subscription is None else subscription.former
            self._processing.open(done.step, newest, former)
        # The subscription knows what a checkpoint that is gone has written.
        takes_over = subscription is not None
        self._job.sink.open(self.topics, newest=newest, done=done, takes_over=takes_over)

    @property
    def most_waiting(self) -> int:
        """How many staged steps may wait for the one before them."""
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
        source = self._log.source
        planned = self._job.checkpoint.spark.planned_offsets(source, batch_id)
        name = self._job.checkpoint.new_name(step)
        try:
            found = self._runs.stage(
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
        # Behind the staging: an id that is the same now was the same while the rows were read.
        topics = topic_ids(self._job, before, {where.topic for where in planned})
        # And what arrived meanwhile must count as not read yet.
        now_ms = self._job.now_ms()
        ends = self._ends(planned)
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
            staged=found.totals,
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
        self._log.stage(staged)
        return staged

    def _spans(
        self, clock: EventClock, planned: Mapping[SourcePartition, int], source: str
    ) -> dict[SourcePartition, tuple[int, int]]:
        """Return which offsets a batch has of each source partition."""
        begins = {where: known.position for where, known in clock.partitions.items()}
        if planned.keys() - begins.keys():
            begins = {**self._job.checkpoint.spark.first_offsets(source), **begins}
        # Spark reads one that is new from offset 0, and fails where that is gone.
        return {where: (begins.get(where, 0), end) for where, end in planned.items()}

    def _acked(self, clock: EventClock, planned: Mapping[SourcePartition, int]) -> AckedOffsets:
        """Return what the subscription has acked among the rows of a batch."""
        if self._job.subscription is None:
            return {}
        before = {where: known.position for where, known in clock.partitions.items()}
        return self._job.subscription.acked(before, planned)

    def decide(self, staged: StagedStep, before: StepEntry | None = None) -> StepEntry:
        """Settle what becomes of the rows of a staged step, once the step before it is decided."""
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
        if entry.staged.late and ROUTES[entry.late_policy].ends_job:
            raise LateRowError(self._runs.describe_late(entry))
        return entry

    def run(self, staged: StagedStep) -> None:
        """Log a step without new rows, and finish it; all before it are done."""
        self._begun_s[staged.step] = time.monotonic()
        self._log.stage(staged)
        self.finish_step(staged)

    def finish_all(self) -> None:
        """Finish the step that is logged and those that are staged behind it."""
        if not self._log.is_entry_done:
            self.finish_step()
        for staged in self._log.staged:
            self.finish_step(staged)

    def finish_step(self, staged: StagedStep | None = None) -> None:
        """Finish the first step that is not done: one that is staged, else the one that is logged.

        It decides, processes, writes, accounts, marks as done, acknowledges and tells.
        """
        ahead = None if staged is None else self._ahead.take(staged)
        if staged is not None:
            self._log.write(self._decided(staged, ahead))
        entry = self._log.entry
        assert entry is not None
        begun_s = self._begun_s.pop(entry.step, time.monotonic())
        if self._job.subscription is not None:
            self._job.subscription.confirm()
        with self._failing():
            due, times = self._runs.due(entry), self._times()
            processed = self._processed(entry, due, ahead)
            written = self._write(entry, self._outgoing(entry, due, processed), times)
            if self._given is not None and due is not None and written.get(Output.RELEASED):
                self._given.give(entry, due)
            done = self._accounted(entry, written, processed)
        seconds = round(time.monotonic() - begun_s, 3)
        self._log.mark_done(replace(done, stamped_ms=times[0], seconds=seconds))
        self.acknowledge()
        self.quarantines.step_is_done(
            entry.staged, lambda reason: self._runs.some_quarantined(entry, reason)
        )
        self._job.on_done(entry, self._log.done)

    def _decided(self, staged: StagedStep, ahead: StepAhead | None) -> StepEntry:
        """Return what becomes of a step whose turn it is."""
        if ahead is not None:
            return replace(ahead.entry, before=self._log.done.totals)
        with self._failing():
            return self.decide(staged)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Where the block fails, nothing ahead counts; tell of a file that is gone."""
        try:
            yield
        except BaseException as error:
            self._ahead.drop()
            if isinstance(error, Exception):
                self._log.check_files()
            raise

    def _times(self) -> tuple[int, int]:
        """Return what a step takes for now, epoch ms, and the wall clock.

        A repeat, which may come days later, has a time of its own: what is out of the step keeps
        its timestamps, and what is not gets such as the brokers take now.
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
        """Have the topology process what a step releases; None without one."""
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
        """Return what goes to each topic."""
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
        if entry.staged.quarantined:
            bad = self._runs.quarantined(entry)
            found[Output.QUARANTINE] = Outgoing(bad, self._outputs.quarantine, reads=reads)
        return found

    def _write(
        self, entry: StepEntry, outgoing: Mapping[Output | int, Outgoing], times: tuple[int, int]
    ) -> dict[Output | int, int]:
        """Write what goes out; how many rows each topic has of the step."""
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
        """Ack what has left the job with the newest step, if that is done."""
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
        """End what is done ahead; to be called when no more steps are finished."""
        self._ahead.close()

    def _process_ahead(
        self, staged: StagedStep, before: StepEntry, processed: Processed
    ) -> StepAhead | None:
        """Decide a staged step whose turn is not yet, and process it."""
        assert self._processing is not None
        entry = self.decide(staged, before)
        return self._processing.process_ahead(entry, self._runs.due(entry), processed)

    def run_quiet(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> bool:
        """Run a step without new rows if there is something for it to do; whether there was."""
        staged = self.quiet(kind, before, clock, now_ms, is_due=self.is_process_due)
        if staged is not None:
            self.run(staged)
        return staged is not None

    def drain(self) -> bool:
        """Release everything held; whether anything was."""
        entry = self._log.settled()
        if entry is None or not entry.live_runs:
            return False
        clock = entry.clock.drain()
        if clock.frontier_ms == entry.frontier_ms:
            return False
        return self.run_quiet(StepKind.DRAIN, entry, clock, self._job.now_ms())

    def is_process_due(self, now_ms: int) -> bool:
        """Tell whether bolts are to be given an event again, or a tick."""
        if self._processing is None:
            return False
        due = (self._processing.due_ms(now_ms), self._processing.tick_due_ms)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def wait_for_room(self, wait: Callable[[float], bool]) -> None:
        """Try events again, and read no new ones, while too many wait.

        At most until as many are settled as waited: each step may make as many anew.
        """
        processing = self._processing
        if processing is None:
            return
        enough = processing.totals.settled + processing.totals.waiting
        while processing.is_full and processing.totals.settled < enough:
            if not self.try_again(wait):
                return

    def try_again(self, wait: Callable[[float], bool], kind: StepKind = StepKind.TICK) -> bool:
        """Wait until an event is due again, and process it; whether there was one."""
        before, now_ms = self._log.settled(), self._job.now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self.run_quiet(kind, before, before.clock, self._job.now_ms())
        return True

    def ticked(self, before: StepEntry, now_ms: int) -> EventClock:
        """Return the clocks once time has passed without new rows."""
        clock = self._clock_since(before)
        positions = {where: known.position for where, known in clock.partitions.items()}
        ends = self._ends(positions)
        clock = self._frontier.looked_at(clock, positions, ends, now_ms)
        self._ticked = before.step, clock
        return self._frontier.advance(clock, before.learned, now_ms, before.runs)

    def is_look_due(self) -> bool:
        """Tell whether the input has not been looked at for as long as a tick may take.

        By a clock that nobody sets: the wall clock may be set back for an hour.
        """
        return self._steady_s() - self._looked_s >= LONGEST_TICK_MS / 1000

    def _ends(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """Look where partitions end now; those of leaders that do not answer are left out.

        But for a run that reads to an end, and not for longer than patience goes.
        """
        wanted = [*partitions]
        ends = self._job.topics.high_watermarks(wanted, of_some=not self._job.is_bounded)
        self._looked_s = now_s = self._steady_s()
        silent = {where: self._silent_s.get(where, now_s) for where in wanted if where not in ends}
        names = ", ".join(f"{topic}/{number}" for topic, number in sorted(silent))
        patience = self._job.settings.patience
        if any(now_s - since_s >= patience.total_seconds() for since_s in silent.values()):
            raise UnansweredError(f"no leader of {names} answers for {format_duration(patience)}")
        if silent.keys() - self._silent_s.keys():
            self._job.outages.tell(
                f"no leader of {names} answers: the job goes on with other partitions, and the "
                "frontier waits for these"
            )
        self._silent_s = silent
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

    def reset(
        self, before: StepEntry, clock: EventClock, topics: Mapping[str, str], lost: Lost
    ) -> StagedStep:
        """Return a step behind which Spark's part begins again where the log has got to."""
        following = self._next(StepKind.RESET, before, clock)
        return replace(
            following,
            batch_id=-1,
            source=f"{FIRST_SPARK_FOLDER}-{self._job.checkpoint.new_name(following.step)}",
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
