"""Consumer groups and share groups: who is connected, and what they need of a topic.

`ConsumerGroups` asks by librdkafka's admin client, and about share groups by requests that neither
aiokafka nor librdkafka has. They are put together here from aiokafka's protocol classes:

- ListGroups (API 16): the groups of all kinds that a broker coordinates. librdkafka lists consumer
  groups alone, and share groups need records, too.
- DescribeShareGroupOffsets (API 90, KIP-932): the offsets from which share groups need records.
- ShareGroupDescribe (API 77): the topics to which members of share groups have subscribed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AclOperation,
)

from sequitur.base.retry import brief_outages
from sequitur.errors import FatalError, RequestUnknownError, RetriableError, TopicError
from sequitur.kafka.admin import action_to, answered
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.error_codes import Action, action_of, meaning_of
from sequitur.kafka.error_codes import Request as Asked
from sequitur.kafka.partition import CURSOR_PREFIX, SourcePartition
from sequitur.kafka.shared_admin import SharedAdmin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import TypeVar

    from sequitur.base.retry import Outages
    from sequitur.kafka.settings import KafkaSettings

    T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
SHARE: Final = "share"
"""The type of groups that need records but commit no offsets (KIP-932)."""


class ConsumerGroups:
    """A small admin client. If brokers do not answer, each method raises `TopicError`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        outages: Outages | None = None,
        admin: SharedAdmin | None = None,
    ) -> None:
        self._kafka = kafka
        self._admin = admin or SharedAdmin(kafka)
        self._outages = outages or brief_outages()

    def names(self) -> list[str]:
        def ask() -> list[str]:
            found = self._admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
            for error in found.errors:
                raise error
            return sorted(one.group_id for one in found.valid)

        return self._told("the brokers do not list consumer groups", ask)

    def kinds(self) -> dict[str, str]:
        """Return the type of each group that the brokers list, such as `share`."""
        told = self._ask_each("the brokers do not list groups", listed_groups)
        return dict(sorted((name, kind) for one in told for name, kind in one.items()))

    def share_offsets(self, group: str) -> dict[SourcePartition, int]:
        """Return the first offset that a share group needs of each partition that it reads.

        Nothing: that is not told, or it has not begun to read.
        """
        told = self._ask_of(group, share_offsets)
        return {SourcePartition(*where): at for one in told for where, at in one.items()}

    def share_topics(self, group: str) -> set[str]:
        """Return the topics that members of a share group have subscribed to.

        None: that is not told, or it has no members.
        """
        return set[str]().union(*self._ask_of(group, share_topics))

    def _ask_of(
        self,
        group: str,
        ask: Callable[[Callable[[Any], Awaitable[Any]], str], Coroutine[Any, Any, T]],
    ) -> list[T]:
        async def ask_one(ask_broker: Callable[[Any], Awaitable[Any]]) -> list[T]:
            is_there = group in await listed_groups(ask_broker)
            return [await ask(ask_broker, group)] if is_there else []

        told = self._ask_each(f"the brokers do not tell what group {group!r} needs", ask_one)
        return [one for several in told for one in several]

    def _ask_each(
        self, message: str, ask: Callable[[Callable[[Any], Awaitable[Any]]], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Ask each broker over this thread's connections."""

        def ask_all() -> list[T]:
            brokers = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
            connections = kept_connections(self._kafka)
            asks = [partial(connections.wire.ask, node) for node in brokers]
            return [connections.run(ask(one)) for one in asks]

        return self._told(message, ask_all)

    def are_all_listed(self) -> bool:
        """Tell whether brokers list all groups. Without Describe on Cluster they leave some out."""

        def ask() -> bool:
            asked = self._admin.describe_cluster(
                include_authorized_operations=True, request_timeout=_TIMEOUT_S
            )
            return AclOperation.DESCRIBE in (asked.result(_TIMEOUT_S).authorized_operations or ())

        return self._told("the brokers do not tell what this user may do", ask)

    def connected(self, groups: Iterable[str], *, but: str | None = None) -> set[str]:
        """Return which of some groups have a member.

        Raises:
            TopicError: The brokers do not describe one of them.
        """
        wanted = sorted(groups)

        def ask() -> set[str]:
            asked = self._admin.describe_consumer_groups(wanted, request_timeout=_TIMEOUT_S)
            found = set()
            for name, answer in asked.items():
                try:
                    members = answer.result(_TIMEOUT_S).members
                except KafkaException as error:
                    match action_to(Asked.GROUPS, error):
                        case Action.GO_WITHOUT:
                            continue
                        case Action.FAIL:
                            raise TopicError(f"group {name!r} is not described: {error}") from error
                    raise
                if any(one.group_instance_id != but or but is None for one in members):
                    found.add(name)
            return found

        return self._told("the brokers do not describe consumer groups", ask)

    def committed(self, group: str) -> dict[SourcePartition, int]:
        return {where: offset for where, (offset, _) in self._committed(group).items()}

    def committed_by_others(self, group: str) -> dict[SourcePartition, int]:
        """Return a group's committed offsets that are not a subscription's."""
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
        """Delete a group and its committed offsets, if it has no member."""

        def ask() -> None:
            asked = self._admin.delete_consumer_groups([group], request_timeout=_TIMEOUT_S)
            try:
                asked[group].result(_TIMEOUT_S)
            except KafkaException as error:
                if not _is_unknown(error):
                    raise

        self._told(f"group {group!r} cannot be deleted", ask)

    def _told(self, message: str, ask: Callable[[], T]) -> T:
        return answered(self._outages, Asked.GROUPS, message, ask, timeout_s=_TIMEOUT_S)


def _is_unknown(error: KafkaException) -> bool:
    return action_to(Asked.GROUPS, error) is Action.GO_WITHOUT


async def listed_groups(ask: Callable[[Any], Awaitable[Any]]) -> dict[str, str]:
    """Return the type of each group that a broker coordinates: `consumer`, `share`, and others."""
    answer = await ask(ListGroupsRequest())
    match action_of(Asked.GROUPS, answer.error_code):
        case Action.DONE:
            return dict(answer.groups)
        case Action.RETRY:
            raise RetriableError(f"groups: {meaning_of(answer.error_code).name}")
    raise FatalError(f"groups: {meaning_of(answer.error_code).name}")


async def share_offsets(
    ask: Callable[[Any], Awaitable[Any]], group: str
) -> dict[tuple[str, int], int]:
    """Return the first offset that a share group needs of each partition that it has begun to read.

    Where that is not told it is 0. A group of which nothing is told has none.
    """
    try:
        answer = await ask(DescribeShareGroupOffsetsRequest(group))
    except RequestUnknownError:
        return {}
    found: dict[tuple[str, int], int] = {}
    for _group, topics, code, _message, _tags in answer.groups:
        match action_of(Asked.GROUPS, code):
            case Action.DONE:
                for topic, _high, _low, partitions, _more in topics:
                    for partition, offset, _epoch, refused, _why, _rest in partitions:
                        found[topic, partition] = 0 if refused else max(offset, 0)
            case Action.RETRY:
                raise RetriableError(f"group {group!r}: {meaning_of(code).name}")
            case _:
                return {}
    return found


async def share_topics(ask: Callable[[Any], Awaitable[Any]], group: str) -> set[str]:
    """Return the topics to which a share group's members subscribe; empty if not told."""
    try:
        answer = await ask(DescribeShareGroupRequest(group))
    except RequestUnknownError:
        return set()
    found: set[str] = set()
    for code, _message, _id, _state, _epoch, _assigned, _assignor, members, *_rest in answer.groups:
        match action_of(Asked.GROUPS, code):
            case Action.DONE:
                for _member, _rack, _at, _client, _host, topics, *_more in members:
                    found.update(topics)
            case Action.RETRY:
                raise RetriableError(f"group {group!r}: {meaning_of(code).name}")
            case _:
                return set()
    return found


class DescribeShareGroupOffsetsResponseV0(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 90
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group_id", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("topic_id_high", Int64),
                        ("topic_id_low", Int64),
                        (
                            "partitions",
                            CompactArray(
                                ("partition_index", Int32),
                                ("start_offset", Int64),
                                ("leader_epoch", Int32),
                                ("error_code", Int16),
                                ("error_message", CompactString("utf-8")),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupOffsetsRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    """The groups whose offsets are asked for. Without named topics, all their topics count."""

    FLEXIBLE_VERSION = True
    API_KEY = 90
    API_VERSION = 0
    RESPONSE_TYPE = DescribeShareGroupOffsetsResponseV0
    SCHEMA = Schema(
        (
            "groups",
            CompactArray(
                ("group_id", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupOffsetsRequest(
    Request[DescribeShareGroupOffsetsRequestV0]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for a share group's offsets. The request goes to the group's coordinator."""

    API_KEY = 90

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[DescribeShareGroupOffsetsRequestV0]) -> Any:
        return request_struct_class([(self._group, None, {})], {})


class DescribeShareGroupResponseV1(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 77
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("group_id", CompactString("utf-8")),
                ("group_state", CompactString("utf-8")),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor_name", CompactString("utf-8")),
                (
                    "members",
                    CompactArray(
                        ("member_id", CompactString("utf-8")),
                        ("rack_id", CompactString("utf-8")),
                        ("member_epoch", Int32),
                        ("client_id", CompactString("utf-8")),
                        ("client_host", CompactString("utf-8")),
                        ("subscribed_topic_names", CompactArray(CompactString("utf-8"))),
                        (
                            "assigned",
                            CompactArray(
                                ("topic_id_high", Int64),
                                ("topic_id_low", Int64),
                                ("topic_name", CompactString("utf-8")),
                                ("partitions", CompactArray(Int32)),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("assignment_tags", TaggedFields),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupRequestV1(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    FLEXIBLE_VERSION = True
    API_KEY = 77
    API_VERSION = 1
    RESPONSE_TYPE = DescribeShareGroupResponseV1
    SCHEMA = Schema(
        ("group_ids", CompactArray(CompactString("utf-8"))),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class DescribeShareGroupRequest(
    Request[DescribeShareGroupRequestV1]  # type: ignore[misc]  # aiokafka is untyped
):
    """Describe a share group. The request goes to the group's coordinator."""

    API_KEY = 77

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[DescribeShareGroupRequestV1]) -> Any:
        return request_struct_class([self._group], False, {})
