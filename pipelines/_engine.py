"""The reorder engine: stage, advance, release, once for each micro-batch.

1. **Stage.** The batch's rows are written as one Parquet run, sorted by event time; those behind
   the frontier and those without a usable event time are in it too, so that a repeat needs no more.
   Where there are rows behind the frontier, they are judged by how far their keys have been
   released, and that is written to a file, too.
2. **Advance.** The clocks take in what the batch showed, and the new frontier is logged.
3. **Release.** The rows of the runs up to the frontier go to the output topic in order, rescued
   ones among them; late and quarantined rows go to theirs. Then the step is marked as done.

What a crash leaves, and what the restart does with it:

- before the log entry: files that nobody knows. Spark repeats the batch; they are written over.
- after it, before the done mark: Spark repeats the batch, and the outputs are written again from
  the runs, up to the logged frontier: the same rows in the same order. Output partitions that have
  them already are left out, by their commit tokens (`delivery = "at-least-once"`: they get them
  again).
- after the done mark, before Spark's commit: Spark repeats the batch; there is nothing to do.

A file that the newest entry does not name is deleted when the next step begins: only then will
Spark, or a restart, not repeat the step before it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from consumer import (
    BEFORE_ALL_TIME_MS,
    EventClock,
    LatePolicy,
    LearnedDelays,
    StepEntry,
    StepKind,
    Totals,
    finish,
    learn,
)
from pipelines._behind import BehindRows
from pipelines._errors import CheckpointError
from pipelines._rows import RELEASE_ORDER, SOURCE_ORDER
from pipelines._sink import Outgoing, TopicSink
from pipelines._state import open_state
from producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from consumer import ReorderSettings, SourcePartition, StepDone
    from pipelines._checkpoint import Checkpoint
    from pipelines._kafka_topics import KafkaTopics
    from pipelines._processing import Processing
    from pipelines._sink import Outputs, OutputTopic
    from producer import KafkaSettings


class StopRequestedError(Exception):
    """A batch that was about to begin gives way to a stop. Spark repeats it at the next start."""


class ReorderEngine:
    """Everything between a micro-batch and the output topics.

    One step at a time, whoever asks for it: Spark's stream thread for batches, the driver's loop
    for ticks. `_entry` and `_done` are the newest step and the newest done mark, as on disk; they
    change under `_lock` alone, as does `_begun_s`, when the running step began.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        outputs: The output topics.
        topics: Admin client.
        checkpoint: The job's folder, claimed already.
        now_ms: The wall clock.
        on_step: Told of each step once it is done.
        processing: A topology that is given what steps release, instead of the output topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        outputs: Outputs,
        topics: KafkaTopics,
        checkpoint: Checkpoint,
        now_ms: Callable[[], int],
        on_step: Callable[[StepEntry, StepDone], None],
        processing: Processing | None = None,
    ) -> None:
        self._settings = settings
        self._policy = settings.delay_policy
        self._outputs = outputs
        self._topics = topics
        self._checkpoint = checkpoint
        self._now_ms = now_ms
        self._on_step = on_step
        self._runs, history = open_state(spark, checkpoint, settings, outputs)
        self._behind = BehindRows(checkpoint, settings, self._runs, history)
        self._sink = TopicSink(spark, kafka, settings, checkpoint)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._processing = processing
        self._begun_s = time.monotonic()
        self._entry, self._done = checkpoint.latest()

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return self._checkpoint.spark_folder

    @property
    def totals(self) -> Totals:
        """Counts of all steps that are done."""
        return self._done.totals

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return BEFORE_ALL_TIME_MS if self._entry is None else self._entry.frontier_ms

    @property
    def learned(self) -> LearnedDelays | None:
        """What the delays are learned from; None with a fixed delay."""
        return None if self._entry is None or self._policy is None else self._entry.learned

    @property
    def processed(self) -> Mapping[str, int] | None:
        """Counts of the topology behind; None without one."""
        return None if self._processing is None else asdict(self._processing.totals)

    @property
    def steps(self) -> int:
        """Number of steps since the checkpoint began."""
        return self._done.step + 1

    def recover(self) -> None:
        """Finish a tick or drain that a crash cut short; Spark itself repeats a batch.

        To be called once, before the first step.

        Raises:
            CommitTokenError: It is not known what an output topic holds, or it is not ours.
            CheckpointError: Spark takes the last batch as done, and it is not.
        """
        with self._lock:
            entry = self._entry
            released: tuple[OutputTopic, ...] = (self._outputs.released,)
            newest = -1 if entry is None else entry.step
            if self._processing is not None:
                released = self._processing.topics
                self._processing.open(self._done.step)
                if not self._processing.is_processed(newest):
                    newest = self._done.step  # of that step nothing can be out yet
            self._sink.open(
                (*released, self._outputs.late, self._outputs.quarantine),
                newest=newest,
                done=self._done.step,
            )
            if entry is None or self._is_done(entry):
                return
            if entry.kind is not StepKind.BATCH:
                self._finish(entry)
            elif self._checkpoint.is_committed(entry.batch_id):
                raise CheckpointError(
                    f"{self._checkpoint.root}: Spark has committed batch {entry.batch_id}, "
                    f"but step {entry.step} has no done mark"
                )

    def run_batch(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch, new or repeated; to be given to `foreachBatch`.

        Raises:
            StopRequestedError: `close` was called.
            CheckpointError: Spark's checkpoint is older than ours.
            ConservationError: A row is unaccounted for.
        """
        with self._lock:
            if self._stopping.is_set():
                raise StopRequestedError
            self._wait_for_room()
            self._begun_s = time.monotonic()
            entry = self._entry
            if entry is None or batch_id > entry.batch_id:
                self._new_batch(rows, batch_id)
            elif batch_id < entry.batch_id:
                raise CheckpointError(
                    f"{self._checkpoint.root}: Spark begins batch {batch_id}, "
                    f"but batch {entry.batch_id} is logged: is its own part of the folder gone?"
                )
            elif not self._is_done(entry):
                self._finish(entry)

    def tick(self) -> bool:
        """Release what has become due without new rows; whether anything was.

        Spark runs no batch without new rows, so without ticks a topic that falls silent would keep
        its last rows for ever. While a batch runs there is no need for one.
        """
        with _free(self._lock) as is_free:
            if not is_free:
                return False
            self._begun_s = time.monotonic()
            entry = self._settled()
            now_ms = self._now_ms()
            if entry is None or not (entry.live_runs or self._is_retry_due(now_ms)):
                return False
            ends = self._topics.high_watermarks(entry.clock.partitions)
            clock = entry.clock
            for partition, before in entry.clock.partitions.items():
                clock = clock.observe(
                    partition,
                    max_event_time_ms=None,
                    position=before.position,
                    high_watermark=ends[partition],
                    now_ms=now_ms,
                )
            clock = self._advance(clock, entry.learned, now_ms)
            return self._quiet_step(StepKind.TICK, entry, clock, now_ms)

    def drain(self) -> bool:
        """Release everything held; whether anything was."""
        with self._lock:
            self._begun_s = time.monotonic()
            entry = self._settled()
            if entry is None or not entry.live_runs:
                return False
            return self._quiet_step(StepKind.DRAIN, entry, entry.clock.drain(), self._now_ms())

    def process_pending(self, wait: Callable[[float], bool]) -> None:
        """Try events again until none waits; to be called at the end, after `close`.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.
        """
        with self._lock, contextlib.suppress(StopRequestedError):
            while self._try_again(wait):
                pass

    def close(self) -> None:
        """Let the running step end, and none begin after it."""
        self._stopping.set()
        with self._lock:
            return

    def is_settled(self) -> bool:
        """Whether Spark has committed the last batch, so that it will not be repeated."""
        with self._lock:
            return self._entry is None or self._settled() is not None

    def tidy(self) -> None:
        """Delete the runs that nobody needs any more, once the last step is settled."""
        with self._lock:
            entry = self._settled()
            if entry is not None:
                self._forget(entry)

    def _is_done(self, entry: StepEntry) -> bool:
        return self._done.step >= entry.step

    def _settled(self) -> StepEntry | None:
        """The newest step, if it is done and Spark will not repeat its batch."""
        entry = self._entry
        if entry is None or not self._is_done(entry):
            return None
        # A tick follows a committed batch, so only a batch has to be looked up.
        if entry.kind is StepKind.BATCH and not self._checkpoint.is_committed(entry.batch_id):
            return None
        return entry

    def _new_batch(self, rows: DataFrame, batch_id: int) -> None:
        before = self._entry
        if before is not None and not self._is_done(before):
            raise CheckpointError(
                f"{self._checkpoint.root}: batch {batch_id} begins, "
                f"but step {before.step} has no done mark"
            )
        self._forget(before)
        step = 0 if before is None else before.step + 1
        clock = EventClock() if before is None else before.clock
        learned = None if before is None else before.learned
        runs, keys = self._behind.begin(before, step)
        planned = self._checkpoint.planned_offsets(batch_id)
        staged = self._runs.stage(
            rows,
            step,
            sorted(planned),
            frontier_ms=self._behind.passed_ms(clock.frontier_ms),
            latest_ms=self._now_ms() + milliseconds(self._settings.max_future_skew),
            learn_from=clock if self._policy else None,
        )
        # Behind the staging: what arrived meanwhile must count as not read yet.
        now_ms = self._now_ms()
        ends = self._topics.high_watermarks(planned)
        after = clock
        for partition, position in planned.items():
            after = after.observe(
                partition,
                max_event_time_ms=staged.max_event_time_ms.get(partition),
                position=position,
                high_watermark=ends[partition],
                now_ms=now_ms,
            )
        if self._policy is not None:
            learned = learn(
                learned or LearnedDelays(), clock, after, staged.lateness, policy=self._policy
            )
        elif learned is not None:
            learned = learned.set_aside()
        entry = StepEntry(
            step=step,
            kind=StepKind.BATCH,
            batch_id=batch_id,
            previous_frontier_ms=clock.frontier_ms,
            clock=self._advance(after, learned, now_ms),
            staged=staged.totals,
            runs=(*runs, staged.run),
            before=self._done.totals,
            logged_ms=now_ms,
            learned=learned,
            late_policy=self._settings.late_policy,
            keys=keys,
            deduplicated_ms=self._behind.deduplicated_ms(clock.frontier_ms),
        )
        entry = self._behind.judge(self._behind.deduplicate(entry, staged), staged)
        self._log(entry)
        self._finish(entry)

    def _forget(self, entry: StepEntry | None) -> None:
        """Delete the files that no step from now on will read."""
        keys = None if entry is None else entry.keys
        self._checkpoint.keep(
            runs=set() if entry is None else {run.step for run in entry.kept_runs},
            keys=set() if keys is None else {fold.step for fold in keys.folds},
        )

    def _quiet_step(
        self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int
    ) -> bool:
        entry = StepEntry(
            step=before.step + 1,
            kind=kind,
            batch_id=before.batch_id,
            previous_frontier_ms=before.frontier_ms,
            clock=clock,
            staged=Totals(),
            runs=before.kept_runs,
            before=self._done.totals,
            logged_ms=now_ms,
            learned=before.learned,
            keys=before.keys,
            deduplicated_ms=self._behind.deduplicated_ms(before.frontier_ms),
        )
        releases = clock.frontier_ms != before.frontier_ms and entry.releasing_earlier
        if not releases and not self._is_retry_due(now_ms):
            return False
        self._forget(before)
        entry = self._behind.deduplicate(entry)
        self._log(entry)
        self._finish(entry)
        return True

    def _is_retry_due(self, now_ms: int) -> bool:
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        return due_ms is not None and due_ms <= now_ms

    def _wait_for_room(self) -> None:
        """Try events again, and read no new ones, while too many wait."""
        processing = self._processing
        while processing is not None and processing.is_full:
            if not self._try_again(self._stopping.wait):
                return

    def _try_again(self, wait: Callable[[float], bool]) -> bool:
        """Wait until an event is due again, and process it; whether there was one.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Raises:
            StopRequestedError: It was given up.
        """
        before, now_ms = self._settled(), self._now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self._begun_s = time.monotonic()
        self._quiet_step(StepKind.TICK, before, before.clock, self._now_ms())
        return True

    def _advance(self, clock: EventClock, learned: LearnedDelays | None, now_ms: int) -> EventClock:
        delay_ms: int | dict[SourcePartition, int] = milliseconds(self._settings.longest_delay)
        if self._policy is not None:
            delay_ms = (learned or LearnedDelays()).delays_ms(clock.partitions, self._policy)
        return clock.advance(
            now_ms=now_ms,
            delay_ms=delay_ms,
            idle_timeout_ms=milliseconds(self._settings.idle_timeout),
        )

    def _log(self, entry: StepEntry) -> None:
        self._checkpoint.write_entry(entry)
        self._entry = entry

    def _finish(self, entry: StepEntry) -> None:
        """Write the outputs of a logged step, account for them, and mark the step as done."""
        due = self._runs.due(entry)
        outgoing: dict[str, Outgoing] = {}
        processed = None
        if self._processing is not None:
            processed = self._processing.process(entry, due)
            for number, out in enumerate(self._processing.outgoing(processed)):
                outgoing[f"processed {number}"] = out
        elif due is not None:
            outgoing["released"] = Outgoing(due, self._outputs.released, RELEASE_ORDER)
        if entry.staged.late and entry.late_policy is LatePolicy.TOPIC:
            late = self._runs.late(entry)
            outgoing["late"] = Outgoing(late, self._outputs.late, SOURCE_ORDER)
        if entry.staged.quarantined:
            quarantined = self._runs.quarantined(entry)
            outgoing["quarantined"] = Outgoing(quarantined, self._outputs.quarantine, SOURCE_ORDER)
        counts = dict.fromkeys(("released", "late", "quarantined"), 0)
        if outgoing:
            written = self._sink.write(tuple(outgoing.values()), entry.step)
            counts.update(zip(outgoing, written, strict=True))
        released = counts["released"] if processed is None else processed.taken
        done = finish(
            entry, released=released, late=counts["late"], quarantined=counts["quarantined"]
        )
        done = replace(
            done,
            seconds=round(time.monotonic() - self._begun_s, 3),
            processed=None if processed is None else asdict(processed.totals),
        )
        self._checkpoint.write_done(done)
        self._done = done
        self._sink.step_is_done(entry.step)
        self._on_step(entry, done)


@contextlib.contextmanager
def _free(lock: threading.Lock) -> Iterator[bool]:
    """Hold a lock that nobody holds; whether it is so."""
    is_free = lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            lock.release()
