"""Subscriptions are created and deleted, and may have these names.

Record and cursors are written in one transaction, and the registry decides which of two
administrators wins. The group's offsets follow. A deletion that an older version has not finished
is finished by the next deletion, or by the next creation.

The rule for names is the same for commands, for `Subscription` and for jobs. The consumer group of
a subscription is called `sequitur-` and its name, or has the prefix of its installation (`[kafka]
system_prefix`) instead. A group of another program is left alone: its members would lose their
partitions, and its offsets would be replaced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.led_checks import checks_group
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.consumer.subscription.standing import (
    await_no_owner,
    logs_of,
)
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    SubscriptionConnectedError,
    SubscriptionError,
    SubscriptionExistsError,
    TopicError,
)
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.registry import (
        SubscriptionRecord,
        SubscriptionType,
    )
    from sequitur.kafka.groups import ConsumerGroups


_OF_CONSUMERS: Final = {"", "consumer"}
"""Consumers commit to groups of these types. A group that never had a member has no type."""
_UNTIL_MEMBERS_GO: Final = Retry(
    patience_s=90.0, backoff=Backoff(initial_ms=500, maximum_ms=500, jitter=0)
)
"""A member stays in its group until its session times out: ours for 10 s, others' for 45 s."""


class SubscriptionAdmin:
    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor

    def create(self, record: SubscriptionRecord, *, at: Edge, fence: bool = False) -> None:
        for topic in record.topics:
            self._surveyor.topics.require(topic)
        may_take(self._surveyor, record.name, record.type, record.topics, fence=fence)
        self._surveyor.registry.read().created(record)
        with self._surveyor.cursors.take(record.name) as owner:
            # An older version may have left cursors of that name after an unfinished deletion.
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
        else:  # an older version has not ended the deletion
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
                f"subscription {name!r} is deleted, but its consumer group still has a member, "
                "so Kafka keeps its committed offsets: stop that member"
            ) from error


def may_take(
    surveyor: Surveyor,
    name: str,
    kind: SubscriptionType,
    topics: Collection[str],
    *,
    grows: bool = False,
    fence: bool = False,
) -> SubscriptionRecord | None:
    """Raise unless the name is free or is such a subscription's; return None if it is free."""
    found = surveyor.registry.read().find(name)
    if found is not None:
        left_out = set(found.topics) - set(topics)
        may_grow = grows and not any(surveyor.topics.partitions(one) for one in left_out)
        refuse_another(found, kind, found.topics if may_grow else topics)
        return found
    kafka = surveyor.kafka
    own = group_of_new(kafka, name)
    if name.startswith(system_name(kafka, "")) or own == checks_group(kafka):
        raise SubscriptionError(
            f"subscription {name!r}: consumer groups of that name are Sequitur's own: choose "
            "another name"
        )
    if surveyor.cursors.read(name) is None:  # else a job has the name and has not registered it yet
        _refuse_groups(surveyor.groups, name, own, fence=fence)
    return None


def refuse_another(
    found: SubscriptionRecord, kind: SubscriptionType, topics: Collection[str]
) -> None:
    """Raise if the subscription has another type or other topics."""
    if set(found.topics) != set(topics) or found.type is not kind:
        raise SubscriptionError(
            f"subscription {found.name!r} is of type {found.type} on {', '.join(found.topics)}, "
            f"not of type {kind} on {', '.join(topics)}: open it as it is, or delete it first"
        )


def _refuse_groups(groups: ConsumerGroups, name: str, own: str, *, fence: bool) -> None:
    """Raise if another program has the group, with the prefix or without it."""
    kinds = groups.kinds()
    for group in (name, own):
        if kinds.get(group, "") not in _OF_CONSUMERS:
            raise SubscriptionExistsError(
                f"group {group!r} is a group of type {kinds[group]}: choose another name"
            )
        if fence:
            continue
        # An opener that died before it registered the name leaves a member for some seconds.
        if groups.connected([group], but=None if group == name else name):
            raise SubscriptionConnectedError(
                f"consumer group {group!r} is not a subscription and has a member: choose "
                "another name, or take it over (sequitur subscription create --fence)"
            )
        if offsets := groups.committed_by_others(group):
            raise SubscriptionExistsError(
                f"consumer group {group!r} is not a subscription and has committed offsets of "
                f"{len(offsets)} partitions: choose another name, or take it over (sequitur "
                "subscription create --fence)"
            )
