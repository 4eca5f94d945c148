"""Running a topology on the events of a step: stage after stage, then the ackers if several.

Begin at `StepRun.run`.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from sequitur.base.copy_headers import FailReason
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.engine.runner import FINISH_OVERRAN
from sequitur.consumer.topology.engine.task_output import finish_words
from sequitur.consumer.topology.settling.acker import AckFlag
from sequitur.consumer.topology.settling.root import is_timer, least
from sequitur.consumer.topology.settling.timer_holds import TimerHolds, earliest
from sequitur.consumer.topology.step.key_ties import (
    CallsTask,
    KnownRoots,
    UndoCallsTask,
    cuts_of,
    holds_of,
)
from sequitur.consumer.topology.step.tasks import AckerTask, SpoutTask, StageTask
from sequitur.consumer.topology.step.undone_keys import UndoTask
from sequitur.consumer.topology.step.verdicts import UnfinishedRoots, VerdictTask, decide
from sequitur.errors import ConservationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias, TypeVar

    from sequitur.consumer.topology.engine.plan import Stage
    from sequitur.consumer.topology.settling.root import Order
    from sequitur.consumer.topology.step.batch import (
        EventVerdict,
        Handle,
        StepBatch,
        TaskInput,
        TaskResult,
        Window,
    )

    Task: TypeAlias = SpoutTask | StageTask
    T = TypeVar("T")
    SentTuples: TypeAlias = tuple[Handle, Mapping[tuple[str, int], Any]]
    """What a task has sent, and the places of the tuples for each component's task."""


_MOST_STEPS: Final = 64
"""A process that has not had a task for so many steps creates its bolts again."""


class CountedRuns:
    """The runs of the newest steps whose results counted, in one life of a job.

    A result counts until its step begins again. Then the results of all later steps no longer
    count either: these were made ahead. One thread may begin steps, and another may add them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[int, frozenset[str]] = {}

    @property
    def names(self) -> frozenset[str]:
        with self._lock:
            return frozenset().union(*self._runs.values())

    def begin(self, step: int) -> None:
        """Begin a step. Earlier results of this step and of later ones no longer count."""
        with self._lock:
            self._runs = {one: runs for one, runs in self._runs.items() if one < step}

    def add(self, step: int, runs: Iterable[str]) -> None:
        """Add the runs that a step's result comes from."""
        with self._lock:
            self._runs[step] = self._runs.get(step, frozenset()).union(runs)
            for one in sorted(self._runs)[:-_MOST_STEPS]:
                del self._runs[one]


_MOST: Final = 16
"""At most so many events are found to blame. A bolt that raises for more raises for all."""


def without_blamed(tasks: Tasks, task: Task) -> TaskResult:
    """Run a task again whose `finish_batch` raised, without the events to blame.

    The failure counts for all events of the task, some have no further attempt, and most are
    innocent. So the task runs on more and more of its input, until it is known with which item it
    begins to raise. That item fails, and the task runs again without it.
    """
    whole = task
    (empty,) = tasks.run([_up_to(task, 0)])
    if empty.finish_failures:
        return _last_word(tasks, whole)
    (count,) = tasks.repeat([task.count])
    passes = 0  # with so many items it does not raise
    for _ in range(_MOST):
        (result,) = tasks.run([task])
        if not result.has_to_blame:
            return result
        raises, raised = count, result.finish_failures
        while raises - passes > 1:
            middle = (passes + raises) // 2
            (part,) = tasks.run([_up_to(task, middle)])
            if part.finish_failures:
                raises, raised = middle, part.finish_failures
            else:
                passes = middle
        if passes == count:
            break  # with all to blame left out it still raises: the events are not
        blamed = (*task.trial.blamed, (passes, _failure(*raised[0])))
        task = replace(task, trial=replace(task.trial, blamed=blamed))
        passes += 1
    else:
        (result,) = tasks.run([task])
        if not result.has_to_blame:
            return result
    return _last_word(tasks, whole)


