"""Leaders that move under load, on three real brokers: nothing lost, nothing twice, in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from sequitur.producer import IdempotentProducer, Persisted
from tests.support.daemon_process import read_partitions
from tests.support.three_brokers import ThreeBrokers

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.producer import Delivery, Outcome

_TOPIC = "moving"
_PARTITIONS = 3
_BURST = 200


@pytest.mark.timeout(900)  # ends a hang, also on a slow machine
async def test_leaders_that_move_under_load_cost_nothing(tmp_path: Path) -> None:
    """Two brokers in turn give up what they lead, and get it back, while events are sent."""
    brokers = await asyncio.to_thread(ThreeBrokers, tmp_path)
    try:
        await asyncio.to_thread(brokers.make_topic, _TOPIC, _PARTITIONS)
        outcomes = await _send_while_leaders_move(brokers)
        logs = await asyncio.to_thread(read_partitions, brokers.bootstrap_servers, _TOPIC)
    finally:
        await asyncio.to_thread(brokers.close)
    values = [[int(message.value()) for message in log] for log in logs]
    assert sum(a >= b for log in values for a, b in pairwise(log)) == 0
    assert sorted(value for log in values for value in log) == list(range(len(outcomes)))
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Persisted)
        assert outcome.offset is None or values[outcome.partition][outcome.offset] == number


async def _send_while_leaders_move(brokers: ThreeBrokers) -> list[Outcome]:
    deliveries: list[Delivery] = []

    async def move() -> None:
        for node in (2, 3):
            await asyncio.to_thread(brokers.move_leaders, _TOPIC, node)

    async with IdempotentProducer(brokers.bootstrap_servers) as producer:
        moving = asyncio.create_task(move())
        while not moving.done() or not deliveries:
            for _ in range(_BURST):
                number = len(deliveries)
                value, partition = b"%d" % number, number % _PARTITIONS
                deliveries.append(await producer.send(_TOPIC, value, partition=partition))
            await deliveries[-1]
        await moving
        return list(await asyncio.gather(*deliveries))
