"""The rows of a step for some output partitions, written by one task.

Rows are laid out partition by partition. What is laid out goes to the leaders while the next rows
are laid out, several partitions in one request; see `sink.partition_sender` for one partition.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from sequitur.errors import SendRefusedError
from sequitur.kafka.connections import GivesWay, kept_connections
from sequitur.kafka.partition import OutputPartition
from sequitur.pipelines.attempts import attempt_number
from sequitur.pipelines.sink.partition_sender import Assignment, PartitionSender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.kafka.connections import Connections
    from sequitur.kafka.identity import Identity
    from sequitur.kafka.leaders import Leaders
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.rows.selection import Batches
    from sequitur.pipelines.sink.step_planner import Planned
    from sequitur.pipelines.sink.step_plans import TopicPlan


_MOST_WAITING: Final = 8 << 20
"""Bytes of rows that are laid out and not acknowledged."""
_GIVEN_AT_ONCE: Final = 1 << 20
"""After so many bytes the senders get their turn: the fewer requests the better."""
_TURNS: Final = 3
"""A sender begins in one turn of the event loop, and its request is written in the next."""


@dataclass(frozen=True, slots=True)
class BlockWriter:
    kafka: KafkaSettings = field(repr=False)  # how to reach the brokers
    topic: str
    plan: TopicPlan  # what the step's plan says of it
    identity: Identity  # producer id and epoch of the step
    # when the plan was written, epoch seconds, if nothing of the step can be out
    begun_s: float | None

    @classmethod
    def of(cls, kafka: KafkaSettings, topic: str, planned: Planned) -> Self:
        plan = planned.plan
        return cls(kafka, topic, plan.topics[topic], plan.identity, planned.begun_s)

    def write(self, rows: Iterable[Batches], gives_way: GivesWay | None = None) -> dict[int, int]:
        """Write rows that are not there yet; return how many each partition has in all."""
        gives_way = gives_way or GivesWay(bool)
        connections = kept_connections(self.kafka, gives_way.bound)
        try:
            sent = self._sent(connections, rows, gives_way.heard)
            return connections.run(sent, gives_way.bound)
        except SendRefusedError:
            connections.forget_limit(self.topic)
            raise

    async def _sent(
        self, connections: Connections, rows: Iterable[Batches], heard: Callable[[], None]
    ) -> dict[int, int]:
        limit = min(self.plan.batch_bytes, await connections.batch_bytes_of(self.topic))
        return await send_block(connections.leaders, rows, limit, self.assignment, heard)

    def assignment(self, partition: int) -> Assignment:
        return Assignment(
            OutputPartition(self.topic, partition),
            self.identity,
            self.plan.firsts[partition],
            self.plan.ends[partition],
            None if attempt_number() else self.begun_s,
        )


async def send_block(
    leaders: Leaders,
    rows: Iterable[Batches],
    limit: int,
    assignment: Callable[[int], Assignment],
    heard: Callable[[], None] = lambda: None,
) -> dict[int, int]:
    """Send rows of several partitions; how many each has in the end.

    Args:
        leaders: Take the rows.
        rows: Of each partition.
        limit: How large a batch may be.
        assignment: Says what the plan says of a partition.
        heard: Called each time that it goes on.
    """
    waiting = _Waiting(heard)
    running: dict[int, asyncio.Task[int]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for partition, batches in rows:
                await waiting.until_fewer()
                sender: PartitionSender | None = None
                for batch in batches(limit):
                    if sender is None:
                        sender = PartitionSender(leaders, assignment(partition), waiting.settled)
                        running[partition] = group.create_task(sender.run())
                    sender.add(batch)
                    await waiting.add(batch, sender)
                if sender is not None:
                    sender.end()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {partition: sent.result() for partition, sent in running.items()}


class _Waiting:
    """Bytes that are laid out and not acknowledged."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._size = self._given = 0
        self._has_room = asyncio.Event()

    async def add(self, batch: KafkaBatch, sender: PartitionSender) -> None:
        """Count a batch that a sender has got, and wait while there are too many bytes."""
        self._heard()
        size = len(batch.records)
        self._size += size
        self._given += size
        if self._given >= _GIVEN_AT_ONCE:
            self._given = 0
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        # A sender keeps one batch back until it knows whether another follows.
        while self._size > _MOST_WAITING and sender.waiting > 1:
            await self._settled_more()

    async def until_fewer(self) -> None:
        """Wait while there are too many: a partition with a single batch is ended behind it."""
        while self._size > _MOST_WAITING:
            await self._settled_more()

    async def _settled_more(self) -> None:
        self._has_room.clear()
        await self._has_room.wait()

    def settled(self, size: int) -> None:
        self._heard()
        self._size -= size
        self._has_room.set()
