"""Copies of messages in another topic: as they are, with further headers that say why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from sequitur.consumer.time.reasons import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.kafka.records import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError, Message

    from sequitur.kafka.settings import KafkaSettings

SUBSCRIPTION_HEADER: Final = "sequitur-subscription"
_LARGEST: Final = 1_000_000_000
"""The most that librdkafka takes: topics decide what is too large, and it is told from there."""


class MessageCopies:
    """Writes copies to one topic. One thread at a time."""

    def __init__(
        self, kafka: KafkaSettings, topic: str, settings: Mapping[str, object] | None = None
    ) -> None:
        self.topic = topic
        self._producer = Producer(
            {
                **kafka.librdkafka(),
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": _LARGEST,
                **(settings or {}),
            }
        )

    def add(
        self,
        message: Message,
        subscription: str,
        told: Callable[[KafkaError | None], None],
        headers: Mapping[str, object] | None = None,
    ) -> None:
        """Write a copy."""
        added = {
            **(headers or {}),
            SOURCE_TOPIC_HEADER: message.topic(),
            SOURCE_PARTITION_HEADER: message.partition(),
            SOURCE_OFFSET_HEADER: message.offset(),
            SUBSCRIPTION_HEADER: subscription,
        }
        self._producer.produce(
            self.topic,
            value=message.value(),
            key=message.key(),
            headers=[*headers_of(message), *((name, str(said)) for name, said in added.items())],
            timestamp=message.timestamp()[1],
            on_delivery=lambda error, _: told(error),
        )
        self._producer.poll(0)

    def settle(self, timeout_s: float) -> int:
        """Wait until all is told; return how many still are not."""
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        """Give up what is under way."""
        self._producer.purge()
