"""What becomes of events that are not done; `decide` makes verdicts of what ackers tell."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.base.copy_headers import FailReason
from sequitur.consumer.topology.api.builder import AckedEvent, FailedEvent, TreeFailure, notify
from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.engine.plan import Ordering
from sequitur.consumer.topology.settling.acker import AckFlag
from sequitur.consumer.topology.settling.outcomes import EventOutcome, next_due_ms, numbered, settle
from sequitur.consumer.topology.settling.root import (
    component_of,
    is_made,
    is_own,
    never_acked,
    turn_of,
)
from sequitur.consumer.topology.settling.timer_holds import keeper_of, line_of
from sequitur.consumer.topology.step.batch import (
    EventVerdict,
    PendingEvent,
    TaskResult,
    components_of,
)
from sequitur.consumer.topology.step.key_ties import holds_of, timers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.settling.outcomes import Settlement
    from sequitur.consumer.topology.step.batch import (
        EmittedRoots,
        Handle,
        StepBatch,
        TaskInput,
        Window,
    )
    from sequitur.consumer.topology.step.key_ties import Calls, Cut


class UnfinishedEvents:
    """The events of a first-stage task that are not done."""

    def __init__(self, batch: StepBatch) -> None:
        self._batch = batch
        self.skipped: list[PendingEvent] = []
        self._again: list[PendingEvent] = []
        self._dead: list[PendingEvent] = []
        self._roots: list[int] = []
        self._made = 0

    def skip(self, pending: PendingEvent) -> None:
        """Add an event that waits and was not tried in this step."""
        self.skipped.append(pending)

    def add(self, event: tuple[Any, ...], verdict: EventVerdict) -> None:
        """Add an event that was tried or held, with its verdict."""
        one = verdict.pending_event(event)
        if is_own(event):
            self._made += 1
            if one.reason == FailReason.NEVER_ACKED and is_made(event):
                one = one._replace(path=component_of(event))
        (self._dead if verdict.is_dead else self._again).append(one)
        self._roots.append(verdict.id)

    def drop(self, roots: Iterable[int]) -> None:
        """Add roots without an event. Their records may not go out."""
        self._roots += roots

    def add_killer(self, event: tuple[Any, ...], attempts: int) -> None:
        """Give up an event that kills the process it is given to."""
        failure = crashed(())
        self._dead.append(
            PendingEvent(event, attempts, None, failure.reason.value, failure.detail, "")
        )

    def write(self, result: TaskResult) -> None:
        """Leave them for later steps and for the sink."""
        batch = self._batch
        waiting = sorted((*self.skipped, *self._again), key=lambda one: one.event[3:7])
        for one in (*self._again, *self._dead):
            if one.reason is not None:
                result.failed[one.reason] = result.failed.get(one.reason, 0) + 1
        result.made_left = self._made
        result.made_waiting = sum(1 for one in waiting if is_own(one.event))
        result.made_dead = sum(1 for one in self._dead if is_own(one.event))
        result.waiting = len(waiting) - result.made_waiting
        result.dead = len(self._dead) - result.made_dead
        result.next_due_ms = _next_due_ms(waiting, batch)
        # A tuple that a task made at a tick does not hold back the watermark, which ticks go by.
        times_ms = (one.event[3] for one in waiting if not is_made(one.event))
        result.least_waiting_ms = next(times_ms, None)
        if batch.topology.keyed_by_field:
            firsts = first_by_keeper(waiting, batch.topology.key_stores)
            result.waiting_turns = {
                keeper: turn_of(*one.event[3:5]) for keeper, one in firsts.items()
            }
        if batch.topology.is_keyed:
            result.blocked = {one.event[0] for one in waiting} - {None}
        result.waiting_file = batch.write_waiting(waiting)
        if self._dead:
            result.dead_file = batch.write_dead(self._dead)
        if self._roots:
            result.unfinished_file = batch.write_unfinished(self._roots)

    def notify_hook(self, done: Iterable[tuple[tuple[Any, ...], int]]) -> None:
        """Notify the topology's hook, if it has one, of these events and of those that are done."""
        batch, hook = self._batch, self._batch.topology.hook
        if hook is None:
            return
        took_ms = max(0, batch.time_ms() - batch.now_ms)
        for event, attempt in done:
            notify(hook, AckedEvent(EventValues(*event), attempt, took_ms))
        for is_dead, several in ((False, self._again), (True, self._dead)):
            for one in several:
                if one.reason is None or is_own(one.event):
                    continue
                reason, path = FailReason(one.reason), components_of(one.path)
                failure = TreeFailure(reason, one.detail or "", path)
                event = EventValues(*one.event)
                notify(hook, FailedEvent(event, one.attempts, took_ms, failure, is_dead))


