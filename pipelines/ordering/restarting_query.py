"""The streaming query of a job: ticked beside, and restarted after a transient failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sequitur.consumer import DataLoss
from sequitur.errors import (
    DataLossError,
    SinkUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.batch_size import BatchSize
from sequitur.pipelines.ordering.frontier import tick_ms
from sequitur.pipelines.ordering.job_input import in_words, input_topics, rows_lost
from sequitur.pipelines.ordering.query import (
    POLL_S,
    Batches,
    end_query,
    is_sparks,
    passes,
    start_query,
)
from sequitur.pipelines.ordering.row_probe import mean_row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine


class RestartingQuery:
    """The query of a job, restarted after errors that pass by themselves."""

    def __init__(
        self, spark: SparkSession, job: JobContext, engine: ReorderEngine, stop: Event
    ) -> None:
        self._spark = spark
        self._job = job
        self._engine = engine
        self._stop = stop

    def run(self) -> None:
        """Run the query until it has read what there is, or the job is to stop."""
        error = self._life()
        while error is not None:
            self._job.checkpoint.check_owner()  # whatever else went wrong, that was why
            error = self._overcome(error)
        self._job.checkpoint.check_owner()

    def _overcome(self, error: Exception) -> Exception | None:
        """Go on after what ended the query, and give what ended it then; else raise the error."""
        if isinstance(error, StopRequestedError) or (passes(error) and self._stop.is_set()):
            return None
        try:
            may_be_loss = is_sparks(error) or isinstance(error, TopicError)
            if not (may_be_loss and self._pass_over_lost(input_topics(self._job), error)):
                if not passes(error):
                    raise error
                if not self._job.outages.may_restart(str(error)):
                    if self._stop.is_set():
                        return None
                    raise error
            self._engine.reopen()
            return self._life()
        except (UnansweredError, SinkUnansweredError) as found:
            if found is error:
                raise
            return found

    def _pass_over_lost(self, topics: Mapping[str, int], error: Exception | None) -> bool:
        """Count what the input has lost, and leave it out; whether it has lost anything.

        A loss may be why the query has ended, by `error`; where it ends the job, it is raised.
        """
        lost = self._engine.input.lost(topics)
        if lost and not self._engine.input.has_log:
            raise DataLossError(
                f"{in_words(lost)}: gone, at most {rows_lost(lost)} rows, before the first batch "
                "that was to read it had begun. Nothing is logged yet: start the job once with "
                "--reset-input, and it begins anew with what is there"
            ) from error
        if lost and self._job.settings.on_data_loss is DataLoss.FAIL:
            raise DataLossError(
                f"{in_words(lost)}: gone before the job had read it, by retention or with its "
                f"topic, at most {rows_lost(lost)} rows. To go on without, and have it counted as "
                'missing, start the job with on_data_loss = "continue"'
            ) from error
        if lost:
            lost = self._engine.input.pass_over_lost(topics)
            self._job.outages.tell(
                f"on_data_loss = continue: {in_words(lost)}: gone before the job had read it, "
                f"counted as {rows_lost(lost)} rows missing"
            )
        return bool(lost)

    def _life(self) -> Exception | None:
        """Start the query, and tick the engine until it ends; what ended it but for a stop."""
        job, engine = self._job, self._engine
        topics = input_topics(job)
        if engine.input.is_reset:
            # Told where to begin, Spark does not look whether a partition that is new begins at 0.
            self._pass_over_lost(topics, None)
        starting = engine.input.starting_offsets(topics)
        engine.input.forget_unfinished()
        row_bytes = mean_row_bytes(job.kafka, engine.input.unread(topics))
        most_rows = job.settings.max_offsets_per_trigger
        size = None if most_rows is None else BatchSize(most_rows, row_bytes)
        batches = Batches(engine, size)
        try:
            query = start_query(
                self._spark,
                job,
                batches,
                engine.input.spark_folder,
                starting_offsets=starting,
                row_bytes=row_bytes,
            )
            failed = self._tick_while(query)
            ended = end_query(self._spark, query, engine, batches, failed)
        finally:
            batches.forget(self._spark)
        return failed or ended

    def _tick_while(self, query: StreamingQuery) -> Exception | None:
        """Tick the engine while the query runs; the error of a tick, which ends that."""
        job, settings = self._job, self._job.settings
        tick_s = tick_ms(settings) / 1000
        if self._engine.processed is not None:
            tick_s = POLL_S  # so that an event is tried again when it is due
        next_tick = time.monotonic() + tick_s
        while self._goes_on(query) and not self._stop.wait(POLL_S):
            if not self._job.is_bounded and time.monotonic() >= next_tick:
                try:
                    if job.subscription is not None:
                        job.subscription.check()
                    self._engine.tick()
                except Exception as error:  # noqa: BLE001 - the query has to be ended first
                    return error
                next_tick = time.monotonic() + tick_s
        return None

    def _goes_on(self, query: StreamingQuery) -> bool:
        return query.isActive and self._engine.failure is None and not self._job.checkpoint.is_lost
