"""Which names a subscription may have: one rule for whoever creates or opens one, and for jobs.

The consumer group of a subscription is called `sequitur-` and its name; those that older versions
have created keep theirs, which is the name alone. A group of somebody else is left alone: its
members would lose their partitions, and its offsets would be replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.consumer.subscription.registry import GROUP_PREFIX, group_of_new
from sequitur.consumer.subscription.watch import CHECKS_GROUP
from sequitur.errors import SubscriptionConnectedError, SubscriptionError, SubscriptionExistsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType
    from sequitur.kafka.groups import ConsumerGroups

_OF_CONSUMERS: Final = {"", "consumer"}
"""The kinds of groups whose offsets consumers commit; the first has had no member yet."""


def may_take(
    surveyor: Surveyor,
    name: str,
    kind: SubscriptionType,
    topics: Collection[str],
    *,
    grows: bool = False,
    fence: bool = False,
) -> SubscriptionRecord | None:
    """Check that a name is a subscription's of that kind on these topics, or may become one's."""
    found = surveyor.registry.read().find(name)
    if found is not None:
        left_out = set(found.topics) - set(topics)
        may_grow = grows and not any(surveyor.topics.partitions(one) for one in left_out)
        refuse_another(found, kind, found.topics if may_grow else topics)
        return found
    if name.startswith(GROUP_PREFIX) or group_of_new(name) == CHECKS_GROUP:
        raise SubscriptionError(
            f"subscription {name!r}: consumer groups of that name are Sequitur's own: choose "
            "another name"
        )
    if surveyor.cursors.read(name) is None:  # else a job's that has not registered it yet
        _refuse_groups(surveyor.groups, name, fence=fence)
    return None


def refuse_another(
    found: SubscriptionRecord, kind: SubscriptionType, topics: Collection[str]
) -> None:
    """Refuse a subscription that is of another type, or on other topics."""
    if set(found.topics) != set(topics) or found.type is not kind:
        raise SubscriptionError(
            f"subscription {found.name!r} is of type {found.type} on {', '.join(found.topics)}, "
            f"not of type {kind} on {', '.join(topics)}: open it as it is, or delete it first"
        )


def _refuse_groups(groups: ConsumerGroups, name: str, *, fence: bool) -> None:
    """Refuse a name that a group has which is no subscription's, with the prefix or without."""
    kinds = groups.kinds()
    for group in (name, group_of_new(name)):
        if kinds.get(group, "") not in _OF_CONSUMERS:
            raise SubscriptionExistsError(
                f"group {group!r} is a group of type {kinds[group]}: choose another name"
            )
        if fence:
            continue
        # An opener that has died before it had registered it leaves a member for some seconds.
        if groups.connected([group], but=None if group == name else name):
            raise SubscriptionConnectedError(
                f"consumer group {group!r} is no subscription and has a member: choose another "
                "name, or take it over (sequitur subscription create --fence)"
            )
        if offsets := groups.committed_by_others(group):
            raise SubscriptionExistsError(
                f"consumer group {group!r} is no subscription and has committed offsets of "
                f"{len(offsets)} partitions: choose another name, or take it over (sequitur "
                "subscription create --fence)"
            )
