"""All that periodic checks judge by, as of one moment; and what follows for a subscription.

Pure: `backlog` asks Kafka for it. A job that has a subscription puts its own cursors in the place
of the stored ones, and does by itself what is due to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from sequitur.consumer.subscription.backlog_quota import PartitionBacklog, TopicBacklog
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.expiry import expired_before, is_pinned
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.consumer.subscription.expiry import Place
    from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord


@dataclass(frozen=True)
class Survey:
    now_ms: int  # when Kafka was asked
    registry: Registry  # subscriptions and policies
    connected: frozenset[str]  # the subscriptions that have a consumer, or may have one
    logs: Mapping[SourcePartition, Log]  # each partition of the topics
    held: Mapping[str, Mapping[SourcePartition, PartitionCursor]] = field(default_factory=dict)
    # the epoch of each subscription's cursors; absent if none are stored
    epochs: Mapping[str, int] = field(default_factory=dict)
    # the brokers' ids of topics, as far as topics have one
    ids: Mapping[str, str] = field(default_factory=dict)
    # the first offset whose timestamp is not before a time, by partition and time; the end if there
    # is none
    since: Mapping[tuple[SourcePartition, int], int] = field(default_factory=dict)
    # timestamp of the first record from an offset on, if it was read
    oldest_ms: Mapping[Place, int] = field(default_factory=dict)
    # a time that the first record from an offset on is older than, if its timestamp was not read
    # and a time of `since` is one
    older_than_ms: Mapping[Place, int] = field(default_factory=dict)
    # the subscriptions with unreadable cursors, and why. Their messages count as unacked, nothing
    # is acked for them, and they hold no producer back
    damaged: Mapping[str, str] = field(default_factory=dict)
    # the subscriptions and partitions whose cursors belong to a deleted topic of the same name
    of_gone_logs: frozenset[tuple[str, SourcePartition]] = frozenset()
    # the subscriptions of jobs, and each one's frontier, epoch milliseconds. Jobs themselves hold
    # what they read
    jobs: Mapping[str, int] = field(default_factory=dict)
    # the jobs whose frontier stands still although there is something to read
    standing: frozenset[str] = frozenset()
    # the subscriptions whose consumer the brokers do not tell, and why. They are not taken over,
    # and do not expire
    untold: Mapping[str, str] = field(default_factory=dict)
    # when each subscription's owner was last there, by the owner's clock
    seen_ms: Mapping[str, int] = field(default_factory=dict)
    # the seconds for which the checks' process has seen no owner of a subscription
    idle_s: Mapping[str, float] = field(default_factory=dict)
    # partitions without a leader now; they are not in `logs`
    leaderless: frozenset[SourcePartition] = frozenset()

    def with_held(
        self, subscription: str, held: Mapping[SourcePartition, PartitionCursor], *, epoch: int
    ) -> Survey:
        """Return the survey with a subscription's cursors that are newer than the stored ones."""
        return replace(
            self,
            held={**self.held, subscription: held},
            epochs={**self.epochs, subscription: epoch},
        )

    def with_oldest(self, oldest_ms: Mapping[Place, int]) -> Survey:
        return replace(self, oldest_ms=oldest_ms)

    def topics(self) -> list[str]:
        return list(self._partitions)

    def partitions(self, topic: str) -> list[SourcePartition]:
        return self._partitions.get(topic, [])

    @cached_property
    def _partitions(self) -> dict[str, list[SourcePartition]]:
        found: dict[str, list[SourcePartition]] = {}
        for where in sorted(self.logs):
            found.setdefault(where.topic, []).append(where)
        return found

    def places(self, names: Collection[str] | None = None) -> dict[SourcePartition, set[int]]:
        """Return where subscriptions have messages that are not acked: the first of each.

        Of a job also the first that it does not hold for its frontier.
        """
        found: dict[SourcePartition, set[int]] = {}
        for topic in self.topics():
            records = self.registry.on(topic)
            wanted = [one.name for one in records if names is None or one.name in names]
            for where in self.partitions(topic):
                offsets = {self.first_unacked(name, where) for name in wanted}
                offsets |= {self._held_to(name, where) for name in wanted if name in self._holding}
                found[where] = {one for one in offsets if one < self.logs[where].end}
        return found

    def is_being_reset(self, record: SubscriptionRecord) -> bool:
        """Tell whether the stored cursors have another epoch than the registry."""
        return self.epochs.get(record.name, record.epoch) != record.epoch

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        records = self.registry.subscriptions.values()
        return frozenset(one.name for one in records if self.is_being_reset(one))

    def held_of(self, subscription: str, where: SourcePartition) -> PartitionCursor:
        """Return what a subscription has of a partition.

        A cursor that is not stored has acked nothing of what is there. Neither has one of a former
        epoch.
        """
        known = self.held.get(subscription, {}).get(where)
        if known is not None and subscription not in self._unsettled:
            return known
        start = self.logs[where].start
        return PartitionCursor.begin(CursorIdentity(subscription, *where), start)

    def cursors(self, subscription: str, topic: str) -> list[Cursor]:
        return [self.held_of(subscription, where).cursor for where in self.partitions(topic)]

    def first_unacked(self, subscription: str, where: SourcePartition) -> int:
        """Return the first unacked offset that still exists."""
        log = self.logs[where]
        committed = self.held_of(subscription, where).cursor.committed_offset
        return min(max(committed, log.start), log.end)

    def needed_from(self, subscription: str, where: SourcePartition) -> int:
        """Return the first offset that must not be deleted, since it may be unacked."""
        if (subscription, where) in self.of_gone_logs:
            return self.logs[where].start
        return self.first_unacked(subscription, where)

    def deleted_unacked(self, subscription: str, where: SourcePartition) -> int:
        """Return how many offsets before the log's first are not acked: messages lost, at most.

        Those that its consumer has passed count in its cursor instead.
        """
        cursor = self.held_of(subscription, where).cursor
        if subscription in self.damaged or (subscription, where) in self.of_gone_logs:
            return 0
        start, keeps_read = self.logs[where].start, subscription in self.jobs
        deleted = cursor.deleted_unacked(start, keeps_read=keeps_read)
        return sum(stop - begin for begin, stop in deleted)

    def lost(self, subscription: str, where: SourcePartition) -> int:
        """Return an upper bound of the messages that were deleted unacked."""
        counted = self.held_of(subscription, where).cursor.counts.lost
        return counted + self.deleted_unacked(subscription, where)

    @cached_property
    def _backlogs(self) -> dict[str, TopicBacklog]:
        return {}

    def backlog(self, topic: str) -> TopicBacklog:
        """Return the backlogs of those subscriptions on a topic whose cursors can be read."""
        if topic not in self._backlogs:
            self._backlogs[topic] = self._backlog(topic)
        return self._backlogs[topic]

    def _backlog(self, topic: str) -> TopicBacklog:
        parts = [
            self._part(record.name, where)
            for record in self.registry.on(topic)
            if record.name not in self.damaged
            for where in self.partitions(topic)
        ]
        return TopicBacklog(topic, tuple(parts))

    def settled_backlog(self, topic: str) -> TopicBacklog:
        """Return `backlog` without what is being reset, or was acked of an earlier topic.

        What will be acked there is not known, so no producer waits for it.
        """
        whole = self.backlog(topic)
        if not self._unsettled and not self.of_gone_logs:
            return whole
        parts = (
            one
            for one in whole.parts
            if one.subscription not in self._unsettled
            and (one.subscription, SourcePartition(topic, one.partition)) not in self.of_gone_logs
        )
        return TopicBacklog(topic, tuple(parts))

    @cached_property
    def caught_up(self) -> frozenset[str]:
        behind = {
            record.name
            for where, log in self.logs.items()
            for record in self.registry.on(where.topic)
            if record.name in self.jobs
            and self.held_of(record.name, where).cursor.read_position < log.end
        }
        return frozenset(self.jobs.keys() - behind)

    @cached_property
    def _holding(self) -> dict[str, float]:
        """Jobs that hold rows for their frontiers, and the share that each may hold."""
        found = {}
        for name in self.jobs.keys() - self.standing - self._unsettled - self.damaged.keys():
            record = self.registry.subscriptions.get(name)
            if record is None or not record.max_held_bytes:
                continue
            held = sum(
                self._bytes_from(name, where, self.first_unacked(name, where))
                - self._bytes_from(name, where, self._read_to(name, where))
                for topic in record.topics
                for where in self.partitions(topic)
            )
            found[name] = min(record.max_held_bytes / held, 1.0) if held else 1.0
        return found

    def _read_to(self, name: str, where: SourcePartition) -> int:
        read = self.held_of(name, where).cursor.read_position
        return min(max(read, self.first_unacked(name, where)), self.logs[where].end)

    def _held_to(self, name: str, where: SourcePartition) -> int:
        """Return the offset up to before which a job holds read and unacked messages."""
        first = self.first_unacked(name, where)
        return first + int((self._read_to(name, where) - first) * self._holding[name])

    def _bytes_from(self, name: str, where: SourcePartition, first: int) -> int:
        log, sizes = self.logs[where], self.held_of(name, where).sizes
        if log.size_bytes is None:  # the size is unknown, but what was read is known
            return round(sizes.weight(first, log.end)) if any(sizes.sizes) else 0
        if not sizes.stops:
            return log.bytes_of(first, log.end)
        whole = sizes.weight(log.start, log.end)
        share = sizes.weight(max(first, log.start), log.end) / whole if whole else 0.0
        return int(log.size_bytes * share)

    def _part(self, subscription: str, where: SourcePartition) -> PartitionBacklog:
        log = self.logs[where]
        first = self.first_unacked(subscription, where)
        unacked = self.held_of(subscription, where).cursor.unacked_ranges(first, log.end)
        size = self._bytes_from(subscription, where, first)
        held_to, held_bytes = None, 0
        if subscription in self._holding:
            held_to = self._held_to(subscription, where)
            held_bytes = size - self._bytes_from(subscription, where, held_to)
        return PartitionBacklog(
            subscription=subscription,
            topic=where.topic,
            partition=where.partition,
            first_unacked=first,
            end=log.end,
            messages=sum(stop - begin for begin, stop in unacked),
            size_bytes=size,
            oldest_ms=self._age_of((where, first)),
            held_to=held_to,
            held_bytes=held_bytes,
            behind_held_ms=None if held_to is None else self._age_of((where, held_to)),
        )

    def _age_of(self, place: Place) -> int | None:
        """Return a timestamp or a later one; None if the message is not known to be old."""
        older_than_ms = self.older_than_ms.get(place)
        return self.oldest_ms.get(place, None if older_than_ms is None else older_than_ms - 1)


