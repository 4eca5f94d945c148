"""A subscription is opened: taken over, its cursors read; registered if it is new."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.subscription.admin import may_take, refuse_another
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.claims import Hold, await_free
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.cursor_moves import finish_reset
from sequitur.consumer.subscription.cursor_store import held_by
from sequitur.consumer.subscription.partitions import ConsumedPartition
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import (
    NOTED_EACH_MS,
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.stored_records import nothing_stored
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import SubscriptionConnectedError, SubscriptionError, SubscriptionExistsError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sequitur.consumer.subscription.claims import HeldLease
    from sequitur.consumer.subscription.compacted_topic import FollowedPartition
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.group_offsets import GroupOffsets
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.consumer.subscription.registry import Changes, Registry
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.kafka.settings import KafkaSettings

_NOBODYS: Final = ""


@dataclass(frozen=True, slots=True)
class OpenedSubscription:
    owner: CursorOwner
    state: SubscriptionState  # what its cursors share
    partitions: dict[SourcePartition, ConsumedPartition]


class SubscriptionOpening:
    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        topics: tuple[str, ...],
        *,
        type: SubscriptionType,  # noqa: A002 - Pulsar's word
        replication_factor: int = -1,
        evicted_topic: str | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._wait = wait
        self.surveyor = Surveyor(kafka, replication_factor=replication_factor)
        self.topics = self.surveyor.topics
        # The thread that polls uses it: a client would have threads of its own.
        self.looks = Surveyor(kafka, replication_factor=replication_factor, by_thread=True)
        self._record = SubscriptionRecord(
            name,
            topics,
            type,
            created_ms=0,
            group=group_of_new(kafka, name),
            evicted_topic=evicted_topic,
        )

    def open(
        self,
        position: Edge | None,
        *,
        lease: HeldLease,
        offsets: GroupOffsets,
        take_over: bool = False,
    ) -> OpenedSubscription:
        """Take the subscription; create it if it does not exist."""
        while True:
            registered = may_take(
                self.surveyor, self._record.name, self._record.type, self._record.topics
            )
            with contextlib.suppress(SubscriptionExistsError):  # another has just registered it
                opened = self._open(registered, position, lease, offsets, take_over=take_over)
                if opened is not None:
                    self.surveyor.admin.let_go()
                    return opened

    def _open(
        self,
        registered: SubscriptionRecord | None,
        position: Edge | None,
        lease: HeldLease,
        offsets: GroupOffsets,
        *,
        take_over: bool,
    ) -> OpenedSubscription | None:
        """Open it; return None if that took so long that it may have changed meanwhile."""
        name = self._record.name
        noted = None if registered is None else registered.partition
        stored = self.surveyor.cursors.read(name, partition=noted)
        ids = self.topics.ids(self._record.topics)
        self._check(stored, ids, is_registered=registered is not None)  # before any owner is fenced
        if stored is None and position is None:
            raise SubscriptionError(
                f"nothing is stored of subscription {name!r}: say where it begins "
                "(position = 'earliest' or 'latest')"
            )
        starts = self._starts(position or Edge.EARLIEST)
        cursors = self.surveyor.cursors
        followed = cursors.follow(name, partition=noted)
        if not take_over and self._awaits_turn(followed):
            return None
        watch = None if take_over else self.surveyor.watch
        try:
            owner = cursors.take(
                name, lease=lease, watch=watch, partition=noted, followed=followed, offsets=offsets
            )
        except SubscriptionConnectedError:  # another process was faster
            if self._is_patient:
                return None
            raise
        try:
            self._check(owner.stored, ids, is_registered=registered is not None)
            found = SubscriptionState() if owner.stored is None else owner.stored.state
            state = replace(found, written_ms=wall_clock_ms(), topics={**found.topics, **ids})
            partitions = self._partitions(owner.stored, starts)
            # Stored at once, so that `latest` stays in place and backlogs are counted from there.
            copies = [one.copy() for one in partitions.values()]
            if registered is None:
                self._create(owner, state, copies)
            else:
                owner.write(state, copies)
                self._note(owner, found)
        except BaseException:
            owner.close()
            raise
        return OpenedSubscription(owner, state, partitions)

    @property
    def _is_patient(self) -> bool:
        return self._record.type is SubscriptionType.FAILOVER

    def _awaits_turn(self, followed: FollowedPartition) -> bool:
        """If its type waits, wait until it has no owner; return whether that took time."""
        name = self._record.name
        look = self.surveyor.look(name, followed)
        if look()[0] is Hold.FREE:
            return False
        claim = await_free(look, patiently=self._is_patient, wait=self._wait)
        if claim is not None:
            raise SubscriptionConnectedError(
                f"{held_by(name, claim)}: with type Failover this one would wait. Stop the "
                "owner, or take the subscription over (take_over=True)"
            )
        return True

    def added(
        self, known: Collection[SourcePartition], ids: Mapping[str, str]
    ) -> dict[SourcePartition, ConsumedPartition]:
        """Return the new partitions, to be read from their beginning; see `looks`."""
        topics = self.looks.topics
        self._check_ids(ids, topics.ids(self._record.topics))
        counts = topics.counts(self._record.topics)
        if gone := [topic for topic in self._record.topics if topic not in counts]:
            raise SubscriptionError(
                f"topic {gone[0]!r} of subscription {self._record.name!r} is gone: it was "
                "deleted, or the right to describe it was. Create the topic and reset the "
                "subscription, or delete the subscription"
            )
        there = (
            SourcePartition(topic, number)
            for topic, count in counts.items()
            for number in range(count)
        )
        new = [where for where in there if where not in known]
        lows = topics.low_watermarks(new)
        return {where: self._begin(where, at) for where, at in lows.items()}

    def _check(
        self, stored: StoredSubscription | None, ids: Mapping[str, str], *, is_registered: bool
    ) -> None:
        """Raise unless the cursors are there, are of these topics, and are not a job's."""
        if stored is None:
            if is_registered:
                raise SubscriptionError(nothing_stored(self._record.name))
            return
        state = stored.state
        if state.checkpoint != _NOBODYS:
            raise SubscriptionError(
                f"subscription {self._record.name!r} is that of a Spark job (checkpoint "
                f"{state.checkpoint}), which acks by itself: choose another name"
            )
        self._check_ids(state.topics, ids)

    def _check_ids(self, noted: Mapping[str, str], ids: Mapping[str, str]) -> None:
        """Compare topics with their noted ids. A topic without a known id passes."""
        for topic, one in ids.items():
            if noted.get(topic, one) != one:
                raise SubscriptionError(
                    f"{topic!r}: the topic was recreated, and the acks are for messages of the "
                    f"old topic. Reset subscription {self._record.name!r}"
                )

    def _create(
        self, owner: CursorOwner, state: SubscriptionState, cursors: list[PartitionCursor]
    ) -> None:
        """Store the first cursors and register the subscription, all or nothing."""
        record = replace(
            self._record,
            created_ms=state.written_ms,
            last_connected_ms=state.written_ms,
            epoch=state.epoch,
            partition=owner.partition,
            group=owner.group,
        )
        change = self.surveyor.registry.change
        owner.write(
            state,
            cursors,
            by=partial(change, lambda known: known.created(record), subscription=record.name),
        )

    def _note(self, owner: CursorOwner, found: SubscriptionState) -> None:
        """Note in the registry that there is a consumer, and where the cursors are.

        Behind the claim: of a deletion beside it either this fails, or that.
        """

        def change(registry: Registry) -> Changes:
            known = registry.require(self._record.name)
            wanted, now_ms = replace(self._record, partition=owner.partition), wall_clock_ms()
            refuse_another(known, wanted.type, wanted.topics)
            if now_ms - known.last_connected_ms < NOTED_EACH_MS:
                now_ms = known.last_connected_ms
            changes = registry.opened(wanted, now_ms=now_ms)
            return {} if changes == {known.key: known.encode()} else changes

        known = self.surveyor.registry.change(change, subscription=self._record.name).require(
            self._record.name
        )
        if found.epoch > known.epoch:  # the resetting process died before it noted the epoch
            finish_reset(self.surveyor.registry, known.name, found)

    def _partitions(
        self, stored: StoredSubscription | None, starts: Mapping[SourcePartition, int]
    ) -> dict[SourcePartition, ConsumedPartition]:
        cursors = {} if stored is None else stored.cursors
        known = {where.topic for where in cursors}
        # If a topic has cursors, a partition without one is new: nothing in it is skipped.
        lows = self._lows([where for where in starts if where.topic in known])
        highs = self.topics.high_watermarks(starts)
        partitions = {}
        for where, start in starts.items():
            if (one := cursors.get(where)) is not None:
                self._check_end(one.cursor, highs[where])
                partitions[where] = ConsumedPartition(
                    one.cursor, one.sizes, end=highs[where], redeliveries=one.redeliveries
                )
            else:
                partitions[where] = self._begin(where, lows.get(where, start))
        return partitions

    def _check_end(self, cursor: Cursor, end: int) -> None:
        """Check that what a cursor has acked was in this partition.

        Also where reading begins before the end: acks behind it are those of messages that were
        there before, and would pass over the ones that come now.
        """
        if end < cursor.acked_end:
            identity = cursor.identity
            raise SubscriptionError(
                f"{identity.topic}-{identity.partition} ends before {end}, and the subscription "
                f"has acked up to before {cursor.acked_end}: the topic was recreated, or "
                "brokers have lost records. Reset the subscription"
            )

    def _starts(self, position: Edge) -> dict[SourcePartition, int]:
        partitions = [
            SourcePartition(topic, number)
            for topic in self._record.topics
            for number in range(self.topics.require(topic))
        ]
        if position is Edge.EARLIEST:
            return self._lows(partitions)
        return self.topics.high_watermarks(partitions)

    def _lows(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        return self.topics.low_watermarks(partitions)

    def _begin(self, where: SourcePartition, start: int) -> ConsumedPartition:
        return ConsumedPartition.begin(CursorIdentity(self._record.name, *where), start)
