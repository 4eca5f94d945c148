"""What a job reads: where it begins, whether it is what was read before, what of it is lost.

Rows are lost if retention or the end of their topic deletes them before they are read.

Spark's own checkpoint may be lost, in part or whole, or be an older copy. A topic may be deleted
and recreated. Neither can be seen by itself. So an entry of the log holds where its batch ended in
each source partition, and the topics' ids, which brokers assign.

After some steps Spark's part begins again: where the log has got to, or after lost rows.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sequitur.consumer.reorder.step_log import StepKind
from sequitur.errors import CheckpointError
from sequitur.kafka.log_reading import EARLIEST
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.store.spark_part import WAY_ON

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.step_log import Step
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job_subscription import JobSubscription
    from sequitur.pipelines.ordering.logged_steps import LoggedSteps
    from sequitur.pipelines.ordering.step import Steps

    Lost: TypeAlias = Mapping[SourcePartition, tuple[int, int]]


def lost_offsets(
    clock: EventClock, first: Mapping[SourcePartition, int]
) -> dict[SourcePartition, tuple[int, int]]:
    lost = {}
    for where, known in clock.partitions.items():
        if where not in first:
            lost[where] = known.position, max(known.position, known.high_watermark)
        elif first[where] > known.position:
            lost[where] = known.position, first[where]
    for where, begins in first.items():
        if where not in clock.partitions and begins:
            lost[where] = 0, begins
    return lost


def lost_of_plan(
    planned: Mapping[SourcePartition, int], first: Mapping[SourcePartition, int]
) -> Lost:
    """Return the lost offsets of a first batch that is planned and not read."""
    return {
        where: (position, first[where])
        for where, position in planned.items()
        if first.get(where, position) > position
    }


def rows_lost(lost: Lost) -> int:
    """Return the most rows that lost offsets may have had: an offset need not have a row."""
    return sum(last - first for first, last in lost.values())


def in_words(lost: Lost) -> str:
    return "; ".join(
        f"partition {where.partition} of {where.topic!r}, offsets {first} to {last - 1}"
        if last > first
        else f"partition {where.partition} of {where.topic!r}, read to its end"
        for where, (first, last) in sorted(lost.items())
    )


def check_start(job: JobContext, entry: Step) -> None:
    """Check what can be checked before Spark begins a batch: Spark may never begin one."""
    if job.checkpoint.spark.is_planned(entry.source, entry.batch_id):
        check_batch(job, entry, entry.batch_id)
    topic_ids(job, entry, entry.topics)


def check_batch(job: JobContext, entry: Step | None, batch_id: int) -> None:
    """Check that a batch that Spark begins is the one that was logged last, or the next.

    A logged batch has to end where the log says. The next one has to begin there.
    """
    job.checkpoint.check_log(entry, batch_id)
    if entry is None:
        return
    root = job.checkpoint.root
    if batch_id not in (entry.batch_id, entry.batch_id + 1):
        raise CheckpointError(
            f"{root}: the query begins batch {batch_id}, but batch {entry.batch_id} is logged: is "
            f"{entry.source}/ gone? Put it back, or {WAY_ON}"
        )
    if entry.batch_id < 0:
        return  # after a reset the first batch begins where the job tells Spark to begin
    planned = job.checkpoint.spark.planned_offsets(entry.source, entry.batch_id)
    if planned == entry.planned:
        return
    where, _ = min(planned.items() ^ entry.planned.items())
    raise CheckpointError(
        f"{root}: the query begins batch {batch_id}, and has planned batch {entry.batch_id} again: "
        f"partition {where.partition} of {where.topic!r} ends at "
        f"{planned.get(where, 'no offset')}, and the log of step {entry.step} says "
        f"{entry.planned.get(where, 'none')}. Part of {entry.source}/ is gone, or is not this "
        f"checkpoint's. Put it back, or {WAY_ON}"
    )


def topic_ids(job: JobContext, before: Step | None, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics; a topic that was read before must have the same id."""
    ids = job.topics.ids(topics)
    known = {} if before is None else before.topics
    for topic, found in ids.items():
        if known.get(topic, found) != found:
            raise CheckpointError(
                f"{job.checkpoint.root}: input topic {topic!r} is not the one that was read: its "
                f"id is {found}, and was {known[topic]}. It has been deleted and recreated, "
                "or is another cluster's. The rows that were read of it are safe. To "
                f"continue, {WAY_ON}"
            )
    return {**known, **ids}