@dataclass(frozen=True, slots=True)
class Log:
    start: int  # the first offset that is there
    end: int  # the offset behind the last one
    size_bytes: int | None = None  # bytes of the log; None if the brokers do not tell

    def bytes_of(self, first: int, stop: int) -> int:
        """Return the bytes between two offsets, as if all records had the same size."""
        first, stop = max(first, self.start), min(stop, self.end)
        if stop <= first or self.size_bytes is None:
            return 0
        return self.size_bytes * (stop - first) // (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The offsets before which messages are to be acked without being processed."""

    # evicted since the topic's backlog has reached its quota
    evicted: Mapping[SourcePartition, int] = field(default_factory=dict)
    # the first unexpired offset, in topics with a time to live
    alive_from: Mapping[SourcePartition, int] = field(default_factory=dict)


class DueAck(NamedTuple):
    """A cumulative ack that is due in a partition, and its reason."""

    subscription: str
    topic: str
    partition: int
    first: int  # the first unacked offset
    stop: int  # all offsets before this one are to be acked
    messages: int  # how many of these are unacked
    why: FindingKind  # `EVICTED` or `EXPIRED_MESSAGES`

    @property
    def sentence(self) -> str:
        return (
            f"partition {self.partition}: {self.messages:,} messages from {self.first} to before "
            f"{self.stop} are acked and not processed"
        )


