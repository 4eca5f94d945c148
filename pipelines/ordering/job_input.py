"""What a job reads: where Spark begins, whether it is what was read, what of it is lost.

Beside the steps that read rows there are steps after which Spark's part begins again: where the log
has got to, or behind lost rows.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final

from sequitur.consumer import SourcePartition
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.data_loss import lost_of_plan, lost_offsets
from sequitur.pipelines.ordering.input_checks import check_start, topic_ids

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.ordering.step import Steps
    from sequitur.pipelines.ordering.step_log import StepLog
    from sequitur.pipelines.ordering.subscribed import JobSubscription

_EARLIEST: Final = -2
"""What Spark takes for the offset of a partition's first record."""


class JobInput:
    """The input of a job, as the log has it. The lock is the engine's, for staging, too."""

    def __init__(
        self,
        job: JobContext,
        lock: threading.Lock,
        log: StepLog,
        steps: Steps,
    ) -> None:
        self._lock = lock
        self._job = job
        self._log = log
        self._steps = steps

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return f"{self._job.checkpoint.root}/{self._log.source}"

    @property
    def is_reset(self) -> bool:
        """Whether Spark's part begins anew, where the log has got to."""
        head = self._log.head
        return head is not None and head.batch_id < 0

    def starting_offsets(self, topics: Mapping[str, int]) -> str | None:
        """Return where Spark is to begin, as its option takes it, with each partition named."""
        head = self._log.head
        if head is None or not self.is_reset:
            return None
        return json.dumps(
            {
                topic: {
                    str(number): head.planned.get(SourcePartition(topic, number), _EARLIEST)
                    for number in range(partitions)
                }
                for topic, partitions in topics.items()
            }
        )

    @property
    def has_log(self) -> bool:
        """Whether anything was logged yet; else nothing can be counted as missing."""
        return self._log.head is not None

    def forget_unfinished(self) -> None:
        """Let go of what Spark was at when it ended, or power failed; when no query runs."""
        with self._lock:
            head = self._log.head
            logged = -1 if head is None else head.batch_id
            self._job.checkpoint.spark.forget_unfinished(self._log.source, logged)

    def check(self) -> None:
        """Check that the input is what was read.

        To be called once, after `ReorderEngine.recover`.
        """
        with self._lock:
            if (head := self._log.head) is not None:
                check_start(self._job, head)

    def begin_at_cursors(self, subscription: JobSubscription) -> None:
        """Log a first step behind which Spark begins where the subscription has got to.

        For a job without a log: a new one, or one whose checkpoint is gone.
        """
        with self._lock:
            topics = input_topics(self._job)
            there = _partitions(topics)
            ids = self._job.topics.ids(topics)
            begins = subscription.begin(
                self._first(topics),
                self._job.topics.high_watermarks(there),
                ids,
                latest=self._job.settings.starting_offsets == "latest",
                now_ms=self._job.now_ms(),
            )
            self._steps.run(self._steps.first_of(begins, ids, subscription.state.frontier_ms))

    def reset(self, wait: Callable[[float], bool]) -> bool:
        """Restart Spark's part where the log has got to; recreated topics, at their beginning.

        For when Spark's own checkpoint is lost or is not ours, or topics are not those that were
        read. Before the first step there is only Spark's plan to let go of. To be called once,
        after `ReorderEngine.recover`, instead of `check`.

        Of a topic that was recreated, rows will come with offsets that were there before. So what
        is held goes out first, as in a drain, and events that wait for another attempt get it.
        """
        with self._lock, self._log.resetting(), contextlib.suppress(StopRequestedError):
            self._reset(wait)
            return True
        return False

    def _reset(self, wait: Callable[[float], bool]) -> None:
        self._steps.finish_all()  # their batches are staged, so Spark need not give them again
        entry = self._log.entry
        if entry is None:
            self._job.checkpoint.spark.drop(self._log.source)  # nothing of it is in the log
            return
        ids = self._job.topics.ids(entry.topics)
        recreated = {
            topic for topic, known in entry.topics.items() if ids.get(topic, known) != known
        }
        if recreated and entry.live_runs:
            self._steps.drain()
        while recreated and self._steps.try_again(wait):
            pass
        # The drain and the attempts have moved the frontier: the reset goes on from there.
        newest = self._log.entry
        assert newest is not None  # steps are added, and never taken away
        clock, topics = newest.clock.without(recreated), {**newest.topics, **ids}
        self._steps.run(self._steps.reset(newest, clock, topics, {}))

    def lost(self, topics: Mapping[str, int]) -> Lost:
        """Return what the input has lost that was never read, by partition; see `has_log`, too."""
        with self._lock:
            entry = self._log.head
            if entry is None:
                # Only where the first batch is planned already is there anything to lose.
                planned = self._job.checkpoint.spark.first_offsets(self._log.source)
                return lost_of_plan(planned, self._first(topics))
            # Of a topic that was recreated nothing is lost that can be told by offsets.
            topic_ids(self._job, entry, entry.topics)
            return lost_offsets(entry.clock, self._first(topics))

    def pass_over_lost(self, topics: Mapping[str, int]) -> Lost:
        """Restart Spark's part behind what the input has lost, and count that as missing.

        To be called when no query runs.
        """
        with self._lock:
            self._steps.finish_all()  # their batches are staged, so Spark need not give them again
            entry = self._log.entry
            if entry is None:
                raise RuntimeError("nothing was read yet")
            first = self._first(topics)
            lost = lost_offsets(entry.clock, first)
            there = {topic: known for topic, known in entry.topics.items() if topic in topics}
            there |= self._job.topics.ids(topic for topic in topics if topic not in there)
            clock = entry.clock.passed_over(first, now_ms=self._job.now_ms())
            self._steps.run(self._steps.reset(entry, clock, there, lost))
            return lost

    def unread(self, topics: Mapping[str, int]) -> dict[SourcePartition, tuple[int, int]]:
        """Return each partition's first offset that is not read yet, and its end."""
        head = self._log.head
        known = {} if head is None else head.clock.partitions
        there = _partitions(topics)
        ends = self._job.topics.high_watermarks(there)
        first = self._job.topics.low_watermarks(where for where in there if where not in known)
        return {
            where: (known[where].position if where in known else first[where], ends[where])
            for where in there
        }

    def _first(self, topics: Mapping[str, int]) -> dict[SourcePartition, int]:
        """Return the first offset that is there of each partition that is."""
        return self._job.topics.low_watermarks(_partitions(topics))


def input_topics(job: JobContext, written: Sequence[str] = ()) -> dict[str, int]:
    """Return the input topics that are there now, and how many partitions each has."""
    wanted = job.settings.input_pattern
    if wanted is None:
        return {topic: job.topics.require(topic) for topic in job.settings.input_topics}
    return job.topics.matching(wanted, job.source.matcher(wanted), written)


def _partitions(topics: Mapping[str, int]) -> list[SourcePartition]:
    return [
        SourcePartition(topic, number)
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]
