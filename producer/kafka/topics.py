"""Creating the topic that a daemon is to fill."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.producer._errors import FatalError, RetriableError

if TYPE_CHECKING:
    from sequitur.producer.settings import KafkaSettings

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05


async def create_topic(
    kafka: KafkaSettings, topic: str, *, partitions: int, replication_factor: int
) -> bool:
    """Create a topic, unless it is there.

    Args:
        kafka: How to reach the cluster.
        topic: Its name.
        partitions: How many it gets.
        replication_factor: How many replicas each gets; -1 for the broker's default.

    Returns:
        Whether it was not there.

    Raises:
        RetriableError: No broker answers.
        FatalError: The broker refuses to.
    """
    admin = AdminClient(kafka.librdkafka())
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor)
    created = admin.create_topics([wanted], request_timeout=_TIMEOUT_S)[topic]
    while not created.done():
        await asyncio.to_thread(admin.poll, _POLL_S)  # it asks for tokens only while it is polled
    try:
        created.result()
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        sentence = f"topic {topic} could not be created: {reason.str()}"
        if reason.retriable() or reason.code() < 0:  # codes below zero are librdkafka's own
            raise RetriableError(sentence) from error
        raise FatalError(sentence) from error
    return True
