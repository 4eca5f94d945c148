"""The subscription of a job: a row that has left the job is acked.

What was read is acked, but for what is held and what waits for another attempt. So a step that is
done makes the cursors again, from the checkpoint alone. Nothing has to be remembered between two
steps, and if the cursors of a step were not written, the next step makes up for it.

A job whose checkpoint is gone begins at the cursors. They say what was acked. The state beside them
says how far the frontier was, so that no key goes back in time. What was out and not acked when the
checkpoint was lost comes again, and is counted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
from msgspec.structs import replace

from sequitur.base.process import wall_clock_ms
from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.subscription.admin import may_take, refuse_another
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.claims import LEASE_S, HeldLease
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.owned_cursors import OwnedCursors
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.stored_records import nothing_stored
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import SubscriptionError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_input import input_topics
from sequitur.pipelines.rows.columns import SOURCE_ORDER, sources
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB, FormerJob, SubscribedJob

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import Step, StepEntry
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.registry import Changes, Registry
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.consumer.subscription.survey import Log
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.rows.run_writer import AckedOffsets
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


_DOCUMENT: Final = "subscription.json"
_NONE: Final = np.empty(0, np.int64)


class JobSubscription(OwnedCursors[PartitionCursor]):
    """The cursors of a job.

    Three threads use it: one stages rows, and asks what is acked. One finishes steps, and acks. One
    acks what has expired.
    """

    def __init__(
        self,
        name: str,
        stored: StoredSubscription | None,
        take: Callable[[], CursorOwner],
        topics: KafkaTopics,
        outages: Outages,
        *,
        record: JobRecord,
        lost: str = "",
    ) -> None:
        super().__init__(name, *_of(stored), None)
        self._record = record
        self._lost = lost
        self._take = take
        self._topics = topics
        self._outages = outages
        self._written: tuple[SourcePartition, ...] = ()
        self._skips_held = False
        self.former = NO_FORMER_JOB

    @property
    def partition(self) -> int | None:
        """The partition of the cursors' topic that has the cursors; None before the claim."""
        return None if self._claimed_owner is None else self._claimed_owner.partition

    @property
    def group(self) -> str:
        """Id of the consumer group; empty before the claim."""
        return "" if self._claimed_owner is None else self._claimed_owner.group

    def check(self) -> None:
        """Check that no process is known to have taken the subscription over."""
        if self._claimed_owner is not None:
            self._claimed_owner.check()

    def confirm(self) -> None:
        """Check with the brokers that nobody has taken the subscription over.

        To be called before a step goes out: after a reset, no row of before may go out.
        """
        self.store()

    def claim(
        self, checkpoint: Checkpoint, head: Step | None, done: int, written: Mapping[str, int]
    ) -> None:
        """Take the subscription for a checkpoint that the cursors were written by, or a new one.

        A job that is refused, here or by its checkpoint's owner, takes it from nobody.
        """
        self._written = tuple(
            SourcePartition(topic, number)
            for topic, partitions in sorted(written.items())
            for number in range(partitions)
        )
        found = checkpoint.read_document(_DOCUMENT, partial(load, SubscribedJob))
        if found is not None and found.subscription != self.name:
            raise SubscriptionError(
                f"{checkpoint.root} is the checkpoint of subscription {found.subscription!r}, "
                f"and the job has subscription = {self.name!r}: set it back, or give the job a "
                "checkpoint of its own"
            )
        known = "" if found is None else found.id
        if self._claimed_owner is None:
            self._check_same(checkpoint.root, known, head, done)
            epoch, self._claimed_owner = self.state.epoch, self._take()
            self._begin_with(*_of(self._claimed_owner.stored))
            if self.state.epoch != epoch:
                raise SubscriptionError(
                    f"subscription {self.name!r} was reset while the job started: start it again"
                )
        self._check_same(checkpoint.root, known, head, done)
        self.former = NO_FORMER_JOB
        if found is not None:
            self.former = found.former
        elif head is None:
            state = self.state
            self.former = FormerJob(state.lives, state.transaction, state.transactions)
        if found is None:
            known = uuid4().hex
            job = SubscribedJob(self.name, known, self.former)
            checkpoint.write_document(_DOCUMENT, dump(job))
        step = -1 if head is None else self.state.step
        if (known, step) != (self.state.checkpoint, self.state.step):
            # Before the first step: else a life that dies after it would not know its own cursors.
            self._write(replace(self.state, checkpoint=known, step=step))

    def _check_same(self, root: str, known: str, head: Step | None, done: int) -> None:
        state = self.state
        if head is None and self._lost:
            raise SubscriptionError(self._lost)
        if head is None or state.step < 0:
            return
        if state.checkpoint and known != state.checkpoint:
            raise SubscriptionError(
                f"subscription {self.name!r} was last written by a job with another checkpoint "
                f"than {root}. Start the job with that checkpoint, or delete {root}: without "
                "a checkpoint, a job resumes from the subscription's cursors"
            )
        # A step's done mark is there before its cursors are.
        if state.step > done:
            raise SubscriptionError(
                f"subscription {self.name!r} has got to step {state.step}, and {root} to {done}: "
                f"the folder was put back from a copy. Delete {root}: without a checkpoint, "
                "the job resumes from the subscription's cursors"
            )

    def begin(
        self,
        first: Mapping[SourcePartition, int],
        ends: Mapping[SourcePartition, int],
        ids: Mapping[str, str],
        *,
        latest: bool,
        now_ms: int,
    ) -> dict[SourcePartition, int]:
        """Return where a job without a log begins, and note which rows come again."""
        is_new = not self._partitions
        with self._lock:
            self._forget_recreated(ids)
            for where, offset in first.items():
                if where not in self._partitions:
                    start = ends[where] if is_new and latest else offset
                    self._add(where, start)
                # Store all cursors again: somebody may have moved or lost the group's offsets.
                self._touch(where)
            begins = {where: self._partitions[where].cursor.committed_offset for where in first}
        ends_out = self._topics.high_watermarks(self._written)
        again = self._count_again(ends_out)
        if again:
            self._outages.tell(
                f"subscription {self.name!r}: up to {again} rows were out and not acked when its "
                "checkpoint was lost. They come again"
            )
        state = replace(
            self.state,
            topics={**self.state.topics, **ids},
            repeated=self.state.repeated + again,
            # So that a life that dies before its first step does not count them again.
            sent=_by_topic(ends_out),
            written_ms=now_ms,
        )
        self._write(state)
        return begins

    def _count_again(self, now: Mapping[SourcePartition, int]) -> int:
        """Count the output records that were written after the cursors."""
        return sum(
            max(0, now[where] - end)
            for topic, ends in self.state.sent.items()
            for number, end in ends.items()
            if (where := SourcePartition(topic, number)) in now
        )

    def acked(
        self, before: Mapping[SourcePartition, int], planned: Mapping[SourcePartition, int]
    ) -> AckedOffsets:
        """Return what is acked among the rows of a batch that is about to be read.

        By then the registry names the topics of the batch, also those that a pattern has come to
        match: of a topic that is not named others delete what they have acked.
        """
        self.register({where.topic for where in planned})
        found = {}
        with self._lock:
            for where, stop in planned.items():
                one = self._partitions.get(where)
                if one is None:
                    continue
                ranges = acked_between(one.cursor, before.get(where, 0), stop)
                if len(ranges[0]):
                    found[where] = ranges
        return found

    def register(self, topics: Collection[str]) -> None:
        """Return once the registry names the topics as the subscription's, beside earlier ones."""
        self._record.cover(topics, partition=self.partition, group=self.group)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that the registry names; those of a pattern become more."""
        return self._record.topics

    @property
    def skips_held(self) -> bool:
        """Whether held rows may be acked, by their age or by hand."""
        return self._skips_held

    def acked_among(self, where: SourcePartition, offsets: Longs) -> Any:
        """Tell of each offset of a partition whether it is acked."""
        with self._lock:
            one = self._partitions.get(where)
            if one is None:
                return np.zeros(len(offsets), np.bool_)
            return one.cursor.acked_among(offsets)

    def _pass_over(self, where: SourcePartition, one: PartitionCursor, stop: int, log: Log) -> None:
        """Skip the messages before an offset; held ones only when they are due."""
        super()._pass_over(where, one, stop, log)
        sizes = one.sizes.behind(one.cursor.committed_offset)
        self._partitions[where] = PartitionCursor(one.cursor, sizes)
        self._skips_held = True

    def step_is_done(
        self,
        checkpoint: Checkpoint,
        entry: StepEntry,
        *,
        waiting: Sequence[Location],
        transactions: tuple[int, str],
        now_ms: int,
    ) -> None:
        """Ack the rows that a step has let out, and store the cursors."""
        held = held_offsets(checkpoint, entry, waiting)
        first: dict[SourcePartition, int] = {}
        if wanted := [where for where in entry.clock.partitions if self._jumps(entry, where)]:
            first = self._topics.low_watermarks(wanted)
        with self._writing:  # nobody may store cursors of this step without its state
            with self._lock:
                self._forget_recreated(entry.topics)
                self._skips_held = False
                for where, known in entry.clock.partitions.items():
                    place = held.get(where, _NONE)
                    self._ack(entry, where, known.position, place, first.get(where, 0))
            ends_out = self._topics.high_watermarks(self._written)
            state = replace(
                self.state,
                step=entry.step,
                transaction=transactions[0],
                transactions=transactions[1],
                lives=self.former.lives + checkpoint.owner,
                frontier_ms=entry.frontier_ms,
                written_ms=now_ms,
                sent=_by_topic(ends_out),
                topics={**self.state.topics, **entry.topics},
            )
            self._write(state)

    def _jumps(self, entry: StepEntry, where: SourcePartition) -> bool:
        """Tell whether a step has passed offsets without rows, or has begun a partition."""
        one = self._partitions.get(where)
        if one is None:
            return True
        rows, _size = entry.counted.get(where, (0, 0))
        return entry.clock.partitions[where].position - one.cursor.read_position > rows

    def _ack(
        self, entry: StepEntry, where: SourcePartition, position: int, held: Longs, first: int
    ) -> None:
        one = self._partitions.get(where) or self._add(where, min(first, position))
        cursor, reached = one.cursor, one.cursor.read_position
        rows, size = entry.counted.get(where, (0, 0))
        absent = 0
        if entry.kind in {StepKind.BATCH, StepKind.RESET}:
            absent = max(0, position - reached - rows)
        if cursor.acked_end > reached:
            # A job whose checkpoint is gone has read it: what is absent there is acked.
            cursor.ack_all_but(held, end=min(position, cursor.acked_end))
        lost = max(0, min(first, position) - reached)
        cursor.ack_all_but(held, end=position, absent=absent, lost=lost)
        cursor.seek(position, end=max(position, cursor.committed_offset))
        # More may be staged than the step has read.
        is_ahead = cursor.committed_offset > position
        if is_ahead or (len(held) and cursor.acked_among(held).any()):
            self._skips_held = True
        sizes = one.sizes.read(position, size).behind(cursor.committed_offset)
        self._partitions[where] = PartitionCursor(cursor, sizes)

    def _add(self, where: SourcePartition, start: int) -> PartitionCursor:
        self._partitions[where] = PartitionCursor.begin(CursorIdentity(self.name, *where), start)
        return self._partitions[where]

    def _forget_recreated(self, ids: Mapping[str, str]) -> None:
        """Remove the cursors of topics that were recreated under the same name."""
        known = self.state.topics
        gone = {topic for topic, one in ids.items() if known.get(topic, one) != one}
        for where in [where for where in self._partitions if where.topic in gone]:
            self._remove(where)


class JobRecord:
    """The record in the registry of which topics a job's subscription is on."""

    def __init__(
        self,
        name: str,
        registry: RegistryStore,
        *,
        new_group: str,
        evicted_topic: str | None,
        max_held_bytes: int,
    ) -> None:
        self._name = name
        self._registry = registry
        self._new_group = new_group
        self._owned: dict[str, Any] = {
            "evicted_topic": evicted_topic,
            "max_held_bytes": max_held_bytes,
        }
        self.topics: frozenset[str] = frozenset()

    def cover(self, topics: Collection[str], *, partition: int | None, group: str) -> None:
        """Add topics to the record; return once they are in it."""
        wanted = self.topics.union(topics)
        if wanted == self.topics:
            return
        now_ms = wall_clock_ms()

        def register(registry: Registry) -> Changes:
            known = registry.find(self._name)
            if known is None:
                made = SubscriptionRecord(
                    self._name,
                    tuple(sorted(wanted)),
                    SubscriptionType.EXCLUSIVE,
                    now_ms,
                    last_connected_ms=now_ms,
                    partition=partition,
                    group=group or self._new_group,
                    **self._owned,
                )
                return registry.created(made)
            # Somebody may have created one of that name since the job looked.
            refuse_another(known, SubscriptionType.EXCLUSIVE, known.topics)
            more = tuple(sorted(wanted.union(known.topics)))
            changed = replace(known, topics=more, partition=partition, **self._owned)
            if changed == known:
                return {}
            return {changed.key: changed.encode()}

        self._registry.change(register, subscription=self._name)
        self.topics = wanted


