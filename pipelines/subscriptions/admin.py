"""Subscriptions are created and deleted.

Record and cursors are written in one transaction, and the registry decides which of two
administrators wins. The group's offsets follow. A deletion that an older version has not ended is
ended by the next one, or by the next creation.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sequitur.consumer import CursorIdentity
from sequitur.consumer._errors import SubscriptionExistsError
from sequitur.consumer.subscription.partition_cursor import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.pipelines._errors import TopicError
from sequitur.pipelines.subscriptions.standing import logs_of, refuse_connected

if TYPE_CHECKING:
    from sequitur.consumer.subscription.registry import Changes, Registry, SubscriptionRecord
    from sequitur.pipelines.subscriptions.backlog import Surveyor

_MEMBERS_GO_IN_S: Final = 90.0
"""A member stays in its group until its session times out: ours for 10 s, others' for 45 s."""
_LOOK_AGAIN_S: Final = 0.5


class SubscriptionAdmin:
    """Creates and deletes subscriptions.

    Args:
        surveyor: Asks Kafka.
    """

    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def create(self, record: SubscriptionRecord, *, at: Edge, fence: bool = False) -> None:
        """Create a subscription, with a cursor of each partition of its topics.

        Args:
            record: What is registered.
            at: Where its cursors begin.
            fence: Also if a consumer group of that name is there: its offsets are replaced.

        Raises:
            SubscriptionExistsError: There is one of that name, or a consumer group that is none.
            SubscriptionConnectedError: A consumer group of that name has a member.
            TopicError: A topic is not there, or the brokers do not answer.
        """
        for topic in record.topics:
            self._surveyor.topics.require(topic)
        if not fence:
            refuse_connected(self._surveyor.groups, record.name)
        known = self._surveyor.registry.read()
        known.created(record)
        if not fence and self._surveyor.cursors.read(record.name) is None:
            offsets = self._surveyor.groups.committed(record.name)
            if offsets:
                raise SubscriptionExistsError(
                    f"consumer group {record.name!r} is no subscription and has committed offsets "
                    f"of {len(offsets)} partitions, which would be replaced: choose another name, "
                    "or take it over (--fence)"
                )
        with self._surveyor.cursors.take(record.name) as owner:
            # Of one of that name whose deletion an older version has not ended.
            left = () if owner.stored is None else owner.stored.cursors
            begins = {
                where: log.start if at is Edge.EARLIEST else log.end
                for where, log in logs_of(self._surveyor.topics, record.topics).items()
            }
            state = SubscriptionState(
                epoch=record.epoch,
                written_ms=record.created_ms,
                topics=self._surveyor.topics.ids(record.topics),
            )
            made = replace(record, partition=owner.partition)
            change = self._surveyor.registry.change
            owner.write(
                state,
                [
                    PartitionCursor.begin(CursorIdentity(record.name, *where), offset)
                    for where, offset in begins.items()
                ],
                removed=left,
                by=partial(change, lambda registry: registry.created(made)),
            )

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription, its cursors and the offsets of its group.

        Args:
            name: Which.
            force: Also one that has a consumer: that one stops by name.

        Raises:
            UnknownSubscriptionError: There is none of that name.
            SubscriptionConnectedError: It has a consumer.
            TopicError: The brokers refuse, or do not answer; or the group has a member that does
                not go.
        """

        def change(registry: Registry) -> Changes:
            is_connected = bool(self._surveyor.groups.connected([name]))
            return registry.deleted(name, is_connected=is_connected, force=force)

        registry = self._surveyor.registry.read()
        if registry.find(name) is not None:
            change(registry)  # before whoever has it is fenced
            self._surveyor.delete(name, change)
        else:  # perhaps a deletion that an older version has not ended
            if not any(self._surveyor.cursors.read_all([name])):
                registry.require(name)
            if not force:
                refuse_connected(self._surveyor.groups, name)
            with self._surveyor.cursors.take(name, to_remove=True) as owner:
                owner.remove()
        deadline_s = time.monotonic() + _MEMBERS_GO_IN_S
        while True:
            try:
                self._surveyor.groups.delete(name)
            except TopicError as error:
                if not self._surveyor.groups.connected([name]):
                    raise
                if time.monotonic() > deadline_s:
                    raise TopicError(
                        f"subscription {name!r} is deleted, but its consumer group still has a "
                        "member, so that Kafka keeps its committed offsets: stop that one"
                    ) from error
                time.sleep(_LOOK_AGAIN_S)
            else:
                return
