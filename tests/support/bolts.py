"""Bolts that tests of topologies share."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sequitur.consumer.topology import BatchBolt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import OutputCollector, TopologyContext, Tuple


class HoldingBolt(BatchBolt):
    """Holds what it is given, until a test or its `finish_batch` does something with it."""

    fields: Sequence[str] = ("value",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.held.append(tuple)

    def ack_all(self) -> None:
        for one in self.held:
            self.collector.ack(one)
        self.held.clear()


class Neighbours(HoldingBolt):
    """Joins each tuple of a task with the next, anchored to both."""

    fields = ("key", "value")

    def finish_batch(self) -> None:
        for first, second in itertools.pairwise(self.held):
            self.collector.emit((None, first["value"] + b"+" + second["value"]), (first, second))
        self.ack_all()