def subscribe(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    topics: KafkaTopics,
    outages: Outages,
    opened: contextlib.ExitStack,
) -> JobSubscription | None:
    """Read the subscription of a job, if it has one.

    It is read before the checkpoint is opened, since its epoch names the checkpoint's folder. It is
    taken once the checkpoint is the job's. So a job that is refused there stops no other job.
    """
    if (name := settings.subscription) is None:
        return None
    factor = settings.replication_factor
    store = CursorStore(kafka, replication_factor=factor, outages=outages)
    registered = RegistryStore(kafka, replication_factor=factor, outages=outages)
    registry = registered.read()
    record = JobRecord(
        name,
        registered,
        new_group=group_of_new(kafka, name),
        evicted_topic=settings.evicted_topic,
        max_held_bytes=settings.max_held_bytes,
    )
    noted = registry.partition_of(name)

    def take() -> CursorOwner:
        # From any owner: the checkpoint's owner has decided which job goes on.
        followed = store.follow(name, partition=noted)
        return opened.enter_context(store.take(name, lease=HeldLease(LEASE_S), followed=followed))

    stored = store.read(name, partition=noted)
    lost = "" if stored is not None or registry.find(name) is None else nothing_stored(name)
    return JobSubscription(name, stored, take, topics, outages, record=record, lost=lost)


