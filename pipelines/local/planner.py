"""Where each batch ends: the rules by which Spark's source for Kafka plans, for the local runner.

A batch has what is there when the one before it is staged, up to a number of rows that grows with
the backlog. It ends at a place in every partition of every topic. New partitions are read from
offset 0: one that begins later has lost rows, and so has a partition that is gone.

Small batches are read before they are planned, and a plan has what was read. So only the rows of a
leader that hangs wait for it.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from sequitur.base.retry import any_of
from sequitur.errors import RetriableError, TopicError, UnansweredError
from sequitur.kafka.log_reading import EARLIEST
from sequitur.pipelines.ordering.job_input import input_topics, partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.local.plan_log import Plan, PlanLog
    from sequitur.pipelines.ordering.batch_size import BatchSize
    from sequitur.pipelines.ordering.context import JobContext, Spans
    from sequitur.pipelines.ordering.restarts import Begin

    T = TypeVar("T")
    Places = Mapping[SourcePartition, int]

TOPICS_EACH_S: Final = 1.0
"""So often the brokers are asked for topics and partitions that are new; Spark asks for each batch.

Rows of a new partition that is not known yet may become late by those of others.
"""


class Ends(Protocol):
    def ends(self, places: Places) -> dict[SourcePartition, int]:
        """Return where partitions end, at or after their places."""

    def later(self, places: Places, wait_s: float) -> dict[SourcePartition, int]:
        """Return the ends of partitions that have more, as soon as one has any."""


class Planner:
    def __init__(
        self,
        job: JobContext,
        log: PlanLog,
        ends: Ends,
        begin: Begin,
        size: BatchSize | None,
        *,
        read_ahead: Callable[[Spans], Spans | None],  # `ReorderEngine.read_ahead`
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._log = log
        self._ends = ends
        self._size = size
        self._read_ahead = read_ahead
        self._steady_s = steady_s
        self._looked_s = steady_s()
        if log.newest is None:
            self._places = dict(log.begin(self._begins(begin)))
        else:
            self._places = dict(log.newest.ends)
        self._follow(begin.topics)
        # A bounded run ends where the logs do now; another one begins with all that is there.
        self._known = self._asked(lambda: ends.ends(self._places))

    def next(self, wait_s: float) -> Plan | None:
        """Return the batch to run, planned; None if nothing comes until the time is over.

        A batch that is planned and not committed comes first, as it was planned.
        """
        if (newest := self._log.newest) is not None and not newest.is_committed:
            self._places |= newest.ends
            return newest
        if not self._job.is_bounded:
            if not self._has_more():
                self._known |= self._asked(lambda: self._ends.later(self._places, wait_s))
            self._look_for_new()
        if not self._has_more():
            return None
        most = math.inf if self._size is None else self._size.rows
        ends: Places = {**self._places, **shares(self._places, self._known, most)}
        if not self._job.is_bounded:
            ends = self._read(ends)
            if ends == (self._places if newest is None else newest.ends):
                return None
        plan = self._log.plan(ends)
        self._places = dict(plan.ends)
        return plan

    def _read(self, ends: Places) -> Places:
        """Read a batch if it is small. Return where it ends, by what leaders have sent.

        Rows that they have not sent are read once `Ends.later` shows them again.
        """
        spans = {where: (self._places[where], end) for where, end in ends.items()}
        read = self._read_ahead(spans)
        if read is None:
            return ends
        got = {where: end for where, (_, end) in read.items()}
        self._known |= {where: end for where, end in got.items() if end < ends[where]}
        return got

    @property
    def is_behind(self) -> bool:
        """Whether there were more rows than the newest plan has."""
        return any(end > self._places[where] for where, end in self._known.items())

    def take(self, rows: int, size_bytes: int) -> None:
        if self._size is not None:
            self._size.take(rows, size_bytes)

    def _has_more(self) -> bool:
        """Tell whether there are rows, or partitions that no plan names: Spark plans for either.

        The frontier waits for a partition from the first batch on that names it.
        """
        newest = self._log.newest
        is_new = newest is not None and self._places.keys() != newest.ends.keys()
        return is_new or self.is_behind

    def _begins(self, begin: Begin) -> dict[SourcePartition, int]:
        partitions = partitions_of(begin.topics)
        earliest = self._job.topics.low_watermarks(partitions)
        if begin.places is not None:
            places = begin.places
            return {
                where: earliest[where] if places[where] == EARLIEST else places[where]
                for where in partitions
            }
        if self._job.settings.starting_offsets == "latest":
            return self._asked(lambda: self._ends.ends(earliest))
        return earliest

    def _look_for_new(self) -> None:
        """Look for new partitions if the last look is long enough ago."""
        if self._steady_s() - self._looked_s >= TOPICS_EACH_S:
            if new := self._follow(input_topics(self._job)):
                self._known |= self._asked(lambda: self._ends.ends(new))
            self._looked_s = self._steady_s()

    def _follow(self, topics: Mapping[str, int]) -> dict[SourcePartition, int]:
        """Read all partitions of topics. Return where new ones begin."""
        there = partitions_of(topics)
        if gone := sorted(self._places.keys() - {*there}):
            topic, number = gone[0]
            raise TopicError(f"partition {number} of {topic!r}, which the job reads, is gone")
        new = {where: 0 for where in there if where not in self._places}
        self._places |= new
        return new

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the brokers' answer; wait for it as long as `patience` says."""
        try:
            return self._job.outages.outlast(ask, any_of(RetriableError))
        except RetriableError as error:
            raise UnansweredError(str(error)) from error


def shares(places: Places, ends: Places, most_rows: float) -> dict[SourcePartition, int]:
    """Return where a batch of so many rows ends: each partition adds its share, at least one row.

    Spark's source shares its `maxOffsetsPerTrigger` the same way.
    """
    left = {where: end - places[where] for where, end in ends.items() if end > places[where]}
    total = sum(left.values())
    if total <= most_rows:
        return {where: places[where] + rows for where, rows in left.items()}
    return {
        where: places[where] + min(rows, max(1, int(most_rows * rows / total)))
        for where, rows in left.items()
    }
