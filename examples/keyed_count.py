"""Counts the events of each key, once each, through failures and restarts.

::

    sequitur process examples/keyed_count.py --config job.toml

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("ann", "in", 1), ("bob", "in", 2)])
    >>> tester.run([("ann", "out", 3)])
    >>> tester.records("counts")
    [(b'ann', b'1'), (b'bob', b'1'), (b'ann', b'2')]
"""

from collections.abc import Iterator
from typing import Any

from sequitur import Event, Key, KeyedBolt, TopologyBuilder


class Count(KeyedBolt):
    """How many events a key has had."""

    fields = ("key", "count")
    state = int

    def process(self, _: Event, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + 1
        yield key.value, key.state


builder = TopologyBuilder("keyed-count")
builder.set_spout("events")
builder.set_bolt("count", Count()).fields_grouping("events", "key")
builder.set_output("counts", key="key", value="count").local_grouping("count")
topology = builder.build()
