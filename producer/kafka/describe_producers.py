"""DescribeProducers (API 61, KIP-664): what a partition's leader remembers of its producers.

aiokafka does not have this request; it is put together here from aiokafka's protocol classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from sequitur.producer._errors import RetriableError
from sequitur.producer.kafka.error_codes import Action, action_of, meaning_of
from sequitur.producer.kafka.error_codes import Request as Asked
from sequitur.producer.kafka.event_search import until_replicated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sequitur.producer.kafka.identity import Identity


class DescribeProducersResponseV0(Response):  # type: ignore[misc]  # aiokafka is untyped
    """The producers of each partition that was asked for."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "active_producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("current_txn_start_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    """The partitions whose producers are asked for."""

    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponseV0
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partition_indexes", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(
    Request[DescribeProducersRequestV0]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for the producers of one partition; to be sent to its leader."""

    API_KEY = 61

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> Any:
        """Return the request in the version that the broker knows."""
        return request_struct_class([(self._topic, [self._partition], {})], {})


async def last_sequence(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, identity: Identity
) -> int | None:
    """Return the last sequence that a partition's in-sync replicas hold of a producer.

    Args:
        ask: Sends a request to the partition's leader.
        topic: The topic.
        partition: The partition.
        identity: The producer's id and epoch.

    Returns:
        None when the partition has nothing of the identity, or the broker does not say.

    Raises:
        RetriableError: The leader does not answer, or is none any more.
    """
    if await _described(ask, topic, partition, identity) is None:
        return None
    # It tells of the leader's own append, which is lost if another leads before it is
    # replicated: so what it has now is waited for, and it is asked once more.
    await until_replicated(ask, topic, partition)
    return await _described(ask, topic, partition, identity)


async def _described(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, identity: Identity
) -> int | None:
    answer = await ask(DescribeProducersRequest(topic, partition))
    for _topic, partitions, _tags in answer.topics:
        for _partition, code, _message, producers, _more in partitions:
            if action_of(Asked.DESCRIBE_PRODUCERS, code) is Action.RETRY:
                raise RetriableError(f"what {topic}-{partition} holds: {meaning_of(code).name}")
            for producer_id, epoch, last, *_ in producers:
                if (producer_id, epoch) == (identity.producer_id, identity.epoch) and last >= 0:
                    return int(last)
    return None
