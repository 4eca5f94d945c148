"""The registry in its compacted topic, and its one way to be changed.

A subscription is created and deleted in one transaction with its cursors, which are in another
topic: it is never half there.

A process that changes a record takes its transactional id, reads the registry, and writes. Another
process that does the same meanwhile takes the id away, and the write is refused: what was read is
old. Then the change begins again. So of two administrators each sees what the other has done to
that record, and consumers of many subscriptions that are opened at once do not wait for each other.
All policies have one id.
"""

from __future__ import annotations

import contextlib
import random
import re
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.consumer.subscription.compacted_topic import TopicStore
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.registry import Changes, Registry
from sequitur.errors import (
    ControlRecordError,
    SubscriptionFencedError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.control import CONTROL_NAME, control_topic, key_of, topic_of
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.kafka.settings import SYSTEM_PREFIX_FORM, system_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.control import BacklogState
    from sequitur.kafka.settings import KafkaSettings


_PARTITION: Final = 0
_RETRY: Final = Retry(
    patience_s=60.0,
    backoff=Backoff(initial_ms=20, maximum_ms=1_000, jitter=1.0),
    random=random.random,
)


class RegistryStore(TopicStore):
    _name, _partitions = CONTROL_NAME, 1
    _known: tuple[dict[bytes, bytes], Registry] = {}, Registry()

    def read(self) -> Registry:
        """Return what is registered; nothing if the topic does not exist yet."""
        records = self._followed.read()
        known, registry = self._known
        if records != known:
            registry = Registry.of(records)
            self._known = records, registry
        return registry

    def told_topics(self) -> set[str]:
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
        """Make a change. `tried` has earlier changes that may or may not have been written."""
        writer = FencedWriter(
            self._kafka,
            registry_id(self._kafka, subscription),
            name="the registry of subscriptions",
            writes_to=(self._topic.name, _PARTITION),
            beside={(one.topic, one.partition) for one in beside},
            outages=self._outages,
        )
        with contextlib.closing(writer):
            records = self._topic.read()
            for before, changes in tried:
                if all(records.get(key) == value for key, value in changes.items()):
                    return before
            registry = Registry.of(records)
            changes = make(registry)
            changed = [
                TopicWrite(self._topic.name, _PARTITION, key, value)
                for key, value in changes.items()
            ]
            try:
                if changed:
                    writer.write([*changed, *beside])
            except UnansweredError:
                if writer.is_over:
                    tried.append((registry, changes))
                raise
            return registry


class BacklogStates:
    """The backlog records for producers. Only the newest writer may write."""

    def __init__(self, kafka: KafkaSettings, outages: Outages | None = None) -> None:
        self._kafka = kafka
        self._topic = control_topic(kafka)
        self._outages = outages
        self._writer = self._new_writer()

    def write(self, states: Mapping[str, BacklogState | None]) -> None:
        """Write the state of topics. None deletes the record of a topic without a quota."""
        records = [
            TopicWrite(
                self._topic, _PARTITION, key_of(topic), None if state is None else state.encode()
            )
            for topic, state in states.items()
        ]
        if not records:
            return
        with contextlib.suppress(UnansweredError):
            self._writer.write(records)
            return
        # The client may have ended; a fenced one is not replaced.
        self._writer.close()
        self._writer = self._new_writer()
        self._writer.write(records)

    def close(self) -> None:
        self._writer.close()

    def _new_writer(self) -> FencedWriter:
        return FencedWriter(
            self._kafka,
            backlog_id(self._kafka),
            name="states of backlogs",
            writes_to=(self._topic, _PARTITION),
            outages=self._outages,
        )


def registry_id(kafka: KafkaSettings, subscription: str | None = None) -> str:
    """Return the transactional id for changes of a subscription's record, or of policies."""
    of_one = "" if subscription is None else f"/subscription/{subscription}"
    return system_name(kafka, f"registry{of_one}")


def backlog_id(kafka: KafkaSettings) -> str:
    """Return the transactional id under which backlog states are written.

    They are written again and again. Under the id of the registry they would fence its changes.
    """
    return system_name(kafka, "registry/backlog")


_REGISTRY_TOPIC: Final = re.compile(f"({SYSTEM_PREFIX_FORM})-{CONTROL_NAME}", re.ASCII)
_READ_AGAIN_S: Final = 2.0
"""A registry that sends nothing for so long may be gone, so it is looked up again."""


def registries_of_others(kafka: KafkaSettings, topics: KafkaTopics) -> dict[str, Registry]:
    """Return the registries of the other installations on the cluster, by prefix.

    Brokers list only topics that this user may describe.
    """

    def read() -> dict[str, Registry]:
        found = {
            match[1]: topic
            for topic in topics.compacted(_REGISTRY_TOPIC.fullmatch)
            if (match := _REGISTRY_TOPIC.fullmatch(topic)) and match[1] != kafka.system_prefix
        }
        places = {topic: SourcePartition(topic, _PARTITION) for topic in found.values()}
        extents = topics.extents(places)
        if silent := extents.leaderless & set(places.values()):
            raise UnansweredError(f"topic {min(silent).topic!r} has no leader")
        records: dict[str, dict[bytes, bytes]] = {topic: {} for topic in places}
        spans = {one: extents.logs[one] for one in places.values() if one in extents.logs}
        reader = Reader(kafka=kafka, passes_deleted=True, patience_s=_READ_AGAIN_S)
        for where, row in reader.rows(spans):
            if row.key is not None and row.value is not None:
                records[where.topic][row.key] = row.value
            elif row.key is not None:
                records[where.topic].pop(row.key, None)
        return {prefix: Registry.of(records[topic]) for prefix, topic in sorted(found.items())}

    try:
        return _RETRY.run(read, any_of(UnansweredError))
    except UnansweredError:
        raise
    except TopicError as error:
        raise TopicError(
            f"{error}: another installation's subscriptions may need any record. Allow this user "
            f"to read topics *-{CONTROL_NAME}"
        ) from error