def _next_due_ms(waiting: Sequence[PendingEvent], batch: StepBatch) -> int | None:
    """Return when the next event is tried again. One that waits for no other is due at once."""
    by_field = batch.topology.stores_by_field
    due_ms = next_due_ms(
        numbered(line_of(one.event, by_field) for one in waiting),
        retry_times(waiting),
        keeps_order=batch.rules.ordering is Ordering.KEY,
    )
    return None if due_ms is None else max(due_ms, batch.now_ms)


def first_by_keeper(
    waiting: Iterable[PendingEvent], keepers: Collection[str]
) -> dict[str, PendingEvent]:
    """Return the first of what waits, in its order, by `keeper_of`. Made tuples hold no timers."""
    firsts: dict[str, PendingEvent] = {}
    for one in waiting:
        if not is_made(one.event):
            firsts.setdefault(keeper_of(one.event, keepers), one)
    return firsts


def retry_times(waiting: Iterable[PendingEvent]) -> Any:
    """Return when each waiting event may run; 0 for a held one."""
    return np.array([one.retry_at_ms or 0 for one in waiting], np.int64)


def crashed(path: tuple[str, ...]) -> TreeFailure:
    """Return the failure of what kills its process."""
    return TreeFailure(FailReason.CRASH, "the process died whenever it was given this", path)


@dataclass(frozen=True, slots=True)
class UnfinishedRoots:
    """The roots that ackers found not to be done."""

    ids: Any
    flags: Any
    failures: Mapping[int, TreeFailure]  # why roots failed, as far as tasks know
    shared: Sequence[tuple[int, ...]]  # ids of roots that share an output
    calls: Sequence[Calls] = ()  # of bolts that are keyed by a field
    # turn and retry of the oldest events that were not tried, by `keeper_of`
    not_tried: Sequence[tuple[str, tuple[int, int]]] = ()
    cuts: Mapping[int, Cut] = field(default_factory=dict)  # see `cuts_of`
    held_by_tasks: Any = ()  # ids of those that some task did not take in, or left

    def cuts_for(self, waiting: Any) -> dict[int, Cut]:
        """Return the cuts with all roots that ran wherever nothing was left, and wait.

        Others were held back before they came to the stage: nobody knows what they give there.
        """
        ran = waiting[~np.isin(waiting, self.held_by_tasks)]
        return {
            stage: cut._replace(roots=np.union1d(cut.roots, ran))
            for stage, cut in self.cuts.items()
        }

    def failure_of(self, root: int, spout: str) -> TreeFailure:
        return self.failures.get(root) or never_acked(spout)


def decide(
    batch: StepBatch, roots: Sequence[Handle], found: UnfinishedRoots
) -> list[list[EventVerdict]]:
    """Decide what becomes of the events that are not done, by first-stage task."""
    emitted = batch.emitted_roots(roots)
    ids = emitted.ids
    order = np.argsort(ids)

    def places_of(wanted: Any) -> Any:
        return order[np.searchsorted(ids, np.asarray(wanted, np.uint64), sorter=order)]

    forgotten = never_acked(batch.topology.spout.id)
    failures: dict[int, TreeFailure] = {}
    held: list[int] = []
    for place, root, flags in zip(
        places_of(found.ids).tolist(), found.ids.tolist(), found.flags.tolist(), strict=True
    ):
        failure = found.failures.get(root)
        if failure is None and flags & AckFlag.HELD:
            held.append(place)
        else:
            failures[place] = failure or forgotten
    reasons = {place: failure.reason for place, failure in failures.items()}
    shared = [places_of(several) for several in found.shared]
    settled_with = partial(
        settle,
        emitted.keys.astype(np.int64),
        emitted.attempts.astype(np.int64),
        reasons,
        now_ms=batch.now_ms,
        policy=batch.rules.retry,
        random=random.Random(hash(batch.seed)).random(),
        shared=shared,
        keeps_order=batch.rules.ordering is Ordering.KEY,
        dead_block=batch.topology.is_keyed,
    )
    settled = settled_with(held)
    if found.calls:
        settled = _tied(settled, settled_with, held, failures, found, emitted, places_of)
    verdicts, begin = [], 0
    for count in emitted.counts:
        left = settled.outcomes[begin : begin + count] != EventOutcome.DONE
        verdicts.append(_verdicts(np.flatnonzero(left) + begin, emitted, failures, settled))
        begin += count
    return verdicts


_MOST_TIES: Final = 32
"""So many turns at most are followed from key to key. Then all later events are held."""