def require_name(job: JobContext) -> None:
    """Check that a job may have the name of its subscription, if it has one.

    To be called before the subscription is taken from anybody.
    """
    if job.subscription is not None:
        may_take(
            Surveyor(job.kafka, outages=job.outages),
            job.subscription.name,
            SubscriptionType.EXCLUSIVE,
            input_topics(job),
            grows=True,
        )


def held_offsets(
    checkpoint: Checkpoint, entry: StepEntry, waiting: Sequence[Location]
) -> dict[SourcePartition, Longs]:
    """Return the offsets of rows that are still in the job once a step is done."""
    parts = []
    if live := entry.live_runs:
        parts.append(Part(checkpoint.files(*live), entry.frontier_ms + 1))
    if waiting:
        parts.append(Part(tuple(waiting), reasons=()))
    found: dict[SourcePartition, list[Longs]] = {}
    if parts:
        for rows in RunRows(parts, None, SOURCE_ORDER).pieces():
            offsets = rows["offset"].to_numpy()
            for source, place in sources(rows):
                found.setdefault(source, []).append(offsets[place])
    return {where: np.concatenate(several) for where, several in found.items()}


def acked_between(cursor: Cursor, first: int, stop: int) -> tuple[Longs, Longs]:
    """Return what a cursor has acked from `first` to before `stop`, as ranges."""
    firsts, stops = cursor.acked_arrays()
    firsts = np.concatenate([[0], firsts])
    stops = np.concatenate([[cursor.committed_offset], stops])
    some = (stops > first) & (firsts < stop) & (firsts < stops)
    return firsts[some], stops[some]


def _of(
    stored: StoredSubscription | None,
) -> tuple[SubscriptionState, Mapping[SourcePartition, PartitionCursor]]:
    return (SubscriptionState(), {}) if stored is None else (stored.state, stored.cursors)


def _by_topic(ends: Mapping[SourcePartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for where, end in ends.items():
        found.setdefault(where.topic, {})[where.partition] = end
    return found
