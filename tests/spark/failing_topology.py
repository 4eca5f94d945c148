"""A topology whose bolts fail now and then, by the events' own numbers: for rounds of killing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology import TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Tuple


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


builder = TopologyBuilder("failing")
builder.set_spout("events")
builder.set_bolt("check", check).local_grouping("events")
builder.set_bolt("settle", settle, 2).fields_grouping("check", "key")
builder.set_output("out").local_grouping("settle")
topology = builder.build()
