"""Dead letters of an open subscription: what has failed too often, in a topic of its own.

The letter is written first, and only then the message is acked: a process that dies between the two
writes the letter once more. While letters cannot be written, nothing is lost, and no dead message
is handed out: it stays as it is, and its key waits.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from sequitur.base.copy_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    FailReason,
)
from sequitur.base.process import wall_clock_ms
from sequitur.base.retry import Backoff
from sequitur.consumer.subscription.dispatch import FailureCause
from sequitur.consumer.subscription.message_copies import MessageCopies
from sequitur.kafka.arrivals import headers_of
from sequitur.kafka.error_codes import ends_client
from sequitur.kafka.stored_batches import LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from confluent_kafka import KafkaError, Message

    from sequitur.consumer.subscription.dispatch import DeadMessage
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.settings import KafkaSettings

    Place: TypeAlias = tuple[SourcePartition, int]


_REASONS: Final = {
    FailureCause.NEGATIVE_ACK: FailReason.FAILED,
    FailureCause.ACK_TIMEOUT: FailReason.TIMEOUT,
    FailureCause.DEATH: FailReason.CRASH,
}
_WRITE_S: Final = 0.25
"""Letters are waited for so long at a time, since the same thread stores acks."""
_ANSWER_MS: Final = 30_000
_GIVEN_UP_S: Final = 60.0
"""A client that reports nothing about a letter for so long has lost it. Another writes it."""
_AGAIN: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0)
_TOLD_EACH_S: Final = 60.0
_logger: Final = logging.getLogger("sequitur.subscription")


class DeadLetters:
    """Writes letters to a topic. One thread at a time."""

    def __init__(
        self,
        topic: str,
        subscription: str,
        open_copies: Callable[[], MessageCopies],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._open_copies = open_copies
        self._now_s = now_s
        self._copies: MessageCopies | None = None
        self._under_way: dict[Place, float] = {}
        """When the client got each letter that it has not reported on yet."""
        self._written: list[Place] = []
        self._refused: dict[Place, tuple[int, float]] = {}
        """How often each letter could not be written, and from when on it is tried again."""
        self._is_over = False
        self._told_s = -_TOLD_EACH_S

    @classmethod
    def in_kafka(cls, kafka: KafkaSettings, topic: str, subscription: str) -> DeadLetters:
        # A batch is refused as a whole, so each letter is a batch of its own.
        settings = {"message.timeout.ms": _ANSWER_MS, "batch.num.messages": 1}
        return cls(topic, subscription, lambda: MessageCopies(kafka, topic, settings))

    def write(self, dead: Iterable[DeadMessage[Message]]) -> list[Place]:
        """Write letters for messages, unless that is under way."""
        now_s = self._now_s()
        if self._is_over or self._has_lost_one(now_s):
            self.close()
        for one in dead:
            place = one.where, one.offset
            _, due_s = self._refused.get(place, (0, now_s))
            if place not in self._under_way and due_s <= now_s and not self._add(place, one):
                break
        if self._under_way and self._copies is not None:
            self._copies.settle(_WRITE_S)
        written, self._written = self._written, []
        for place in written:
            self._under_way.pop(place, None)
            self._refused.pop(place, None)
        return written

    def _has_lost_one(self, now_s: float) -> bool:
        return any(now_s - since_s > _GIVEN_UP_S for since_s in self._under_way.values())

    def close(self) -> None:
        """Give up what is under way, without acking its messages."""
        if self._copies is not None:
            self._copies.close()
        self._copies, self._is_over = None, False
        self._under_way.clear()

    def _add(self, place: Place, one: DeadMessage[Message]) -> bool:
        """Write a letter; return False if no more can be written now."""
        if self._copies is None:
            self._copies = self._open_copies()
        message, (_, time_ms) = one.message, one.message.timestamp()
        names = tuple(headers_of(message))
        record = LogRecord(one.offset, time_ms, message.key(), message.value(), names)
        headers = {
            DEAD_REASON_HEADER: _REASONS[one.cause].value,
            DEAD_ATTEMPTS_HEADER: one.failures,
            DEAD_TIME_HEADER: wall_clock_ms(),
            DEAD_EVENT_TIME_HEADER: time_ms,
        }
        try:
            self._copies.add(
                one.where, record, self._subscription, partial(self._settled, place), headers
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._settled(place, error.args[0])
            return False
        self._under_way[place] = self._now_s()
        return True

    def _settled(self, place: Place, error: KafkaError | None) -> None:
        if error is None:
            self._written.append(place)
            return
        self._under_way.pop(place, None)
        # For messages only the error's code tells, never `fatal()`.
        self._is_over |= error.fatal() or ends_client(error.code())
        now_s = self._now_s()
        refusals = self._refused.get(place, (0, 0.0))[0] + 1
        self._refused[place] = refusals, now_s + _AGAIN.delay_ms(refusals) / 1000
        if now_s - self._told_s >= _TOLD_EACH_S:
            self._told_s = now_s
            (topic, partition), offset = place
            _logger.warning(
                "%s: no dead letter of %s-%d, offset %d, can be written to %s, so it is not acked: "
                "%s", self._subscription, topic, partition, offset, self._topic, error.str(),
            )  # fmt: skip
