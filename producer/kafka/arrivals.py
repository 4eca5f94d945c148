"""What a consumer has been sent, without a wait for more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


def arrivals(consumer: Consumer, at_most: int, *, timeout_s: float) -> list[Message]:
    """Return messages that are there; the first one is waited for.

    The client's own `consume` waits until there are as many as it is asked for, so a reader of a
    short topic would always wait for its whole timeout.

    Args:
        consumer: A consumer with partitions.
        at_most: How many are taken at once.
        timeout_s: How long the first one is waited for.

    Returns:
        Records and errors in the order of their arrival; nothing where none came.
    """
    first = consumer.consume(1, timeout=timeout_s)
    return [*first, *consumer.consume(at_most - 1, timeout=0)] if first else []
