"""Read commit tokens from the brokers: the driver does at the start, each task before it writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer import CommitToken, OutputPartition, read_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from producer import KafkaSettings

    T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1
_PASSING: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""What brokers answer while the group moves from one to another, or one has just come up."""


def token_consumer_options(kafka: KafkaSettings, app: str) -> dict[str, Any]:
    """Options of a consumer in the group whose offsets are the commit tokens of `app`."""
    return {
        **kafka.librdkafka(),
        "group.id": f"{app}.commits",
        "enable.auto.commit": False,
        # Waits for a transaction that is just committing a token.
        "isolation.level": "read_committed",
        # librdkafka complains on standard error of its own: we say it.
        "log_level": 0,
    }


def committed_tokens(
    consumer: Consumer, where: Iterable[OutputPartition]
) -> dict[OutputPartition, CommitToken | None]:
    """The commit token of each partition, None without one.

    Raises:
        CommitTokenError: An offset is not a token of ours.
        KafkaException: The brokers do not answer.
    """
    asked = [TopicPartition(*partition) for partition in where]
    found: dict[OutputPartition, CommitToken | None] = {}
    for answer in once_coordinated(lambda: consumer.committed(asked, timeout=_TIMEOUT_S)):
        if answer.error is not None:
            raise KafkaException(answer.error)
        partition = OutputPartition(answer.topic, answer.partition)
        found[partition] = read_token(partition, answer.offset, answer.metadata)
    return found


def once_coordinated(ask: Callable[[], T]) -> T:
    """Ask the group's coordinator; wait for it, up to half a minute, while there is none."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
