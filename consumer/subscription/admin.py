"""Subscriptions are created and deleted.

Record and cursors are written in one transaction, and the registry decides which of two
administrators wins. The group's offsets follow. A deletion that an older version has not ended is
ended by the next one, or by the next creation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.names import may_take
from sequitur.consumer.subscription.partition_cursor import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.standing import await_no_owner, logs_of
from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.errors import TopicError

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.registry import SubscriptionRecord

_UNTIL_MEMBERS_GO: Final = Retry(
    patience_s=90.0, backoff=Backoff(initial_ms=500, maximum_ms=500, jitter=0)
)
"""A member stays in its group until its session times out: ours for 10 s, others' for 45 s."""


class SubscriptionAdmin:
    """Creates and deletes subscriptions."""

    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def create(self, record: SubscriptionRecord, *, at: Edge, fence: bool = False) -> None:
        """Create a subscription, with a cursor of each partition of its topics."""
        for topic in record.topics:
            self._surveyor.topics.require(topic)
        may_take(self._surveyor, record.name, record.type, record.topics, fence=fence)
        self._surveyor.registry.read().created(record)
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
            made = replace(record, partition=owner.partition, group=owner.group)
            change = self._surveyor.registry.change
            owner.write(
                state,
                [
                    PartitionCursor.begin(CursorIdentity(record.name, *where), offset)
                    for where, offset in begins.items()
                ],
                removed=left,
                by=partial(
                    change, lambda registry: registry.created(made), subscription=record.name
                ),
            )

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription, its cursors and the offsets of its group."""
        surveyor = self._surveyor
        registry = surveyor.registry.read()
        registered = registry.find(name)
        if registered is None and surveyor.cursors.read_all([name]).is_empty:
            registry.require(name)
        noted = registry.partition_of(name)
        followed = None if force else await_no_owner(surveyor, name, partition=noted)
        group = name
        if registered is not None:
            group = registered.group
            surveyor.delete(
                name, lambda known, _owner: known.deleted(name), force=force, followed=followed
            )
        else:  # a deletion that an older version has not ended
            watch = None if force else surveyor.watch
            with surveyor.cursors.take(
                name, watch=watch, followed=followed, to_remove=True
            ) as owner:
                owner.remove()
        groups = self._surveyor.groups

        def passes(error: Exception) -> str | None:
            is_held = isinstance(error, TopicError) and groups.connected([group])
            return "it has a member" if is_held else None

        try:
            _UNTIL_MEMBERS_GO.run(lambda: groups.delete(group), passes)
        except TopicError as error:
            if passes(error) is None:
                raise
            raise TopicError(
                f"subscription {name!r} is deleted, but its consumer group still has a "
                "member, so that Kafka keeps its committed offsets: stop that one"
            ) from error
