"""The topology of the benchmark of keyed state: it counts the events of keys, and passes them on.

`KEYED_TIMER` says how often a timer is set: `once` a key, at its first event; `each` event again;
`none`: there is no keyed bolt, but one that passes events on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from sequitur import KeyedBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Key, Timer, Topology

AFTER_MS: Final = 60_000


class Count(KeyedBolt):
    """Counts events from a key's first one to its timer."""

    fields = ("key", "value")
    state = int

    def __init__(self, *, sets_each: bool, after_ms: int = AFTER_MS) -> None:
        super().__init__()
        self._sets_each = sets_each
        self._after_ms = after_ms

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        """Count an event."""
        count = key.state
        if count is None or self._sets_each:
            key.timer("end", at=event.event_time_ms + self._after_ms)
        key.state = (count or 0) + 1
        yield key.value, event.value

    def on_timer(self, timer: Timer, key: Key) -> None:
        """Forget the count."""
        del timer
        key.state = None


@bolt(fields=("key", "value"))
def passed(event: Event) -> Iterator[Any]:
    """Pass an event on."""
    yield event.key, event.value


def counting(timer: str, after_ms: int = AFTER_MS) -> Topology:
    """Return the topology; `timer` is as above."""
    builder = TopologyBuilder("counting")
    builder.set_spout("events")
    made = passed if timer == "none" else Count(sets_each=timer == "each", after_ms=after_ms)
    builder.set_bolt("count", made).fields_grouping("events", "key")
    builder.set_output("out").local_grouping("count")
    return builder.build()


topology = counting(
    os.environ.get("KEYED_TIMER", "once"), int(os.environ.get("KEYED_AFTER_MS", AFTER_MS))
)
