"""Drops events whose id their key has had within the last hour of event time.

Run it on a topic of JSON with an `id`, with a job.toml as in the README::

    sequitur process examples/keyed_dedup.py --config job.toml

or try it without Kafka and without Spark::

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("ann", {"id": "a"}, 1), ("ann", {"id": "b"}, 2), ("ann", {"id": "a"}, 3)])
    >>> tester.records("once")
    [(b'ann', b'{"id":"a"}'), (b'ann', b'{"id":"b"}')]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sequitur import KeyedBolt, TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Key, Timer

HOUR_MS: Final = 3_600_000


class Once(KeyedBolt):
    """The first event of each id. A timer named like the id forgets the id."""

    fields = ("key", "value")

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        name = str(json.loads(event.value or b"")["id"])
        if name not in key.timers:
            key.timer(name, at=event.event_time_ms + HOUR_MS)
            yield key.value, event.value

    def on_timer(self, timer: Timer, key: Key) -> None:
        """Forget the id: a timer that was called is set no longer."""


builder = TopologyBuilder("keyed-dedup")
builder.set_spout("events")
builder.set_bolt("once-each", Once()).fields_grouping("events", "key")
builder.set_output("once").local_grouping("once-each")

topology = builder.build()