def _up_to(task: Task, count: int) -> Task:
    return replace(task, trial=replace(task.trial, last=count))


def _last_word(tasks: Tasks, task: Task) -> TaskResult:
    (result,) = tasks.run([replace(task, blames=False)])
    return result


def _failure(component: str, detail: str) -> TreeFailure:
    reason = FailReason.TIMEOUT if detail == FINISH_OVERRAN else FailReason.EXCEPTION
    return TreeFailure(reason, finish_words(component, detail), (component,))


class Tasks(Protocol):
    @property
    def crashes(self) -> int:
        """How often a task's process has died."""

    def run(self, tasks: Sequence[SpoutTask | StageTask], /) -> list[TaskResult]:
        """Run tasks with bolts, and return their results in order."""

    def repeat(self, tasks: Sequence[Callable[[], T]], /) -> list[T]:
        """Run tasks without bolts, and return their results in order."""

    def once(self, tasks: Sequence[Callable[[], T]], /) -> list[T] | None:
        """Run tasks, but none of them again; None if a process has died in one."""


class TasksHere:
    """Runs tasks in this process, one after the other."""

    crashes = 0

    @staticmethod
    def repeat(tasks: Sequence[Callable[[], T]], /) -> list[T]:
        return [task() for task in tasks]

    run = once = repeat


@dataclass(slots=True)
class StepResult:
    """What became of a step's events."""

    # of events: taken, acked, dead, waiting
    # of tuples that tasks made by themselves: made, made_acked, made_dead, made_waiting
    # of all: failed, late_acks, untracked_failures, emitted, outputs, crashes
    counts: Counter[str] = field(default_factory=Counter)
    next_due_ms: int | None = None  # when the next event is to be tried again; None without any
    # least event time of what waits, timers too; None without any
    least_waiting_ms: int | None = None
    waiting_turns: dict[str, int] = field(default_factory=dict)  # see `TaskResult`
    # the records, by the name of their place
    records: dict[str, list[Handle]] = field(default_factory=dict)
    dead: list[Handle] = field(default_factory=list)
    unfinished: list[Handle] = field(default_factory=list)  # ids of roots that are not done
    # the events that wait, by task of the first stage
    waiting: dict[int, list[Handle]] = field(default_factory=dict)
    # the snapshots of bolts, by component and task
    states: dict[tuple[str, int], Handle] = field(default_factory=dict)
    # what it has changed of the keys of keyed bolts, by component and task; the newest last
    keys: dict[tuple[str, int], list[Handle]] = field(default_factory=dict)
    next_timer_ms: int | None = None  # when the next timer of a key is due; None without any
    # the oldest that it holds, if it had too little memory for all: its turn, and less how many
    # have that. It grows as a job gets on
    held_at: tuple[int, int] | None = None
    called_timers: bool = False  # whether it has called timers that come before that
    # event times up to which it has closed windows before their time, by bolt
    closed_ms: dict[str, int] = field(default_factory=dict)
    # how many events were late for a window and are done, by bolt
    late_for_window: Counter[str] = field(default_factory=Counter)
    # the keys of events that wait, by task of the first stage
    blocked: dict[int, set[bytes]] = field(default_factory=dict)
    # of how many keys of a field calls were made again without one before them that is not done,
    # by component and task
    tied: dict[tuple[str, int], int] = field(default_factory=dict)
    # bolts whose `finish_batch` raised, and what
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # after a transaction's processing phase: the tuples for its commit phase
    sent: list[SentTuples] = field(default_factory=list)
    runs: tuple[str, ...] = ()  # names of the runs that it comes from


