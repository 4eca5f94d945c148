"""The reorder engine: stage, advance, release, once for each micro-batch.

1. **Stage.** The batch's rows are written as one Parquet run, sorted by event time; those behind
   the frontier and those without a usable event time are in it too, so that a repeat needs no more.
   Where there are rows behind the frontier, they are judged by how far their keys have been
   released, and that is written to a file, too.
2. **Advance.** The clocks take in what the batch showed, and the new frontier is logged.
3. **Release.** The rows of the runs up to the frontier go to the output topic in order, rescued
   ones among them; late and quarantined rows go to theirs. Then the step is marked as done.

What a crash leaves, and what the restart does with it:

- before the log entry: files that no document names. Spark repeats the batch, and it writes others.
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
from dataclasses import asdict
from typing import TYPE_CHECKING

from sequitur.consumer import Delivery, StepKind
from sequitur.pipelines.ordering.frontier import Frontier
from sequitur.pipelines.ordering.input_checks import InputChecks
from sequitur.pipelines.ordering.input_offsets import InputOffsets
from sequitur.pipelines.ordering.input_reset import InputReset
from sequitur.pipelines.ordering.newest_step import NewestStep
from sequitur.pipelines.ordering.progress import waiting_text
from sequitur.pipelines.ordering.step_outputs import StepOutputs
from sequitur.pipelines.ordering.step_runner import StepRunner, StopRequestedError
from sequitur.pipelines.ordering.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from sequitur.consumer import (
        LearnedDelays,
        ReorderSettings,
        SourcePartition,
        StepDone,
        StepEntry,
        Totals,
    )
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.pipelines.ordering.behind import BehindRows
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.sink.sink import Outputs, TopicSink
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.topology.processing import Processing


class ReorderEngine:
    """Everything between a micro-batch and the output topics.

    One step at a time, whoever asks for it: Spark's stream thread for batches, the driver's loop
    for ticks. The newest step, and what runs the next, are touched under `_lock` alone.

    Args:
        settings: The job's settings.
        runs: The runs of the checkpoint.
        behind: Judges rows behind the frontier, and finds duplicates.
        sink: Writes to topics.
        outputs: The output topics.
        topics: Admin client.
        checkpoint: The job's folder, claimed already.
        now_ms: The wall clock.
        on_step: Told of each step once it is done.
        outages: How long what passes by itself is waited for.
        processing: A topology that is given what steps release, instead of the output topic.
        is_bounded: Whether the run ends when it has read what is there.
    """

    def __init__(
        self,
        *,
        settings: ReorderSettings,
        runs: SortedRuns,
        behind: BehindRows,
        sink: TopicSink,
        outputs: Outputs,
        topics: KafkaTopics,
        checkpoint: Checkpoint,
        now_ms: Callable[[], int],
        on_step: Callable[[StepEntry, StepDone], None],
        outages: Outages,
        processing: Processing | None = None,
        is_bounded: bool = False,
    ) -> None:
        self._delivery = settings.delivery
        self._checkpoint = checkpoint
        self._now_ms = now_ms
        self._outages = outages
        self._processing = processing
        self._input = InputChecks(checkpoint, topics)
        self._offsets = InputOffsets(topics)
        self._newest = NewestStep(checkpoint)
        self._frontier = Frontier(settings, outages, is_bounded=is_bounded)
        self._steps = Steps(
            settings,
            checkpoint,
            self._newest,
            frontier=self._frontier,
            runs=runs,
            behind=behind,
            checks=self._input,
            offsets=self._offsets,
            now_ms=now_ms,
        )
        self._outputs = StepOutputs(
            runs,
            sink,
            outputs,
            timestamps=settings.output_timestamp,
            processing=processing,
            outages=outages,
            now_ms=now_ms,
        )
        self._runner = StepRunner(
            self._newest,
            self._steps,
            self._outputs,
            processing=processing,
            now_ms=now_ms,
            on_step=on_step,
        )
        self._reset = InputReset(
            checkpoint,
            self._newest,
            self._steps,
            self._runner,
            checks=self._input,
            offsets=self._offsets,
            topics=topics,
            now_ms=now_ms,
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return self._checkpoint.spark_folder(self._newest.source)

    def forget_unfinished(self) -> None:
        """Let go of what Spark was at when it ended, or power failed; when no query runs."""
        with self._lock:
            entry = self._newest.entry
            logged = -1 if entry is None else entry.batch_id
            self._checkpoint.spark.forget_unfinished(self._newest.source, logged)

    @property
    def begins_at(self) -> Mapping[SourcePartition, int] | None:
        """Where Spark is to begin: None says as the settings have it, or where it was.

        A partition that is not named is to be read from its beginning.
        """
        entry = self._newest.entry
        return entry.planned if entry is not None and entry.batch_id < 0 else None

    @property
    def totals(self) -> Totals:
        """Counts of all steps that are done."""
        return self._newest.done.totals

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return self._newest.frontier_ms

    @property
    def learned(self) -> LearnedDelays | None:
        """What the delays are learned from; None with a fixed delay."""
        entry = self._newest.entry
        return entry.learned if entry is not None and self._frontier.is_learned else None

    @property
    def waits_for(self) -> str:
        """What the rows that are held wait for; empty without any."""
        entry = self._newest.entry
        if entry is None or not self.totals.held:
            return ""
        return waiting_text(entry.clock, now_ms=self._now_ms())

    @property
    def processed(self) -> Mapping[str, int] | None:
        """Counts of the topology behind; None without one."""
        return None if self._processing is None else asdict(self._processing.totals)

    @property
    def steps(self) -> int:
        """Number of steps since the checkpoint began."""
        return self._newest.done.step + 1

    def recover(self) -> None:
        """Finish a step that Spark will not repeat: it repeats a batch that it has not committed.

        To be called before the first step of a query.

        Raises:
            CommitTokenError: It is not known what an output topic holds, or it is not ours.
            CheckpointError: Spark has gone on, and the log is gone.
        """
        with self._lock:
            entry = self._newest.entry
            self._checkpoint.check_log(entry)
            newest = -1 if entry is None else entry.step
            self._outputs.open(newest=newest, done=self._newest.done.step)
            if entry is not None:
                self._checkpoint.held.check_whole(entry, is_done=self._newest.is_done)
            if entry is None or self._newest.is_done:
                return
            if entry.kind is not StepKind.BATCH:
                self._runner.finish(entry)
            elif self._checkpoint.spark.is_committed(entry.source, entry.batch_id):
                self._outages.tell(
                    f"step {entry.step} has no done mark, though Spark has committed its batch, "
                    "and is finished again: "
                    + (
                        "what is out of it is left out"
                        if self._delivery is Delivery.EXACTLY_ONCE
                        else "what is out of it is written once more (at-least-once)"
                    )
                )
                self._runner.finish(entry)

    def check_input(self) -> None:
        """Check that the input is what was read.

        To be called once, after `recover`.

        Raises:
            CheckpointError: Spark goes on somewhere else, or a topic has been recreated.
            TopicError: The brokers do not answer.
        """
        with self._lock:
            if self._newest.entry is not None:
                self._input.check_start(self._newest.entry)

    def reset_input(self, wait: Callable[[float], bool]) -> bool:
        """Restart Spark's part where the log has got to; recreated topics, at their beginning.

        For when Spark's own checkpoint is lost or is not ours, or topics are not those that were
        read. Before the first step there is only Spark's plan to let go of. To be called once,
        after `recover`, instead of `check_input`.

        Of a topic that was recreated, rows will come with offsets that were there before. So what
        is held goes out first, as in a drain, and events that wait for another attempt get it.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Returns:
            Whether it was not given up: else nothing is reset.

        Raises:
            TopicError: The brokers do not answer.
        """
        with self._lock, contextlib.suppress(StopRequestedError):
            self._reset.reset(wait)
            return True
        return False

    def lost(self, topics: Mapping[str, int]) -> Lost:
        """Return what the input has lost that was never read, by partition; see `has_log`, too.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            CheckpointError: A topic has been recreated.
            TopicError: The brokers do not answer.
        """
        with self._lock:
            return self._reset.lost(topics)

    @property
    def has_log(self) -> bool:
        """Whether anything was logged yet; else nothing can be counted as missing."""
        return self._newest.entry is not None

    def pass_over_lost(self, topics: Mapping[str, int]) -> Lost:
        """Restart Spark's part behind what the input has lost, and count that as missing.

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
            return self._reset.pass_over_lost(topics)

    def unread(self, topics: Mapping[str, int]) -> dict[SourcePartition, tuple[int, int]]:
        """Return each partition's first offset that is not read yet, and its end.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            TopicError: The brokers do not answer.
        """
        entry = self._newest.entry
        return self._offsets.unread(topics, {} if entry is None else entry.clock.partitions)

    def reopen(self) -> None:
        """Take steps again, after `close`: for a query that is restarted.

        Raises:
            CommitTokenError: It is not known what an output topic holds, or it is not ours.
            UnansweredError: The brokers do not answer.
        """
        self.recover()
        self._stopping.clear()

    def run_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Run one micro-batch, new or repeated; to be given to `foreachBatch`.

        Raises:
            StopRequestedError: `close` was called.
            CheckpointError: Spark's checkpoint is older than ours.
            ConservationError: A row is unaccounted for.
        """
        with self._lock:
            if self._stopping.is_set():
                raise StopRequestedError
            self._runner.wait_for_room(self._stopping.wait)
            self._runner.begin()
            entry = self._newest.entry
            self._input.check_batch(entry, batch_id)
            if entry is None or batch_id > entry.batch_id:
                self._runner.run(self._steps.batch(rows, batch_id))
            elif not self._newest.is_done:
                self._runner.finish(entry)

    def tick(self) -> bool:
        """Release what has become due without new rows; whether anything was.

        Spark runs no batch without new rows, so without ticks a topic that falls silent would keep
        its last rows for ever. While a batch runs there is no need for one.
        """
        with _free(self._lock) as is_free:
            if not is_free:
                return False
            self._runner.begin()
            entry = self._runner.settled()
            now_ms = self._now_ms()
            if entry is None or not (entry.live_runs or self._runner.is_process_due(now_ms)):
                return False
            clock = self._steps.ticked(entry, now_ms)
            return self._runner.run_quiet(StepKind.TICK, entry, clock, now_ms)

    def drain(self) -> bool:
        """Release everything held; whether anything was."""
        with self._lock:
            self._runner.begin()
            entry = self._runner.settled()
            if entry is None or not entry.live_runs:
                return False
            return self._runner.run_quiet(
                StepKind.DRAIN, entry, entry.clock.drain(), self._now_ms()
            )

    def process_pending(self, wait: Callable[[float], bool]) -> None:
        """Try events again until none waits; to be called at the end, after `close`.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.
        """
        with self._lock, contextlib.suppress(StopRequestedError):
            while self._runner.try_again(wait):
                pass

    def close(self) -> None:
        """Let the running step end, and none begin after it."""
        self._stopping.set()
        with self._lock:
            return

    def is_settled(self) -> bool:
        """Tell whether Spark has committed the last batch, so that it will not be repeated."""
        with self._lock:
            return self._newest.entry is None or self._runner.settled() is not None

    def tidy(self) -> None:
        """Delete the runs that no step needs any more, once the last step is settled."""
        with self._lock:
            entry = self._runner.settled()
            if entry is not None:
                self._checkpoint.tidy(entry)


@contextlib.contextmanager
def _free(lock: threading.Lock) -> Iterator[bool]:
    """Hold a lock if it is free; whether it was."""
    is_free = lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            lock.release()
