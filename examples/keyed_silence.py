"""Tells which keys were silent for ten minutes, once for each silence.

Run it on a topic, with a job.toml as in the README::

    sequitur process examples/keyed_silence.py --config job.toml

or try it without Kafka and without Spark::

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("ann", "", 0), ("bob", "", 60_000), ("ann", "", 540_000)])
    >>> tester.run(watermark_ms=660_000)  # no events up to this event time
    >>> tester.records("alerts")
    [(b'bob', b'60000')]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur import KeyedBolt, TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Key, Timer

SILENT_MS: Final = 600_000


class Silence(KeyedBolt):
    """When a key had its last event, once it is silent."""

    fields = ("key", "last_ms")
    state = int

    def process(self, event: Event, key: Key) -> None:
        key.state = event.event_time_ms
        key.timer("silent", at=event.event_time_ms + SILENT_MS)

    def on_timer(self, _: Timer, key: Key) -> Iterator[Any]:
        yield key.value, key.state
        key.state = None


builder = TopologyBuilder("keyed-silence")
builder.set_spout("events")
builder.set_bolt("silence", Silence()).fields_grouping("events", "key")
builder.set_output("alerts", key="key", value="last_ms").local_grouping("silence")

topology = builder.build()
