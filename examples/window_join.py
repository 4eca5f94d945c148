"""Joins each order with the payments of its key that come within 5 minutes.

::

    sequitur process examples/window_join.py --config job.toml

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("7", {"item": "lamp"}, 0), ("7", {"paid": 35}, 300_000)])
    >>> tester.run([("8", {"item": "desk"}, 300_000), ("8", {"paid": 90}, 600_001)])
    >>> tester.records("paid")
    [(b'7', b'{"order":{"item":"lamp"},"payment":{"paid":35}}')]
"""

import json
from collections.abc import Iterator
from typing import Any

from sequitur import Event, TopologyBuilder, Tuple, bolt
from sequitur.windows import join


def side(event: Event) -> str:
    """Tell orders and payments apart."""
    return "right" if "paid" in json.loads(event.value or b"") else "left"


@bolt(fields=("key", "both"))
def pair(joined: Tuple) -> Iterator[Any]:
    """Put the values of both into one."""
    order, payment = map(json.loads, (joined["left"], joined["right"]))
    yield joined["key"], {"order": order, "payment": payment}


builder = TopologyBuilder("window-join")
builder.set_spout("events")
builder.set_bolt("join", join(side, within="5 min")).fields_grouping("events", "key")
builder.set_bolt("pair", pair).local_grouping("join")
builder.set_output("paid", value="both").local_grouping("pair")
builder.set_output("late", topic="late-events").local_grouping("join", "late")
topology = builder.build()
