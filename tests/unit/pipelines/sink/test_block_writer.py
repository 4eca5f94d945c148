"""Rows of several partitions in one task: how much of them waits in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sequitur.kafka.identity import Identity
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines import attempts
from sequitur.pipelines.sink import block_writer
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.partition_sender import Assignment
from sequitur.pipelines.sink.step_plans import TopicPlan
from tests.support.attempt_histories import laid_out
from tests.support.fake_cluster import FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.rows.selection import Batches

_KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:1")
_PARTITIONS = 20
_ROW = b"x" * 1000


@pytest.mark.parametrize(("attempt", "asks_first"), [(0, False), (1, True), (3, True)])
def test_an_attempt_after_others_asks_the_leader_how_far_they_came(
    attempt: int, asks_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the task says which attempt it is, Spark or a process of this machine."""
    monkeypatch.setattr(attempts, "_number", 0)
    attempts.begin_attempt(attempt)
    plan = TopicPlan(None, (4,), (9,), 1 << 20)
    writer = BlockWriter(_KAFKA, "out", plan, Identity(7, 5), begun_s=100.0)
    assert (writer.assignment(0).begun_s is None) == asks_first


def test_large_rows_of_many_partitions_wait_for_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition may have a single row, of many megabytes: they are not all in memory."""
    monkeypatch.setattr(block_writer, "_MOST_WAITING", 2 * len(_ROW))
    loop = VirtualTimeLoop()
    where = [OutputPartition("out", number) for number in range(_PARTITIONS)]
    cluster = FakeCluster(partitions={one: PartitionModel() for one in where}, clock=loop.time)
    wire = FakeWire(cluster)
    unsettled: list[int] = []

    def batches(limit: int) -> Iterator[KafkaBatch]:
        del limit
        laid = laid_out([_ROW])
        begun = len(unsettled) + 1
        unsettled.append(begun - sum(len(one.batches) for one in cluster.partitions.values()))
        yield laid

    def rows() -> Iterator[Batches]:
        for number in range(_PARTITIONS):
            yield number, batches

    def assignment(number: int) -> Assignment:
        return Assignment(where[number], Identity(7, 5), 0, 0)

    async def replicate() -> None:
        while True:
            await asyncio.sleep(0.01)
            for one in where:
                cluster.replicate(one)

    async def run() -> dict[int, int]:
        await wire.refresh()
        followers = asyncio.ensure_future(replicate())
        leaders = Leaders(wire)  # type: ignore[arg-type]  # stands for it
        try:
            return await block_writer.send_block(leaders, rows(), 1 << 20, assignment)
        finally:
            followers.cancel()

    assert loop.run_until_complete(run()) == dict.fromkeys(range(_PARTITIONS), 1)
    assert len(unsettled) == _PARTITIONS
    assert max(unsettled) <= 3
    loop.close()
