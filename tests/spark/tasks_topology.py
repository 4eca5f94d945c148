"""The tasks of the page on keyed state, with trees that fail now and then: for kill rounds.

Each event comes out as it is. The number of events of its key until then comes out in the topic
`COUNTS_TOPIC`, an event with an id that its key has not had lately in `IDS_TOPIC`, and the last
time of a key that was silent in `ALERTS_TOPIC`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from sequitur import KeyedBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Key, Timer

IDS = 5
QUIET_MS = 300


class Counter(KeyedBolt):
    fields = ("key", "count")
    state = int

    async def process(self, event: Event, key: Key) -> list[Any]:
        await asyncio.sleep((event.event_time_ms % 3) / 1_000)
        key.state = (key.state or 0) + 1
        return [(key.value, key.state)]


class Once(KeyedBolt):
    """The first event of an id, until the key is forgotten."""

    fields = ("key", "n")
    state_map = dict[int, int]
    ttl = QUIET_MS / 1_000

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        number = json.loads(event.value or b"")["n"]
        if key.state_map.get(number % IDS) is None:
            key.state_map.put(number % IDS, number)
            yield key.value, number


class Silence(KeyedBolt):
    fields = ("key", "last_ms")
    state = int

    def process(self, event: Event, key: Key) -> None:
        key.state = event.event_time_ms
        key.timer("silence", at=event.event_time_ms + QUIET_MS)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield key.value, key.state
        key.state = None


@bolt(fields=("key", "value"))
def pass_on(event: Event) -> Iterator[Any]:
    """Fail 3 % of events at their first attempt, and some always."""
    number = json.loads(event.value or b"")["n"]
    if number % 100 in {7, 31, 53} and event.attempt == 1:
        raise ValueError("not yet")
    if number % 1000 == 500:
        raise ValueError("never")
    yield event.key, event.value


builder = TopologyBuilder("tasks")
builder.set_spout("events")
builder.set_bolt("pass-on", pass_on).local_grouping("events")
builder.set_output("out").local_grouping("pass-on")
builder.set_bolt("counter", Counter(), concurrency=4).fields_grouping("events", "key")
builder.set_bolt("once", Once()).fields_grouping("events", "key")
builder.set_bolt("silence", Silence()).fields_grouping("events", "key")
for name, one, field in (
    ("counts", "counter", "count"),
    ("ids", "once", "n"),
    ("alerts", "silence", "last_ms"),
):
    topic = os.environ.get(f"{name.upper()}_TOPIC", name)
    builder.set_output(name, topic, value=field).local_grouping(one)
topology = builder.build()
