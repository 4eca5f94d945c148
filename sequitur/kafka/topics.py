"""Creating a topic, by librdkafka's admin client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.errors import FatalError, RetriableError
from sequitur.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from sequitur.kafka.settings import KafkaSettings

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05


async def create_topic(
    kafka: KafkaSettings, topic: str, *, partitions: int, replication_factor: int
) -> bool:
    """Create a topic, unless it is there."""
    admin = AdminClient(kafka.librdkafka())
    creation = TopicCreation(
        admin, topic, partitions=partitions, replication_factor=replication_factor
    )
    while not creation.is_answered:
        await asyncio.to_thread(admin.poll, _POLL_S)  # it asks for tokens only while it is polled
    try:
        return creation.is_new(Request.TOPIC_OF_DAEMON)
    except KafkaException as error:
        reason = error.args[0]
        passes = action_of(Request.TOPIC_OF_DAEMON, reason.code()) is Action.RETRY
        sentence = f"topic {topic} could not be created: {reason.str()}"
        raise (RetriableError if passes else FatalError)(sentence) from error


class TopicCreation:
    """A request for a topic, which is on its way."""

    def __init__(
        self,
        admin: AdminClient,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        wanted = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
        )
        created = admin.create_topics(
            [wanted], operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S
        )
        self._created: Future[None] = created[topic]

    @property
    def is_answered(self) -> bool:
        """Whether `is_new` need not wait."""
        return self._created.done()

    def is_new(self, request: Request, *, timeout_s: float = _TIMEOUT_S) -> bool:
        """Return whether the topic was not there; the answer is waited for."""
        try:
            self._created.result(timeout_s)
        except KafkaException as error:
            if action_of(request, error.args[0].code()) is not Action.DONE:
                raise
            return False
        return True
