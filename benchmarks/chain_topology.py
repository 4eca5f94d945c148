"""The topology of the process benchmark: two bolts that do next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology import TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Tuple


@bolt(fields=("key", "value"))
def first(event: Event) -> Iterator[Any]:
    """Pass the event on."""
    yield event.key, event.value


@bolt(fields=("key", "value"))
def second(given: Tuple) -> Iterator[Any]:
    """Pass the tuple on."""
    yield given.values


builder = TopologyBuilder("chain")
builder.set_spout("events")
builder.set_bolt("first", first).fields_grouping("events", "key")
builder.set_bolt("second", second).local_grouping("first")
builder.set_output("out").local_grouping("second")
topology = builder.build()
