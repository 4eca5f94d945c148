"""What a consumer of librdkafka has been sent, without a wait for more, and with all its headers.

That client gives none of a record's headers where the name of one is no UTF-8, as programs in Go
may write it. Such a record is read once more, by our own reader and as Java's client reads it: what
of a name is no UTF-8 is U+FFFD. So every reader hands out the same record.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Final, cast

from sequitur.errors import UnreadableHeadersError
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from confluent_kafka import Consumer, Message

    from sequitur.kafka.reader import Spans
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.kafka.stored_batches import Record

    Headers = list[tuple[str, bytes | None]]
    Read = Callable[[Spans], Iterator[tuple[SourcePartition, Record]]]

_PATIENCE_S: Final = 5.0
_headers: Final = methodcaller("headers")
"""Python checks what this call returns. A call that is often made in code is not checked: the
client's null pointers, which it gives beside its error, would end the process."""


class Arrivals:
    """Reads what a consumer is sent. One thread at a time."""

    def __init__(self, consumer: Consumer, kafka: KafkaSettings, read: Read | None = None) -> None:
        self._consumer = consumer
        self._read = (
            read
            or Reader(
                kafka=kafka, is_committed=False, passes_deleted=True, patience_s=_PATIENCE_S
            ).rows
        )
        self._messages: list[Message] = []
        self._odd: dict[SourcePartition, dict[int, Message]] = {}

    def next(self, at_most: int, *, timeout_s: float) -> list[Message]:
        """Return messages that are there; the first one is waited for.

        The client's own `consume` waits until there are as many as it is asked for, so a reader of
        a short topic would always wait for its whole timeout.

        Raises:
            UnansweredError: Records are to be read once more, and no broker answers. The next call
                tries again: nothing is lost.
            UnreadableHeadersError: Such a record is deleted by now.
        """
        if not self._messages and (first := self._consumer.consume(1, timeout=timeout_s)):
            self._messages = [*first, *self._consumer.consume(at_most - 1, timeout=0)]
            for message in self._messages:
                if message.error() is None:
                    self._note_if_odd(message)
        if self._odd:
            self._read_once_more()
        messages, self._messages = self._messages, []
        return messages

    def _note_if_odd(self, message: Message) -> None:
        try:
            _headers(message)
        except SystemError:  # so ends the first call; later calls give null pointers
            where = cast("str", message.topic()), cast("int", message.partition())
            offset = cast("int", message.offset())
            self._odd.setdefault(SourcePartition(*where), {})[offset] = message

    def _read_once_more(self) -> None:
        spans = {where: (min(some), max(some) + 1) for where, some in self._odd.items()}
        for where, record in self._read(spans):
            if (message := self._odd[where].pop(record.offset, None)) is not None:
                message.set_headers([*record.headers])
        left = [
            f"{where.topic}-{where.partition}, offset {offset}"
            for where, some in self._odd.items()
            for offset in some
        ]
        self._odd.clear()
        if left:
            self._messages.clear()
            raise UnreadableHeadersError(
                f"{left[0]}: a header has a name that is not UTF-8, and the record was deleted "
                "before a second read. Start again"
            )


def sizes_of(messages: Iterable[Message]) -> int:
    """Return the bytes of keys, values and headers."""
    size = 0
    for message in messages:
        size += len(message.key() or b"") + len(message)
        size += sum(len(name) + len(value or b"") for name, value in headers_of(message))
    return size


def headers_of(message: Message) -> Headers:
    return cast("Headers | None", message.headers()) or []
