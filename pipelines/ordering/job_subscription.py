"""Offsets of a job's rows: those that are still in it, and those that a cursor has acked."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import numpy as np

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.subscription.admin import finish_reset, may_take, refuse_another
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import INTERVAL_S, Checks, Leadership, LedChecks
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity, PartitionCursor
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.duty import Duty, ToldOnce
from sequitur.consumer.subscription.registry import (
    RegistryStore,
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.skipping import skip_due
from sequitur.consumer.subscription.stored_records import (
    LEASE_S,
    HeldLease,
    SubscriptionState,
    nothing_stored,
)
from sequitur.consumer.subscription.survey import FindingKind
from sequitur.errors import ConsumerError, ReorderError, SubscriptionError, SubscriptionFencedError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_input import input_topics
from sequitur.pipelines.rows.release import Part, RunRows
from sequitur.pipelines.rows.stage import SOURCE_ORDER, sources
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB, FormerJob

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
    from sequitur.pipelines.rows.stage import AckedOffsets
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


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
    """Return what a cursor has acked from one offset to before another, as ranges."""
    firsts, stops = cursor.acked_arrays()
    firsts = np.concatenate([[0], firsts])
    stops = np.concatenate([[cursor.committed_offset], stops])
    some = (stops > first) & (firsts < stop) & (firsts < stops)
    return firsts[some], stops[some]


# The subscription of a job: whatever has left the job is acked.
#
# Acked is what was read, less what is held and what waits for another attempt. So a step that is
# done gives the cursors anew, from the checkpoint alone; nothing has to be remembered between two
# steps, and a step whose cursors were not written is made up for by the next.
#
# A job whose checkpoint is gone begins at the cursors. They say what was acked; the state beside
# them says how far the frontier was, so that no key goes back in time. What was out and not acked
# when the checkpoint was lost comes again, and is counted.


_DOCUMENT: Final = "subscription.json"
_NONE: Final = np.empty(0, np.int64)


class JobSubscription:
    """The cursors of a job.

    The thread that stages asks what is acked; the one that finishes steps acks, and one that looks
    for what has expired. `_lock` is held while cursors are looked at or changed, `_writing` while
    they are stored.
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
        self.name = name
        self._record = record
        self._lost = lost
        self._take = take
        self._taken: CursorOwner | None = None
        self._topics = topics
        self._outages = outages
        self._lock = threading.Lock()
        self._writing = threading.RLock()
        self._written: tuple[SourcePartition, ...] = ()
        # Since the last time that they were stored: changed, and those of topics that are gone.
        self._changed: set[SourcePartition] = set()
        self._removed: set[SourcePartition] = set()
        self._skips_held = False
        self.former = NO_FORMER_JOB
        self._begin_with(stored)

    def _begin_with(self, stored: StoredSubscription | None) -> None:
        self._state = SubscriptionState() if stored is None else stored.state
        self._cursors = {} if stored is None else dict(stored.cursors)

    @property
    def state(self) -> SubscriptionState:
        """What its cursors share, as it is stored."""
        return self._state

    @property
    def partition(self) -> int | None:
        """The partition of the cursors' topic that they are in; None before it is claimed."""
        return None if self._taken is None else self._taken.partition

    @property
    def group(self) -> str:
        """Id of its consumer group; empty before it is claimed."""
        return "" if self._taken is None else self._taken.group

    def check(self) -> None:
        """Check that nobody is known to have taken the subscription over."""
        if self._taken is not None:
            self._taken.check()

    def confirm(self) -> None:
        """Check with the brokers that nobody has taken the subscription over.

        To be called before a step goes out: behind a reset, nothing of before may.
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
        found = checkpoint.read_document(_DOCUMENT, dict)
        if found is not None and found["subscription"] != self.name:
            raise SubscriptionError(
                f"{checkpoint.root} is the checkpoint of subscription {found['subscription']!r}, "
                f"and the job has subscription = {self.name!r}: set it back, or give the job a "
                "checkpoint of its own"
            )
        known = "" if found is None else found["id"]
        if self._taken is None:
            self._check_same(checkpoint.root, known, head, done)
            epoch, self._taken = self._state.epoch, self._take()
            self._begin_with(self._taken.stored)
            if self._state.epoch != epoch:
                raise SubscriptionError(
                    f"subscription {self.name!r} was reset while the job started: start it again"
                )
        self._check_same(checkpoint.root, known, head, done)
        self.former = NO_FORMER_JOB
        if found is not None:
            self.former = FormerJob.from_document(found["former"])
        elif head is None:
            state = self._state
            self.former = FormerJob(state.lives, state.transaction, state.transactions)
        if found is None:
            known = uuid4().hex
            checkpoint.write_document(
                _DOCUMENT,
                {"subscription": self.name, "id": known, "former": self.former.to_document()},
            )
        step = -1 if head is None else self._state.step
        if (known, step) != (self._state.checkpoint, self._state.step):
            # Before the first step: else a life that dies behind it would not know its own.
            self._write(replace(self._state, checkpoint=known, step=step))

    def _check_same(self, root: str, known: str, head: Step | None, done: int) -> None:
        state = self._state
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
        """Return where a job without a log begins, and note what comes again."""
        is_new = not self._cursors
        with self._lock:
            self._forget_recreated(ids)
            for where, offset in first.items():
                if where not in self._cursors:
                    start = ends[where] if is_new and latest else offset
                    self._add(where, start)
            begins = {where: self._cursors[where].cursor.committed_offset for where in first}
            # All are stored once more: somebody may have moved or lost the group's offsets.
            self._changed.update(first)
        ends_out = self._topics.high_watermarks(self._written)
        again = self._count_again(ends_out)
        if again:
            self._outages.tell(
                f"subscription {self.name!r}: up to {again} rows were out and not acked when its "
                "checkpoint was lost. They come again"
            )
        state = replace(
            self._state,
            topics={**self._state.topics, **ids},
            repeated=self._state.repeated + again,
            # So that a life that dies before its first step does not count them once more.
            sent=_by_topic(ends_out),
            written_ms=now_ms,
        )
        self._write(state)
        return begins

    def _count_again(self, now: Mapping[SourcePartition, int]) -> int:
        """Count the records behind what was there when the cursors were written."""
        return sum(
            max(0, now[where] - end)
            for topic, ends in self._state.sent.items()
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
                one = self._cursors.get(where)
                if one is None:
                    continue
                ranges = acked_between(one.cursor, before.get(where, 0), stop)
                if len(ranges[0]):
                    found[where] = ranges
        return found

    def register(self, topics: Collection[str]) -> None:
        """Return once the registry names topics as the subscription's, beside those before."""
        self._record.cover(topics, partition=self.partition, group=self.group)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that the registry names: of a pattern they become more."""
        return self._record.topics

    @property
    def skips_held(self) -> bool:
        """Whether rows that are held may be acked: by their age, or by somebody's hand."""
        return self._skips_held

    def acked_among(self, where: SourcePartition, offsets: Longs) -> Any:
        """Tell of each offset of a partition whether it is acked."""
        with self._lock:
            one = self._cursors.get(where)
            if one is None:
                return np.zeros(len(offsets), np.bool_)
            return one.cursor.acked_among(offsets)

    def copies(self) -> dict[SourcePartition, PartitionCursor]:
        """Return the cursors as they are now, for others to look at."""
        with self._lock:
            return {where: one.copy() for where, one in self._cursors.items()}

    def expire(self, where: SourcePartition, stop: int, log: Log) -> None:
        """Ack all messages before an offset: they are skipped, held ones when they are due."""
        with self._lock:
            one = self._cursors.get(where)
            if one is None or stop <= one.cursor.committed_offset:
                return
            one.cursor.pass_over(stop, start=log.start, end=log.end, keeps_read=True)
            sizes = one.sizes.behind(one.cursor.committed_offset)
            self._cursors[where] = PartitionCursor(one.cursor, sizes)
            self._changed.add(where)
            self._skips_held = True

    def store(self) -> None:
        """Store the cursors that have changed."""
        with self._writing:  # what a step is about to write belongs together
            self._write(self._state)

    def step_is_done(
        self,
        checkpoint: Checkpoint,
        entry: StepEntry,
        *,
        waiting: Sequence[Location],
        transactions: tuple[int, str],
        now_ms: int,
    ) -> None:
        """Ack what a step has let out, and store it."""
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
                self._state,
                step=entry.step,
                transaction=transactions[0],
                transactions=transactions[1],
                lives=self.former.lives + checkpoint.owner,
                frontier_ms=entry.frontier_ms,
                written_ms=now_ms,
                sent=_by_topic(ends_out),
                topics={**self._state.topics, **entry.topics},
            )
            self._write(state)

    def _jumps(self, entry: StepEntry, where: SourcePartition) -> bool:
        """Tell whether a step has passed offsets that hold no row, or begins a partition."""
        one = self._cursors.get(where)
        if one is None:
            return True
        rows, _size = entry.counted.get(where, (0, 0))
        return entry.clock.partitions[where].position - one.cursor.read_position > rows

    def _ack(
        self, entry: StepEntry, where: SourcePartition, position: int, held: Longs, first: int
    ) -> None:
        one = self._cursors.get(where) or self._add(where, min(first, position))
        cursor, sizes = one.cursor, one.sizes
        reached, before = cursor.read_position, _marks(cursor)
        rows, size = entry.counted.get(where, (0, 0))
        absent = 0
        if entry.kind in {StepKind.BATCH, StepKind.RESET}:
            absent = max(0, position - reached - rows)
        if cursor.acked_end > reached:
            # It was read before, by a job whose checkpoint is gone: what is absent there is acked.
            cursor.ack_all_but(held, end=min(position, cursor.acked_end))
        lost = max(0, min(first, position) - reached)
        cursor.ack_all_but(held, end=position, absent=absent, lost=lost)
        cursor.seek(position, end=max(position, cursor.committed_offset))
        # Beyond what the step has read more may be staged.
        is_ahead = cursor.committed_offset > position
        if is_ahead or (len(held) and cursor.acked_among(held).any()):
            self._skips_held = True
        sizes = sizes.read(position, size).behind(cursor.committed_offset)
        if _marks(cursor) != before:
            self._cursors[where] = PartitionCursor(cursor, sizes)
            self._changed.add(where)

    def _add(self, where: SourcePartition, start: int) -> PartitionCursor:
        self._cursors[where] = PartitionCursor.begin(CursorIdentity(self.name, *where), start)
        self._changed.add(where)
        return self._cursors[where]

    def _forget_recreated(self, ids: Mapping[str, str]) -> None:
        """Let go of the cursors of topics that are other ones now, of the same name."""
        known = self._state.topics
        gone = {topic for topic, one in ids.items() if known.get(topic, one) != one}
        for where in [where for where in self._cursors if where.topic in gone]:
            del self._cursors[where]
            self._removed.add(where)

    def _write(self, state: SubscriptionState) -> None:
        assert self._taken is not None
        with self._writing:
            with self._lock:  # a cursor that is encoded must not change meanwhile
                changed, self._changed = self._changed, set()
                removed, self._removed = self._removed, set()
                copies = [
                    one.copy()
                    for where in sorted(changed)
                    if (one := self._cursors.get(where)) is not None
                ]
            try:
                self._taken.write(state, copies, removed=removed)
            except BaseException:
                with self._lock:  # the next time they have to be stored, too
                    self._changed |= changed
                    self._removed |= removed
                raise
            self._state = state


