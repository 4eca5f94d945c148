"""What holds the timers of a bolt that is keyed by a field: all that waits and may reach it.

A timer of it waits for events, and for timers of the bolts that it reads: what they emit may be
older than they are. It waits for other timers of its own bolt, but only for those of earlier turns.
Timers of other bolts hold none: nothing of them comes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sequitur.consumer.topology.api.builder import delays_ms
from sequitur.consumer.topology.settling.root import first_turn, hash_of, is_timer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sequitur.consumer.topology.api.builder import Topology


class TimerHolds(NamedTuple):
    """What holds the timers of one bolt."""

    store: str  # the name under which the bolt keeps its keys
    delay_ms: int  # see `Topology.delay_ms`
    # of the keyed bolts that it reads, also through others, by the name of their store: how much
    # earlier than their timers what comes of them may be
    above_ms: Mapping[str, int]

    @classmethod
    def of(cls, topology: Topology, bolt: str) -> TimerHolds:
        components = topology.components
        above = {
            components[one].key_store: found[bolt]
            for one in topology.keyed_bolts
            if one != bolt and bolt in (found := delays_ms(components, one))
        }
        # A waiting timer of one bolt by the events' key holds those of its key in all such bolts.
        by_event = [components[one].key_store for one in topology.keyed_by_event]
        of_events = [above[one] for one in by_event if one in above]
        if of_events:
            above |= dict.fromkeys(by_event, max(of_events))
        return cls(components[bolt].key_store, topology.delay_ms(bolt), above)

    def first(self, waits: Mapping[str, int]) -> int | None:
        """Return the first turn at which timers of the bolt are held; None: none are.

        Args:
            waits: The first turn of what waits, by `keeper_of`.
        """
        turns = [
            turn if keeper == self.store else first_turn(turn, delay_ms)
            for keeper, turn in waits.items()
            if (delay_ms := self._delay_of(keeper)) is not None
        ]
        return min(turns, default=None)

    def _delay_of(self, keeper: str) -> int | None:
        """Return how much earlier what comes of a keeper's timers may be; None if nothing does."""
        if keeper in {"", self.store}:
            return self.delay_ms
        return self.above_ms.get(keeper)


def keeper_of(event: tuple[Any, ...], stores: Iterable[str]) -> str:
    """Return the store whose bolt has set a timer, from its event's values; "" for other events."""
    if is_timer(event):
        for store in stores:
            if hash_of(store, event[0]) == event[5]:
                return store
    return ""


def line_of(event: tuple[Any, ...], by_field: Iterable[str]) -> bytes | None:
    """Return the key by which an event waits for earlier ones, from its values; None: for none.

    A timer of a bolt by another field waits for those of its bolt alone. So one that waits for a
    timer of a bolt before its own does not hold that.

    Args:
        event: Its values.
        by_field: The stores of the bolts that are keyed by another field.
    """
    keeper = keeper_of(event, by_field) if by_field else ""
    return line_of_bolt(keeper, event[0]) if keeper else event[0]


def line_of_bolt(store: str, key: bytes) -> bytes:
    """Return the same for the timers of a key of a bolt by another field."""
    return b"%b\0%b" % (key, store.encode())


def earliest(*waits: Mapping[str, int]) -> dict[str, int]:
    """Return the least turn by name."""
    found: dict[str, int] = {}
    for one in waits:
        for keeper, turn in one.items():
            found[keeper] = min(turn, found.get(keeper, turn))
    return found
