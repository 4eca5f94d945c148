"""What a logged step sends out: to the output topic or a topology, the late and quarantine topics.

A step may be written again, by this life or a later one. Rows come from its files, up to the logged
frontier, so they are the same rows in the same order, each under the sequence that the step's plan
gives it: what is there already is left out.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sequitur.consumer import finish, now_of_step
from sequitur.consumer.lateness.policy import Output
from sequitur.consumer.step_log.entry import late_rows_to
from sequitur.pipelines.ordering.ordered_step import GivenSteps
from sequitur.pipelines.ordering.quarantine_watch import QuarantineWatch
from sequitur.pipelines.sink.sink import Outgoing, TopicSink
from sequitur.pipelines.store.former_job import NO_FORMER_JOB

if TYPE_CHECKING:
    from sequitur.consumer import Run, StepDone, StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import Processing, StepAhead
    from sequitur.pipelines.topology.transactions import Committing


class StepOutputs:
    """Writes the outputs of steps, and accounts for them."""

    def __init__(
        self,
        job: JobContext,
        runs: SortedRuns,
        outputs: Outputs,
        processing: Processing | None,
    ) -> None:
        self._job = job
        self._runs = runs
        self._sink = TopicSink(job.spark, job.kafka, job.settings, job.checkpoint, job.outages)
        self._outputs = outputs
        self._processing = processing
        self.quarantines = QuarantineWatch(job.settings.event_time, job.outages.tell)
        self._given: GivenSteps | None = None
        if job.on_step is not None:
            self._given = GivenSteps(
                job.on_step,
                job.checkpoint,
                app=job.settings.app_name,
                partitions=outputs.released.partitions,
            )

    def open(self, *, newest: int, done: StepDone) -> None:
        """Compare what the topics hold with the checkpoint, before anything is written."""
        subscription = self._job.subscription
        if self._processing is not None:
            former = NO_FORMER_JOB if subscription is None else subscription.former
            self._processing.open(done.step, newest, former)
        # The subscription knows what a checkpoint that is gone has written.
        takes_over = subscription is not None
        self._sink.open(self.topics, newest=newest, done=done, takes_over=takes_over)

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        """All topics that are written."""
        sides = (self._outputs.late, self._outputs.quarantine)
        if self._processing is not None:
            return (*self._processing.topics, *sides)
        return (self._outputs.released, *sides)

    def due(self, entry: StepEntry) -> Selection | None:
        """Return the events that a step releases; None without any."""
        return self._runs.due(entry)

    def write(
        self,
        entry: StepEntry,
        before: StepDone,
        begun_s: float,
        ahead: StepAhead | None = None,
        committing: Committing | None = None,
    ) -> StepDone:
        """Write the outputs of a logged step; return its done mark, not written yet."""
        due = self._runs.due(entry)
        # A repeat, which may come days later, has a time of its own: what is out of the step keeps
        # its timestamps, and what is not gets such as the brokers take now.
        clock_ms = self._job.now_ms()
        now_ms = now_of_step(clock_ms, before.stamped_ms)
        if now_ms < before.stamped_ms:
            self._job.outages.tell(
                f"this machine's clock is {(before.stamped_ms - clock_ms) / 1000:.0f} s behind "
                f"what it said when step {before.step} was written: timestamps go back to it"
            )
        processed = None
        if self._processing is not None:
            processed = self._processing.process(entry, due, ahead, committing)
        outgoing = {**self._released(entry, due, processed), **self._aside(entry)}
        counts = dict.fromkeys(("released", "late", "quarantined"), 0)
        if outgoing:
            written = self._sink.write(tuple(outgoing.values()), entry.step, now_ms, clock_ms)
            counts.update(zip(outgoing, written, strict=True))
        if self._given is not None and due is not None and counts["released"]:
            self._given.give(entry, due)
        done = finish(
            entry,
            released=counts["released"] if processed is None else processed.taken,
            late=counts["late"],
            quarantined=counts["quarantined"],
        )
        return replace(
            done,
            stamped_ms=now_ms,
            seconds=round(time.monotonic() - begun_s, 3),
            processed=None if processed is None else asdict(processed.totals),
            sent=self._sink.sent,
        )

    def step_is_done(self, entry: StepEntry) -> None:
        """Note that a step is done; its files are still there."""
        self.quarantines.step_is_done(
            entry.staged, lambda reason: self._runs.some_quarantined(entry, reason)
        )

    def _released(
        self, entry: StepEntry, due: Selection | None, processed: Processed | None
    ) -> dict[str, Outgoing]:
        """Return what goes to the output topic, or to the topics of a topology."""
        if self._processing is not None and processed is not None:
            outgoing = self._processing.outgoing(processed)
            return {f"processed {number}": out for number, out in enumerate(outgoing)}
        if due is None:
            return {}
        timestamps = self._job.settings.output_timestamp
        reads = _sizes(*entry.releasing_earlier, entry.releasing_own, *entry.runs[-1:])
        return {"released": Outgoing(due, self._outputs.released, timestamps, reads=reads)}

    def _aside(self, entry: StepEntry) -> dict[str, Outgoing]:
        """Return what goes to the late and the quarantine topic."""
        outgoing, reads = {}, _sizes(*entry.runs[-1:])
        if late_rows_to(Output.LATE, entry):
            late = self._runs.late(entry)
            outgoing["late"] = Outgoing(late, self._outputs.late, reads=reads)
        if entry.staged.quarantined:
            quarantined = self._runs.quarantined(entry)
            outgoing["quarantined"] = Outgoing(quarantined, self._outputs.quarantine, reads=reads)
        return outgoing


def _sizes(*runs: Run | None) -> int:
    return sum(run.size_bytes for run in runs if run is not None)