class StepRun:
    """Runs a topology on the events of a step."""

    def __init__(
        self,
        batch: StepBatch,
        givens: Sequence[TaskInput],
        states: Mapping[tuple[str, int], Handle],
        tasks: Tasks,
        keys: Mapping[tuple[str, int], Handle] | None = None,
    ) -> None:
        """Begin with `states`, the snapshots of bolts, and `keys`, what keyed bolts keep."""
        self._keys = keys or {}
        self._batch = batch
        self._givens = givens
        self._tasks = tasks
        self._result = StepResult(states=dict(states))
        self._last_made: dict[bytes, Order] = {}
        self._known = KnownRoots()
        self._is_cut = False  # whether something is left to the next step for want of memory
        # the turns of what is held and runs again in the next step, and the first of the timers
        # that are done or have failed
        self._held_turns: list[int] = []
        self._first_timer: int | None = None

    def run(self) -> StepResult:
        if self._batch.plan.is_local:
            results = self._run(self._spout_tasks((0, None), 0))
            self._take_all(results)
            self._take_keys(results, [])
        else:
            self._in_waves()
        return self._finished()

    def _finished(self) -> StepResult:
        """Return the result. Raise if it does not add up."""
        counts, self._result.runs = self._result.counts, (self._batch.run,)
        counts["crashes"] = self._tasks.crashes
        counts["made_acked"] = counts["made"] + counts["made_tried"] - counts["made_left"]
        counts["acked"] -= counts["made_acked"]
        self._tell_progress()
        if counts["emitted"] != counts["outputs"]:
            raise ConservationError(
                f"bolts emitted {counts['emitted']} records, but {counts['outputs']} are in files"
            )
        return self._result

    def _in_waves(self) -> None:
        """Run in waves of new events, so that no more trees are in flight than allowed."""
        most = self._batch.rules.max_spout_pending
        each = None if most is None else max(1, most // len(self._givens))
        for wave in itertools.count():
            first = wave * (each or 0)
            window = (first, None if each is None else first + each)
            if not self._wave(window, wave):
                return

    def _wave(self, window: Window, wave: int) -> bool:
        spouts = self._run(self._spout_tasks(window, wave))
        if wave:
            # The waiting events of its tasks stay as they were, and are written down again.
            self._result.waiting.clear()
            self._result.blocked.clear()
            self._result.counts["waiting"] = self._result.counts["made_waiting"] = 0
            self._result.next_due_ms = self._result.least_waiting_ms = None
            self._result.waiting_turns.clear()
        results: Sequence[TaskResult] = self._with_later_stages(spouts, wave)
        self._is_cut |= any(one.is_cut for one in results)
        if self._batch.topology.keyed_by_field and self._batch.ackers:
            results = self._without_failed(spouts, results, wave)
        self._take_all(results)
        for one in results:
            for key, order in one.last_made.items():
                self._last_made[key] = max(order, self._last_made.get(key, order))
        verdicts: Sequence[Sequence[EventVerdict]] = [[] for _ in spouts]
        if self._batch.ackers:
            verdicts = self._decide(spouts, results, window)
        later = self._with_undone_calls(results[len(spouts) :], verdicts, wave)
        self._take_keys(self._with_undone(spouts, verdicts, wave), later)
        return any(one.has_more for one in spouts)

    def _with_later_stages(self, spouts: Sequence[TaskResult], wave: int) -> list[TaskResult]:
        """Run the later stages; return the results of all stages."""
        results = list(spouts)
        for stage in self._batch.plan.stages[1:]:
            sent = [(one.tuples_file, one.tuples) for one in results]
            behind = {key: order for one in spouts for key, order in one.behind.items()}
            tasks = self._stage_tasks(stage, sent, wave, behind)
            results += self._run([self._with_keys(one, results) for one in tasks])
        return results

    def _with_keys(self, task: StageTask, results: Sequence[TaskResult]) -> StageTask:
        """Return a task with what its keyed bolt kept, and with what waits by earlier stages."""
        component = task.stage.components[0]
        if component not in self._batch.topology.keyed_by_field:
            return task
        holds = TimerHolds.of(self._batch.topology, component)
        oldest = holds.first(earliest(*(one.waits for one in results)))
        return replace(
            task,
            keys=self._keys_of(task.task, (component,)),
            hold=least(oldest, self._known.holds.get(task.stage.number)),
            waiting=[place for one in results for _, place in one.waiting_timers],
            dropped=[
                place
                for one in results
                for root, place in one.waiting_timers
                if root in self._known.dead
            ],
        )

    def _without_failed(
        self, spouts: Sequence[TaskResult], results: Sequence[TaskResult], wave: int
    ) -> Sequence[TaskResult]:
        """Return what the stages made, with no call at a key behind one that is undone.

        Tasks with such calls run once more without the events that are not done, and so do the
        tasks that read theirs. Calls are repeated then. What fails all the same holds those that
        came behind it at its keys: they run again in the next step.
        """
        known = self._not_done(spouts, results)
        if not known.places:
            return results
        self._known, batch = known, replace(self._batch, run=f"{self._batch.run}.again")
        self._batch = batch
        ids = [*known.failures, *known.held]
        left_out = [batch.write_unfinished(ids)] if ids else ()
        behind = {key: order for one in spouts for key, order in one.behind.items()}
        counting, begin, readers = list(results), len(spouts), set[tuple[str, int]]()
        for stage in batch.plan.stages[1:]:
            before = counting[:begin]
            sent = [(one.tuples_file, one.tuples) for one in before]
            again = [
                self._with_keys(replace(one, unfinished=left_out, is_again=True), before)
                for one in self._stage_tasks(stage, sent, wave, behind)
                if begin + one.task in known.places
                or any((component, one.task) in readers for component in stage.components)
            ]
            for one, result in zip(again, self._run(again), strict=True):
                readers.update(results[begin + one.task].tuples, result.tuples)
                counting[begin + one.task] = result
            begin += stage.tasks
        return counting

    def _not_done(self, spouts: Sequence[TaskResult], results: Sequence[TaskResult]) -> KnownRoots:
        """Return what is not done, and which tasks have calls behind it at its keys."""
        spout, found = self._batch.topology.spout.id, self._told_of(spouts, results)[1]
        roots = self._roots(spouts, results)
        logs = [place for place, one in enumerate(results) if one.key_log is not None]
        logs = [place for place in logs if place >= len(spouts)]
        if not len(found.ids) or not logs:
            return KnownRoots()
        alone = {
            one.id: one
            for own in decide(self._batch, roots, replace(found, calls=()))
            for one in own
        }
        if all(one.reason is None for one in alone.values()):
            return KnownRoots()  # nothing has failed: the next step gives all of it again
        all_ids = {one.id for own in decide(self._batch, roots, found) for one in own}
        tied = all_ids - alone.keys()
        ties = {
            place: count
            for place, calls in zip(logs, found.calls, strict=True)
            if (count := calls.keys_of(tied))
        }
        places = set(ties)
        # A bolt that is keyed by a field has a stage of its own.
        components = self._batch.topology.components
        tasks = [
            (components[stage.components[0]].key_store, task)
            for stage, task in self._batch.plan.places
        ]
        self._result.tied = {tasks[place]: count for place, count in ties.items()}
        # What these tasks made is made anew.
        made = [results[place].told.made_file for place in places]
        gone = {root for one in made if one is not None for root, _ in self._batch.read_made(one)}
        kept = {root: one for root, one in alone.items() if root not in gone}
        emitted = self._batch.emitted_roots(roots)
        wait = [root for root, one in kept.items() if not one.is_dead]
        waits = np.isin(emitted.ids, np.array(wait, np.uint64))
        return KnownRoots(
            places,
            {
                root: found.failure_of(root, spout)
                for root, one in kept.items()
                if one.reason is not None
            },
            {root for root, one in kept.items() if one.reason is None},
            {root for root, one in kept.items() if one.is_dead},
            holds_of(found.calls, emitted.ids[waits], emitted.turns[waits], {}),
        )

    def _run(self, tasks: Sequence[SpoutTask | StageTask]) -> list[TaskResult]:
        """Run the tasks of a stage. Events that are not to blame for a `finish_batch` pass."""
        results = self._tasks.run(tasks)
        return [
            without_blamed(self._tasks, task) if result.has_to_blame else result
            for task, result in zip(tasks, results, strict=True)
        ]

    def _spout_tasks(self, window: Window, wave: int) -> list[SpoutTask]:
        own = self._states_of(self._batch.plan.stages[0])
        return [
            SpoutTask(
                batch=self._batch,
                given=self._with_waiting(given) if wave else given,
                states=own.get(given.partition, {}),
                window=window,
                wave=wave,
                made=dict(self._last_made),
                keys=self._keys_of(given.partition, self._batch.topology.keyed_by_event),
            )
            for given in self._givens
        ]

    def _keys_of(self, task: int, bolts: Sequence[str]) -> dict[tuple[str, int], Sequence[Handle]]:
        """Return what a task's keyed bolts keep, with what earlier waves have changed."""
        found: dict[tuple[str, int], Sequence[Handle]] = {}
        for component, bolt in self._batch.topology.key_stores.items():
            if bolt not in bolts:
                continue
            where = component, task
            before = (self._keys[where],) if where in self._keys else ()
            found[where] = (*before, *self._result.keys.get(where, ()))
        return found

    def _with_waiting(self, given: TaskInput) -> TaskInput:
        """Return a task's events, with those that an earlier wave left waiting."""
        return given.with_waiting(self._result.waiting.get(given.partition, ()))

    def _stage_tasks(
        self,
        stage: Stage,
        sent: Iterable[SentTuples],
        wave: int,
        behind: Mapping[bytes, Order] | None = None,
    ) -> list[StageTask]:
        own = self._states_of(stage)
        sources: list[list[tuple[Handle, dict[str, Any]]]] = [[] for _ in range(stage.tasks)]
        for file, tuples in sent:
            found: dict[int, dict[str, Any]] = {}
            for (component, task), places in tuples.items():
                if component in stage.components:
                    found.setdefault(task, {})[component] = places
            for task, blobs in found.items():
                sources[task].append((file, blobs))
        return [
            StageTask(
                batch=self._batch,
                stage=stage,
                task=task,
                sources=tuple(sources[task]),
                states=own.get(task, {}),
                wave=wave,
                behind=behind or {},
                made=dict(self._last_made),
            )
            for task in range(stage.tasks)
        ]

    def _states_of(self, stage: Stage) -> dict[int, dict[tuple[str, int], Handle]]:
        """Return what the bolts of each task of a stage kept."""
        found: dict[int, dict[tuple[str, int], Handle]] = {}
        for (component, task), state in self._result.states.items():
            if component in stage.components:
                found.setdefault(task, {})[component, task] = state
        return found

    def _decide(
        self, spouts: Sequence[TaskResult], results: Sequence[TaskResult], window: Window
    ) -> Sequence[Sequence[EventVerdict]]:
        """Run the ackers, and leave the events that are not done by their verdicts.

        Returns the verdicts, by first-stage task.
        """
        acked, verdicts = self._verdicts(spouts, results)
        self._result.counts["acked"] += acked
        made: dict[int, list[Handle]] = {}
        for place, one in self._by_place(results):
            made.setdefault(place, []).append(one.told.made_file)
        for place, one in enumerate(spouts):
            if one.told.timers_file is not None:
                made.setdefault(place, []).append(one.told.timers_file)
        if self._is_cut:
            files = [one for several in made.values() for one in several if one is not None]
            self._note_progress(self._roots(spouts, results), verdicts, files)
        self._leave(verdicts, [one.told.roots_file for one in spouts], window, made)
        return verdicts

    def _note_progress(
        self,
        roots: Sequence[Handle],
        verdicts: Sequence[Sequence[EventVerdict]],
        made: Sequence[Handle],
    ) -> None:
        batch, emitted = self._batch, self._batch.emitted_roots(roots)
        timers = [root for one in made for root, event in batch.read_made(one) if is_timer(event)]
        held = [one for own in verdicts for one in own if one.reason is None]
        soon = [one.id for one in held if (one.retry_at_ms or 0) <= batch.now_ms]
        are_timers, are_held, are_soon = (
            np.isin(emitted.ids, np.array(ids, np.uint64))
            for ids in (timers, [one.id for one in held], soon)
        )
        self._held_turns += emitted.turns[are_soon].tolist()
        tried = emitted.turns[are_timers & ~are_held].tolist()
        self._first_timer = least(self._first_timer, *tried)

    def _tell_progress(self) -> None:
        if not self._held_turns:
            return
        first = min(self._held_turns)
        self._result.held_at = first, -self._held_turns.count(first)
        # What a bolt's timers emit may come before what is older than they are.
        topology = self._batch.topology
        delay_ms = max((topology.delay_ms(bolt) for bolt in topology.keyed_by_field), default=0)
        timer = self._first_timer
        self._result.called_timers = timer is not None and timer <= first + 2 * delay_ms

    def _with_undone(
        self, spouts: Sequence[TaskResult], verdicts: Sequence[Sequence[EventVerdict]], wave: int
    ) -> list[TaskResult]:
        """Return what has changed of keys, without what events did that are not done."""
        undo = {
            place: UndoTask(
                self._batch, given, one.key_log, one.told.timers_file, verdicts[place], wave
            )
            for place, (given, one) in enumerate(zip(self._givens, spouts, strict=True))
            if verdicts[place] and one.key_log is not None
        }
        results = list(spouts)
        if undo:
            undone = self._tasks.repeat(list(undo.values()))
            for place, one in zip(undo, undone, strict=True):
                first = spouts[place]
                results[place] = replace(
                    first,
                    keys=one.keys,
                    late_for_window=one.late_for_window,
                    is_open=first.is_open or one.is_open,
                    next_timer_ms=least(first.next_timer_ms, one.next_timer_ms),
                )
        return results

    def _with_undone_calls(
        self, results: Sequence[TaskResult], verdicts: Sequence[Sequence[EventVerdict]], wave: int
    ) -> list[TaskResult]:
        """Return the same of keys of fields, without the calls for events that are not done."""
        batch, results = self._batch, list(results)
        if not any(verdicts):
            return results
        written = [batch.write_verdicts(own) for own in verdicts if own]
        tasks = batch.plan.places[len(self._givens) :]
        undo = {
            place: UndoCallsTask(batch, stage, task, one.key_log, written, wave)
            for place, ((stage, task), one) in enumerate(zip(tasks, results, strict=True))
            if one.key_log is not None
        }
        undone = self._tasks.repeat(list(undo.values())) if undo else ()
        for place, one in zip(undo, undone, strict=True):
            one.closed_ms = results[place].closed_ms
            one.is_open |= results[place].is_open
            one.next_turn = least(one.next_turn, results[place].next_turn)
            results[place] = one
        return results

    def _take_keys(self, spouts: Sequence[TaskResult], later: Sequence[TaskResult]) -> None:
        batch, result = self._batch, self._result
        results = [*spouts, *later]
        stages = [stage for stage, _ in batch.plan.places[len(spouts) :]]
        ahead = [self._next_timer_ms(*one) for one in zip(stages, later, strict=False)]
        due_ms = result.next_timer_ms = least(*(one.next_timer_ms for one in spouts), *ahead)
        if due_ms is not None and batch.reached_ms is not None and due_ms <= batch.reached_ms:
            # It stood behind an event that was given up in this step, or there was no room for it.
            # What it emits is not late for other bolts: it holds the watermark back.
            result.next_due_ms = least(result.next_due_ms, batch.now_ms)
            result.least_waiting_ms = least(result.least_waiting_ms, due_ms)
        # What waits holds timers. The step that tries it again looks at them.
        are_open = [one.is_open for one in spouts]
        are_open += [
            one.is_open and self._hold_of(stage) is None
            for stage, one in zip(stages, later, strict=False)
        ]
        if any(are_open):
            result.next_due_ms = least(result.next_due_ms, batch.now_ms)
        for one in results:
            result.late_for_window.update(one.late_for_window)
            result.closed_ms = latest(result.closed_ms, one.closed_ms)
            for where, changes in one.keys.items():
                result.keys.setdefault(where, []).append(changes)

    def _next_timer_ms(self, stage: Stage, done: TaskResult) -> int | None:
        """Return which event time is to be reached before the next timer of a task is due.

        None without one, or if it waits: it is called once what it waits for is done.
        """
        if done.next_turn is None:
            return None
        hold = self._hold_of(stage)
        if hold is not None and done.next_turn > hold:
            return None
        return (done.next_turn >> 1) + self._batch.topology.delay_ms(stage.components[0])

    def _hold_of(self, stage: Stage) -> int | None:
        """Return the first turn at which what waits holds timers of a stage; None: at none."""
        holds = TimerHolds.of(self._batch.topology, stage.components[0])
        return holds.first(self._result.waiting_turns)

    def _by_place(self, results: Sequence[TaskResult]) -> list[tuple[int, TaskResult]]:
        """Return results with made tuples, each with the first-stage task where these wait.

        That task gives them out again. For bolts of the first stage it is their own task.
        """
        plan, places = self._batch.plan, len(self._givens)
        return [
            (task % places, one)
            for (_, task), one in zip(plan.places, results, strict=True)
            if one.told.made_file is not None
        ]

    def _verdicts(
        self,
        spouts: Sequence[TaskResult],
        results: Sequence[TaskResult],
        known: Collection[int] = (),
    ) -> tuple[int, list[list[EventVerdict]]]:
        """Run the ackers; return how many trees are done, and the other verdicts by task."""
        acked, found = self._told_of(spouts, results, known)
        if not len(found.ids):
            return acked, [[] for _ in spouts]
        made = self._by_place(results)
        decided = decide(self._batch, self._roots(spouts, results), found)
        acked += len(found.ids) - sum(len(own) for own in decided)
        verdicts = decided[: len(spouts)]
        for (place, one), own in zip(made, decided[len(spouts) :], strict=True):
            verdicts[place] += [verdict for verdict in own if verdict.id not in one.told.undone]
        return acked, verdicts

    def _roots(self, spouts: Sequence[TaskResult], results: Sequence[TaskResult]) -> list[Handle]:
        """Return the roots of all events, and of what tasks made."""
        made = (one.told.made_roots_file for _, one in self._by_place(results))
        return [*(one.told.roots_file for one in spouts), *made]

    def _told_of(
        self,
        spouts: Sequence[TaskResult],
        results: Sequence[TaskResult],
        known: Collection[int] = (),
    ) -> tuple[int, UnfinishedRoots]:
        """Run the ackers; return how many trees are done, and what is told of the others."""
        batch = self._batch
        told = [one.told for one in results]
        acks = tuple(one.acks_file for one in told if one.acks_file is not None)
        ackers = [AckerTask(acks, number, batch.read_acks) for number in range(batch.ackers)]
        found = self._tasks.repeat(ackers)
        ids = np.concatenate([unfinished for _, unfinished, _ in found])
        flags = np.concatenate([flags for _, _, flags in found])
        acked = sum(count for count, _, _ in found)
        if known:
            is_new = ~np.isin(ids, np.array(list(known), np.uint64))
            ids, flags = ids[is_new], flags[is_new]
        failures = {
            root: failure
            for one in reversed(told)  # the first failure is the one that counts
            for root, failure in one.failures.items()
        }
        held_by_tasks = ids[(flags & np.uint8(AckFlag.HELD)) != 0]
        if self._known.failures or self._known.held:
            failures |= self._known.failures
            are_held = np.isin(ids, np.array([*self._known.held], np.uint64))
            flags[are_held] |= np.uint8(AckFlag.HELD)
            held_by_tasks = np.union1d(held_by_tasks, ids[are_held])
        # A bolt that is keyed by a field has a stage of its own.
        calls = [
            CallsTask(
                batch,
                one.key_log,
                stage.number,
                TimerHolds.of(batch.topology, stage.components[0]),
            )
            for (stage, _), one in zip(batch.plan.places, results, strict=True)
            if stage.number and one.key_log is not None and len(ids)
        ]
        read = self._tasks.repeat(calls) if calls else []
        return acked, UnfinishedRoots(
            ids,
            flags,
            failures,
            [several for one in told for several in one.shared],
            read,
            [each for one in spouts for each in one.not_tried.items()],
            cuts_of(read),
            held_by_tasks,
        )

    def _leave(
        self,
        verdicts: Sequence[Sequence[EventVerdict]],
        roots: Sequence[Handle],
        window: Window,
        made: Mapping[int, Sequence[Handle]] | None = None,
    ) -> None:
        """Leave the events that are not done, and notify the hook of all events."""
        batch, is_hooked = self._batch, self._batch.topology.hook is not None
        left = sum(len(own) for own in verdicts)
        tasks = {
            place: VerdictTask(
                batch,
                given,
                window,
                batch.write_verdicts(own),
                given_out,
                () if made is None else made.get(place, ()),
            )
            for place, (given, own, given_out) in enumerate(
                zip(self._givens, verdicts, roots, strict=True)
            )
            if own or is_hooked
        }
        if not tasks:
            return
        written = self._tasks.repeat(list(tasks.values()))
        accounted = sum(
            one.waiting + one.dead + one.made_waiting + one.made_dead for one in written
        )
        if accounted != left:
            raise ConservationError(f"{left} events are not done, {accounted} are accounted for")
        for place, one in zip(tasks, written, strict=True):
            self._take(place, one)

    def _take_all(self, results: Sequence[TaskResult]) -> None:
        """Add what all tasks did. The new snapshots of bolts replace the old ones."""
        self._result.states = {
            where: state for one in results for where, state in one.states.items()
        }
        for place, one in enumerate(results):
            self._take(place, one)

    def _take(self, place: int, done: TaskResult) -> None:
        """Add what a task did, and publish what it left."""
        batch, result = self._batch, self._result
        result.counts.update(
            taken=done.taken,
            acked=done.acked,
            failed=sum(done.failed.values()),
            dead=done.dead,
            waiting=done.waiting,
            made=done.made,
            made_tried=done.made_tried,
            made_left=done.made_left,
            made_dead=done.made_dead,
            made_waiting=done.made_waiting,
            late_acks=done.late_acks,
            untracked_failures=done.untracked_failures,
            emitted=done.emitted,
            outputs=done.outputs,
        )
        result.next_due_ms = least(result.next_due_ms, done.next_due_ms)
        result.least_waiting_ms = least(result.least_waiting_ms, done.least_waiting_ms)
        result.waiting_turns = earliest(result.waiting_turns, done.waiting_turns)
        result.finish_failures += done.finish_failures
        for name, records in done.files.items():
            published = batch.publish(f"outputs/{name}", records)
            result.records.setdefault(name, []).extend(published)
        result.dead += batch.publish("dead", done.dead_file)
        result.unfinished += batch.publish("unfinished", done.unfinished_file)
        if done.blocked:
            result.blocked.setdefault(place, set()).update(done.blocked)
        if done.waiting_file is not None:
            waiting = batch.publish("waiting", done.waiting_file)
            result.waiting.setdefault(place, []).extend(waiting)


def latest(times_ms: Mapping[str, int], others_ms: Mapping[str, int]) -> dict[str, int]:
    """Return the later of two times by name."""
    return {**times_ms} | {
        name: max(time_ms, times_ms.get(name, time_ms)) for name, time_ms in others_ms.items()
    }
