"""The registry in its compacted topic, and its one way to be changed.

A subscription is created and deleted in one transaction with its cursors, which stand in another
topic: it is never there by half.

Whoever changes a record takes its transactional id, reads the registry, and writes. Somebody who
does the same meanwhile takes the id away, and the write is refused: what was read is old. Then it
is begun again. So of two admins each sees what the other has done to that record, and consumers of
many subscriptions that are opened at once do not wait for each other. All policies have one id.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.subscription.compacted_topic import CompactedTopic, FollowedTopic
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.registry import Registry
from sequitur.errors import ControlRecordError, SubscriptionFencedError, UnansweredError
from sequitur.kafka.control import CONTROL_TOPIC, key_of, topic_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.subscription.registry import Changes
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.control import BacklogState
    from sequitur.kafka.settings import KafkaSettings

REGISTRY_ID: Final = "sequitur-registry"
"""The transactional id under which policies are changed."""
BACKLOG_ID: Final = "sequitur-registry/backlog"
"""That under which backlog states are written: they come again and again, and would otherwise take
the registry away from whoever changes it."""
_OF_SUBSCRIPTION: Final = f"{REGISTRY_ID}/subscription/"
_PARTITION: Final = 0
_RETRY: Final = Retry(
    patience_s=60.0,
    backoff=Backoff(initial_ms=20, maximum_ms=1_000, jitter=1.0),
    random=random.random,
)


class RegistryStore:
    """The registry of a cluster."""

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        replication_factor: int = -1,
        outages: Outages | None = None,
        topics: KafkaTopics | None = None,
    ) -> None:
        self._kafka = kafka
        self._outages = outages
        self._replication_factor = replication_factor
        self._topic = CompactedTopic(
            kafka, CONTROL_TOPIC, partitions=1, outages=outages, topics=topics
        )
        self._followed = FollowedTopic(self._topic)
        self._known: tuple[dict[bytes, bytes], Registry] = {}, Registry()

    def ensure(self) -> None:
        """Create the topic if it is missing."""
        self._topic.ensure(replication_factor=self._replication_factor)

    def read(self) -> Registry:
        """Return what is registered; nothing where the topic is not there yet."""
        records = self._followed.read()
        known, registry = self._known
        if records != known:
            registry = Registry.of(records)
            self._known = records, registry
        return registry

    def told_topics(self) -> set[str]:
        """Return the topics whose producers are told of a backlog, by whomever."""
        found: set[str] = set()
        for key in self._topic.read():
            with contextlib.suppress(ControlRecordError):
                found |= {topic for topic in (topic_of(key),) if topic is not None}
        return found

    def change(
        self,
        make: Callable[[Registry], Changes],
        beside: Sequence[TopicWrite] = (),
        *,
        subscription: str | None = None,
    ) -> Registry:
        """Change the registry."""
        self.ensure()
        tried: list[tuple[Registry, Changes]] = []

        def passes(error: Exception) -> str | None:
            is_lost = isinstance(error, SubscriptionFencedError)
            is_lost |= bool(tried) and isinstance(error, UnansweredError)
            return str(error) if is_lost else None

        return _RETRY.run(lambda: self._changed(make, beside, subscription, tried), passes)

    def _changed(
        self,
        make: Callable[[Registry], Changes],
        beside: Sequence[TopicWrite],
        subscription: str | None,
        tried: list[tuple[Registry, Changes]],
    ) -> Registry:
        """Make a change; `tried` holds those of which nobody knows whether they were written."""
        writer = FencedWriter(
            self._kafka,
            REGISTRY_ID if subscription is None else f"{_OF_SUBSCRIPTION}{subscription}",
            name="the registry of subscriptions",
            writes_to=(CONTROL_TOPIC, _PARTITION),
            beside={(one.topic, one.partition) for one in beside},
            outages=self._outages,
        )
        try:
            records = self._topic.read()
            for before, changes in tried:
                if all(records.get(key) == value for key, value in changes.items()):
                    return before
            registry = Registry.of(records)
            changes = make(registry)
            if changes:
                changed = (
                    TopicWrite(CONTROL_TOPIC, _PARTITION, key, value)
                    for key, value in changes.items()
                )
                writer.write([*changed, *beside])
        except UnansweredError:
            if writer.is_over:
                tried.append((registry, changes))
            raise
        else:
            return registry
        finally:
            writer.close()


class BacklogStates:
    """What producers are told about backlogs; the newest that was opened alone may write."""

    def __init__(self, kafka: KafkaSettings, outages: Outages | None = None) -> None:
        self._kafka = kafka
        self._outages = outages
        self._writer = self._new_writer()

    def write(self, states: Mapping[str, BacklogState | None]) -> None:
        """Write the state of topics; None deletes that of a topic without a quota."""
        records = [
            TopicWrite(
                CONTROL_TOPIC, _PARTITION, key_of(topic), None if state is None else state.encode()
            )
            for topic, state in states.items()
        ]
        if not records:
            return
        try:
            self._writer.write(records)
        except UnansweredError:
            # The client may be over; one that was fenced is not replaced.
            self._writer.close()
            self._writer = self._new_writer()
            self._writer.write(records)

    def close(self) -> None:
        """Let go of the connection."""
        self._writer.close()

    def _new_writer(self) -> FencedWriter:
        return FencedWriter(
            self._kafka,
            BACKLOG_ID,
            name="states of backlogs",
            writes_to=(CONTROL_TOPIC, _PARTITION),
            outages=self._outages,
        )
