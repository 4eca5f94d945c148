"""Copies of messages in another topic: as they are, with further headers that say why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, Producer

from sequitur.base.copy_headers import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.errors import (
    TopicError,
    UnansweredError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from confluent_kafka import KafkaError

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.survey import DueAck
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.kafka.stored_batches import Record

    Place: TypeAlias = tuple[SourcePartition, int]


SUBSCRIPTION_HEADER: Final = "sequitur-subscription"
_LARGEST: Final = 1_000_000_000
"""librdkafka's maximum. Topics decide which records are too large."""
_FLUSH_S: Final = 60.0
_PAUSE_S: Final = 0.1


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
        where: SourcePartition,
        record: Record,
        subscription: str,
        told: Callable[[KafkaError | None], None],
        headers: Mapping[str, object] | None = None,
    ) -> None:
        added = {
            **(headers or {}),
            SOURCE_TOPIC_HEADER: where.topic,
            SOURCE_PARTITION_HEADER: where.partition,
            SOURCE_OFFSET_HEADER: record.offset,
            SUBSCRIPTION_HEADER: subscription,
        }
        self._producer.produce(
            self.topic,
            value=record.value,
            key=record.key,
            headers=[*record.headers, *((name, str(said)) for name, said in added.items())],
            timestamp=record.timestamp,
            on_delivery=lambda error, _: told(error),
        )
        self._producer.poll(0)

    def settle(self, timeout_s: float) -> int:
        """Wait until each copy has an outcome; return how many still have none."""
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        self._producer.purge()


def copy_skipped(kafka: KafkaSettings, topic: str, due: Iterable[DueAck], cursor: Cursor) -> int:
    """Copy messages that a cursor is about to skip, and has not acked; return how many.

    They are in the other topic once this returns. Who dies before the ack copies them again. Key,
    value, headers and timestamp are kept; further headers say where a message was, and who skips
    it.
    """
    where = SourcePartition(cursor.identity.topic, cursor.identity.partition)
    failed: list[KafkaError] = []

    def told(error: KafkaError | None) -> None:
        if error is not None:
            failed.append(error)

    reader, copies = Reader(kafka=kafka, passes_deleted=True), MessageCopies(kafka, topic)
    copied = 0
    try:
        for one in due:
            for _, record in reader.rows({where: (one.first, one.stop)}):
                if cursor.is_acked(record.offset):
                    continue
                _add(copies, where, record, one.subscription, told)
                copied += 1
        if copies.settle(_FLUSH_S):
            raise UnansweredError(f"copies of skipped messages are not in {topic!r} yet")
    except KafkaException as error:
        raise TopicError(f"skipped messages cannot be copied to {topic!r}: {error}") from error
    if failed:
        raise TopicError(f"skipped messages cannot be copied to {topic!r}: {failed[0]}")
    return copied


def _add(
    copies: MessageCopies,
    where: SourcePartition,
    record: Record,
    subscription: str,
    told: Callable[[KafkaError | None], None],
) -> None:
    while True:
        try:
            copies.add(where, record, subscription, told)
        except BufferError:
            copies.settle(_PAUSE_S)
        else:
            return
