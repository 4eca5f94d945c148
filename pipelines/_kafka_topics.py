"""What the driver asks of Kafka beside Spark: topics, their partitions and their ends."""

from __future__ import annotations

import time
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
    from collections.abc import Callable, Iterable, Sequence

    from producer import KafkaSettings

_TIMEOUT_S: Final = 30.0
_NOT_KNOWN_YET: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own codes begin with _
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""What is said of a partition that was created, or moved, after our client last asked about it."""
_ASK_AGAIN_S: Final = 0.05
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics of the brokers' own: Spark subscribes to none of them by a pattern."""


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
        # All topics and not this one: asking for one by name may create it.
        return self._all().get(topic)

    def matching(self, pattern: str, matches: Callable[[str], bool]) -> dict[str, int]:
        """Number of partitions of each topic that a pattern matches; at least one does.

        Args:
            pattern: As the setting has it, for the error.
            matches: Whether a topic's name matches it.

        Raises:
            TopicError: None does, or the brokers do not answer.
        """
        found = {
            topic: partitions
            for topic, partitions in self._all().items()
            if topic not in _INTERNAL and matches(topic)
        }
        if not found:
            raise TopicError(f"input_pattern {pattern!r} matches no topic")
        return found

    def _all(self) -> dict[str, int]:
        try:
            topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise TopicError(f"the brokers do not tell their topics: {error}") from error
        return {name: len(found.partitions) for name, found in topics.items() if not found.error}

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
        except TimeoutError as error:
            raise TopicError(
                f"topic {topic!r} cannot be created: no answer in {_TIMEOUT_S:g} s"
            ) from error
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
        wanted = list(partitions)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return self._ends(wanted)
            except KafkaException as error:
                may_come = error.args[0].code() in _NOT_KNOWN_YET
                if not may_come or time.monotonic() >= deadline_s:
                    raise TopicError(
                        f"the brokers do not tell the topics' ends: {error}"
                    ) from error
            except TimeoutError as error:
                raise TopicError(
                    f"the brokers do not tell the topics' ends: no answer in {_TIMEOUT_S:g} s"
                ) from error
            # Spark learns of a new partition before our client does, which asks for the topics it
            # knows once in minutes unless it is told to.
            time.sleep(_ASK_AGAIN_S)
            self._all()

    def _ends(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call] # has no annotations
        wanted = {TopicPartition(*partition): latest for partition in partitions}
        if not wanted:
            return {}
        found = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S)
        return {
            SourcePartition(asked.topic, asked.partition): answer.result(_TIMEOUT_S).offset
            for asked, answer in found.items()
        }
