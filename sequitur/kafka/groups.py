"""The driver's requests about consumer groups: who is connected, and what is committed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AclOperation,
    AdminClient,
)

from sequitur.base.outages import brief_outages
from sequitur.errors import FatalError, RetriableError, TopicError
from sequitur.kafka.admin_answers import action_to, answered
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.error_codes import Action, Request
from sequitur.kafka.list_groups import listed_groups
from sequitur.kafka.partition import CURSOR_PREFIX, SourcePartition
from sequitur.kafka.share_groups import share_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import TypeVar

    from sequitur.base.outages import Outages
    from sequitur.kafka.settings import KafkaSettings

    T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
SHARE: Final = "share"
"""The kind of groups that need records and commit no offsets (KIP-932)."""


class ConsumerGroups:
    """A small admin client; where the brokers do not answer, all of it raises `TopicError`."""

    def __init__(self, kafka: KafkaSettings, outages: Outages | None = None) -> None:
        self._kafka = kafka
        self._admin = AdminClient(kafka.librdkafka())
        self._outages = outages or brief_outages()

    def names(self) -> list[str]:
        """Return the groups that the brokers know."""

        def ask() -> list[str]:
            found = self._admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
            for error in found.errors:
                raise error
            return sorted(one.group_id for one in found.valid)

        return self._told("the brokers do not list consumer groups", ask)

    def kinds(self) -> dict[str, str]:
        """Return the groups that the brokers list, and the kind of each, such as `share`."""
        told = self._ask_each("the brokers do not list groups", listed_groups)
        return dict(sorted((name, kind) for one in told for name, kind in one.items()))

    def share_offsets(self, group: str) -> dict[SourcePartition, int]:
        """Return the first offset that a share group needs of each partition that it reads.

        Nothing: that is not told, or it has not begun to read.
        """

        async def ask(ask_broker: Callable[[Any], Awaitable[Any]]) -> dict[tuple[str, int], int]:
            listed = await listed_groups(ask_broker)
            return await share_offsets(ask_broker, group) if group in listed else {}

        told = self._ask_each(f"the brokers do not tell what group {group!r} needs", ask)
        return {SourcePartition(*where): at for one in told for where, at in one.items()}

    def _ask_each(
        self, message: str, ask: Callable[[Callable[[Any], Awaitable[Any]]], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Ask each broker, by the connections of this thread."""

        def ask_all() -> list[T]:
            brokers = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
            try:
                connections = kept_connections(self._kafka)
                asks = [partial(connections.wire.ask, node) for node in brokers]
                return [connections.run(ask(one)) for one in asks]
            except RetriableError as error:
                raise TimeoutError from error
            except FatalError as error:
                raise TopicError(f"{message}: {error}") from error

        return self._told(message, ask_all)

    def are_all_listed(self) -> bool:
        """Tell whether brokers list all groups: without Describe on Cluster some are left out."""

        def ask() -> bool:
            asked = self._admin.describe_cluster(
                include_authorized_operations=True, request_timeout=_TIMEOUT_S
            )
            return AclOperation.DESCRIBE in (asked.result(_TIMEOUT_S).authorized_operations or ())

        return self._told("the brokers do not tell what this user may do", ask)

    def connected(self, groups: Iterable[str], *, but: str | None = None) -> set[str]:
        """Return which of some groups have a member; see `members_of`."""
        found, untold = self.members_of(groups, but=but)
        if untold:
            raise TopicError(min(untold.values()))
        return found

    def members_of(
        self, groups: Iterable[str], *, but: str | None = None
    ) -> tuple[set[str], dict[str, str]]:
        """Return which of some groups have a member, and of which that is not told, and why."""
        wanted = sorted(groups)
        if not wanted:
            return set(), {}

        def ask() -> tuple[set[str], dict[str, str]]:
            asked = self._admin.describe_consumer_groups(wanted, request_timeout=_TIMEOUT_S)
            found, untold = set(), {}
            for name, answer in asked.items():
                try:
                    members = answer.result(_TIMEOUT_S).members
                except KafkaException as error:
                    match action_to(Request.GROUPS, error):
                        case Action.GO_WITHOUT:
                            continue
                        case Action.FAIL:
                            untold[name] = f"group {name!r} is not described: {error}"
                            continue
                    raise
                if any(one.group_instance_id != but or but is None for one in members):
                    found.add(name)
            return found, untold

        return self._told("the brokers do not describe consumer groups", ask)

    def committed(self, group: str) -> dict[SourcePartition, int]:
        """Return the offsets that a group has committed."""
        return {where: offset for where, (offset, _) in self._committed(group).items()}

    def committed_by_others(self, group: str) -> dict[SourcePartition, int]:
        """Return the offsets that a group has committed and that are no subscription's."""
        return {
            where: offset
            for where, (offset, metadata) in self._committed(group).items()
            if not metadata.startswith(CURSOR_PREFIX)
        }

    def _committed(self, group: str) -> dict[SourcePartition, tuple[int, str]]:
        def ask() -> dict[SourcePartition, tuple[int, str]]:
            wanted = [ConsumerGroupTopicPartitions(group)]
            asked = self._admin.list_consumer_group_offsets(wanted, request_timeout=_TIMEOUT_S)
            found = asked[group].result(_TIMEOUT_S).topic_partitions
            return {
                SourcePartition(one.topic, one.partition): (one.offset, one.metadata or "")
                for one in found
                if one.offset >= 0
            }

        return self._told(f"the brokers do not tell what group {group!r} has committed", ask)

    def delete(self, group: str) -> None:
        """Forget a group and what it has committed, if it has no member."""

        def ask() -> None:
            asked = self._admin.delete_consumer_groups([group], request_timeout=_TIMEOUT_S)
            try:
                asked[group].result(_TIMEOUT_S)
            except KafkaException as error:
                if not _is_unknown(error):
                    raise

        self._told(f"group {group!r} cannot be deleted", ask)

    def _told(self, message: str, ask: Callable[[], T]) -> T:
        return answered(self._outages, Request.GROUPS, message, ask, timeout_s=_TIMEOUT_S)


def _is_unknown(error: KafkaException) -> bool:
    """Tell whether a group is one that the brokers do not know."""
    return action_to(Request.GROUPS, error) is Action.GO_WITHOUT
