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
    _, codes = np.unique(keys, return_inverse=True)
    places = np.arange(len(keys))
    while True:
        before = int(np.count_nonzero(held))
        if keeps_order:
            blocking = ((unfinished & ~gone) | held) & (keys >= 0)
            first = np.full(len(keys) + 1, len(keys))
            np.minimum.at(first, codes[blocking], places[blocking])
            held |= (places > first[codes]) & ~unfinished & (keys >= 0)
        for several in shared:
            if (unfinished[several] | held[several]).any():
                held[several] |= ~unfinished[several]
        if int(np.count_nonzero(held)) == before:
            return held
