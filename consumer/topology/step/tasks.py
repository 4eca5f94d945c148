"""The tasks of a step: spouts, stages behind them, ackers.

The first stage is given the events that are due: those that waited, then the new ones. Stages
behind it read the tuples that earlier ones have sent them. Where one stage is all there is, its
tasks know by themselves what became of each event; else the ackers' tasks do (`step.run`).
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.topology._errors import TopologyError
from sequitur.consumer.topology.api.tuple import EventValues, FailReason, Root
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.rules import Ordering
from sequitur.consumer.topology.settling.acker import Acker, AckFlag, columns
from sequitur.consumer.topology.settling.pending import (
    EventOutcome,
    numbered,
    runs_now,
    settle_roots,
)
from sequitur.consumer.topology.step.parts import WHOLE, Answer, Trial, Waiting
from sequitur.consumer.topology.step.settling import (
    crashed,
    killer,
    leave_unfinished,
    retry_times,
    tell_hook,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.engine.plan import Stage
    from sequitur.consumer.topology.step.parts import (
        Exchange,
        Given,
        Handle,
        OutputWriter,
        Sources,
        StepBatch,
        Window,
    )

_STAGE_BITS: Final = 10


@dataclass(frozen=True, slots=True)
class SpoutTask:
    """A task of the first stage.

    Attributes:
        batch: What all tasks share.
        given: Its events.
        states: What its bolts kept in the step before.
        window: Which of the new events it takes in.
        gives_waiting: Whether those that wait are given out when they are due.
        trial: What is given out of all that.
    """

    batch: StepBatch
    given: Given
    states: Mapping[tuple[str, int], Handle]
    window: Window = (0, None)
    gives_waiting: bool = True
    trial: Trial = WHOLE

    @property
    def weight(self) -> int:
        """About how many new events there are."""
        return self.given.weight

    def count(self) -> int:
        """How much there is to give out."""
        return len(self._ticks) + sum(1 for _ in self.given.all(self.window))

    def __call__(self) -> Answer:
        """Run it."""
        batch, stage, partition = self.batch, self.batch.plan.stages[0], self.given.partition
        outputs = batch.outputs(partition)
        sends = None if batch.plan.is_local else batch.exchange()
        executor = _executor(batch, stage, partition, outputs, sends, self.states)
        answer = Answer()
        left: list[Waiting] = []
        dead: list[Waiting] = []
        with _running(executor, batch):
            _give_ticks(executor, self._ticks, self.trial)
            behind_ticks = self.trial.behind(len(self._ticks))
            if behind_ticks == WHOLE:
                self._give_waiting(executor, left)
                answer.taken = self._give_new(executor)
            else:
                answer.taken = self._try(behind_ticks, executor, left, dead)
            executor.finish()
            answer.states = batch.write_states(executor.states(), self.states)
            if self.trial.is_whole:
                executor.keep()
        answer.has_more = self._has_more(answer.taken)
        answer.acked = executor.acked
        self._settle(executor, answer, left, dead)
        if sends is not None:
            sends.close()
            answer.tuples_file, answer.tuples = sends.path, sends.index
            given_out = [root for root in executor.roots() if root.is_tracked]
            _tell_ackers(executor, given_out, batch, answer, is_spout=True)
            answer.acked += sum(not root.is_tracked for root in executor.roots())
        _tell_counts(executor, outputs, answer)
        return answer

    @property
    def _ticks(self) -> tuple[str, ...]:
        return self.batch.ticks_of(self.batch.plan.stages[0]) if self.gives_waiting else ()

    def _new(self) -> Iterator[tuple[Any, ...]]:
        return itertools.islice(self.given.new(), *self.window)

    def _give_waiting(self, executor: Executor, left: list[Waiting]) -> None:
        """Give out what waited and is due; the others hold up those of their keys."""
        waiting = self.given.waiting()
        ids = itertools.count(self.given.first_id)
        for root, waited, runs in zip(ids, waiting, self._run_now(waiting), strict=False):
            if runs:
                executor.feed(self._root(root, waited.event, waited.attempts + 1), waited.event)
            else:
                executor.block(waited.event[0], waited.event[3:7])
                left.append(waited)

    def _give_new(self, executor: Executor) -> int:
        """Give out new events; how many."""
        feed, first = executor.feed, self.given.first_new_id(self.window)
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        root = first - 1
        if isinstance(tracked, bool):
            for root, event in enumerate(self._new(), first):
                feed(Root(root, event, 1, 0.0, tracked), event)
        else:
            for root, event in enumerate(self._new(), first):
                feed(self._root(root, event, 1), event)
        return root + 1 - first

    def _try(
        self, trial: Trial, executor: Executor, left: list[Waiting], dead: list[Waiting]
    ) -> int:
        """Give out a part of all that, and not what kills; how many new events were among it."""
        taken = 0
        waiting = self.given.waiting()
        runs = self._run_now(waiting)
        for place, (root, waited, event) in trial.of(self.given.all(self.window)):
            attempt = 1 if waited is None else waited.attempts + 1
            taken += waited is None
            if waited is not None and not runs[place]:
                executor.block(event[0], event[3:7])
                left.append(waited)
            elif place in trial.poison:
                dead.append(killer(event, attempt))
            else:
                executor.feed(self._root(root, event, attempt), event)
        return taken

    def _root(self, root: int, event: tuple[Any, ...], attempt: int) -> Root:
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        if not isinstance(tracked, bool):
            try:
                tracked = bool(tracked(EventValues(*event)))
            except Exception as error:
                spout = self.batch.topology.spout.id
                raise TopologyError(f"spout {spout!r}: `tracked` raised {error!r}") from error
        return Root(root, event, attempt, 0.0, tracked)

    def _run_now(self, waiting: Sequence[Waiting]) -> list[bool]:
        """Whether each of the events that wait runs now."""
        if not self.gives_waiting:
            return [False] * len(waiting)
        runs: list[bool] = runs_now(
            numbered(one.event[0] for one in waiting),
            retry_times(waiting),
            self.batch.now_ms,
            policy=self.batch.rules.retry,
            keeps_order=self.batch.rules.ordering is Ordering.KEY,
        ).tolist()
        return runs

    def _has_more(self, taken: int) -> bool:
        return self.window[1] is not None and taken == self.window[1] - self.window[0]

    def _settle(
        self, executor: Executor, answer: Answer, left: list[Waiting], dead: list[Waiting]
    ) -> None:
        batch = self.batch
        roots = sorted(executor.settled, key=lambda root: root.order)
        # One number for all: events that failed together are tried again together.
        drawn = random.Random(hash((*batch.seed, self.given.partition))).random()
        settled = settle_roots(
            roots,
            executor.together,
            batch.now_ms,
            policy=batch.rules.retry,
            random=drawn,
            keeps_order=batch.rules.ordering is Ordering.KEY,
        )
        again: list[Waiting] = []
        for root, outcome, retry_at_ms in zip(
            roots, settled.outcomes.tolist(), settled.retry_at_ms.tolist(), strict=True
        ):
            if root.failure is None:
                left.append(Waiting(root.event, root.attempt - 1, retry_at_ms or None))
                continue
            reason = root.failure.reason.value
            answer.failed[reason] = answer.failed.get(reason, 0) + 1
            told = (reason, root.failure.detail, " > ".join(root.failure.path))
            one = Waiting(root.event, root.attempt, retry_at_ms or None, *told)
            (dead if outcome == EventOutcome.DEAD else again).append(one)
        left += again
        if killers := sum(one.reason == FailReason.CRASH.value for one in dead):
            answer.failed[FailReason.CRASH.value] = killers
        unfinished = [root.id for root in roots]
        leave_unfinished(batch, answer, left, dead, unfinished)
        if executor.given is not None and self.trial.is_whole:
            ids = set(unfinished)
            done = [
                (root.event, root.attempt)
                for root in executor.given
                if batch.plan.is_local and root.is_tracked and root.id not in ids
            ]
            tell_hook(batch, done, again, dead)


@dataclass(frozen=True, slots=True)
class StageTask:
    """A task of a later stage.

    Attributes:
        batch: What all tasks share.
        stage: The stage.
        task: The task's number.
        sources: The tuples that it is given.
        states: What its bolts kept in the step before.
        gives_ticks: Whether its bolts are given the ticks that are due.
        trial: What is given out of its tuples.
    """

    batch: StepBatch
    stage: Stage
    task: int
    sources: Sources
    states: Mapping[tuple[str, int], Handle]
    gives_ticks: bool = True
    trial: Trial = WHOLE

    @property
    def weight(self) -> int:
        """About how large its tuples are."""
        return self.batch.weight(self.sources)

    def count(self) -> int:
        """How much there is to give out."""
        return len(self._ticks) + sum(1 for _ in self.batch.tuples_in_order(self.sources))

    def __call__(self) -> Answer:
        """Run it."""
        batch, stage = self.batch, self.stage
        number = stage.number << _STAGE_BITS | self.task
        outputs, sends = batch.outputs(number), batch.exchange()
        executor = _executor(batch, stage, self.task, outputs, sends, self.states)
        answer = Answer()
        with _running(executor, batch):
            _give_ticks(executor, self._ticks, self.trial)
            trial = self.trial.behind(len(self._ticks))
            for place, (component, sent) in trial.of(batch.tuples_in_order(self.sources)):
                if place in trial.poison:
                    executor.give_up(sent, crashed((*sent.path, component)))
                else:
                    executor.receive(component, self.task, sent)
            executor.finish()
            answer.states = batch.write_states(executor.states(), self.states)
            if self.trial.is_whole:
                executor.keep()
        sends.close()
        answer.tuples_file, answer.tuples = sends.path, sends.index
        _tell_ackers(executor, executor.roots(), batch, answer, is_spout=False)
        _tell_counts(executor, outputs, answer)
        return answer

    @property
    def _ticks(self) -> tuple[str, ...]:
        return self.batch.ticks_of(self.stage) if self.gives_ticks else ()


@dataclass(frozen=True, slots=True)
class AckerTask:
    """An acker: tells which of its roots are done.

    Attributes:
        acks: What tasks know of roots.
        acker: Its number.
        read: Reads of one of these what is for an acker: ids, values, flags.
    """

    acks: Sequence[Handle]
    acker: int
    read: Callable[[Handle, int], tuple[Any, Any, Any]]

    def __call__(self) -> tuple[int, Any, Any]:
        """How many are done, and of the others id and flags."""
        acker = Acker()
        for one in self.acks:
            acker.add(*self.read(one, self.acker))
        verdicts = acker.verdicts()
        return verdicts.acked, verdicts.unfinished, verdicts.flags


def _executor(  # noqa: PLR0917 - private, and each is of a type of its own
    batch: StepBatch,
    stage: Stage,
    task: int,
    outputs: OutputWriter,
    sends: Exchange | None,
    states: Mapping[tuple[str, int], Handle],
) -> Executor:
    return Executor(
        batch.topology,
        batch.plan.placement(stage, task),
        batch.rules,
        clock=batch.clock,
        next_id=batch.ids(stage.number, task),
        write=outputs.write,
        send=None if sends is None else sends.send,
        states={place: batch.read_state(state) for place, state in states.items()},
        moment=batch.moment,
        instances=batch.instances,
        trace=batch.trace,
        runs_inline=batch.runs_inline,
    )


@contextlib.contextmanager
def _running(executor: Executor, batch: StepBatch) -> Iterator[None]:
    """While a topology runs in a task it is watched; behind that bolts clean up."""
    try:
        with batch.watched(executor):
            yield
    finally:
        executor.close()


def _give_ticks(executor: Executor, ticks: Sequence[str], trial: Trial) -> None:
    """Give bolts the ticks that are among what is given out, and not those that kill."""
    places = dict(trial.of(ticks))
    executor.tick([bolt for place, bolt in places.items() if place not in trial.poison])
    for place in trial.poison & places.keys():
        executor.give_up_tick(places[place], crashed(()))


def _tell_counts(executor: Executor, outputs: OutputWriter, answer: Answer) -> None:
    answer.late_acks = executor.late_acks
    answer.untracked_failures = executor.untracked_failures
    answer.finish_failures = list(executor.finish_failures)
    answer.files = outputs.close()
    answer.emitted = executor.emitted
    answer.outputs = outputs.count


def _tell_ackers(
    executor: Executor, roots: Sequence[Root], batch: StepBatch, answer: Answer, *, is_spout: bool
) -> None:
    ids, values, flags = columns(roots)
    if is_spout:
        flags |= np.uint8(AckFlag.INIT)
        answer.roots_file = batch.write_roots(roots)
    if batch.ackers:
        answer.acks_file = batch.write_acks(ids, values, flags)
    answer.failures = {root.id: root.failure for root in roots if root.failure is not None}
    shared = [[root.id for root in several if root.is_tracked] for several in executor.shared]
    answer.shared = [tuple(several) for several in shared if len(several) > 1]
