"""The identity of a life: newer than all of former lives, and asked for once."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from sequitur.kafka.identity import Identity
from sequitur.producer.delivery.identities import Identities
from sequitur.producer.journal.state import NOTHING_RECOVERED


class _Coordinator:
    """Gives each caller the next epoch, a while after it was asked."""

    cluster_id = "cluster"

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.asked: list[Identity | None] = []

    async def start(self) -> None:
        pass

    async def claim(self, _name: str, held: Identity | None) -> Identity:
        self.asked.append(held)
        await asyncio.sleep(0)
        self.epoch += 1
        return Identity(7, self.epoch)


def _identities(coordinator: Any, former: Identity) -> Identities:
    recovered = dataclasses.replace(NOTHING_RECOVERED, identity=former, fresh=False)
    return Identities(coordinator, "me", recovered, accept_new_cluster=False)


async def test_an_identity_of_a_former_life_is_not_taken_again() -> None:
    """A cluster that was built anew gives out what the journal has batches of already."""
    coordinator = _Coordinator(epoch=1)
    assert await _identities(coordinator, Identity(7, 3)).known() == Identity(7, 4)
    assert coordinator.asked == [None, None, None]


async def test_partitions_that_renew_at_once_ask_for_one_identity() -> None:
    """The second to ask would name one that the first has replaced, and be told of a take-over."""
    coordinator = _Coordinator(epoch=3)
    identities = _identities(coordinator, Identity(7, 3))
    first = await identities.known()
    renewals = [identities.newer_than(first, fenced=False) for _ in range(3)]
    assert await asyncio.gather(*renewals) == [Identity(7, 5)] * 3
    assert coordinator.asked == [None, first]
