"""Topics as `KafkaTopics` tells of them, asked by the connections that the calling thread has."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from sequitur.errors import FatalError, RetriableError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.error_codes import Request
from sequitur.kafka.partition import OutputPartition, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeVar

    from sequitur.base.retry import Outages
    from sequitur.kafka.connections import Connections
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.kafka.shared_admin import SharedAdmin

    T = TypeVar("T")

_NO_ID: Final = bytes(16)


class LeaderTopics(KafkaTopics):
    """What is asked again and again takes no client of its own; not within an event loop."""

    def __init__(
        self,
        kafka: KafkaSettings,
        outages: Outages | None = None,
        admin: SharedAdmin | None = None,
    ) -> None:
        super().__init__(kafka, outages, admin)
        self._kafka = kafka

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of each of some topics; those that are not there are left out."""
        wanted = set(topics)
        found: dict[str, int] = {}
        for where in self._told(
            Request.TOPICS, "the brokers do not list their topics", lambda: self._led(wanted)
        ):
            found[where.topic] = max(found.get(where.topic, 0), where.partition + 1)
        return found

    def _led(self, topics: Collection[str]) -> dict[SourcePartition, bool]:
        def ask(connections: Connections) -> dict[SourcePartition, bool]:
            wire = connections.wire
            return {
                SourcePartition(topic, one): wire.leader(topic, one) is not None
                for topic in sorted(topics)
                for one in range(wire.partitions(topic) or 0)
            }

        return self._refreshed(topics, ask)

    def _listed_ids(self, topics: Sequence[str]) -> dict[str, str]:
        def ask(connections: Connections) -> dict[str, str]:
            found = {topic: connections.wire.topic_id(topic) for topic in topics}
            return {
                topic: base64.b64encode(one).decode().rstrip("=")
                for topic, one in found.items()
                if one not in {None, _NO_ID}
            }

        return self._refreshed(topics, ask)

    def _listed_offsets(self, wanted: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        def ask(connections: Connections) -> dict[SourcePartition, int]:
            found: dict[SourcePartition, int] = {}
            for time_ms in sorted(set(wanted.values())):
                asked = [OutputPartition(*one) for one, at in wanted.items() if at == time_ms]
                told = connections.run(connections.leaders.offsets(asked, time_ms))
                found |= {SourcePartition(*one): offset for one, offset in told.items()}
            if len(found) < len(wanted):
                raise TimeoutError
            return found

        return self._refreshed({one.topic for one in wanted}, ask) if wanted else {}

    def _asked(self, ask: Callable[[], T]) -> T:
        """Ask in this thread, whose connections it asks by."""
        return ask()

    def _learn(self) -> None:
        """Each request is made by what was learned just before it."""

    def _refreshed(self, topics: Collection[str], ask: Callable[[Connections], T]) -> T:
        """Ask, once the brokers have said where topics are; what passes is a time-out here."""
        try:
            connections = kept_connections(self._kafka)
            if not connections.run(connections.leaders.refresh(topics)):
                raise TimeoutError
            return ask(connections)
        except RetriableError as error:
            raise TimeoutError from error
        except FatalError as error:
            raise TopicError(f"the brokers do not describe topics: {error}") from error
