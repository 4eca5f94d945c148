"""What a broker answers to a produce request, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import CloseReason

from sequitur.producer._errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiokafka.conn import AIOKafkaConnection


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What a broker says of one batch.

    Attributes:
        code: Kafka's error code; 0 is none.
        base_offset: Offset of the batch's first record, or -1.
    """

    code: int
    base_offset: int


async def read_answers(
    connection: AIOKafkaConnection, answer: Awaitable[Any]
) -> dict[tuple[str, int], PartitionAnswer]:
    """Return the answer for each topic and partition of a request.

    Raises:
        OutcomeUnknownError: None came.
    """
    try:
        response = await answer
    except TimeoutError as error:
        # Later answers on this connection would be taken for this one's: start over.
        connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        raise OutcomeUnknownError("no answer within the request timeout") from error
    except (kafka_errors.KafkaError, OSError, EOFError) as error:
        raise OutcomeUnknownError(f"the connection broke: {error}") from error
    return {
        (topic, partition[0]): PartitionAnswer(code=partition[1], base_offset=partition[2])
        for topic, partitions in response.topics
        for partition in partitions
    }
