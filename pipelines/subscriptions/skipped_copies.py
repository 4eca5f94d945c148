"""Copies of messages that are skipped: nobody processes them, and somebody may want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, Producer

from sequitur.consumer import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
    SourcePartition,
)
from sequitur.pipelines._errors import TopicError, UnansweredError
from sequitur.pipelines.subscriptions.backlog import read_spans, reader
from sequitur.producer.kafka.arrivals import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import KafkaError, Message

    from sequitur.consumer import Cursor
    from sequitur.consumer.subscription.survey import DueAck
    from sequitur.producer import KafkaSettings

SUBSCRIPTION_HEADER: Final = "sequitur-subscription"
_FLUSH_S: Final = 60.0
_LARGEST: Final = 1_000_000_000
"""The most that librdkafka takes: topics decide what is too large, and it is told from there."""


def copy_skipped(kafka: KafkaSettings, topic: str, due: Iterable[DueAck], cursor: Cursor) -> int:
    """Copy messages that a cursor is about to skip, and has not acked; return how many.

    They are in the other topic once this returns. Who dies before the ack copies them again. Key,
    value, headers and timestamp are kept; further headers say where a message was, and who skips
    it.

    Args:
        kafka: How to reach the brokers.
        topic: Where to.
        due: What is skipped, of the cursor's partition.
        cursor: As it is before.

    Raises:
        TopicError: The brokers refuse, or do not answer.
    """
    where = SourcePartition(cursor.identity.topic, cursor.identity.partition)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            **kafka.librdkafka(),
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.max.bytes": _LARGEST,
        }
    )
    copied = 0
    try:
        for one in due:
            with reader(kafka) as consumer:
                for message in read_spans(consumer, {where: (one.first, one.stop)}):
                    if cursor.is_acked(int(message.offset() or 0)):
                        continue
                    _copy(producer, topic, message, one.subscription, delivered)
                    copied += 1
        if producer.flush(_FLUSH_S):
            raise UnansweredError(f"copies of skipped messages are not in {topic!r} yet")
    except KafkaException as error:
        raise TopicError(f"skipped messages cannot be copied to {topic!r}: {error}") from error
    if failed:
        raise TopicError(f"skipped messages cannot be copied to {topic!r}: {failed[0]}")
    return copied


def _copy(
    producer: Producer,
    topic: str,
    message: Message,
    subscription: str,
    delivered: Callable[[KafkaError | None, Message], None],
) -> None:
    headers: list[tuple[str, str | bytes | None]] = [
        *headers_of(message),
        (SOURCE_TOPIC_HEADER, str(message.topic())),
        (SOURCE_PARTITION_HEADER, str(message.partition())),
        (SOURCE_OFFSET_HEADER, str(message.offset())),
        (SUBSCRIPTION_HEADER, subscription),
    ]
    while True:
        try:
            producer.produce(
                topic,
                value=message.value(),
                key=message.key(),
                headers=headers,
                timestamp=message.timestamp()[1],
                on_delivery=delivered,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
