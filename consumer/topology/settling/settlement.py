"""Settling a batch: which events are held although their own trees may be done.

An event is held when an earlier one of its key has failed and will be tried again; and when it
shares an output with an event that is not done, since that output cannot go out, and would be lost
if one of them were taken as done. Either holds up others in turn. Pure, and in columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Places = np.ndarray[Any, np.dtype[np.intp]]


def held_back(
    keys: Longs,
    unfinished: Bools,
    gone: Bools,
    shared: Sequence[Places] = (),
    *,
    keeps_order: bool = True,
) -> Bools:
    """Which events are held, of those that are not unfinished anyway.

    Args:
        keys: A number for each event's key, events in their order; negative without a key.
        unfinished: Events that failed, were held already, or were never acked.
        gone: Those of them that are dead-lettered: they hold up no later event of their key.
        shared: For each output of several events, the places of these.
        keeps_order: Whether an event holds up the later ones of its key.

    Returns:
        Of each event whether it is held for another's sake.
    """
    held = np.zeros(len(keys), np.bool_)
    if keeps_order:
        _, codes = np.unique(keys, return_inverse=True)
        places = np.arange(len(keys))
        blocking = unfinished & ~gone & (keys >= 0)
        first = np.full(len(keys) + 1, len(keys))
        np.minimum.at(first, codes[blocking], places[blocking])
        held |= (places > first[codes]) & ~unfinished & (keys >= 0)
    if not len(shared):
        return held
    ties = Ties(keys, shared, ~(unfinished | held), keeps_order=keeps_order)
    for place in ties.sharing[(unfinished | held)[ties.sharing]].tolist():
        held[ties.reached_from(place)] = True
    return held


class Ties:
    """What ties events together: outputs that they share, and the order of their keys.

    Each event is reached once, and each output and each stretch of a key is passed once, so all
    that is asked takes a time in proportion to the events and the outputs.

    Args:
        keys: A number for each event's key, events in their order; negative without a key.
        shared: For each output of several events, the places of these.
        open_ones: Events that can be reached.
        keeps_order: Whether the later events of a key are reached from an earlier one.

    Attributes:
        sharing: Places of all events that share an output.
    """

    def __init__(
        self, keys: Longs, shared: Sequence[Places], open_ones: Bools, *, keeps_order: bool
    ) -> None:
        self.sharing: Places = np.unique(np.concatenate([*shared, np.empty(0, np.intp)]))
        self._keys = keys
        self._open = open_ones.copy()
        self._keeps_order = keeps_order
        self._shared: list[list[int]] = [several.tolist() for several in shared]
        self._of: dict[int, list[int]] = {}
        for number, several in enumerate(self._shared):
            for place in several:
                self._of.setdefault(place, []).append(number)
        self._order = np.argsort(keys, kind="stable")
        self._rank = np.empty(len(keys), np.intp)
        self._rank[self._order] = np.arange(len(keys))
        self._sorted = keys[self._order]
        self._passed: dict[int, int] = {}

    def reached_from(self, place: int) -> list[int]:
        """The open events that are held with one, and those held with these; they are open no more.

        Args:
            place: The event. The later ones of its key are reached if it is itself reached by an
                output, not from it alone: what it holds up by its key is known already.
        """
        found: list[int] = []
        waiting = [place]
        while waiting:
            one = waiting.pop()
            for number in self._of.get(one, ()):
                members, self._shared[number] = self._shared[number], []
                for member in members:
                    if self._open[member]:
                        self._open[member] = False
                        found.append(member)
                        waiting.append(member)
                        later = self._later(member)
                        found += later
                        waiting += [other for other in later if other in self._of]
        return found

    def _later(self, place: int) -> list[int]:
        """The open events behind one in its key."""
        key = int(self._keys[place])
        if not self._keeps_order or key < 0:
            return []
        begin = int(self._rank[place]) + 1
        end = self._passed.get(key)
        if end is None:
            end = int(np.searchsorted(self._sorted, key, side="right"))
        if begin >= end:
            return []
        self._passed[key] = begin
        behind = self._order[begin:end]
        behind = behind[self._open[behind]]
        self._open[behind] = False
        later: list[int] = behind.tolist()
        return later
