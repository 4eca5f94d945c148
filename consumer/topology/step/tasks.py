"""The tasks of a step: those of the first stage, of later stages, and of ackers.

The first stage is given the events that are due: those that waited, then the new ones. Later stages
read the tuples that earlier ones have sent them. In a topology of one stage its tasks know what
became of each event; otherwise the ackers' tasks do (`step.run`).
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.keyed_executor import KeyedExecutor
from sequitur.consumer.topology.engine.keyed_stage import KeyedStageExecutor
from sequitur.consumer.topology.engine.plan import Ordering
from sequitur.consumer.topology.engine.task_output import Start
from sequitur.consumer.topology.settling.acker import Acker, AckFlag, columns
from sequitur.consumer.topology.settling.outcomes import EventOutcome, numbered, runs_now
from sequitur.consumer.topology.settling.root import (
    Root,
    is_made,
    is_own,
    is_timer,
    last_orders,
    timer_of,
    turn_of,
)
from sequitur.consumer.topology.settling.timer_holds import earliest, line_of
from sequitur.consumer.topology.step.batch import (
    EventVerdict,
    NoOutputs,
    TaskResult,
    Told,
    emissions,
)
from sequitur.consumer.topology.step.verdicts import (
    UnfinishedEvents,
    crashed,
    first_by_keeper,
    retry_times,
)
from sequitur.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.builder import TreeFailure
    from sequitur.consumer.topology.engine.executor import ExecutorResult
    from sequitur.consumer.topology.engine.key_store import KeyStore
    from sequitur.consumer.topology.engine.plan import Sent, Stage
    from sequitur.consumer.topology.settling.root import Order, TimerPlace
    from sequitur.consumer.topology.step.batch import (
        Exchange,
        Handle,
        OutputWriter,
        PendingEvent,
        Sources,
        StepBatch,
        TaskInput,
        Window,
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of a task's input."""

    first: int = 0  # place of the first item; ticks come first, then events or tuples
    last: int | None = None  # place behind the last item; None for all
    poison: frozenset[int] = frozenset()  # places of items that are known to kill the process
    # places of items that fail, and why: a `finish_batch` raises whenever it gets them
    blamed: tuple[tuple[int, TreeFailure], ...] = ()
    # timers that are known to kill the process: bolt, key and order of each
    killers: frozenset[tuple[str, bytes, Order]] = frozenset()

    def of(self, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Return the items of this part, each with its place."""
        return itertools.islice(enumerate(items), self.first, self.last)

    def after(self, count: int) -> Trial:
        """Return the same part, with places counted from the item after the first `count`."""
        last = None if self.last is None else max(0, self.last - count)
        poison = frozenset(place - count for place in self.poison if place >= count)
        blamed = tuple((place - count, why) for place, why in self.blamed if place >= count)
        return Trial(max(0, self.first - count), last, poison, blamed, self.killers)

    @property
    def is_all(self) -> bool:
        """Whether no event and no tuple is left out."""
        return self.is_whole and not self.poison and not self.blamed

    @property
    def is_whole(self) -> bool:
        """Whether only items are left out that are known to fail."""
        return self.first == 0 and self.last is None


WHOLE: Final = Trial()


@dataclass(frozen=True, slots=True)
class SpoutTask:
    batch: StepBatch  # what all tasks share
    given: TaskInput
    states: Mapping[tuple[str, int], Handle]  # what its bolts kept in the step before
    window: Window = (0, None)  # which of the new events it takes in
    trial: Trial = WHOLE  # which part of its input is fed
    # the wave of the step that it is in; only the first has ticks and events that waited
    wave: int = 0
    # whether the events to blame are searched for if a `finish_batch` fails several events, one of
    # which has no further attempt. Then the result is not final
    blames: bool = True
    # the order of the last tuple that each task made by itself in an earlier wave, by its key
    made: Mapping[bytes, Order] = field(default_factory=dict)
    # what the task of each keyed bolt kept before, and changes of earlier waves
    keys: Mapping[tuple[str, int], Sequence[Handle]] = field(default_factory=dict)
    # gets the timer that is called, and None after it: what kills the process was called last
    tell: Callable[[TimerPlace | None], None] | None = None

    @property
    def home(self) -> tuple[int, int]:
        """Names the task in all steps."""
        return 0, self.given.partition

    @property
    def weight(self) -> int:
        """Roughly how many new events there are."""
        return self.given.weight

    @property
    def calls_timers(self) -> bool:
        return bool(self.batch.topology.keyed_by_event)

    def count(self) -> int:
        """Count the task's input: ticks and events."""
        return len(self._ticks) + sum(1 for _ in self.given.all(self.window))

    def __call__(self) -> TaskResult:
        batch, stage, partition = self.batch, self.batch.plan.stages[0], self.given.partition
        outputs = batch.outputs(emissions(self.wave, stage.number, partition))
        is_kept = batch.transaction is not None
        sends = None if batch.plan.is_local else batch.exchange(is_kept=is_kept)
        # One number for all: events that failed together are tried again together.
        drawn = random.Random(hash((*batch.seed, partition))).random()
        executor = _executor(self, stage, partition, outputs, sends, drawn)
        result, unfinished = TaskResult(), UnfinishedEvents(batch)
        waiting = self.given.waiting()
        # What a task makes now stands behind the waiting tuples that it made before.
        result.behind = last_orders(one.event for one in waiting)
        with _running(executor, batch):
            executor.make_behind(result.behind)
            if isinstance(executor, KeyedExecutor):
                executor.keys.let_wait(_waiting_timers(waiting))
            _give_ticks(executor, self._ticks, self.trial)
            after_ticks = self.trial.after(len(self._ticks))
            if after_ticks.is_all:
                result.made_tried = self._feed_waiting(waiting, executor, unfinished)
                result.taken = self._feed_new(executor)
            else:
                self._feed_part(after_ticks, waiting, executor, unfinished, result)
            if isinstance(executor, KeyedExecutor) and not self._has_more(result.taken):
                executor.call_rest()  # else events of later waves may come before
            executor.finish()
            result.states = batch.write_states(executor.snapshots(), self.states)
            result.has_to_blame = self.blames and executor.has_to_blame
            if self.trial.is_whole and not result.has_to_blame:
                executor.keep()
        found = executor.result()
        result.has_more = self._has_more(result.taken)
        result.acked = found.acked
        self._tell_waiting(waiting, unfinished.skipped, executor, result)
        if isinstance(executor, KeyedExecutor):
            for place, at_ms in executor.killed:
                unfinished.add_killer(place.event(at_ms), 1)
            self._leave_keys(executor, found, unfinished.skipped, result)
        self._leave_unfinished(found, unfinished, result)
        if isinstance(executor, KeyedExecutor):
            result.made_left += len(executor.killed)
        if sends is not None:
            sends.close()
            result.tuples_file, result.tuples = sends.path, sends.index
            # In the order of the stream, as all events are that are settled together.
            roots = sorted(found.roots, key=_order_of)
            emitted = [root for root in roots if root.is_tracked]
            result.acked += len(roots) - len(emitted)
            result.told = _told(found, emitted, batch, is_spout=True)
            if isinstance(executor, KeyedExecutor) and executor.called:
                told = batch.write_made(executor.called)
                result.told = replace(result.told, timers_file=told)
        _tell_counts(found, outputs, result)
        return result

    @property
    def _ticks(self) -> tuple[str, ...]:
        return () if self.wave else self.batch.ticks_of(self.batch.plan.stages[0])

    def _new(self) -> Iterator[tuple[Any, ...]]:
        return itertools.islice(self.given.new(), *self.window)

    def _feed_waiting(
        self, waiting: Sequence[PendingEvent], executor: Executor, unfinished: UnfinishedEvents
    ) -> int:
        """Feed the waiting events that are due. The others hold back later events of their keys."""
        made, by_field = 0, self.batch.topology.stores_by_field
        ids = itertools.count(self.given.first_id)
        for root, pending, runs in zip(ids, waiting, self._run_now(waiting), strict=False):
            event = pending.event
            if runs:
                root_ = self._root(root, event, pending.attempts + 1)
                made += _feed(executor, root_, event)
            else:
                executor.hold_back(line_of(event, by_field), event[3:7])
                unfinished.skip(pending)
        return made

    def _feed_new(self, executor: Executor) -> int:
        """Feed the new events; return how many."""
        feed, first = executor.feed, self.given.first_new_id(self.window)
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        root, new = first - 1, self._new()
        if isinstance(executor, KeyedExecutor):
            new = executor.keys.loaded(new)
        if isinstance(tracked, bool):
            for root, event in enumerate(new, first):
                feed(Root(root, event, 1, 0.0, tracked), event)
        else:
            for root, event in enumerate(new, first):
                feed(self._root(root, event, 1), event)
        return root + 1 - first

    def _feed_part(
        self,
        trial: Trial,
        waiting: Sequence[PendingEvent],
        executor: Executor,
        unfinished: UnfinishedEvents,
        result: TaskResult,
    ) -> None:
        """Feed a part of the events, without those that kill the process."""
        blamed, by_field = dict(trial.blamed), self.batch.topology.stores_by_field
        runs = self._run_now(waiting)
        for place, (root, pending, event) in trial.of(self.given.all(self.window)):
            attempt = 1 if pending is None else pending.attempts + 1
            result.taken += pending is None
            is_it_own = pending is not None and is_own(event)
            if pending is not None and not runs[place]:
                executor.hold_back(line_of(event, by_field), event[3:7])
                unfinished.skip(pending)
            elif place in trial.poison:
                unfinished.add_killer(event, attempt)
                if is_timer(event) and isinstance(executor, KeyedExecutor):
                    executor.keys.drop_killer(timer_of(event)[0])
            else:
                result.made_tried += is_it_own
                if place in blamed:
                    executor.refuse(self._root(root, event, attempt), event, blamed[place])
                elif is_it_own:
                    _feed(executor, self._root(root, event, attempt), event)
                else:
                    executor.feed(self._root(root, event, attempt), event)

    def _root(self, root: int, event: tuple[Any, ...], attempt: int) -> Root:
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        if is_own(event):
            tracked = bool(self.batch.ackers)
        if not isinstance(tracked, bool):
            try:
                tracked = bool(tracked(EventValues(*event)))
            except Exception as error:
                spout = self.batch.topology.spout.id
                raise TopologyError(f"spout {spout!r}: `tracked` raised {error!r}") from error
        return Root(root, event, attempt, 0.0, tracked)

    def _run_now(self, waiting: Sequence[PendingEvent]) -> list[bool]:
        """Return for each waiting event whether it runs now."""
        if self.wave:
            return [False] * len(waiting)
        by_field = self.batch.topology.stores_by_field
        runs: list[bool] = runs_now(
            numbered(line_of(one.event, by_field) for one in waiting),
            retry_times(waiting),
            self.batch.now_ms,
            policy=self.batch.rules.retry,
            keeps_order=self.batch.rules.ordering is Ordering.KEY,
        ).tolist()
        return runs

    def _has_more(self, taken: int) -> bool:
        return self.window[1] is not None and taken == self.window[1] - self.window[0]

    def _tell_waiting(
        self,
        waiting: Sequence[PendingEvent],
        skipped: Sequence[PendingEvent],
        executor: Executor,
        result: TaskResult,
    ) -> None:
        """Tell keyed bolts of later stages what waits: it holds their timers."""
        by_field, keepers = self.batch.topology.stores_by_field, self.batch.topology.key_stores
        if not by_field:
            return
        retries_ms: dict[bytes | None, int] = {}  # of the first one of each line
        for one in skipped:
            retries_ms.setdefault(line_of(one.event, by_field), one.retry_at_ms or 0)
        not_tried: dict[str, tuple[int, int]] = {}
        for keeper, one in first_by_keeper(skipped, keepers).items():
            line, at_ms = line_of(one.event, by_field), one.retry_at_ms or 0
            if line is not None:  # it may wait for the first one there
                at_ms = retries_ms[line]
            not_tried[keeper] = turn_of(*one.event[3:5]), at_ms
        left = None
        if isinstance(executor, KeyedExecutor):
            left = executor.first_left({one.event[0] for one in skipped} - {None})
        result.not_tried = not_tried
        result.waits = earliest(
            executor.waits,
            {keeper: turn for keeper, (turn, _) in not_tried.items()},
            {} if left is None else {"": left},
        )
        result.waiting_timers = [
            (root, place)
            for root, one in enumerate(waiting, self.given.first_id)
            if is_timer(one.event)
            for place, _ in [timer_of(one.event)]
            if place.component in by_field
        ]

    def _leave_keys(
        self,
        executor: KeyedExecutor,
        found: ExecutorResult,
        skipped: Sequence[PendingEvent],
        result: TaskResult,
    ) -> None:
        """Leave what has changed of keys: what is done, where that is known here."""
        batch, log, task = self.batch, executor.keys.log, self.given.partition
        left = {one.root.id: one for one in found.unfinished}
        log.undo(left)
        for one in left.values():
            if one.outcome is EventOutcome.DEAD and is_timer(one.root.event):
                executor.keys.drop(timer_of(one.root.event)[0])
        executor.drop_failed()
        result.keys = {
            (component, task): batch.write_changes(changes, self.wave)
            for component, changes in log.changes().items()
        }
        result.late_for_window = log.late_for_window(left)
        if not batch.plan.is_local and (log.left or log.late):
            result.key_log = batch.write_key_log(log)
        blocked = {one.event[0] for one in skipped}
        blocked |= {one.root.key for one in left.values() if one.outcome is not EventOutcome.DEAD}
        result.next_timer_ms = executor.keys.next_timer_ms(blocked)
        result.closed_ms, result.is_open = executor.keys.closed_ms, executor.keys.is_open(blocked)
        result.is_cut = executor.keys.is_cut
        executor.keys.close()

    def _leave_unfinished(
        self, found: ExecutorResult, unfinished: UnfinishedEvents, result: TaskResult
    ) -> None:
        """Leave the events that this task knows are not done."""
        for one in sorted(found.unfinished, key=lambda one: one.root.order):
            root = one.root
            verdict = EventVerdict.of(
                root.id,
                one.outcome,
                attempts=one.attempts,
                retry_at_ms=one.retry_at_ms,
                failure=root.failure,
            )
            unfinished.add(root.event, verdict)
        unfinished.drop(found.dropped)
        unfinished.write(result)
        if self.trial.is_whole and not result.has_to_blame:
            ids = {one.root.id for one in found.unfinished}
            done = [
                (root.event, root.attempt)
                for root in found.fed
                if self.batch.plan.is_local and root.is_tracked and root.id not in ids
            ]
            unfinished.notify_hook(done)


@dataclass(frozen=True, slots=True)
class StageTask:
    batch: StepBatch  # what all tasks share
    stage: Stage
    task: int
    sources: Sources  # the tuples for it
    states: Mapping[tuple[str, int], Handle]  # what its bolts kept in the step before
    trial: Trial = WHOLE  # which part of its input its bolts get
    wave: int = 0  # the wave of the step that it is in; only the first has ticks
    blames: bool = True
    # roots that are known not to be done: their tuples are left out
    unfinished: Sequence[Handle] = ()
    # the order of the first event that is known to wait, by key
    blocked: Mapping[bytes, Order] = field(default_factory=dict)
    # the order of the last tuple that each task made and that waits, by the task's key
    behind: Mapping[bytes, Order] = field(default_factory=dict)
    made: Mapping[bytes, Order] = field(default_factory=dict)
    # of a stage with a bolt that is keyed by a field: what its task kept before
    keys: Mapping[tuple[str, int], Sequence[Handle]] = field(default_factory=dict)
    hold: int | None = None  # the first turn of what is known to wait: no later timer is called
    waiting: Sequence[TimerPlace] = ()  # timers of such bolts that wait in the form of events
    dropped: Sequence[TimerPlace] = ()  # those among them that are known to be given up
    is_again: bool = False  # whether it runs once more, without events that are not done
    # as of a `SpoutTask`
    tell: Callable[[TimerPlace | None], None] | None = None

    @property
    def home(self) -> tuple[int, int]:
        """Names the task in all steps."""
        return self.stage.number, self.task

    @property
    def weight(self) -> int:
        """Roughly how large its tuples are."""
        return self.batch.weight(self.sources)

    @property
    def calls_timers(self) -> bool:
        return self.stage.components[0] in self.batch.topology.keyed_by_field

    def count(self) -> int:
        """Count the task's input: ticks and tuples."""
        return len(self._ticks) + sum(1 for _ in self.batch.tuples_in_order(self.sources))

    def __call__(self) -> TaskResult:
        batch, stage = self.batch, self.stage
        is_rehearsal = batch.is_rehearsal(stage)
        outputs: OutputWriter = NoOutputs()
        if not is_rehearsal:
            outputs = batch.outputs(emissions(self.wave, stage.number, self.task))
        sends = batch.exchange(is_kept=batch.transaction is not None and not stage.is_commit)
        executor = _executor(self, stage, self.task, outputs, sends)
        result = TaskResult(is_rehearsal=is_rehearsal)
        with _running(executor, batch):
            executor.make_behind(self.behind)
            _give_ticks(executor, self._ticks, self.trial)
            self._receive(executor)
            if isinstance(executor, KeyedStageExecutor):
                executor.call_rest()
            executor.finish()
            if not is_rehearsal:
                result.states = batch.write_states(executor.snapshots(), self.states)
                result.has_to_blame = self.blames and executor.has_to_blame
                if self.trial.is_whole and not result.has_to_blame:
                    executor.keep()
        sends.close()
        result.tuples_file, result.tuples = sends.path, sends.index
        found = executor.result()
        result.waits = executor.waits
        if isinstance(executor, KeyedStageExecutor):
            self._leave_keys(executor, result)
            left = executor.first_left
            if left is not None:
                own = batch.topology.components[stage.components[0]].key_store
                result.waits = earliest(executor.waits, {own: left})
            executor.keys.close()
        if not batch.is_commit:
            result.told = _told(
                found, found.roots, batch, is_spout=False, is_rehearsal=is_rehearsal
            )
        _tell_counts(found, outputs, result)
        if found.dropped:
            result.unfinished_file = batch.write_unfinished(found.dropped)
        return result

    def _leave_keys(self, executor: KeyedStageExecutor, result: TaskResult) -> None:
        """Leave what has changed of keys if all is done, and what undoes it."""
        batch, log = self.batch, executor.keys.log
        executor.drop_failed()
        result.keys = {
            (component, self.task): batch.write_changes(changes, self.wave)
            for component, changes in log.changes().items()
        }
        is_told = log.left or log.images or log.timers or log.first_left is not None
        if batch.transaction is None and is_told:
            result.key_log = batch.write_key_log(log)
        waiting = executor.waiting_keys
        result.next_turn = executor.keys.next_turn(waiting)
        result.late_for_window = log.late_for_window(())
        result.closed_ms = executor.keys.closed_ms
        result.is_cut = executor.is_cut
        result.is_open = executor.keys.is_open(waiting)

    def _receive(self, executor: Executor) -> None:
        """Give bolts the tuples of this part, except those that are known to fail."""
        batch, trial = self.batch, self.trial.after(len(self._ticks))
        failures = {**dict.fromkeys(trial.poison), **dict(trial.blamed)}
        left_out = batch.read_unfinished(self.unfinished) if self.unfinished else frozenset()
        _hold_back(executor, self.blocked)
        tuples: Iterator[tuple[str, Sent, int]] = (
            (component, sent, place)
            for place, (component, sent) in trial.of(batch.tuples_in_order(self.sources))
            if not left_out or all(root.id not in left_out for root, _ in sent.trees)
        )
        if isinstance(executor, KeyedStageExecutor):
            tuples = executor.loaded(tuples, failures)
        for component, sent, place in tuples:
            if place in failures:
                executor.give_up(sent, failures[place] or crashed((*sent.path, component)))
            else:
                executor.receive(component, self.task, sent)

    @property
    def _ticks(self) -> tuple[str, ...]:
        return () if self.wave else self.batch.ticks_of(self.stage)


@dataclass(frozen=True, slots=True)
class KeptTask:
    """Tells whether a transaction's task keeps anything of some roots."""

    acks: Handle  # what the task knows of roots
    ackers: int
    read: Callable[[Handle, int], tuple[Any, Any, Any]]
    roots: Any

    def __call__(self) -> bool:
        columns_of = (self.read(self.acks, acker) for acker in range(self.ackers))
        return any(
            bool(np.isin(ids[(flags & np.uint8(AckFlag.KEPT)) != 0], self.roots).any())
            for ids, _, flags in columns_of
        )


@dataclass(frozen=True, slots=True)
class AckerTask:
    """Runs an acker: it tells which of its roots are done."""

    acks: Sequence[Handle]  # what tasks know of roots
    acker: int
    # reads what one of `acks` has for an acker: ids, values, flags
    read: Callable[[Handle, int], tuple[Any, Any, Any]]

    def __call__(self) -> tuple[int, Any, Any]:
        """Return how many roots are done, and the ids and flags of the others."""
        acker = Acker()
        for one in self.acks:
            acker.add(*self.read(one, self.acker))
        trees = acker.outcomes()
        return trees.acked, trees.unfinished, trees.flags


def _executor(  # noqa: PLR0917 - private, and each is of a type of its own
    of: SpoutTask | StageTask,
    stage: Stage,
    task: int,
    outputs: OutputWriter,
    sends: Exchange | None,
    drawn: float = 0.0,
) -> Executor:
    batch = of.batch
    is_again = isinstance(of, StageTask) and of.is_again
    instances = None if batch.is_rehearsal(stage) else batch.instances
    if instances is not None:
        instances.begin(batch.run, batch.counted)
    keys: dict[str, KeyStore] = {}
    made: Callable[..., Executor] = Executor
    if isinstance(of, SpoutTask) and batch.topology.keyed_by_event:
        keys = {
            component: batch.key_store((component, task), of.keys.get((component, task), ()))
            for component, bolt in batch.topology.key_stores.items()
            if bolt in batch.topology.keyed_by_event
        }
        made = partial(KeyedExecutor, killers=of.trial.killers, tell=of.tell)
    elif isinstance(of, StageTask) and of.calls_timers:
        component = stage.components[0]
        keys = {
            name: batch.key_store((name, task), of.keys.get((name, task), ()))
            for name, bolt in batch.topology.key_stores.items()
            if bolt == component
        }
        made = partial(
            KeyedStageExecutor,
            component=component,
            hold=of.hold,
            waiting=of.waiting,
            dropped=of.dropped,
            killers=of.trial.killers,
            tell=of.tell,
        )
    return made(
        batch.topology,
        batch.plan.placement(stage, task),
        batch.rules,
        clock=batch.clock,
        next_id=batch.ids(stage.number, task),
        write=outputs.write,
        send=None if sends is None else sends.send,
        start=Start(
            moment=batch.moment,
            states={place: batch.read_state(state) for place, state in of.states.items()},
            transaction=batch.transaction,
            random=drawn,
            numbers=emissions(of.wave, stage.number, task, is_again=is_again),
            is_again=is_again,
            offsets=batch.offsets(of.made.values()),
            tracks_made=bool(batch.ackers),
            last_made=of.made,
            keys=keys,
            room=batch.room,
        ),
        instances=instances,
        trace=batch.trace,
        runs_inline=batch.runs_inline,
    )


def _feed(executor: Executor, root: Root, event: tuple[Any, ...]) -> bool:
    """Feed a waiting event; return whether it is of no event, but of what a bolt made or set."""
    if is_timer(event):
        executor.feed_timer(root, event)
        return True
    made = is_made(event)
    executor.feed(root, event, is_own=made)
    return made


def _waiting_timers(waiting: Iterable[PendingEvent]) -> Iterator[TimerPlace]:
    return (timer_of(one.event)[0] for one in waiting if is_timer(one.event))


def _hold_back(executor: Executor, orders: Mapping[bytes, Order]) -> None:
    """Hold the events of each key that are later than the key's order."""
    for key, order in orders.items():
        executor.hold_back(key, order)


@contextlib.contextmanager
def _running(executor: Executor, batch: StepBatch) -> Iterator[None]:
    """Watch the executor while it runs, then let bolts clean up."""
    try:
        with batch.watched(executor):
            yield
    finally:
        executor.close()


def _order_of(root: Root) -> Order:
    return root.order


def _give_ticks(executor: Executor, ticks: Sequence[str], trial: Trial) -> None:
    """Give bolts the ticks of this part of the input, except those that are known to fail."""
    places = dict(trial.of(ticks))
    failures = {**dict.fromkeys(trial.poison, crashed(())), **dict(trial.blamed)}
    executor.tick([bolt for place, bolt in places.items() if place not in failures])
    for place in failures.keys() & places.keys():
        executor.give_up_tick(places[place], failures[place])


def _tell_counts(found: ExecutorResult, outputs: OutputWriter, result: TaskResult) -> None:
    result.late_acks, result.made = found.late_acks, found.made
    result.last_made = found.last_made
    result.untracked_failures = found.untracked_failures
    result.finish_failures = list(found.finish_failures)
    result.files = outputs.close()
    result.emitted = found.emitted
    result.batch = found.batch
    result.outputs = outputs.count


def _told(
    found: ExecutorResult,
    roots: Sequence[Root],
    batch: StepBatch,
    *,
    is_spout: bool,
    is_rehearsal: bool = False,
) -> Told:
    """Leave for the ackers what this task knows of its trees."""
    made = sorted((*(root for root, _ in found.roots_made), *found.undone), key=_order_of)
    ids, values, flags = columns([*roots, *made])
    if is_rehearsal:
        flags &= ~np.uint8(AckFlag.KEPT)
    flags[0 if is_spout else len(flags) - len(made) :] |= np.uint8(AckFlag.INIT)
    shared = [[root.id for root in several if root.is_tracked] for several in found.shared]
    events = [(root.id, event) for root, event in found.roots_made]
    return Told(
        made_file=batch.write_made(events) if made else None,
        made_roots_file=batch.write_roots(made) if made else None,
        undone=frozenset(root.id for root in found.undone),
        blocked={} if batch.transaction is None else found.blocked,
        roots_file=batch.write_roots(roots) if is_spout else None,
        acks_file=batch.write_acks(ids, values, flags) if batch.ackers else None,
        failures={root.id: root.failure for root in (*roots, *made) if root.failure is not None},
        shared=[tuple(several) for several in shared if len(several) > 1],
    )
