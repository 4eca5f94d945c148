"""The topology of the process benchmark whose bolt waits, as one that calls a service does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event

CALL_S: Final = 0.002
CONCURRENCY: Final = 16


@bolt(fields=("key", "value"))
def ask(event: Event) -> Iterator[Any]:
    """Take 2 ms."""
    time.sleep(CALL_S)
    yield event.key, event.value


builder = TopologyBuilder("waiting")
builder.set_spout("events")
builder.set_bolt("ask", ask, concurrency=CONCURRENCY).fields_grouping("events", "key")
builder.set_output("out").local_grouping("ask")
topology = builder.build()
