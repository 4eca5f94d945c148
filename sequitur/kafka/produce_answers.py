"""What a broker answers to a produce request, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import CloseReason
from aiokafka.protocol.api import Request
from aiokafka.protocol.produce import ProduceRequest_v8

from sequitur.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiokafka.conn import AIOKafkaConnection


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What a broker says of one batch."""

    code: int  # kafka's error code; 0 is none
    base_offset: int  # offset of the batch's first record, or -1
    text: str = ""  # what it says of the first record that it refuses, or of the batch; often empty
    # the timestamp that it gave all records, epoch milliseconds; -1 if it gave none
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
        """Return the request in the version that the broker knows."""
        return request_struct_class(None, self._acks, self._timeout_ms, self._topics)


async def read_answers(
    connection: AIOKafkaConnection, answer: Awaitable[Any]
) -> dict[tuple[str, int], PartitionAnswer]:
    """Return the answer for each topic and partition of a request."""
    try:
        response = await answer
    except TimeoutError as error:
        # Later answers on this connection would be taken for this one's: start over.
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
