"""Where the input topics begin and end now, against how far the job has read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import SourcePartition
from sequitur.pipelines.ordering.data_loss import lost_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.consumer import EventClock, PartitionClock
    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.pipelines.ordering.data_loss import Lost


class InputOffsets:
    """Asks brokers for the offsets of input topics.

    Topics are given with the number of partitions that each has. Each method raises `TopicError`
    when brokers do not answer.

    Args:
        topics: Admin client.
    """

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics

    def first(self, topics: Mapping[str, int]) -> dict[SourcePartition, int]:
        """Return the first offset that is there of each partition that is."""
        return self._topics.low_watermarks(_partitions(topics))

    def ends(self, partitions: Collection[SourcePartition]) -> Mapping[SourcePartition, int]:
        """Return the offset behind the last record of each partition."""
        return self._topics.high_watermarks(partitions)

    def unread(
        self, topics: Mapping[str, int], known: Mapping[SourcePartition, PartitionClock]
    ) -> dict[SourcePartition, tuple[int, int]]:
        """Return each partition's first offset that is not read yet, and its end.

        Args:
            topics: The input topics that are there.
            known: The clocks of partitions that have been read.
        """
        there = _partitions(topics)
        ends = self._topics.high_watermarks(there)
        first = self._topics.low_watermarks(where for where in there if where not in known)
        return {
            where: (known[where].position if where in known else first[where], ends[where])
            for where in there
        }

    def lost(self, topics: Mapping[str, int], clock: EventClock) -> Lost:
        """Return what the input has lost that was never read.

        Args:
            topics: The input topics that are there.
            clock: How far they have been read.
        """
        return lost_offsets(clock, self.first(topics))

    def lost_of_plan(
        self, topics: Mapping[str, int], planned: Mapping[SourcePartition, int]
    ) -> Lost:
        """Return what the input has lost of a first batch that is planned and was not read.

        Args:
            topics: The input topics that are there.
            planned: Where the batch begins.
        """
        first = self.first(topics)
        return {
            where: (position, first[where])
            for where, position in planned.items()
            if first.get(where, position) > position
        }


def _partitions(topics: Mapping[str, int]) -> list[SourcePartition]:
    return [
        SourcePartition(topic, number)
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]
