"""Events that wait: which of them run in a batch, and which wait behind it.

An event waits for its retry; or it is held, because an earlier one of its key waits, or one that it
shares an output with. A batch runs those whose time has come, in their order, and then new events.
Pure, and in columns of small values; events stand in their order in all of them, and a key is a
number, as for `held_back`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.consumer.topology.settling.settlement import Ties, held_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.consumer.topology.api.tuple import Root
    from sequitur.consumer.topology.settling.retry import RetryPolicy

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Outcomes = np.ndarray[Any, np.dtype[np.int8]]
    Places = np.ndarray[Any, np.dtype[np.intp]]


class EventOutcome(IntEnum):
    """What became of an event in a batch."""

    DONE = 0
    """Its tree is acked, and its outputs may go out."""
    RETRY = 1
    """It failed, and will be tried again."""
    HELD = 2
    """It runs again for the sake of another; that is no further attempt."""
    DEAD = 3
    """It failed for the last time."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of the events that ran in a batch.

    Attributes:
        outcomes: Of each event, of the kind `EventOutcome`.
        attempts: Number of the attempt that comes next; of those that are done or dead, the last.
        retry_at_ms: They are not to run before; 0 for as soon as no earlier event of the key waits.
    """

    outcomes: Outcomes
    attempts: Longs
    retry_at_ms: Longs

    @property
    def waits(self) -> Bools:
        """Which events run again."""
        return np.isin(self.outcomes, (EventOutcome.RETRY, EventOutcome.HELD))


def numbered(keys: Iterable[bytes | None]) -> Longs:
    """A number for each key, equal ones for equal keys; -1 without one."""
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
    """Which of the events that wait run now.

    The keys of the others are blocked: new events of these keys are held at once. An event that
    would wait longer than any delay runs now: the clock was set back.

    Args:
        keys: A number for each event's key; negative without one.
        retry_at_ms: When each may run, as `settle` gave it.
        now_ms: Now.
        policy: When a failed event is tried again.
        keeps_order: Whether an event that waits on holds up the later ones of its key.
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
    """When the next of the events that wait runs; None if none waits.

    The first of a key holds up the others, whenever these might run; one without a key waits for
    nobody.

    Args:
        keys: A number for each event's key; negative without one.
        retry_at_ms: When each may run, as `settle` gave it.
        keeps_order: As for `runs_now`.
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
    """What `next_due_ms` gave, as it is to be taken now: at once if it is behind any delay.

    Args:
        next_ms: What it gave, perhaps when the clock showed more than now.
        now_ms: Now.
        policy: As for `runs_now`.
    """
    return now_ms if next_ms is not None and next_ms > policy.latest_ms(now_ms) else next_ms


def settle(
    keys: Longs,
    attempts: Longs,
    failed: Bools,
    held: Bools,
    gone: Bools,
    *,
    now_ms: int,
    policy: RetryPolicy,
    random: float,
    shared: Sequence[Places] = (),
    keeps_order: bool = True,
) -> Settlement:
    """Settle a batch: of each event that ran, whether it is done, runs again, or is given up.

    Args:
        keys: A number for each event's key; negative without one.
        attempts: Number of the attempt that this was; the first is 1.
        failed: Events that failed, for whatever reason.
        held: Events that were passed over.
        gone: Those that failed and are given up, by `RetryPolicy.gives_up`.
        now_ms: Now.
        policy: When a failed event is tried again.
        random: Drawn from [0, 1), once for the batch: those that failed together, in the same
            attempt, are tried again together, so that a join is given both sides again.
        shared: For each output of several events, the places of these.
        keeps_order: Whether an event holds up the later ones of its key.
    """
    unfinished = failed | held
    held = (held & ~failed) | held_back(keys, unfinished, gone, shared, keeps_order=keeps_order)
    again = failed & ~gone
    outcomes = np.zeros(len(keys), np.int8)
    outcomes[again], outcomes[held], outcomes[gone] = (
        EventOutcome.RETRY,
        EventOutcome.HELD,
        EventOutcome.DEAD,
    )
    retry_at_ms = np.zeros(len(keys), np.int64)
    for attempt in np.unique(attempts[again]).tolist():
        those = again & (attempts == attempt)
        retry_at_ms[those] = policy.retry_at_ms(attempt, now_ms, random)
    if len(shared):
        _meet_again(keys, retry_at_ms, again | held, shared, keeps_order=keeps_order)
    return Settlement(outcomes, attempts + again, retry_at_ms)


def settle_roots(
    roots: Sequence[Root],
    shared: Iterable[Iterable[Root]],
    now_ms: int,
    *,
    policy: RetryPolicy,
    random: float,
    keeps_order: bool = True,
) -> Settlement:
    """As `settle`, of the roots of events in their order.

    Args:
        roots: What is known of each in the end.
        shared: The roots of each output of several; those that are not among `roots` are done.
        now_ms: Now.
        policy: When a failed event is tried again.
        random: As for `settle`.
        keeps_order: Likewise.
    """
    places = {root: place for place, root in enumerate(roots)}
    together = [[places[root] for root in several if root in places] for several in shared]
    return settle(
        numbered(root.key if root.is_tracked else None for root in roots),
        np.array([root.attempt for root in roots], np.int64),
        np.array([root.failure is not None for root in roots], np.bool_),
        np.array([root.is_held for root in roots], np.bool_),
        np.array(
            [
                root.failure is not None and policy.gives_up(root.attempt, root.failure.reason)
                for root in roots
            ],
            np.bool_,
        ),
        now_ms=now_ms,
        policy=policy,
        random=random,
        shared=[np.array(several, np.intp) for several in together],
        keeps_order=keeps_order,
    )


def _meet_again(
    keys: Longs, retry_at_ms: Longs, waits: Bools, shared: Sequence[Places], *, keeps_order: bool
) -> None:
    """Have events that share an output run in the same batch, that of the last of them.

    Otherwise a join would be given one side of a pair, and in a later batch the other. None runs
    before those ahead of it in its key, so these have their say as well.
    """
    if keeps_order:
        order = np.argsort(keys, kind="stable")
        order = order[waits[order] & (keys[order] >= 0)]
        if len(order):
            retry_at_ms[order] = _latest_so_far(keys[order], retry_at_ms[order])
    ties = Ties(keys, shared, waits, keeps_order=keeps_order)
    sharing = ties.sharing[waits[ties.sharing]]
    # The latest first: whoever it reaches is not reached by an earlier one again.
    for place in sharing[np.argsort(-retry_at_ms[sharing], kind="stable")].tolist():
        reached = ties.reached_from(place)
        retry_at_ms[reached] = np.maximum(retry_at_ms[reached], retry_at_ms[place])


def _latest_so_far(keys: Longs, times_ms: Longs) -> Longs:
    """The latest time up to each event among those of its key; events are sorted by key."""
    times, ranks = np.unique(times_ms, return_inverse=True)
    section = np.cumsum(np.concatenate(([0], keys[1:] != keys[:-1]))) * len(times)
    latest: Longs = times[np.maximum.accumulate(ranks + section) - section]
    return latest
