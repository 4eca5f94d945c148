"""What becomes of events: which waiting ones run now, and which are done, retried, held or dead.

It is pure, and works on columns of small values. In all of them events stand in the order of the
stream. A key is a number, as `numbered` gives it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.base.copy_headers import FailReason
from sequitur.base.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.settling.root import Root

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Outcomes = np.ndarray[Any, np.dtype[np.int8]]
    Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, and an end to it.

    Attributes:
        delay_ms: Before the second attempt.
        factor: Each further delay is the delay before, times this.
        maximum_ms: No delay is longer, but for the jitter.
        jitter: A delay is up to this share shorter or longer.
        max_attempts: After this many attempts the event is dead-lettered. 0: never.
    """

    delay_ms: int = 100
    factor: float = 2.0
    maximum_ms: int = 60_000
    jitter: float = 0.2
    max_attempts: int = 5

    def gives_up(self, attempt: int, reason: FailReason) -> bool:
        """Return whether a failed event becomes a dead letter. The one rule for it.

        Args:
            attempt: The attempt that failed; the first is 1.
            reason: Why. What kills its process is given up at once.
        """
        return 0 < self.max_attempts <= attempt or reason is FailReason.CRASH

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time at which an event that failed up to now is tried again.

        A later retry time was set by another clock, or by other settings.

        Args:
            now_ms: Now.
        """
        return now_ms + math.ceil(self.maximum_ms * (1 + self.jitter))

    def retry_at_ms(self, attempt: int, now_ms: int, random: float) -> int:
        """Return when to try again.

        Args:
            attempt: The attempt that failed; the first is 1.
            now_ms: Now.
            random: Drawn from [0, 1).
        """
        delay = Backoff(self.delay_ms, self.maximum_ms, self.jitter, self.factor)
        return now_ms + round(delay.delay_ms(attempt, random))


def numbered(keys: Iterable[bytes | None]) -> Longs:
    """Number keys: equal keys get equal numbers, and None gets -1."""
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

    An event waits for its retry. Or it is held: an earlier event of its key waits, or one that it
    shares an output with. A batch first runs the events whose time has come, in their order, and
    then new events.

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

    The first event of a key holds back the others, whenever these might run. An event without a
    key waits for no other.
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
    """Correct the result of `next_due_ms`: a time later than the longest delay becomes now."""
    return now_ms if next_ms is not None and next_ms > policy.latest_ms(now_ms) else next_ms


class EventOutcome(IntEnum):
    DONE = 0
    """Its tree is acked, and its outputs may go out."""
    RETRY = 1
    """It failed, and will be tried again."""
    HELD = 2
    """It runs again because of another event. That does not count as an attempt."""
    DEAD = 3
    """It failed for the last time."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of the events that ran in a batch."""

    outcomes: Outcomes  # the `EventOutcome` of each event
    attempts: Longs  # how often each has been tried; an attempt in which it was held does not count
    # when each may run again; 0: as soon as no earlier event of its key waits
    retry_at_ms: Longs


def settle(
    keys: Longs,
    attempts: Longs,
    failures: Mapping[int, FailReason],
    held: Collection[int],
    *,
    now_ms: int,
    policy: RetryPolicy,
    random: float,
    shared: Sequence[Places] = (),
    keeps_order: bool = True,
    dead_block: bool = False,
) -> Settlement:
    """Settle a batch: say which of its events are done, tried again, held or dead.

    The rule is the same for all topologies. If no tuple leaves the process, the executor settles
    its trees by it; otherwise the driver does, by what ackers tell.

    - An event is held when an earlier event of its key has failed and will be tried again.
    - An event is held when it shares an output with an event that is not done: that output cannot
      go out. It would be lost if one of the two were taken as done.
    - A held event holds others in turn.
    - If `dead_block`, an event that is given up holds the later ones of its key once: they have run
      on what it did to the key's state, which is undone.
    """
    failed, is_dead, is_held = (np.zeros(len(keys), np.bool_) for _ in range(3))
    is_held[list(held)] = True
    for place, reason in failures.items():
        failed[place] = True
        is_dead[place] = policy.gives_up(int(attempts[place]), reason)
    unfinished = failed | is_held
    is_held = (is_held & ~failed) | held_back(
        keys, unfinished, is_dead & (not dead_block), shared, keeps_order=keeps_order
    )
    again = failed & ~is_dead
    outcomes = np.zeros(len(keys), np.int8)
    outcomes[again], outcomes[is_held], outcomes[is_dead] = (
        EventOutcome.RETRY,
        EventOutcome.HELD,
        EventOutcome.DEAD,
    )
    retry_at_ms = np.zeros(len(keys), np.int64)
    for attempt in np.unique(attempts[again]).tolist():
        those = again & (attempts == attempt)
        retry_at_ms[those] = policy.retry_at_ms(attempt, now_ms, random)
    if len(shared):
        _retry_together(keys, retry_at_ms, again | is_held, shared, keeps_order=keeps_order)
    return Settlement(outcomes, attempts - is_held, retry_at_ms)


