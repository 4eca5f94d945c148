"""The reorder engine: stage, advance, release, once for each micro-batch.

1. **Stage.** The batch's rows are written as one Parquet run, sorted by event time; those behind
   the frontier and those without a usable event time are in it too, so that a repeat needs no more.
2. **Advance.** The clocks take in what the batch showed, and the new frontier is logged with the
   run. The runner then commits the batch, and the next may be staged.
3. **Decide**, once the step before is done. Rows behind the frontier are judged by how far their
   keys have been released, duplicates are found, and what is decided is logged.
4. **Release.** The rows of the runs up to the frontier go to the output topic in order, rescued
   ones among them; late and quarantined rows go to theirs. Then the step is marked as done.

What a crash leaves, and what the restart does with it:

- before a step is logged as staged: files that no document names. The runner repeats the batch,
  and it writes others.
- after it, before the done mark: the next life finishes the step from its files before it starts
  the query; where the step was decided, what was decided is read back, and the same rows go out in
  the same order, under the same sequences. What is out already is left out. If the runner repeats
  the batch, there is nothing to do.

A file that the newest entry does not name is deleted once that entry is written. Files of steps
that are staged after it stay.

The runner's part of the checkpoint is checked against the log. A batch that is repeated must end
where the log says it ended, and the input topics must have the ids of those that were read. If not,
the job stops with an error that says so, and `JobInput.reset` is the way to go on.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from sequitur.consumer.reorder.step_log import StepKind
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.finisher import Finisher
from sequitur.pipelines.ordering.job_input import JobInput, check_batch
from sequitur.pipelines.ordering.job_report import JobReport, promised_and_achieved, waiting_text
from sequitur.pipelines.ordering.runs import SortedRuns
from sequitur.pipelines.ordering.step import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.consumer.reorder.step_log import StagedStep, Totals
    from sequitur.pipelines.ordering.context import JobContext, Spans
    from sequitur.pipelines.ordering.logged_steps import LoggedSteps
    from sequitur.pipelines.sink.sink import Outputs
    from sequitur.pipelines.topology.kept_keys import BoltKeys
    from sequitur.pipelines.topology.processing import Processing


class ReorderEngine:
    """Takes the rows of each micro-batch to the output topics: stages, decides, releases.

    Steps are staged one at a time under `_lock`: batches by the query's thread, ticks by the
    thread that calls `Ticks`. The thread of `Finisher` finishes batches. Everything else waits
    until that thread has nothing to do.
    """

    def __init__(
        self,
        job: JobContext,
        outputs: Outputs,
        processing: Processing | None,
        log: LoggedSteps,
        *,
        partitions: int,
        empty: int = 0,
    ) -> None:
        """Place the job's rows by `partitions`, and leave `empty` more partitions unused."""
        self._job = job
        self._processing = processing
        self._log = log
        self._partitions = partitions
        self.empty_partitions = empty
        runs = SortedRuns(job, outputs, partitions, releases=processing is None)
        self._steps = Steps(job, log, runs, outputs, partitions, processing=processing)
        self._finisher = Finisher(log, self._steps)
        self._lock = threading.Lock()
        self.input = JobInput(job, self._lock, log, self._steps)
        self._stopping = threading.Event()

    @property
    def totals(self) -> Totals:
        return self._log.done.totals

    @property
    def processed(self) -> Mapping[str, int] | None:
        """Counts of the topology; None without one."""
        return None if self._processing is None else asdict(self._processing.totals)

    @property
    def late_for_window(self) -> Mapping[str, int]:
        """How many events were late for a window and are done, by bolt."""
        return {} if self._processing is None else self._processing.late_for_window

    @property
    def keys(self) -> Mapping[str, BoltKeys]:
        """What keyed bolts keep, by bolt."""
        return {} if self._processing is None else self._processing.keys

    @property
    def failure(self) -> Exception | None:
        """The error of a step that failed while the query read on; None if there is none."""
        return self._finisher.error

    def report(self, read_before: int, seconds: float) -> JobReport:
        entry, totals = self._log.entry, self.totals
        learned: Mapping[str, float] = {}
        waits_for = ""
        if entry is not None and self._job.settings.delay_policy is not None:
            learned = promised_and_achieved(entry.learned)
        if entry is not None and totals.held:
            waits_for = waiting_text(entry.clock, now_ms=self._job.now_ms())
        return JobReport(
            totals=totals,
            frontier_ms=self._log.frontier_ms,
            steps=self._log.done.step + 1,
            seconds=seconds,
            records_per_s=(totals.read - read_before) / seconds,
            learned=learned,
            processed=self.processed,
            late_for_window=self.late_for_window,
            waits_for=waits_for,
            all_quarantined=self._steps.quarantines.verdict,
        )

    def recover(self) -> None:
        """Finish all logged steps; call it only while no query runs."""
        with self._lock:
            entry = self._log.entry
            self._job.checkpoint.check_log(self._log.head)
            if (subscription := self._job.subscription) is not None:
                written = {one.name: one.partitions for one in self._steps.topics}
                subscription.claim(
                    self._job.checkpoint, self._log.head, self._log.done.step, written
                )
            self._steps.open()
            self._log.check_files()
            if entry is not None and not self._log.is_entry_done:
                self._job.outages.tell(
                    f"step {entry.step} has no done mark, and is finished: what is out of it is "
                    "left out"
                )
            # A life before this one may have died between a done mark and the cursors. And what was
            # acked since by others must be known before the steps behind it are decided.
            self._steps.acknowledge()
            self._steps.finish_all()

    def reopen(self) -> None:
        """Take steps again after `close`, for a query that is restarted."""
        self.recover()
        self._finisher.error = None
        self._stopping.clear()

    def read_ahead(self, spans: Spans) -> Spans | None:
        return self._job.source.read_ahead(spans, self._partitions)

    def run_batch(self, batch_id: int) -> StagedStep | None:
        """Stage one micro-batch, new or repeated; to be called by the runner's query.

        Its ranges come from `checkpoint.spark.planned_offsets`, whichever runner planned them.
        Returns once it is logged, with what it staged: None where it was staged before. The rest
        follows, in the order of steps, while the next is read.
        """
        with self._lock:
            if self._stopping.is_set():
                raise StopRequestedError
            self._finisher.wait_for_room(self._stopping.is_set)
            if self._processing is not None and self._processing.is_full:
                self._finisher.wait_until_idle(self._stopping.is_set)
                with self._finisher.failing():
                    self._steps.wait_for_room(self._stopping.wait)
            head = self._log.head
            check_batch(self._job, head, batch_id)
            if head is not None and batch_id <= head.batch_id:
                return None
            staged = self._steps.stage(batch_id)
            self._finisher.add(staged)
            return staged

    def wait_until_done(self) -> None:
        self._finisher.wait_until_idle(self._stopping.is_set)

    def tick(self) -> bool:
        """Release what has become due without new rows; whether anything was.

        A runner plans no batch without new rows. So without ticks a topic that falls silent would
        keep its last rows for ever. While a batch runs there is no need for one.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            entry = self._log.settled() if self._finisher.is_idle else None
            now_ms = self._job.now_ms()
            if entry is None:
                return False
            is_due = entry.live_runs or self._steps.is_process_due(now_ms)
            if not is_due and not self._watches_silence():
                return False
            clock = self._steps.ticked(entry, now_ms)
            is_due = is_due or self._steps.are_timers_due(entry, clock)
            with self._finisher.failing():
                return bool(is_due) and self._steps.run_quiet(StepKind.TICK, entry, clock, now_ms)
        finally:
            self._lock.release()

    def _watches_silence(self) -> bool:
        """Tell whether a look is due because bolts wait for silence, by ticks or timers."""
        processing = self._processing
        waits = processing is not None and (
            processing.tick_due_ms is not None or processing.has_timers
        )
        return waits and self._steps.input_ends.is_look_due()

    def drain(self) -> bool:
        """Release everything held; return whether there was anything."""
        with self._lock, self._finisher.failing():
            return self._steps.drain()

    def process_pending(self, wait: Callable[[float], bool]) -> None:
        """Retry events until none waits; call it at the end, after `close`."""
        with self._lock, contextlib.suppress(StopRequestedError), self._finisher.failing():
            while self._steps.try_again(wait, StepKind.DRAIN):
                pass

    def close_windows(self, wait: Callable[[float], bool]) -> None:
        """Close the windows of bolts, and try what fails until none waits: the end of a drain."""
        with self._lock, contextlib.suppress(StopRequestedError), self._finisher.failing():
            if self._steps.close_windows():
                while self._steps.try_again(wait, StepKind.CLOSE):
                    pass

    def close(self) -> None:
        """Let steps end that are staged or about to be; no step begins after them."""
        self._stopping.set()
        with self._lock:
            self._finisher.close()

    def is_settled(self) -> bool:
        """Tell whether the runner has committed the last batch, so that it will not be repeated."""
        with self._lock:
            return self._log.head is None or self._log.settled() is not None

    def tidy(self) -> None:
        """Delete the runs that no step needs, once the last step is settled."""
        with self._lock:
            entry = self._log.settled()
            if entry is not None:
                self._job.checkpoint.tidy(entry)
