"""What a consumer has been sent, without a wait for more."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Final, cast

from sequitur.errors import UnreadableHeadersError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Consumer, Message

    Headers = list[tuple[str, bytes | None]]

_headers: Final = methodcaller("headers")
"""Python checks what this call returns. A call that is often made in code is not checked: the
client's null pointers, which it gives beside its error, would end the process."""


def arrivals(consumer: Consumer, at_most: int, *, timeout_s: float) -> list[Message]:
    """Return messages that are there; the first one is waited for.

    The client's own `consume` waits until there are as many as it is asked for, so a reader of a
    short topic would always wait for its whole timeout.
    """
    first = consumer.consume(1, timeout=timeout_s)
    return [*first, *consumer.consume(at_most - 1, timeout=0)] if first else []


def sizes_of(messages: Iterable[Message]) -> int:
    """Return the bytes of keys, values and headers; once for each record, as `headers_of`."""
    size = 0
    try:
        for message in messages:
            size += len(message.key() or b"") + len(message)
            if headers := _headers(message):
                size += sum(len(name) + len(value or b"") for name, value in headers)
    except SystemError as error:
        raise _unreadable(message) from error
    return size


def headers_of(message: Message) -> Headers:
    """Return a record's headers; to be called once for each record."""
    try:
        return cast("Headers | None", _headers(message)) or []
    except SystemError as error:  # so the client ends it, and each further call gives null pointers
        raise _unreadable(message) from error


def _unreadable(message: Message) -> UnreadableHeadersError:
    return UnreadableHeadersError(
        f"{message.topic()}-{message.partition()}, offset {message.offset()}: a header has a "
        "name that is no UTF-8"
    )
