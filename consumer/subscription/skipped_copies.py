"""Copies of messages that are skipped: nobody processes them, and somebody may want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from sequitur.consumer.subscription.backlog import read_spans, reader
from sequitur.consumer.subscription.message_copies import MessageCopies
from sequitur.errors import TopicError, UnansweredError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import KafkaError, Message

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.survey import DueAck
    from sequitur.kafka.settings import KafkaSettings

_FLUSH_S: Final = 60.0
_PAUSE_S: Final = 0.1


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

    copies = MessageCopies(kafka, topic)
    copied = 0
    try:
        for one in due:
            with reader(kafka) as consumer:
                for message in read_spans(consumer, {where: (one.first, one.stop)}):
                    if cursor.is_acked(int(message.offset() or 0)):
                        continue
                    _add(copies, message, one.subscription, told)
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
    message: Message,
    subscription: str,
    told: Callable[[KafkaError | None], None],
) -> None:
    while True:
        try:
            copies.add(message, subscription, told)
        except BufferError:
            copies.settle(_PAUSE_S)
        else:
            return
