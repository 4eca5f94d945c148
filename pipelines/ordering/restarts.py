"""Runs what reads a job's input, and runs it again after an error that passes.

A *life* of a query ends by a stop, by its end, or by an error. Two kinds of errors begin a new
life, with the engine opened again:

- Brokers were away: the job waits for them.
- The input has lost rows: they are left out and counted, if the settings say so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sequitur.consumer.reorder import DataLoss
from sequitur.errors import (
    DataLossError,
    LogRangeError,
    SinkUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.batch_size import BatchSize, mean_row_bytes
from sequitur.pipelines.ordering.frontier import tick_ms
from sequitur.pipelines.ordering.job_input import in_words, input_topics, rows_lost

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event

    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine

POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Begin:
    """What a life of a query begins with.

    Attributes:
        topics: The input topics, and how many partitions each has.
        places: Where to begin where nothing is planned yet, -2 for a partition's first record; None
            for where the settings say.
    """

    topics: Mapping[str, int]
    places: Mapping[SourcePartition, int] | None


class Query(Protocol):
    def live(self, begin: Begin, size: BatchSize | None) -> Exception | None:
        """Read until all is read, the job is to stop, or an error; return that error.

        The engine is closed then.
        """

    def passes(self, error: Exception) -> bool:
        """Tell whether an error of its own is expected to pass."""

    def may_be_loss(self, error: Exception) -> bool:
        """Tell whether an error of its own may come from rows that the input has lost."""


class Restarts:
    def __init__(self, job: JobContext, engine: ReorderEngine, query: Query, stop: Event) -> None:
        self._job = job
        self._engine = engine
        self._query = query
        self._stop = stop

    def run(self) -> None:
        error = self._live()
        while error is not None:
            self._job.checkpoint.check_owner()  # another owner is the cause of all other errors
            error = self._overcome(error)
        self._job.checkpoint.check_owner()

    def _overcome(self, error: Exception) -> Exception | None:
        """Begin again after an error that passes, and return the next error; raise any other."""
        if isinstance(error, StopRequestedError) or (self._passes(error) and self._stop.is_set()):
            return None
        try:
            may_be_loss = isinstance(error, TopicError | LogRangeError)
            may_be_loss = may_be_loss or self._query.may_be_loss(error)
            if not (may_be_loss and self._pass_over_lost(input_topics(self._job), error)):
                if not self._passes(error):
                    raise error
                if not self._job.outages.may_restart(str(error)):
                    if self._stop.is_set():
                        return None
                    raise error
            self._engine.reopen()
            return self._live()
        except (UnansweredError, SinkUnansweredError) as found:
            if found is error:
                raise
            return found

    def _pass_over_lost(self, topics: Mapping[str, int], error: Exception | None) -> bool:
        """Count what the input has lost, and leave it out. Return whether it has lost anything.

        A loss may be why the query has ended with `error`. If it ends the job, it is raised.
        """
        lost = self._engine.input.lost(topics)
        if lost and not self._engine.input.has_log:
            raise DataLossError(
                f"{in_words(lost)}: gone, at most {rows_lost(lost)} rows, before the first batch "
                "that was to read it had begun. Nothing is logged yet: start the job once "
                "with --reset-input, and it begins with the rows that are there"
            ) from error
        if lost and self._job.settings.on_data_loss is DataLoss.FAIL:
            raise DataLossError(
                f"{in_words(lost)}: gone before the job had read it, by retention or with its "
                f"topic, at most {rows_lost(lost)} rows. To continue without these rows, and "
                'count them as missing, start the job with on_data_loss = "continue"'
            ) from error
        if lost:
            lost = self._engine.input.pass_over_lost(topics)
            self._job.outages.tell(
                f"on_data_loss = continue: {in_words(lost)}: gone before the job had read it, "
                f"counted as {rows_lost(lost)} rows missing"
            )
        return bool(lost)

    def _passes(self, error: Exception) -> bool:
        return passes(error) or self._query.passes(error)

    def _live(self) -> Exception | None:
        """Run a life of the query; return the error that ended it, or None after a stop."""
        job, engine = self._job, self._engine
        topics = input_topics(job)
        if engine.input.is_reset:
            # If it has starting offsets, Spark does not check that a new partition begins at 0.
            self._pass_over_lost(topics, None)
        places = engine.input.begins(topics)
        engine.input.forget_unfinished()
        most_rows, size = job.settings.max_offsets_per_trigger, None
        if most_rows is not None:
            row_bytes = mean_row_bytes(job.kafka, engine.input.unread(topics))
            size = BatchSize(most_rows, row_bytes)
        return self._query.live(Begin(topics, places), size)


def passes(error: Exception) -> bool:
    """Tell whether our own code failed for a transient reason, such as silent brokers."""
    return isinstance(error, UnansweredError | SinkUnansweredError)


class Ticks:
    def __init__(self, job: JobContext, engine: ReorderEngine) -> None:
        self._job = job
        self._engine = engine
        self._each_s = tick_ms(job.settings) / 1000
        if engine.processed is not None:
            self._each_s = POLL_S  # so that an event is tried again when it is due
        self._next_s = time.monotonic() + self._each_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def tick_if_due(self) -> None:
        """Tick if a tick is due; a bounded run ends by itself and has none."""
        if self._job.is_bounded or self.left_s:
            return
        if self._job.subscription is not None:
            self._job.subscription.check()
        self._engine.tick()
        self._next_s = time.monotonic() + self._each_s
