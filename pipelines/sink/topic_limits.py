"""What the topics that a job writes to take of one record, asked anew from time to time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sequitur.consumer import LatePolicy
from sequitur.pipelines.rows.oversized import MOST_ADDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import ReorderSettings
    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.producer.kafka.record_limit import RecordLimit

_KNOWN_FOR_S: Final = 60.0


class TopicLimits:
    """The limits of a job's topics.

    Args:
        topics: Asks for them.
        settings: The job's settings.
        releases: Whether rows go to the output topic, and not to a topology.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        topics: KafkaTopics,
        settings: ReorderSettings,
        *,
        releases: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = topics
        self._released = settings.output_topic if releases else None
        self._added = MOST_ADDED if settings.late_policy is LatePolicy.EMIT else 0
        self._clock = clock
        self._known: dict[str, tuple[float, RecordLimit]] = {}

    def of(self, topic: str) -> RecordLimit:
        """Return what a topic takes.

        Raises:
            TopicError: The brokers do not answer.
        """
        now_s = self._clock()
        asked_s, limit = self._known.get(topic, (None, None))
        if limit is None or asked_s is None or now_s - asked_s >= _KNOWN_FOR_S:
            limit = self._topics.record_limit(topic)
            self._known[topic] = now_s, limit
        return limit

    def released(self) -> RecordLimit | None:
        """Return what the output topic takes of a row that is read; None when no row goes there.

        Raises:
            TopicError: The brokers do not answer.
        """
        if self._released is None:
            return None
        limit = self.of(self._released)
        # A late row that is emitted in place has headers that say so.
        return replace(limit, max_bytes=limit.max_bytes - self._added)
