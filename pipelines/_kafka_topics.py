"""What the driver asks of Kafka beside Spark: topics, their partitions and their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from consumer import SourcePartition
from pipelines._errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producer import KafkaSettings

_TIMEOUT_S: Final = 30.0


class KafkaTopics:
    """A small admin client.

    Args:
        kafka: How to reach the brokers.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        # librdkafka complains of brokers that are down on standard error of its own: we say it.
        self._admin = AdminClient({**kafka.librdkafka(), "log_level": 0})

    def partitions(self, topic: str) -> int | None:
        """Number of partitions of a topic, None when there is no such topic.

        Raises:
            TopicError: The brokers do not answer, or not about this topic.
        """
        try:
            # All topics and not this one: asking for one by name may create it.
            found = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise TopicError(f"the brokers do not tell their topics: {error}") from error
        if found is None or found.error is not None:
            return None
        return len(found.partitions)

    def require(self, topic: str) -> int:
        """Number of partitions of a topic that must be there.

        Raises:
            TopicError: It is not.
        """
        partitions = self.partitions(topic)
        if partitions is None:
            raise TopicError(f"input topic {topic!r} does not exist")
        return partitions

    def ensure(self, topic: str, *, partitions: int, replication_factor: int) -> int:
        """Create a topic when it is missing; its number of partitions.

        Raises:
            TopicError: It cannot be created.
        """
        there = self.partitions(topic)
        if there is not None:
            return there
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor)
        created = self._admin.create_topics([new], operation_timeout=_TIMEOUT_S)[topic]
        try:
            created.result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicError(f"topic {topic!r} cannot be created: {error}") from error
            return self.require(topic)
        return partitions

    def high_watermarks(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """The offset behind the last record of each partition.

        Raises:
            TopicError: The brokers do not answer.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call] # has no annotations
        wanted = {TopicPartition(*partition): latest for partition in partitions}
        if not wanted:
            return {}
        found = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S)
        try:
            return {
                SourcePartition(asked.topic, asked.partition): answer.result(_TIMEOUT_S).offset
                for asked, answer in found.items()
            }
        except KafkaException as error:
            raise TopicError(f"the brokers do not tell the topics' ends: {error}") from error
