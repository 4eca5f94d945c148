"""Events that wait: which of them run in a batch, and which keep waiting.

An event waits for its retry; or it is held, because an earlier one of its key waits, or one that it
shares an output with. A batch runs those whose time has come, in their order, and then new events.
Pure, and in columns of small values; events stand in their order in all of them, and a key is a
number, as `numbered` gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.topology.settling.retry import RetryPolicy

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]


def numbered(keys: Iterable[bytes | None]) -> Longs:
    """Number keys: equal numbers for equal keys; -1 for none."""
    numbers: dict[bytes, int] = {}
    return np.array(
        [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys], np.int64
    )


def runs_now(
    keys: Longs,
    retry_at_ms: Longs,
    now_ms: int,
    *,
    policy: RetryPolicy,
    keeps_order: bool = True,
) -> Bools:
    """Select the waiting events that run now.

    The keys of the others are blocked: new events of these keys are held at once. An event that
    would wait longer than the longest delay runs now: the clock was set back.
    """
    is_due: Bools = (retry_at_ms <= now_ms) | (retry_at_ms > policy.latest_ms(now_ms))
    if not keeps_order:
        return is_due
    _, codes = np.unique(keys, return_inverse=True)
    places = np.arange(len(keys))
    first = np.full(len(keys), len(keys))
    blocking = ~is_due & (keys >= 0)
    np.minimum.at(first, codes[blocking], places[blocking])
    return is_due & ((keys < 0) | (places < first[codes]))


def next_due_ms(keys: Longs, retry_at_ms: Longs, *, keeps_order: bool = True) -> int | None:
    """Return when the next waiting event runs; None if none waits.

    The first event of a key holds back the others, whenever these might run; one without a key
    waits for no other.
    """
    if not len(keys):
        return None
    decides = np.ones(len(keys), np.bool_)
    if keeps_order:
        _, first = np.unique(keys, return_index=True)
        decides = keys < 0
        decides[first] = True
    return int(retry_at_ms[decides].min())


def due_ms(next_ms: int | None, now_ms: int, *, policy: RetryPolicy) -> int | None:
    """Correct what `next_due_ms` gave: now, if it is later than the longest delay."""
    return now_ms if next_ms is not None and next_ms > policy.latest_ms(now_ms) else next_ms