def _by_topic(ends: Mapping[SourcePartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for where, end in ends.items():
        found.setdefault(where.topic, {})[where.partition] = end
    return found


def _marks(cursor: Cursor) -> tuple[int, ...]:
    """Return numbers that are others once the cursor has changed."""
    counts = cursor.counts
    return cursor.mark_delete, cursor.read_position, counts.consumed, counts.absent, counts.lost


class JobRecord:
    """The record of a job's subscription in the registry: which topics it is on."""

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
        """Have topics named, beside those before; return once they are."""
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
            # Another may have created one of that name since the job has looked.
            refuse_another(known, SubscriptionType.EXCLUSIVE, known.topics)
            more = tuple(sorted(wanted.union(known.topics)))
            changed = replace(known, topics=more, partition=partition, **self._owned)
            if changed == known:
                return {}
            return {changed.key: changed.encode()}

        self._registry.change(register, subscription=self._name)
        self.topics = wanted


# The checks of subscriptions in a job: a thread beside its steps.
#
# What has expired or is evicted of the job's own subscription the job acks by itself, since nobody
# else may write its cursors. And it takes a seat among those who can make the checks of all topics;
# see `sequitur.consumer.subscription.checks`.


_POLL_S: Final = 0.1


class SubscriptionChecks:
    """Checks again and again, from entering to leaving."""

    def __init__(
        self,
        kafka: KafkaSettings,
        subscription: JobSubscription,
        topics: Collection[str],
        outages: Outages,
        *,
        replication_factor: int,
    ) -> None:
        self._kafka = kafka
        self._subscription = subscription
        self._topics = topics
        self._outages = outages
        self._surveyor = Surveyor(kafka, replication_factor=replication_factor)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription-checks", daemon=True)
        self._tell = ToldOnce(outages.tell)

    def __enter__(self) -> Self:
        self._subscription.register(self._topics)
        # A reset whose process died before it had said so in the registry.
        finish_reset(self._surveyor.registry, self._subscription.name, self._subscription.state)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        make = partial(Checks, self._surveyor)
        with Leadership(self._kafka) as leadership, LedChecks(make) as checks:
            round_ = Duty(
                lambda: self._look(checks if leadership.leads else None),
                every_s=INTERVAL_S,
                passes=(ReorderError, ConsumerError),
                tell=lambda error: self._tell(
                    # Of the job's own subscription its next step tells; else another one leads.
                    str(error)
                    if isinstance(error, SubscriptionFencedError)
                    else f"subscriptions are not checked: {error}"
                ),
            )
            while not self._ends.is_set():
                if not leadership.poll(_POLL_S):
                    checks.close()
                round_.run()

    def _look(self, checks: LedChecks | None) -> None:
        """Ack what is due of the job's own subscription; make the checks of all if it leads."""
        self._skip_due()
        for found in checks.run().findings if checks is not None else ():
            if found.kind is not FindingKind.OWNED:
                self._tell(f"{found.kind.value}: {found.topic}: {found.sentence}")

    def _skip_due(self) -> None:
        """Ack what has expired, or is evicted, of the job's own subscription."""
        for one in skip_due(self._surveyor, self._subscription, self._subscription.topics):
            self._outages.tell(f"{one.why.value}: {one.topic}, {one.sentence}")


# A job's subscription is read before its checkpoint is opened: the epoch names its folder.
#
# It is taken once the checkpoint is the job's, so that a job that is refused there stops nobody.


def subscribe(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    topics: KafkaTopics,
    outages: Outages,
    opened: contextlib.ExitStack,
) -> JobSubscription | None:
    """Read the subscription of a job, if it has one; it is taken with the checkpoint."""
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
        # Whoever has it: the checkpoint's owner has decided which job goes on.
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


def checks_of(job: JobContext, subscription: JobSubscription) -> SubscriptionChecks:
    """Return the checks that a job with a subscription makes while it runs."""
    return SubscriptionChecks(
        job.kafka,
        subscription,
        input_topics(job),
        job.outages,
        replication_factor=job.settings.replication_factor,
    )