class JobInput:
    """The input of a job by its log. The lock is the engine's; staging takes it too."""

    def __init__(
        self,
        job: JobContext,
        lock: threading.Lock,
        log: LoggedSteps,
        steps: Steps,
    ) -> None:
        self._lock = lock
        self._job = job
        self._log = log
        self._steps = steps

    @property
    def plans_folder(self) -> str:
        """Name of the folder with plans and commits in the checkpoint."""
        return self._log.plans_folder

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return f"{self._job.checkpoint.root}/{self._log.plans_folder}"

    @property
    def is_reset(self) -> bool:
        """Whether Spark's part begins again where the log ends."""
        head = self._log.head
        return head is not None and head.batch_id < 0

    def begins(self, topics: Mapping[str, int]) -> dict[SourcePartition, int] | None:
        """Return where the first batch is to begin, for each partition; None after no reset.

        A partition that the log does not know begins at its first record (`EARLIEST`).
        """
        head = self._log.head
        if head is None or not self.is_reset:
            return None
        return {where: head.planned.get(where, EARLIEST) for where in partitions_of(topics)}

    @property
    def has_log(self) -> bool:
        """Whether anything was logged; without a log nothing counts as missing."""
        return self._log.head is not None

    def forget_unfinished(self) -> None:
        """Drop the plan of a batch that Spark did not end; call it only while no query runs."""
        with self._lock:
            head = self._log.head
            logged = -1 if head is None else head.batch_id
            self._job.checkpoint.spark.forget_unfinished(self._log.plans_folder, logged)

    def check(self) -> None:
        """Check that the input is what was read.

        To be called once, after `ReorderEngine.recover`.
        """
        with self._lock:
            if (head := self._log.head) is not None:
                check_start(self._job, head)

    def begin_at_cursors(self, subscription: JobSubscription) -> None:
        """Log a first step after which Spark begins where the subscription has got to.

        For a job without a log: a new one, or one whose checkpoint is gone.
        """
        with self._lock:
            topics = input_topics(self._job)
            there = partitions_of(topics)
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

        It is the way out if Spark's own checkpoint is lost or not ours, or if topics are not those
        that were read. Before the first step only Spark's plan is dropped. To be called once, after
        `ReorderEngine.recover`, instead of `check`.

        Rows of a recreated topic have offsets that other rows had before. So held rows go out
        first, as in a drain, and events that wait for another attempt get it.
        """
        with self._lock, self._log.resetting(), contextlib.suppress(StopRequestedError):
            self._reset(wait)
            return True
        return False

    def _reset(self, wait: Callable[[float], bool]) -> None:
        self._steps.finish_all()  # their batches are staged, so Spark need not give them again
        entry = self._log.entry
        if entry is None:
            self._job.checkpoint.spark.drop(self._log.plans_folder)  # nothing of it is in the log
            return
        ids = self._job.topics.ids(entry.topics)
        recreated = {
            topic for topic, known in entry.topics.items() if ids.get(topic, known) != known
        }
        if recreated and entry.live_runs:
            self._steps.drain()
        while recreated and self._steps.try_again(wait, StepKind.DRAIN):
            pass
        # The drain and the attempts have moved the frontier: the reset begins there.
        newest = self._log.entry
        assert newest is not None  # steps are added, and never taken away
        clock, topics = newest.clock.without(recreated), {**newest.topics, **ids}
        self._steps.run(self._steps.reset(newest, clock, topics, {}))

    def lost(self, topics: Mapping[str, int]) -> Lost:
        """Return the offsets that are gone and were never read, by partition; see `has_log`."""
        with self._lock:
            entry = self._log.head
            if entry is None:
                # Only where the first batch is planned already is there anything to lose.
                planned = self._job.checkpoint.spark.first_offsets(self._log.plans_folder)
                return lost_of_plan(planned, self._first(topics))
            # In a recreated topic offsets do not show what is lost.
            topic_ids(self._job, entry, entry.topics)
            return lost_offsets(entry.clock, self._first(topics))

    def pass_over_lost(self, topics: Mapping[str, int]) -> Lost:
        """Restart Spark's part after lost rows, and count these as missing.

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
        """Return the first unread offset of each partition, and its end."""
        head = self._log.head
        known = {} if head is None else head.clock.partitions
        there = partitions_of(topics)
        ends = self._job.topics.high_watermarks(there)
        first = self._job.topics.low_watermarks(where for where in there if where not in known)
        return {
            where: (known[where].position if where in known else first[where], ends[where])
            for where in there
        }

    def _first(self, topics: Mapping[str, int]) -> dict[SourcePartition, int]:
        return self._job.topics.low_watermarks(partitions_of(topics))


def input_topics(job: JobContext, written: Sequence[str] = ()) -> dict[str, int]:
    """Return the present input topics, and how many partitions each has."""
    wanted = job.settings.input_pattern
    if wanted is None:
        return {topic: job.topics.require(topic) for topic in job.settings.input_topics}
    return job.topics.matching(wanted, job.source.matcher(wanted), written)


def partitions_of(topics: Mapping[str, int]) -> list[SourcePartition]:
    return [
        SourcePartition(topic, number)
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]
