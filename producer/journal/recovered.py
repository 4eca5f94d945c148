"""What a journal held when it was opened, as a value."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from sequitur.kafka.identity import Identity
from sequitur.producer.journal.frames import BatchFrame, PartitionState, Waiting
from sequitur.producer.journal.scan import TornTail

TopicPartition = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal held when it was opened. `Journal.read` gives the batches' bytes."""

    identity: Identity | None  # the newest producer id and epoch; None before the first one
    # per partition the batches to send again, oldest first, without their bytes
    unacked: Mapping[TopicPartition, tuple[BatchFrame, ...]]
    # per partition the batches that have no numbers yet, oldest first, without their bytes
    waiting: Mapping[TopicPartition, tuple[Waiting, ...]]
    next_event_sequence: int
    # where each partition's numbering ended. A later life does not go on from there, since a copy
    # of the journal would, too
    partitions: Mapping[TopicPartition, PartitionState]
    positions: Mapping[str, bytes]  # last position of each source
    torn: TornTail | None = None  # the unfinished round that was cut off, None when there was none
    fresh: bool = False  # there was no journal; it was created
    cluster_id: str = ""  # the cluster that the events are for, empty while it is not known

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions of a topic the journal knows; None if it knows none."""
        places = (*self.partitions, *self.waiting)
        known = [partition for name, partition in places if name == topic]
        return max(known) + 1 if known else None

    @property
    def known_topics(self) -> frozenset[str]:
        """The topics that it has had events of."""
        numbered = (place for place, s in self.partitions.items() if s.through_event_sequence >= 0)
        return frozenset(topic for topic, _ in (*numbered, *self.waiting))

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have batches to be sent."""
        return frozenset(topic for topic, _ in (*self.unacked, *self.waiting))

    @property
    def events(self) -> int:
        """How many events are to be sent."""
        unacked = sum(b.record_count for batches in self.unacked.values() for b in batches)
        return unacked + sum(b.record_count for batches in self.waiting.values() for b in batches)


NOTHING_RECOVERED: Final = Recovered(None, {}, {}, 0, {}, {}, fresh=True)