def _tied(  # noqa: PLR0917 - private, and each is of a type of its own
    settled: Settlement,
    settled_with: Callable[[Sequence[int]], Settlement],
    held: Sequence[int],
    failures: Mapping[int, TreeFailure],
    found: UnfinishedRoots,
    emitted: EmittedRoots,
    places_of: Callable[[Any], Any],
) -> Settlement:
    """Settle a batch with ties by keys of fields: hold what came behind an undone call."""
    places = [places_of(one.roots) for one in found.calls]
    turns, held_now = emitted.turns, list(held)
    for turn in range(_MOST_TIES + 1):
        is_open = settled.outcomes != EventOutcome.DONE
        waits = is_open & (settled.outcomes != EventOutcome.DEAD)
        cuts = {} if failures else found.cuts_for(emitted.ids[waits])
        holds = holds_of(found.calls, emitted.ids[waits], turns[waits], cuts)
        behind = [
            at[one.behind(at, is_open, holds.get(one.stage))]
            for one, at in zip(found.calls, places, strict=True)
        ]
        more = np.unique(np.concatenate(behind))
        more = more[~is_open[more]]
        if not len(more):
            break
        if turn == _MOST_TIES:
            more = np.flatnonzero(~is_open & (turns >= turns[is_open].min()))
        held_now += more.tolist()
        settled = settled_with(held_now)
    _hold_timers(settled, found, emitted, places_of)
    return settled


def _hold_timers(
    settled: Settlement,
    found: UnfinishedRoots,
    emitted: EmittedRoots,
    places_of: Callable[[Any], Any],
) -> None:
    """Let timers that are held wait for the retries of the older events that hold them.

    What holds them may be held itself, by an event of its key.
    """
    again, keys = settled.outcomes == EventOutcome.RETRY, emitted.keys.astype(np.intp)
    have_keys, are_held = keys >= 0, settled.outcomes == EventOutcome.HELD
    of_keys = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
    np.maximum.at(of_keys, keys[again & have_keys], settled.retry_at_ms[again & have_keys])
    retries_ms = settled.retry_at_ms.copy()
    retries_ms[are_held & have_keys] = of_keys[keys[are_held & have_keys]]
    for one in timers_of(found.calls).values():
        own = places_of(one.own).astype(np.intp)
        are_others, turns = one.holding(emitted.ids, emitted.turns)
        older = (again | are_held) & are_others
        not_tried = [
            (one.holds.first({keeper: turn}), at_ms) for keeper, (turn, at_ms) in found.not_tried
        ]
        for place in own[settled.outcomes[own] == EventOutcome.HELD].tolist():
            turn = turns[place]
            retries = retries_ms[older & (turns < turn)].tolist()
            retries += [at_ms for first, at_ms in not_tried if first is not None and first < turn]
            settled.retry_at_ms[place] = max(retries, default=0)


def _verdicts(
    places: Any, emitted: EmittedRoots, failures: Mapping[int, TreeFailure], settled: Settlement
) -> list[EventVerdict]:
    columns = (emitted.ids, settled.outcomes, settled.attempts, settled.retry_at_ms)
    return [
        EventVerdict.of(
            root,
            outcome,
            attempts=attempts,
            retry_at_ms=retry_at_ms,
            failure=failures.get(place),
        )
        for place, root, outcome, attempts, retry_at_ms in zip(
            places.tolist(), *(column[places].tolist() for column in columns), strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class VerdictTask:
    """Leaves the events of a first-stage task that are not done."""

    batch: StepBatch  # what all tasks share
    given: TaskInput  # the task's events
    window: Window  # which of the new events it took in
    verdicts: Handle  # what becomes of the events that are not done
    roots: Handle  # the roots that the task emitted
    # tuples that tasks made by themselves: those that wait do so with the task's events
    made: Sequence[Handle] = ()

    def __call__(self) -> TaskResult:
        verdicts = {one.id: one for one in self.batch.read_verdicts(self.verdicts)}
        unfinished = UnfinishedEvents(self.batch)
        result = TaskResult()
        attempts = self._attempts()
        done = []
        for root, _, event in self.given.all(self.window):
            verdict = verdicts.get(root)
            if verdict is not None:
                unfinished.add(event, verdict)
            elif root in attempts and not is_own(event):
                done.append((event, attempts[root]))
        for root, event in (one for several in self.made for one in self.batch.read_made(several)):
            if root in verdicts:
                unfinished.add(event, verdicts[root])
        unfinished.write(result)
        unfinished.notify_hook(done)
        return result

    def _attempts(self) -> Mapping[int, int]:
        """Return the attempts of the emitted roots, by id; none without a hook."""
        return {} if self.batch.topology.hook is None else self.batch.attempts_of(self.roots)
