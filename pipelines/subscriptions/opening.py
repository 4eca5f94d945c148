"""A subscription is opened: registered if it is new, taken over, and its cursors read."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sequitur.consumer import CursorIdentity, SourcePartition
from sequitur.consumer.subscription.consumed_partition import ConsumedPartition
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import SubscriptionRecord
from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.pipelines._errors import SubscriptionError
from sequitur.pipelines.kafka.topics import KafkaTopics
from sequitur.pipelines.subscriptions.cursor_moves import finish_reset
from sequitur.pipelines.subscriptions.cursor_store import CursorStore, PartitionCursor
from sequitur.pipelines.subscriptions.registry_store import RegistryStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.consumer.subscription.registry import Changes, Registry, SubscriptionType
    from sequitur.pipelines.subscriptions.cursor_store import CursorOwner, StoredSubscription
    from sequitur.producer import KafkaSettings

_NOBODYS: Final = ""


@dataclass(frozen=True, slots=True)
class OpenedSubscription:
    """A subscription that is this process's from now on.

    Attributes:
        owner: Writes its cursors.
        state: What its cursors share.
        partitions: All partitions of its topics.
    """

    owner: CursorOwner
    state: SubscriptionState
    partitions: dict[SourcePartition, ConsumedPartition]


class SubscriptionOpening:
    """Opens one subscription.

    Args:
        kafka: How to reach the brokers.
        name: Its name.
        topics: The topics that it is on.
        type: How its messages are handed out.
        replication_factor: How many replicas the topics of subscriptions get if they are not
            there; -1 for the brokers' default.

    Raises:
        SubscriptionNameError: The name may not be one.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        topics: tuple[str, ...],
        *,
        type: SubscriptionType,  # noqa: A002 - Pulsar's word
        replication_factor: int = -1,
    ) -> None:
        self.topics = KafkaTopics(kafka)
        self._record = SubscriptionRecord(name, topics, type, created_ms=0)
        self._registry = RegistryStore(kafka, replication_factor=replication_factor)
        self._cursors = CursorStore(kafka, replication_factor=replication_factor)

    def open(self, position: Edge) -> OpenedSubscription:
        """Take the subscription over; create it if there is none of its name.

        Args:
            position: Where topics begin of which it has no cursor.

        Raises:
            CursorError: What is stored was changed, or is of another version.
            SubscriptionError: It is on other topics, of another type, or a Spark job's.
            TopicError: A topic is not there, or the brokers do not answer.
        """
        stored = self._cursors.read(self._record.name)
        self._check(stored)  # before whoever has it is fenced
        starts = self._starts(position)
        record = self._register(0 if stored is None else stored.state.epoch)
        owner = self._cursors.take(record.name, record.topics)
        try:
            self._check(owner.stored)
            state = self._state(owner.stored, record)
            partitions = self._partitions(owner.stored, starts)
            # So that `latest` stays where it is, and that those who count backlogs know of it.
            owner.write(
                state, [PartitionCursor(one.cursor, one.sizes) for one in partitions.values()]
            )
        except BaseException:
            owner.close()
            raise
        return OpenedSubscription(owner, state, partitions)

    def added(self, known: Collection[SourcePartition]) -> dict[SourcePartition, ConsumedPartition]:
        """Return the partitions that are there and are not known, to be read from their beginning.

        Raises:
            TopicError: The brokers do not answer.
        """
        there = (
            SourcePartition(topic, number)
            for topic in self._record.topics
            for number in range(self.topics.partitions(topic) or 0)
        )
        new = [where for where in there if where not in known]
        return {where: self._begin(where, at) for where, at in self._lows(new).items()}

    def _check(self, stored: StoredSubscription | None) -> None:
        """Check that the cursors are no job's.

        Raises:
            SubscriptionError: They are.
        """
        if stored is not None and stored.state.checkpoint != _NOBODYS:
            raise SubscriptionError(
                f"subscription {self._record.name!r} is that of a Spark job (checkpoint "
                f"{stored.state.checkpoint}), which acks by itself: choose another name"
            )

    def _register(self, epoch: int) -> SubscriptionRecord:
        """Create the subscription in the registry, or note that it has a consumer.

        Args:
            epoch: That of its cursors.

        Raises:
            SubscriptionError: It is on other topics, or of another type.
        """
        wanted = replace(self._record, epoch=epoch)

        def change(registry: Registry) -> Changes:
            found = registry.subscriptions.get(wanted.name)
            now_ms = _now_ms()
            if found is None:
                return registry.created(
                    replace(wanted, created_ms=now_ms, last_connected_ms=now_ms)
                )
            if set(found.topics) != set(wanted.topics) or found.type is not wanted.type:
                raise SubscriptionError(
                    f"subscription {found.name!r} is of type {found.type} on "
                    f"{', '.join(found.topics)}, not of type {wanted.type} on "
                    f"{', '.join(wanted.topics)}: open it as it is, or delete it first"
                )
            return registry.connected(found.name, now_ms=now_ms)

        found = self._registry.change(change).subscriptions.get(wanted.name)
        return wanted if found is None else found

    def _state(
        self, stored: StoredSubscription | None, record: SubscriptionRecord
    ) -> SubscriptionState:
        """Return what the cursors share, as it is written now."""
        state = SubscriptionState(epoch=record.epoch) if stored is None else stored.state
        if state.epoch > record.epoch:  # whoever has reset it died before that was noted
            finish_reset(self._registry, record.name, state)
        return replace(state, written_ms=_now_ms())

    def _partitions(
        self, stored: StoredSubscription | None, starts: Mapping[SourcePartition, int]
    ) -> dict[SourcePartition, ConsumedPartition]:
        cursors = {} if stored is None else stored.cursors
        known = {where.topic for where in cursors}
        # Of a topic that has cursors, a partition without one is new: nothing of it is left out.
        lows = self._lows([where for where in starts if where.topic in known])
        highs = self.topics.high_watermarks(starts)
        partitions = {}
        for where, start in starts.items():
            if (one := cursors.get(where)) is not None:
                partitions[where] = ConsumedPartition(one.cursor, one.sizes, end=highs[where])
            else:
                partitions[where] = self._begin(where, lows.get(where, start))
        return partitions

    def _starts(self, position: Edge) -> dict[SourcePartition, int]:
        """Return where each partition of a new subscription begins.

        Raises:
            TopicError: A topic is not there, or the brokers do not answer.
        """
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


def _now_ms() -> int:
    return int(time.time() * 1000)
