"""The root of a tuple tree: an event, and what one task knows of its tree.

Each tuple that goes to a task is an edge of the trees it is anchored to. The XOR of a tree's open
edges is kept in its root, as far as one task knows them; ackers combine what all tasks know.

Roots are made by the million, so they are msgspec's structs: these are made in half the time of a
class with `__init__`. Each is equal to itself alone.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from sequitur.consumer.dead_letters import FailReason
from sequitur.consumer.topology.api.failure import TreeFailure
from sequitur.consumer.topology.api.tuple import Place

Order: TypeAlias = tuple[int, str, int, int]
"""Position of an event in the ordered stream: event time, topic, partition, offset."""


class Root(msgspec.Struct, eq=False):
    """The root of a tuple tree, and the acker's entry for it: one XOR value, plus flags."""

    id: int  # tells it from all others of its batch; 0 of tuples that are derived from no event
    event: Any  # the event's values, or those that say where it came from
    attempt: int = 1  # 1 the first time
    # 0; older versions had a time here, and what they have prepared has it still
    begun_s: float = 0.0
    is_tracked: bool = True  # whether its tree is tracked
    value: int = 0  # XOR of the tree's edges, as this task knows them
    failure: TreeFailure | None = None  # why it failed; sticky
    # whether a tuple of it was skipped, since an earlier event of its key failed
    is_held: bool = False
    kept: int = 0  # how many of its tuples are in what bolts of a transaction keep of their batch

    @property
    def key(self) -> bytes | None:
        """The event's key."""
        key: bytes | None = self.event[0]
        return key

    @property
    def order(self) -> Order:
        """Its place in the ordered stream."""
        event = self.event
        return event[3], event[4], event[5], event[6]

    @property
    def place(self) -> Place:
        """Where it came from."""
        return Place(*self.event[4:7])

    @property
    def is_done(self) -> bool:
        """Whether every tuple of the tree was acked, and none failed."""
        return self.value == 0 and self.failure is None and not self.is_held

    def __reduce__(self) -> Any:
        # To another task goes what it is known by, not its payload nor what this task saw of it.
        event = self.event
        known = (event[0], None, (), event[3], event[4], event[5], event[6], 0)
        return Root, (self.id, known, self.attempt, 0.0, self.is_tracked)

    def __repr__(self) -> str:
        return f"Root({self.id:#x}, {tuple(self.place)})"


def never_acked(spout: str) -> TreeFailure:
    """Say why a tree failed that was neither acked nor failed by the end of its batch."""
    return TreeFailure(FailReason.NEVER_ACKED, "", (spout,))
