"""Requests of an idempotent producer, put together from aiokafka's protocol classes.

- InitProducerId (API 22) in version 4 (KIP-360) gives a producer id, or the next epoch of one that
  the producer holds. In aiokafka's version 0 the producer cannot say what it holds.
- Produce, and what a broker answers to it, batch by batch.
- DescribeProducers (API 61, KIP-664) tells what a partition's leader remembers of its producers.
  aiokafka does not have it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from aiokafka import errors as kafka_errors
from aiokafka.conn import CloseReason
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import ProduceRequest_v8
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from sequitur.errors import OutcomeUnknownError, RequestUnknownError, RetriableError
from sequitur.kafka.error_codes import Action, action_of
from sequitur.kafka.error_codes import Request as Asked
from sequitur.kafka.log_reading import until_replicated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from aiokafka.conn import AIOKafkaConnection

    from sequitur.kafka.identity import Identity


_NO_TRANSACTIONS_MS: Final = 60_000
"""The transaction timeout without transactions. Brokers refuse more than their limit."""
_NONE: Final = -1


class InitProducerIdResponseV4(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 22
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequestV4(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    FLEXIBLE_VERSION = True
    API_KEY = 22
    API_VERSION = 4
    RESPONSE_TYPE = InitProducerIdResponseV4
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequest(
    Request[InitProducerIdRequestV4]  # type: ignore[misc]  # aiokafka is untyped
):
    API_KEY = 22

    def __init__(
        self,
        transactional_id: str | None,
        held: Identity | None = None,
    ) -> None:
        self._transactional_id = transactional_id
        self._held = held

    def build(self, request_struct_class: type[InitProducerIdRequestV4]) -> Any:
        held = (_NONE, _NONE) if self._held is None else (self._held.producer_id, self._held.epoch)
        return request_struct_class(self._transactional_id, _NO_TRANSACTIONS_MS, *held, {})


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    code: int  # kafka's error code; 0 is none
    base_offset: int  # offset of the batch's first record, or -1
    text: str = ""  # its text about the first refused record, or about the batch; often empty
    # the timestamp that it gave to all records, epoch milliseconds; -1 if it gave none
    append_ms: int = -1


class ProduceRequest(Request[ProduceRequest_v8]):  # type: ignore[misc]  # aiokafka is untyped
    """Batches for partitions; version 8 (Kafka 2.4), whose answer says what is wrong with a record.

    aiokafka has this version, and does not ask for it.
    """

    API_KEY = 0

    def __init__(
        self, acks: int, timeout_ms: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._topics = topics

    def build(self, request_struct_class: type[ProduceRequest_v8]) -> Any:
        return request_struct_class(None, self._acks, self._timeout_ms, self._topics)


async def read_answers(
    connection: AIOKafkaConnection, answer: Awaitable[Any]
) -> dict[tuple[str, int], PartitionAnswer]:
    try:
        response = await answer
    except TimeoutError as error:
        # Later answers on this connection would be mistaken for this one: start over.
        connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        raise OutcomeUnknownError("no answer within the request timeout") from error
    except (kafka_errors.KafkaError, OSError, EOFError) as error:
        raise OutcomeUnknownError(f"the connection broke: {error}") from error
    return {
        (topic, partition): PartitionAnswer(
            code, offset, next((text for _, text in errors or () if text), message or ""), append_ms
        )
        for topic, partitions in response.topics
        for partition, code, offset, append_ms, _start, errors, message in partitions
    }


class ProducerState(NamedTuple):
    """A leader's state for a producer id. It may not be replicated yet."""

    epoch: int  # the newest epoch that wrote
    last_sequence: int


class Untold(enum.Enum):
    """Why a leader's answer does not tell about a producer id."""

    NOTHING = enum.auto()
    """It has nothing of it: it never had, has forgotten it, or lost it with its log. Or it does not
    describe producers: either way the log tells."""
    NOT_ALLOWED = enum.auto()
    """The asker may not read the topic."""
    ASK_AGAIN = enum.auto()
    """It does not lead the partition, or cannot tell now."""


Told: TypeAlias = "ProducerState | Untold"


class DescribeProducersResponseV0(Response):  # type: ignore[misc]  # aiokafka is untyped
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
    """Ask for partitions' producers. The request goes to the partitions' leader."""

    API_KEY = 61

    def __init__(self, partitions: Mapping[str, Iterable[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> Any:
        topics: list[Any] = [
            (topic, list(wanted), {}) for topic, wanted in self._partitions.items()
        ]
        return request_struct_class(topics, {})


async def producer_states(
    ask: Callable[[Any], Awaitable[Any]], partitions: Mapping[str, Iterable[int]], producer_id: int
) -> dict[tuple[str, int], Told]:
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
            # An epoch without records comes from a transaction that ended without any.
            return Untold.NOTHING if found is None or found.last_sequence < 0 else found
        case Action.FAIL:
            return Untold.NOT_ALLOWED
    return Untold.NOTHING


class KnownProducer(NamedTuple):
    producer_id: int
    epoch: int  # the newest epoch that wrote
    last_sequence: int
    last_timestamp_ms: int


async def known_producers(
    ask: Callable[[Any], Awaitable[Any]], partitions: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], list[KnownProducer]]:
    """Return the producers that a leader remembers, for the partitions that it tells about."""
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
    """Return a producer's last sequence on all in-sync replicas, None without one."""
    if await _described(ask, topic, partition, identity) is None:
        return None
    # The state covers the leader's own appends, and these are lost if another leader takes over
    # before replication. So wait for what it has now, and ask once more.
    await until_replicated(ask, topic, partition)
    return await _described(ask, topic, partition, identity)


async def _described(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, identity: Identity
) -> int | None:
    states = await producer_states(ask, {topic: (partition,)}, identity.producer_id)
    told = states.get((topic, partition), Untold.NOTHING)
    if told is Untold.ASK_AGAIN:
        raise RetriableError(f"{topic}-{partition} cannot be read now")
    if isinstance(told, ProducerState) and told.epoch == identity.epoch:
        return told.last_sequence
    return None
