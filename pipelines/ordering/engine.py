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

A file that the newest entry does not name is deleted once that entry stands: only then will
Spark, or a restart, not repeat the step before it.

What Spark's own checkpoint says is not taken on trust: a batch that is repeated must end where the
entry says it ended, and the input topics must be those that were read, by the ids that brokers give
them. Where that does not hold, the job stops by name, and `reset_input` is the way to go on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    Delivery,
    EventClock,
    LatePolicy,
    LearnedDelays,
    SourcePartition,
    StepEntry,
    StepKind,
    Totals,
    finish,
    learn,
    now_of_step,
)
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.ordering.behind import BehindRows
from sequitur.pipelines.ordering.data_loss import lost_offsets, rows_lost
from sequitur.pipelines.ordering.input_checks import InputChecks
from sequitur.pipelines.ordering.progress import waiting_text
from sequitur.pipelines.ordering.state import open_state
from sequitur.pipelines.rows.columns import RELEASE_ORDER, SOURCE_ORDER
from sequitur.pipelines.sink.sink import Outgoing, TopicSink
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sequitur.consumer import ReorderSettings, Run, StepDone
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.sink.topic_limits import Limits
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.topology.processing import Processing
    from sequitur.producer import KafkaSettings


class StopRequestedError(Exception):
    """A batch that was about to begin gives way to a stop. Spark repeats it at the next start."""


