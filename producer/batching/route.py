"""A topic: the queues of its partitions, and how events are spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.kafka.partition import KeyPartitioner, StickyPartitioner

if TYPE_CHECKING:
    from sequitur.producer.batching.partition_queue import PartitionQueue


class Route:
    """A topic: its queues, and how events are spread over them."""

    __slots__ = (
        "batch_bytes",
        "keys",
        "max_batch_bytes",
        "partitions",
        "queues",
        "sticky",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        queues: list[PartitionQueue],
        *,
        partitions: int,
        max_batch_bytes: int,
        batch_bytes: int,
        random: float,
        topic_id: bytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.queues = queues
        self.partitions = partitions
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(batch_bytes, max_batch_bytes)
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)

    def resize(self, partitions: int, random: float) -> None:
        """Spread events over so many partitions from now on; their queues must exist."""
        self.partitions = partitions
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)