def settle_roots(
    roots: Sequence[Root],
    shared: Iterable[Iterable[Root]],
    *,
    now_ms: int,
    policy: RetryPolicy,
    random: float,
    keeps_order: bool = True,
    dead_block: bool = False,
) -> Settlement:
    """Settle a batch, as `settle` does, by what its roots know."""
    places = {root: place for place, root in enumerate(roots)}
    together = [[places[root] for root in several if root in places] for several in shared]
    return settle(
        numbered(root.key for root in roots),
        np.array([root.attempt for root in roots], np.int64),
        {place: root.failure.reason for root, place in places.items() if root.failure is not None},
        [place for root, place in places.items() if root.is_held],
        now_ms=now_ms,
        policy=policy,
        random=random,
        shared=[np.array(several, np.intp) for several in together],
        keeps_order=keeps_order,
        dead_block=dead_block,
    )


def held_back(
    keys: Longs,
    unfinished: Bools,
    dead: Bools,
    shared: Sequence[Places] = (),
    *,
    keeps_order: bool = True,
) -> Bools:
    """Select the events that are held. Failed events and those held before are left out."""
    held = np.zeros(len(keys), np.bool_)
    if keeps_order:
        _, codes = np.unique(keys, return_inverse=True)
        places = np.arange(len(keys))
        blocking = unfinished & ~dead & (keys >= 0)
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
    """The ties between events: outputs that they share, and the order of their keys.

    Each event is reached once, and each output and each stretch of a key is passed once. So all
    calls together take a time in proportion to the events and the outputs.
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
        """Return, and close, the open events that are held with one, directly or by others."""
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
        """Return the open events after one in its key, and close them."""
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


def _retry_together(
    keys: Longs, retry_at_ms: Longs, waits: Bools, shared: Sequence[Places], *, keeps_order: bool
) -> None:
    """Let events that share an output run in the same batch, that of the last of them.

    Otherwise a join would get one side of a pair, and the other side in a later batch. No event
    runs before earlier ones of its key, so these count as well.
    """
    if keeps_order:
        order = np.argsort(keys, kind="stable")
        order = order[waits[order] & (keys[order] >= 0)]
        if len(order):
            retry_at_ms[order] = _latest_so_far(keys[order], retry_at_ms[order])
    ties = Ties(keys, shared, waits, keeps_order=keeps_order)
    sharing = ties.sharing[waits[ties.sharing]]
    # The latest first: an event that it reaches is not reached again by an earlier one.
    for place in sharing[np.argsort(-retry_at_ms[sharing], kind="stable")].tolist():
        reached = ties.reached_from(place)
        retry_at_ms[reached] = np.maximum(retry_at_ms[reached], retry_at_ms[place])


def _latest_so_far(keys: Longs, times_ms: Longs) -> Longs:
    """Return each event's latest time so far in its key. Events are sorted by key."""
    times, ranks = np.unique(times_ms, return_inverse=True)
    section = np.cumsum(np.concatenate(([0], keys[1:] != keys[:-1]))) * len(times)
    latest: Longs = times[np.maximum.accumulate(ranks + section) - section]
    return latest