class ReorderEngine:
    """Everything between a micro-batch and the output topics.

    One step at a time, whoever asks for it: Spark's stream thread for batches, the driver's loop
    for ticks. `_entry` and `_done` are the newest step and the newest done mark, as on disk; they
    change under `_lock` alone, as do `_begun_s`, when the running step began, `_is_resetting`, and
    `_lasting`, the newest batch whose commit is known to outlast a power cut.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        outputs: The output topics.
        topics: Admin client.
        checkpoint: The job's folder, claimed already.
        now_ms: The wall clock.
        on_step: Told of each step once it is done.
        outages: How long what passes by itself is waited for.
        limits: What the output topics take of one record.
        processing: A topology that is given what steps release, instead of the output topic.
        is_bounded: Whether the run ends when it has read what is there.
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
        outages: Outages,
        limits: Limits,
        processing: Processing | None = None,
        is_bounded: bool = False,
    ) -> None:
        self._settings = settings
        self._is_bounded = is_bounded
        self._policy = settings.delay_policy
        self._outputs = outputs
        self._topics = topics
        self._checkpoint = checkpoint
        self._now_ms = now_ms
        self._on_step = on_step
        self._runs, history = open_state(spark, checkpoint, settings, outputs, limits)
        self._input = InputChecks(checkpoint, topics)
        self._behind = BehindRows(checkpoint, settings, self._runs, history)
        self._sink = TopicSink(spark, kafka, settings, checkpoint, outages)
        self._outages = outages
        self._overruled: set[SourcePartition] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_resetting = False
        self._lasting: tuple[str, int] | None = None
        self._processing = processing
        self._begun_s = time.monotonic()
        self._entry, self._done = checkpoint.latest()

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return self._checkpoint.spark_folder(self._source)

    def forget_unfinished(self) -> None:
        """Let go of what Spark was at when it ended, or power failed; when no query runs."""
        with self._lock:
            logged = -1 if self._entry is None else self._entry.batch_id
            self._checkpoint.spark.forget_unfinished(self._source, logged)

    @property
    def begins_at(self) -> Mapping[SourcePartition, int] | None:
        """Where Spark is to begin: None says as the settings have it, or where it was.

        A partition that is not named is to be read from its beginning.
        """
        entry = self._entry
        return entry.planned if entry is not None and entry.batch_id < 0 else None

    @property
    def _source(self) -> str:
        return FIRST_SPARK_FOLDER if self._entry is None else self._entry.source

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
    def waits_for(self) -> str:
        """What the rows that are held wait for; empty without any."""
        if self._entry is None or not self.totals.held:
            return ""
        return waiting_text(self._entry.clock, now_ms=self._now_ms())

    @property
    def processed(self) -> Mapping[str, int] | None:
        """Counts of the topology behind; None without one."""
        return None if self._processing is None else asdict(self._processing.totals)

    @property
    def steps(self) -> int:
        """Number of steps since the checkpoint began."""
        return self._done.step + 1

    def recover(self) -> None:
        """Finish a step that Spark will not repeat: it repeats a batch that it has not committed.

        To be called before the first step of a query.

        Raises:
            CommitTokenError: It is not known what an output topic holds, or it is not ours.
            CheckpointError: Spark has gone on, and the log is gone.
        """
        with self._lock:
            entry = self._entry
            self._checkpoint.check_log(entry)
            released: tuple[OutputTopic, ...] = (self._outputs.released,)
            sides = (self._outputs.late, self._outputs.quarantine)
            newest = -1 if entry is None else entry.step
            written = None
            if self._processing is not None:
                released = self._processing.topics
                self._processing.open(self._done.step, newest)
                going = self._processing.topics_of(newest)
                if going is None:
                    newest = self._done.step  # of that step nothing can be out yet
                else:
                    written = {*going, *(side.name for side in sides)}
            self._sink.open(
                (*released, *sides), newest=newest, done=self._done.step, written=written
            )
            if entry is not None:
                self._checkpoint.held.check_whole(entry, is_done=self._is_done(entry))
            if entry is None or self._is_done(entry):
                return
            if entry.kind is not StepKind.BATCH:
                self._finish(entry)
            elif self._checkpoint.spark.is_committed(entry.source, entry.batch_id):
                self._outages.tell(
                    f"step {entry.step} has no done mark, though Spark has committed its batch, "
                    "and is finished again: "
                    + (
                        "what is out of it is left out"
                        if self._settings.delivery is Delivery.EXACTLY_ONCE
                        else "what is out of it is written once more (at-least-once)"
                    )
                )
                self._finish(entry)

    def check_input(self) -> None:
        """Check that the input is what was read.

        To be called once, after `recover`.

        Raises:
            CheckpointError: Spark goes on somewhere else, or a topic has been made anew.
            TopicError: The brokers do not answer.
        """
        with self._lock:
            if self._entry is not None:
                self._input.check_start(self._entry)

    def reset_input(self, wait: Callable[[float], bool]) -> bool:
        """Have Spark's part begin anew where the log has got to; topics made anew, at their start.

        For when Spark's own checkpoint is lost or is not ours, or topics are not those that were
        read. Before the first step there is only Spark's plan to let go of. To be called once,
        after `recover`, instead of `check_input`.

        Of a topic that was made anew, rows will come with offsets that were there before. So what
        is held goes out first, as in a drain, and events that wait for another attempt get it.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Returns:
            Whether it was not given up: else nothing is reset.

        Raises:
            TopicError: The brokers do not answer.
        """
        with self._lock, contextlib.suppress(StopRequestedError):
            entry = self._entry
            if entry is None:
                self._checkpoint.spark.drop(self._source)  # nothing of it is in the log
                return True
            if not self._is_done(entry):
                self._finish(entry)  # its batch is staged, so Spark need not give it again
            ids = self._topics.ids(entry.topics)
            anew = {
                topic for topic, known in entry.topics.items() if ids.get(topic, known) != known
            }
            self._is_resetting = True
            if anew and entry.live_runs:
                self._begun_s = time.monotonic()
                self._quiet_step(StepKind.DRAIN, entry, entry.clock.drain(), self._now_ms())
            while anew and self._try_again(wait):
                pass
            # The drain and the attempts have moved the frontier: the reset goes on from there.
            newest = self._entry
            assert newest is not None  # steps are added, and never taken away
            self._reset(newest.clock.without(anew), {**newest.topics, **ids})
            self._is_resetting = False
            return True
        return False

    def lost(self, topics: Mapping[str, int]) -> Lost:
        """What the input has lost that was never read, by partition; see `has_log`, too.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            CheckpointError: A topic has been made anew.
            TopicError: The brokers do not answer.
        """
        with self._lock:
            if self._entry is None:
                # Only where the first batch is planned already is there anything to lose.
                planned = self._checkpoint.spark.first_offsets(self._source)
                first = self._first_offsets(topics)
                return {
                    where: (position, first[where])
                    for where, position in planned.items()
                    if first.get(where, position) > position
                }
            # Of a topic that was made anew nothing is lost that can be told by offsets.
            self._input.topic_ids(self._entry, self._entry.topics)
            return lost_offsets(self._entry.clock, self._first_offsets(topics))

    @property
    def has_log(self) -> bool:
        """Whether anything was logged yet; else nothing can be counted as missing."""
        return self._entry is not None

    def pass_over_lost(self, topics: Mapping[str, int]) -> Lost:
        """Have Spark's part begin anew behind what the input has lost, and count that as missing.

        To be called when no query runs.

        Args:
            topics: As those of `lost`.

        Returns:
            What was lost.

        Raises:
            TopicError: The brokers do not answer.
            SinkError: The newest step was not done, and cannot be written.
        """
        with self._lock:
            entry = self._entry
            if entry is None:
                raise RuntimeError("nothing was read yet")
            if not self._is_done(entry):
                self._finish(entry)  # its batch is staged, so Spark need not give it again
            first = self._first_offsets(topics)
            lost = lost_offsets(entry.clock, first)
            there = {topic: known for topic, known in entry.topics.items() if topic in topics}
            there |= self._topics.ids(topic for topic in topics if topic not in there)
            clock = entry.clock.passed_over(first, now_ms=self._now_ms())
            self._reset(clock, there, lost)
            return lost

    def _first_offsets(self, topics: Mapping[str, int]) -> dict[SourcePartition, int]:
        """The first offset that is there of each partition that is."""
        return self._topics.low_watermarks(_partitions(topics))

    def unread(self, topics: Mapping[str, int]) -> dict[SourcePartition, tuple[int, int]]:
        """Of each partition the first offset that is not read yet, and its end.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            TopicError: The brokers do not answer.
        """
        known = {} if self._entry is None else self._entry.clock.partitions
        there = _partitions(topics)
        ends = self._topics.high_watermarks(there)
        first = self._topics.low_watermarks(where for where in there if where not in known)
        return {
            where: (known[where].position if where in known else first[where], ends[where])
            for where in there
        }

    def reopen(self) -> None:
        """Take steps again, after `close`: for a query that is started anew.

        Raises:
            CommitTokenError: It is not known what an output topic holds, or it is not ours.
            UnansweredError: The brokers do not answer.
        """
        self.recover()
        self._stopping.clear()

    def _reset(
        self, clock: EventClock, topics: Mapping[str, str], lost: Lost | None = None
    ) -> None:
        before = self._entry
        if before is None:
            raise RuntimeError("there is nothing to reset")
        lost = lost or {}
        self._begun_s = time.monotonic()
        entry = self._next(StepKind.RESET, before, clock, self._now_ms())
        positions = {where: clock.position for where, clock in entry.clock.partitions.items()}
        entry = replace(
            entry,
            batch_id=-1,
            source=f"{FIRST_SPARK_FOLDER}-{entry.name}",
            planned=positions,
            topics=topics,
            staged=Totals(missing=rows_lost(lost)),
            lost=lost,
        )
        self._log(entry)
        self._finish(entry)

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
            self._input.check_batch(entry, batch_id)
            if entry is None or batch_id > entry.batch_id:
                self._new_batch(rows, batch_id)
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
            if entry is None or not (entry.live_runs or self._is_process_due(now_ms)):
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
            clock = self._advance(clock, entry.learned, now_ms, entry.runs)
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
                self._checkpoint.tidy(entry)

    def _is_done(self, entry: StepEntry) -> bool:
        return self._done.step >= entry.step

    def _settled(self) -> StepEntry | None:
        """The newest step, if it is done and Spark will not repeat its batch."""
        entry = self._entry
        if entry is None or not self._is_done(entry):
            return None
        # A tick follows a committed batch, so only a batch has to be looked up.
        if entry.kind is not StepKind.BATCH or self._is_resetting:
            return entry
        if not self._checkpoint.spark.is_committed(entry.source, entry.batch_id):
            return None
        if self._lasting != (batch := (entry.source, entry.batch_id)):
            self._checkpoint.spark.make_commit_last(*batch)
            self._lasting = batch
        return entry

    def _new_batch(self, rows: DataFrame, batch_id: int) -> None:
        before = self._entry
        if before is not None and not self._is_done(before):
            raise CheckpointError(
                f"{self._checkpoint.root}: batch {batch_id} begins, "
                f"but step {before.step} has no done mark"
            )
        step = 0 if before is None else before.step + 1
        name = self._checkpoint.new_name(step)
        clock = EventClock() if before is None else before.clock
        learned = None if before is None else before.learned
        runs, keys = self._behind.begin(before, step, name)
        planned = self._checkpoint.spark.planned_offsets(self._source, batch_id)
        staged = self._runs.stage(
            rows,
            step,
            sorted(planned),
            name=name,
            frontier_ms=self._behind.behind_ms(clock.frontier_ms),
            bounds=self._settings.bounds(self._now_ms()),
            learn_from=clock if self._policy else None,
        )
        # Behind the staging: an id that is the same now was the same while the rows were read.
        topics = self._input.topic_ids(before, {where.topic for where in planned})
        # And what arrived meanwhile must count as not read yet.
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
            clock=self._advance(after, learned, now_ms, (*runs, staged.run)),
            staged=staged.totals,
            runs=(*runs, staged.run),
            before=self._done.totals,
            logged_ms=now_ms,
            learned=learned,
            late_policy=self._settings.late_policy,
            keys=keys,
            deduplicated_ms=self._behind.deduplicated_ms(clock.frontier_ms),
            owner=self._checkpoint.owner,
            name=name,
            source=self._source,
            planned=planned,
            topics=topics,
        )
        entry = self._behind.judge(self._behind.deduplicate(entry, staged), staged)
        self._log(entry)
        self._finish(entry)

    def _quiet_step(
        self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int
    ) -> bool:
        entry = self._next(kind, before, clock, now_ms)
        releases = clock.frontier_ms != before.frontier_ms and entry.releasing_earlier
        if not releases and not self._is_process_due(now_ms):
            return False
        entry = self._behind.deduplicate(entry)
        self._log(entry)
        self._finish(entry)
        return True

    def _next(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> StepEntry:
        """A step without new rows."""
        step = before.step + 1
        return StepEntry(
            step=step,
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
            owner=self._checkpoint.owner,
            name=self._checkpoint.new_name(step),
            source=before.source,
            planned=before.planned,
            topics=before.topics,
        )

    def _is_process_due(self, now_ms: int) -> bool:
        """Whether bolts are to be given an event again, or a tick."""
        if self._processing is None:
            return False
        due = (self._processing.due_ms(now_ms), self._processing.tick_due_ms)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

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

    def _advance(
        self,
        clock: EventClock,
        learned: LearnedDelays | None,
        now_ms: int,
        runs: Sequence[Run],
    ) -> EventClock:
        """The clock with the frontier moved; what runs hold behind it is kept within its bound."""
        delay_ms: int | dict[SourcePartition, int] = milliseconds(self._settings.longest_delay)
        if self._policy is not None:
            delay_ms = (learned or LearnedDelays()).delays_ms(clock.partitions, self._policy)
        most = self._settings.max_held_bytes
        after = clock.advance(
            now_ms=now_ms,
            delay_ms=delay_ms,
            idle_timeout_ms=milliseconds(self._settings.idle_timeout),
            is_bounded=self._is_bounded,
            fits=lambda frontier_ms: sum(run.held_bytes(frontier_ms) for run in runs) <= most,
        )
        overruled = {where for where, one in after.partitions.items() if one.was_overruled}
        if anew := overruled - self._overruled:
            names = ", ".join(f"{where.topic}/{where.partition}" for where in sorted(anew))
            self._outages.tell(
                f"more than max_held_bytes = {most} are held for the sake of partitions {names}: "
                "the frontier goes on without them, and what is behind it there is late"
            )
        self._overruled = overruled
        return after

    def _log(self, entry: StepEntry) -> None:
        self._checkpoint.write_entry(entry)
        self._entry = entry

    def _finish(self, entry: StepEntry) -> None:
        """Write the outputs of a logged step, account for them, and mark the step as done."""
        due = self._runs.due(entry)
        # A repeat, which may come days later, has a time of its own: what is out of the step keeps
        # its timestamps, and what is not gets such as the brokers take now.
        clock_ms, before_ms = self._now_ms(), self._done.stamped_ms
        now_ms = now_of_step(clock_ms, before_ms)
        if now_ms < before_ms:
            self._outages.tell(
                f"this machine's clock is {(before_ms - clock_ms) / 1000:.0f} s behind what it "
                f"said when step {self._done.step} was written: timestamps go back to it"
            )
        outgoing: dict[str, Outgoing] = {}
        processed = None
        if self._processing is not None:
            processed = self._processing.process(entry, due)
            for number, out in enumerate(self._processing.outgoing(processed)):
                outgoing[f"processed {number}"] = out
        elif due is not None:
            released = self._outputs.released
            timestamps = self._settings.output_timestamp
            outgoing["released"] = Outgoing(due, released, RELEASE_ORDER, timestamps)
        if entry.staged.late and entry.late_policy is LatePolicy.TOPIC:
            late = self._runs.late(entry)
            outgoing["late"] = Outgoing(late, self._outputs.late, SOURCE_ORDER)
        if entry.staged.quarantined:
            quarantined = self._runs.quarantined(entry)
            outgoing["quarantined"] = Outgoing(quarantined, self._outputs.quarantine, SOURCE_ORDER)
        counts = dict.fromkeys(("released", "late", "quarantined"), 0)
        if outgoing:
            written = self._sink.write(tuple(outgoing.values()), entry.step, now_ms, clock_ms)
            counts.update(zip(outgoing, written, strict=True))
        done = finish(
            entry,
            released=counts["released"] if processed is None else processed.taken,
            late=counts["late"],
            quarantined=counts["quarantined"],
        )
        done = replace(
            done,
            stamped_ms=now_ms,
            seconds=round(time.monotonic() - self._begun_s, 3),
            processed=None if processed is None else asdict(processed.totals),
        )
        self._checkpoint.write_done(done)
        self._done = done
        self._sink.step_is_done(entry.step)
        self._on_step(entry, done)


def _partitions(topics: Mapping[str, int]) -> list[SourcePartition]:
    return [
        SourcePartition(topic, number)
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]


@contextlib.contextmanager
def _free(lock: threading.Lock) -> Iterator[bool]:
    """Hold a lock that nobody holds; whether it is so."""
    is_free = lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            lock.release()