def due_acks(survey: Survey, record: SubscriptionRecord, cuts: Cuts) -> list[DueAck]:
    """Return what a subscription is to ack, in order; its cursors are not changed.

    Messages that have both expired and are to be evicted have expired. Nothing is due while a reset
    is under way, or where cursors cannot be read or are those of an earlier topic.
    """
    due: list[DueAck] = []
    if survey.is_being_reset(record) or record.name in survey.damaged:
        return due
    for where in (one for topic in record.topics for one in survey.partitions(topic)):
        if (record.name, where) in survey.of_gone_logs:
            continue
        cursor = survey.held_of(record.name, where).cursor
        reached, end = survey.first_unacked(record.name, where), survey.logs[where].end
        pinned = is_pinned(record, survey.oldest_ms.get((where, reached)))
        alive_from = cuts.alive_from.get(where, 0)
        expired = expired_before(cursor, alive_from, end=end, is_pinned=pinned)
        for stop, why in (
            (expired, FindingKind.EXPIRED_MESSAGES),
            (cuts.evicted.get(where), FindingKind.EVICTED),
        ):
            if stop is not None and stop > reached:
                unacked = sum(last - first for first, last in cursor.unacked_ranges(reached, stop))
                due.append(DueAck(record.name, *where, reached, stop, unacked, why))
                reached = stop
    return due
