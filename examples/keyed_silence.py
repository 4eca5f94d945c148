"""Tells which keys were silent for ten minutes, once for each silence.

::

    sequitur process examples/keyed_silence.py --config job.toml

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("ann", "", 0), ("bob", "", 60_000), ("ann", "", 540_000)])
    >>> tester.run(watermark_ms=660_000)  # no events up to this event time
    >>> tester.records("alerts")
    [(b'bob', b'60000')]
"""

from collections.abc import Iterator
from typing import Any

from sequitur import Event, Key, KeyedBolt, Timer, TopologyBuilder


class Silence(KeyedBolt):
    """When a key had its last event, once it is silent: `on_silence` does the same."""

    fields = ("key", "last_ms")
    state = int

    def process(self, event: Event, key: Key) -> None:
        key.state = event.event_time_ms
        key.timer("silent", at=event.event_time_ms + 600_000)

    def on_timer(self, _: Timer, key: Key) -> Iterator[Any]:
        yield key.value, key.state
        key.state = None


builder = TopologyBuilder("keyed-silence")
builder.set_spout("events")
builder.set_bolt("silence", Silence()).fields_grouping("events", "key")
builder.set_output("alerts", key="key", value="last_ms").local_grouping("silence")
topology = builder.build()
