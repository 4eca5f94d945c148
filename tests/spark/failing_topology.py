"""A topology whose bolts fail now and then, by the events' own numbers: for rounds of killing.

At ticks it makes numbers of its own, if the environment has a topic for them, `NUMBERS_TOPIC`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology import BasicBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple


@bolt(fields=("key", "value"))
def check(event: Event) -> Iterator[Any]:
    """Fail each event whose number ends with 7 at its first attempt, and 500 at each."""
    number = json.loads(event.value or b"")["n"]
    if number % 10 == 7 and event.attempt == 1:
        raise ValueError("not yet")
    if number % 1000 == 500:
        raise ValueError("never")
    yield event.key, event.value


@bolt(fields=("key", "value"))
def settle(given: Tuple) -> Iterator[Any]:
    """Fail each event whose number ends with 3 at its first attempt."""
    if json.loads(given["value"])["n"] % 10 == 3 and given.attempt == 1:
        raise ValueError("not here yet")
    yield given["key"], given["value"]


class Numbers(BasicBolt):
    """Emits the next eight of its task's numbers at each tick, and knows only what comes next."""

    fields = ("task", "number")

    def __init__(self) -> None:
        self.next = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if tuple.is_tick:
            for _ in range(8):
                collector.emit((self.context.task, self.next))
                self.next += 1

    def snapshot(self) -> int:
        return self.next

    def restore(self, state: int) -> None:
        self.next = state


@bolt(fields=("task", "number"))
def post(given: Tuple) -> Iterator[Any]:
    """Fail each number that ends with 2 at its first attempt, and each fortieth at each."""
    if given["number"] % 10 == 2 and given.attempt == 1:
        raise ValueError("not posted yet")
    if given["number"] % 40 == 7:
        raise ValueError("never posted")
    yield given["task"], given["number"]


builder = TopologyBuilder("failing")
builder.set_spout("events")
builder.set_bolt("check", check).local_grouping("events")
builder.set_bolt("settle", settle, 2).fields_grouping("check", "key")
builder.set_output("out").local_grouping("settle")
if numbers_topic := os.environ.get("NUMBERS_TOPIC"):
    builder.set_bolt("numbers", Numbers(), tick_interval="500 ms").local_grouping("events")
    builder.set_bolt("post", post, 2).fields_grouping("numbers", "task")
    made = builder.set_output("numbers out", topic=numbers_topic, key="task", value="number")
    made.local_grouping("post")
topology = builder.build()
