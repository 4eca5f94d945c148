"""What holds the timers of a bolt that is keyed by a field: all that waits and may reach it.

A timer of it waits for events, and for timers of the bolts that it reads: what they emit may be
older than they are. It waits for other timers of its own bolt, but only for those of earlier turns.
Timers of other bolts hold none: nothing of them comes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sequitur.consumer.topology.settling.root import first_turn, hash_of, is_timer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sequitur.consumer.topology.api.builder import Topology


class TimerHolds(NamedTuple):
    """What holds the timers of one bolt."""

    store: str  # the name under which the bolt keeps its keys
    above: frozenset[str]  # likewise of the bolts by a field that it reads, also through others
    delay_ms: int  # see `Topology.delay_ms`

    @classmethod
    def of(cls, topology: Topology, bolt: str) -> TimerHolds:
        components, above, unread = topology.components, set[str](), [bolt]
        while unread:
            read = {one.component for one in components[unread.pop()].inputs} - above
            above |= read
            unread += read
        stores = {components[one].key_store for one in above.intersection(topology.keyed_by_field)}
        return cls(components[bolt].key_store, frozenset(stores), topology.delay_ms(bolt))

    def first(self, waits: Mapping[str, int]) -> int | None:
        """Return the first turn at which timers of the bolt are held; None: none are.

        Args:
            waits: The first turn of what waits, by `keeper_of`.
        """
        turns = [
            turn if keeper == self.store else first_turn(turn, self.delay_ms)
            for keeper, turn in waits.items()
            if not keeper or keeper == self.store or keeper in self.above
        ]
        return min(turns, default=None)


def keeper_of(event: tuple[Any, ...], stores: Iterable[str]) -> str:
    """Return the store whose bolt has set a timer, from its event's values; "" for other events."""
    if is_timer(event):
        for store in stores:
            if hash_of(store, event[0]) == event[5]:
                return store
    return ""


def earliest(*waits: Mapping[str, int]) -> dict[str, int]:
    """Return the least turn by name."""
    found: dict[str, int] = {}
    for one in waits:
        for keeper, turn in one.items():
            found[keeper] = min(turn, found.get(keeper, turn))
    return found
