"""Ties of a step's events by the keys of other fields, and what undoes their calls.

Calls at such a key see what earlier calls have left there. So if an event is not done, all others
whose calls at a key came later are not done either: they run again, and the key goes back to before
the first of them. A timer is not done if an event waits that is older than it. Ties
end with the step: the events run again without those that wait for a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sequitur.consumer.topology.engine.keyed import turn_of_entry
from sequitur.consumer.topology.settling.root import first_turn, least, turn_of
from sequitur.consumer.topology.step.batch import TaskResult

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sequitur.consumer.topology.api.builder import TreeFailure
    from sequitur.consumer.topology.engine.plan import Stage
    from sequitur.consumer.topology.settling.timer_holds import TimerHolds
    from sequitur.consumer.topology.step.batch import Handle, StepBatch


_NO_TIMER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class KnownRoots:
    """What is known not to be done when tasks run again without it."""

    places: Collection[int] = ()  # the tasks that run again, among all of the step
    failures: Mapping[int, TreeFailure] = field(default_factory=dict)  # by id of the root
    held: Collection[int] = ()  # ids
    dead: Collection[int] = ()  # ids of those that are given up
    holds: Mapping[int, int] = field(default_factory=dict)  # see `holds_of`


class Cut(NamedTuple):
    """Where a stage has left tuples to the next step."""

    turn: int  # that of the first one: all timers before it were called
    roots: Any  # ids of the roots of these tuples, and of others that are held by them


class Calls(NamedTuple):
    """The calls of a task at keys of a field, as columns, in their order."""

    roots: Any  # ids of the roots that they were for; a call for several has a row of each
    keys: Any  # a number for each key
    numbers: Any  # the number of each call
    turns: Any  # those of timers; `_NO_TIMER` for other roots
    timers: Any  # ids of the roots of the bolt's timers that were called, or came back
    stage: int  # the number of the bolt's stage
    holds: TimerHolds
    cut: Cut | None

    def keys_of(self, roots: Collection[int]) -> int:
        """Return at how many keys calls for some roots were."""
        are_theirs = np.isin(self.roots, np.array([*roots], np.uint64))
        return len(np.unique(self.keys[are_theirs]))

    def behind(self, places: Any, is_open: Any, hold: int | None) -> Any:
        """Return which rows are of calls that do not count.

        Args:
            places: The place of each row's root among all roots.
            is_open: Whether the root at a place is not done.
            hold: The first turn of what waits: no later timer counts; None: all count.
        """
        undone = is_open[places]
        if hold is not None:
            undone |= self.turns > hold
        first = np.full(int(self.keys.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, self.keys[undone], self.numbers[undone])
        return self.numbers >= first[self.keys]


class StageTimers(NamedTuple):
    """The timers of a stage's bolt that were due."""

    holds: TimerHolds
    own: Any  # ids of their roots
    others: Mapping[str, Any]  # ids of the roots of timers of other bolts, by store

    def holding(self, ids: Any, turns: Any) -> tuple[Any, Any]:
        """Return which of some roots hold these timers if they wait, and from which turn each."""
        do_hold, first = np.ones(len(ids), bool), first_turn(turns, self.holds.delay_ms)
        for store, timers in self.others.items():
            are_theirs, delay_ms = np.isin(ids, timers), self.holds.above_ms.get(store)
            if delay_ms is None:
                do_hold &= ~are_theirs
            else:
                first = np.where(are_theirs, first_turn(turns, delay_ms), first)
        return do_hold, np.where(np.isin(ids, self.own), turns, first)


def timers_of(calls: Sequence[Calls]) -> dict[int, StageTimers]:
    """Return the timers that were due, by stage."""
    none = np.zeros(0, np.uint64)
    due: dict[int, tuple[TimerHolds, Any]] = {}
    for one in calls:
        _, before = due.get(one.stage, (one.holds, none))
        due[one.stage] = one.holds, np.concatenate([before, one.timers])
    by_store = {holds.store: timers for holds, timers in due.values()}
    return {
        stage: StageTimers(
            holds, own, {store: one for store, one in by_store.items() if store != holds.store}
        )
        for stage, (holds, own) in due.items()
    }


