"""DescribeProducers (API 61, KIP-664): what a partition's leader remembers of its producers.

aiokafka does not have this request; it is put together here from aiokafka's protocol classes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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

from sequitur.errors import RequestUnknownError, RetriableError
from sequitur.kafka.error_codes import Action, action_of
from sequitur.kafka.error_codes import Request as Asked
from sequitur.kafka.log_reading import until_replicated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from sequitur.kafka.identity import Identity


class ProducerState(NamedTuple):
    """What a partition's leader has of a producer id; it may not be replicated yet."""

    epoch: int  # the newest epoch that has written
    last_sequence: int


class Untold(enum.Enum):
    """Why a leader's answer says nothing of a producer id."""

    NOTHING = enum.auto()
    """It has nothing of it: it never had, has forgotten it, or lost it with its log. Or it does not
    describe producers: either way the log tells."""
    NOT_ALLOWED = enum.auto()
    """The asker may not read the topic."""
    ASK_AGAIN = enum.auto()
    """It does not lead the partition, or cannot say at the moment."""


Told: TypeAlias = "ProducerState | Untold"


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
    """Ask for the producers of partitions; to be sent to the broker that leads them."""

    API_KEY = 61

    def __init__(self, partitions: Mapping[str, Iterable[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> Any:
        """Return the request in the version that the broker knows."""
        topics: list[Any] = [
            (topic, list(wanted), {}) for topic, wanted in self._partitions.items()
        ]
        return request_struct_class(topics, {})


async def producer_states(
    ask: Callable[[Any], Awaitable[Any]], partitions: Mapping[str, Iterable[int]], producer_id: int
) -> dict[tuple[str, int], Told]:
    """Return what the leader of partitions has of a producer id."""
    try:
        answer = await ask(DescribeProducersRequest(partitions))
    except RequestUnknownError:
        return {(topic, one): Untold.NOTHING for topic, some in partitions.items() for one in some}
    return {
        (topic, partition): _told(code, producers, producer_id)
        for topic, described, _tags in answer.topics
        for partition, code, _message, producers, _more in described
    }


def _told(code: int, producers: Iterable[tuple[Any, ...]], producer_id: int) -> Told:
    match action_of(Asked.DESCRIBE_PRODUCERS, code):
        case Action.RETRY:
            return Untold.ASK_AGAIN
        case Action.DONE:
            known = (ProducerState(*of[1:3]) for of in producers if of[0] == producer_id)
            found = next(known, None)
            # An epoch without records is that of a transaction that was ended without any.
            return Untold.NOTHING if found is None or found.last_sequence < 0 else found
        case Action.FAIL:
            return Untold.NOT_ALLOWED
    return Untold.NOTHING


class KnownProducer(NamedTuple):
    """A producer that a partition's leader remembers."""

    producer_id: int
    epoch: int  # the newest epoch that has written
    last_sequence: int
    last_timestamp_ms: int


async def known_producers(
    ask: Callable[[Any], Awaitable[Any]], partitions: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], list[KnownProducer]]:
    """Return the producers that the leader of partitions remembers, of those that it tells of."""
    answer = await ask(DescribeProducersRequest(partitions))
    return {
        (topic, partition): [KnownProducer(*of[:4]) for of in producers]
        for topic, described, _tags in answer.topics
        for partition, code, _message, producers, _more in described
        if action_of(Asked.DESCRIBE_PRODUCERS, code) is Action.DONE
    }


async def last_sequence(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, identity: Identity
) -> int | None:
    """Return the last sequence that a partition's in-sync replicas hold of a producer."""
    if await _described(ask, topic, partition, identity) is None:
        return None
    # It tells of the leader's own append, which is lost if another leads before it is
    # replicated: so what it has now is waited for, and it is asked once more.
    await until_replicated(ask, topic, partition)
    return await _described(ask, topic, partition, identity)


async def _described(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, identity: Identity
) -> int | None:
    states = await producer_states(ask, {topic: (partition,)}, identity.producer_id)
    told = states.get((topic, partition), Untold.NOTHING)
    if told is Untold.ASK_AGAIN:
        raise RetriableError(f"what {topic}-{partition} holds cannot be said now")
    if isinstance(told, ProducerState) and told.epoch == identity.epoch:
        return told.last_sequence
    return None