def cuts_of(calls: Sequence[Calls]) -> dict[int, Cut]:
    """Return where stages have left tuples to the next step, by stage."""
    cuts: dict[int, Cut] = {}
    for one in calls:
        if one.cut is not None:
            before = cuts.get(one.stage, one.cut)
            roots = np.union1d(one.cut.roots, before.roots)
            cuts[one.stage] = Cut(min(one.cut.turn, before.turn), roots)
    return cuts


def holds_of(
    calls: Sequence[Calls], waiting: Any, turns: Any, cuts: Mapping[int, Cut]
) -> dict[int, int]:
    """Return by stage the first turn of what waits: later timers are not called.

    A stage that has left tuples to the next step has called all timers before them. What is held by
    that runs then, and gives what it gave now. So it holds no timer before the first tuple that
    was left: otherwise those within the bolt's delay would be undone in each step.

    Args:
        calls: The calls of all stages.
        waiting: Ids of the roots that wait.
        turns: Their turns.
        cuts: Where stages have left tuples, by stage.
    """
    found = {}
    for stage, timers in timers_of(calls).items():
        do_hold, first = timers.holding(waiting, turns)
        if stage in cuts:
            are_left = np.isin(waiting, cuts[stage].roots) & ~np.isin(waiting, timers.own)
            first = np.where(are_left, np.maximum(first, cuts[stage].turn), first)
        if do_hold.any():
            found[stage] = int(first[do_hold].min())
    return found


@dataclass(frozen=True, slots=True)
class CallsTask:
    """Reads the calls that a task has made."""

    batch: StepBatch
    log: Handle
    stage: int
    holds: TimerHolds

    def __call__(self) -> Calls:
        log = self.batch.read_key_log(self.log)
        keys: dict[tuple[str, bytes], int] = {}
        rows = [
            (
                one.root,
                keys.setdefault((one.component, one.key), len(keys)),
                one.call,
                turn_of(*log.timers[one.root].order[:2]) if one.root in log.timers else _NO_TIMER,
            )
            for one in log.images
        ]
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        kinds = (np.uint64, np.int64, np.int64, np.int64)
        roots, numbers_of_keys, calls, turns = (
            np.array(one, kind) for one, kind in zip(columns, kinds, strict=True)
        )
        timers = np.array([*log.timers], np.uint64)
        cut = None
        if log.first_left is not None:
            cut = Cut(log.first_left, np.array([*log.left_roots], np.uint64))
        known = timers, self.stage, self.holds, cut
        return Calls(roots, numbers_of_keys, calls, turns, *known)


@dataclass(frozen=True, slots=True)
class UndoCallsTask:
    """Leaves what a task has changed of keys of a field, without what is undone."""

    batch: StepBatch
    stage: Stage
    task: int
    log: Handle  # what undoes the task's changes
    verdicts: Sequence[Handle]  # what becomes of all events that are not done
    wave: int  # the wave of the step that it was in

    def __call__(self) -> TaskResult:
        log = self.batch.read_key_log(self.log)
        verdicts = [one for several in self.verdicts for one in self.batch.read_verdicts(several)]
        unfinished = {one.id for one in verdicts}
        undone = log.undo(unfinished)
        timers = [(one, log.timers[one.id]) for one in verdicts if one.id in log.timers]
        dead = [place for one, place in timers if one.is_dead]
        for place in dead:
            log.drop(place)
        # Timers that wait do so in the form of events, and later ones of their keys behind them.
        again = undone - {place[:2] for one, place in timers if not one.is_dead}
        return TaskResult(
            keys={
                (component, self.task): self.batch.write_changes(changes, self.wave)
                for component, changes in log.changes().items()
            },
            next_turn=least(*(turn_of_entry(log.left[where]) for where in again)),
            late_for_window=log.late_for_window(unfinished),
            is_open=self.batch.closes and bool(dead),
        )
