"""The two phases of a transaction: what bolts make of a step's events, and its commit.

Every try at the commit begins with what the processing phase leaves, so a repeated commit commits
the same. That holds nothing of an event that has failed: the tuples that came from it are left out.
A task whose bolt keeps something of the event is run again without it, from the tuples sent to the
task. So are all tasks that read what that task emits. One run of each task counts.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np

from sequitur.base.copy_headers import FailReason
from sequitur.base.text import encodable
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.engine.transactions import ENDS_THE_JOB, writer_of
from sequitur.consumer.topology.settling.outcomes import EventOutcome
from sequitur.consumer.topology.state.map_state import check_session
from sequitur.consumer.topology.step.batch import EventVerdict
from sequitur.consumer.topology.step.run import StepRun
from sequitur.consumer.topology.step.tasks import KeptTask
from sequitur.consumer.topology.transactional.attempt import (
    BatchFailure,
    BatchOutcome,
    Cause,
    Phase,
)
from sequitur.errors import (
    ConservationError,
    StateError,
    StateUnavailableError,
    TransactionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from sequitur.consumer.topology.settling.outcomes import RetryPolicy
    from sequitur.consumer.topology.settling.root import Order
    from sequitur.consumer.topology.state.map_state import AllChanges
    from sequitur.consumer.topology.step.batch import (
        EmittedRoots,
        Handle,
        StepBatch,
        TaskInput,
        TaskResult,
    )
    from sequitur.consumer.topology.step.run import SentTuples, StepResult, Tasks
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

    Place: TypeAlias = tuple[int, int]
    """The numbers of a stage and of one of its tasks."""
    Results: TypeAlias = Mapping[Place, TaskResult]
    Verdicts: TypeAlias = Sequence[Sequence[EventVerdict]]
    """By task of the first stage."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes what a committer's task has computed."""

    batch: StepBatch  # what all tasks share
    component: str
    task: int
    changes: AllChanges

    def __call__(self) -> BatchOutcome:
        """Write to each database in turn."""
        outcome, transaction = BatchOutcome(), self.batch.transaction
        assert transaction is not None
        writer = writer_of(self.batch.topology.name, transaction, self.component, self.task)
        try:
            for store, changes in self.changes.items():
                session = store.session(writer)
                check_session(store, session, writer)
                if session.is_repeat:
                    said = f"{writer.title}: an earlier try was committed in {store.title}"
                    outcome.fail(self.component, Cause.UNAVAILABLE, f"{said}: repeat the commit")
                    break
                session.commit(changes)
                session.close()
        except StateUnavailableError as error:
            outcome.fail(self.component, Cause.UNAVAILABLE, str(error))
        except ENDS_THE_JOB:
            raise
        except StateError as error:
            outcome.fail(self.component, Cause.RAISED, str(error))
        return outcome


class _GivenUpByField(NamedTuple):
    """The state of a run before it gave up the events that have a refused key in a field."""

    failure: BatchFailure
    verdicts: Verdicts
    results: Results
    refused: int


_REFUSED_LEAST: Final = 10
_REFUSED_MOST: Final = 0.01
"""Share of a batch. If more events are refused, and more than `_REFUSED_LEAST`, the events are not
the cause."""


class BatchFailedError(Exception):
    """A try at a transaction failed. Nothing of it is left, unless it may have committed."""

    def __init__(self, failures: Sequence[BatchFailure], *, may_have_committed: bool) -> None:
        each = (f"{one.component or 'a task'}: {one.detail}" for one in failures)
        super().__init__(encodable("; ".join(each)))
        self.failures = tuple(failures)
        self.may_have_committed = may_have_committed

    @property
    def cause(self) -> Cause:
        """The cause that weighs most."""
        causes = {one.cause for one in self.failures}
        weighed = (Cause.RAISED, Cause.DIED, Cause.UNAVAILABLE, Cause.REFUSED, Cause.ASKED)
        return next(cause for cause in weighed if cause in causes)


class ProcessingRun(StepRun):
    """Runs the processing phase of a transaction; see `StepRun`."""

    def __init__(
        self,
        batch: StepBatch,
        givens: Sequence[TaskInput],
        states: Mapping[tuple[str, int], Handle],
        tasks: Tasks,
        *,
        keys: Mapping[tuple[str, int], Handle] | None = None,
        is_last: bool = False,
        tries_commit: bool = False,
    ) -> None:
        super().__init__(batch, givens, states, tasks, keys)
        self._is_last = is_last
        self._name = batch.run
        self._passes = itertools.count(1)
        self._tries_commit = tries_commit
        self._refused = 0
        self._given_up_by_field: _GivenUpByField | None = None

    def run(self) -> StepResult:
        """Run the phase. Bolts that keep something of failed events are run again without them."""
        verdicts: list[list[EventVerdict]] = [[] for _ in self._givens]
        results, events = self._run_again({}, verdicts, ()), None
        while True:
            _check(results.values(), but=Cause.RAISED)
            acked, more = self._found(results, verdicts)
            if events is None:
                events = acked + sum(map(len, more))
            verdicts = _joined(verdicts, more)
            # A bolt that raises over a part of an event may not raise without the event.
            places = self._places(results, more) if any(more) else set()
            if not places:
                failed = _failed(results.values())
                refusal = self._refusal(results, verdicts) if failed is None else None
                if failed is not None:
                    more = self._blamed(verdicts, results, failed)
                elif refusal is not None:
                    given_up, by_field = self._given_up_by_field, True
                    if given_up is not None and _has(refusal, given_up.failure):
                        # The key is refused without these events, too: it is not in their field.
                        verdicts = [[*own] for own in given_up.verdicts]
                        results = {**given_up.results}
                        self._refused, by_field = given_up.refused, False
                    more = self._refused_events(verdicts, results, refusal, by_field=by_field)
                else:
                    break
                verdicts = _joined(verdicts, more)
                places = self._places(results, more)
            results = self._run_again(results, verdicts, places)
        kept = {
            place: state
            for place, state in self._result.states.items()
            if place[0] in self._batch.topology.commit_phase
        }
        # What committers and their readers make of it counts only in the commit phase.
        counting = [one for one in results.values() if not one.is_rehearsal]
        self._take_all(counting)
        for one in counting:
            self._result.keys.update({where: [found] for where, found in one.keys.items()})
        self._result.states = {**kept, **self._result.states}
        self._result.counts["acked"] += events - sum(map(len, verdicts))
        self._leave(verdicts, [one.told.roots_file for one in self._spouts(results)], (0, None))
        self._result.sent = self._sent(results)
        result = self._finished()
        assert self._batch.transaction is not None
        if any(verdicts) or self._batch.transaction.is_again:
            result.runs = ()  # bolts have seen events that are not in their result
        return result

    def _run_again(
        self, results: Results, verdicts: Verdicts, places: Collection[Place]
    ) -> dict[Place, TaskResult]:
        """Run tasks again without the events that are not done, and all tasks that read theirs."""
        # A bolt goes on in the pass that it has seen, and in no other.
        transaction, number = self._batch.transaction, next(self._passes)
        assert transaction is not None
        self._batch = replace(
            self._batch,
            run=f"{self._name}.{number}",
            transaction=replace(transaction, is_again=number > 1),
        )
        first, *later = self._batch.plan.stages
        counting = {place: one for place, one in results.items() if place[0] == first.number}
        if not results:
            spouts = self._tasks.run(self._spout_tasks((0, None), 0))
            counting = {(first.number, task): one for task, one in enumerate(spouts)}
        left_out = {one.id for own in verdicts for one in own}
        readers: set[tuple[str, int]] = set()
        for stage in later:
            sent = [(one.tuples_file, one.tuples) for one in counting.values()]
            tasks = {
                (stage.number, one.task): self._with_keys(one, ())
                for one in self._stage_tasks(stage, sent, 0)
            }
            again = [
                place
                for place in tasks
                if place not in results
                or place in places
                or any((component, place[1]) in readers for component in stage.components)
            ]
            for one in counting.values():
                left_out.update(one.told.failures)
            blocked = _blocked(counting.values())
            counting |= {place: results[place] for place in tasks if place in results}
            if not again:
                continue
            unfinished = [self._batch.write_unfinished(list(left_out))] if left_out else ()
            ran = self._run(
                [replace(tasks[place], unfinished=unfinished, blocked=blocked) for place in again]
            )
            for place, one in zip(again, ran, strict=True):
                before = [results[place]] if place in results else []
                readers.update(*(each.tuples for each in (*before, one)))
                counting[place] = one
        return counting

    def _places(self, results: Results, found: Verdicts) -> set[Place]:
        """Return the tasks that keep something of events, and the tasks that failed the batch."""
        batch = self._batch
        failed = {
            place for place, one in results.items() if one.batch is not None and one.batch.failures
        }
        if not any(found):
            return failed
        roots = np.array([one.id for own in found for one in own], np.uint64)
        keeping = {stage.number for stage in batch.plan.stages if stage.keeps_batch}
        acks = {place: one.told.acks_file for place, one in results.items() if place[0] in keeping}
        kept = self._tasks.repeat(
            [KeptTask(one, batch.ackers, batch.read_acks, roots) for one in acks.values()]
        )
        return failed | {place for place, is_kept in zip(acks, kept, strict=True) if is_kept}

    def _found(self, results: Results, verdicts: Verdicts) -> tuple[int, list[list[EventVerdict]]]:
        """Return how many events are done, and the verdicts on others that were not known."""
        known = {one.id for own in verdicts for one in own}
        acked, found = self._verdicts(self._spouts(results), list(results.values()), known)
        return acked, [[one for one in own if one.id not in known] for own in found]

    def _spouts(self, results: Results) -> list[TaskResult]:
        return [one for (stage, _), one in results.items() if not stage]

    def _sent(self, results: Results) -> list[SentTuples]:
        """Return the tuples for the commit phase."""
        return [
            (one.tuples_file, wanted)
            for one in results.values()
            if not one.is_rehearsal and (wanted := self._for_commit(one))
        ]

    def _refusal(self, results: Results, verdicts: Verdicts) -> BatchFailedError | None:
        """Try the commit of a run's results; return what states refuse, or None for nothing."""
        if not self._tries_commit or not self._batch.can_try_commit:
            return None
        # A bolt of this run does not go on in a commit that counts.
        batch = replace(self._batch, run=f"{self._batch.run}.commit")
        left_out = [one.id for own in verdicts for one in own]
        commit = CommitRun(
            batch,
            self._sent(results),
            self._result.states,
            self._tasks,
            unfinished=[batch.write_unfinished(left_out)] if left_out else (),
        )
        try:
            commit.try_out()
        except BatchFailedError as error:
            if error.cause is not Cause.REFUSED:
                raise
            return error
        return None

    def _refused_events(
        self,
        verdicts: Verdicts,
        results: Results,
        refusal: BatchFailedError,
        *,
        by_field: bool,
    ) -> list[list[EventVerdict]]:
        """Give up the events with a key that a state refuses. If unknown, find one event by halves.

        Args:
            verdicts: The verdicts so far.
            results: The results of tasks without the events that are not done.
            refusal: What states refuse of these results.
            by_field: Whether the key may be searched for in the tuples.
        """
        emitted = self._emitted(results)
        ids = _not_among(verdicts, emitted)
        first = refusal.failures[0]

        def ran(left_out: Collection[int]) -> tuple[bool, BatchFailedError | None]:
            tried = _given_up_all(left_out, emitted, refusal)
            without = _joined(verdicts, tried)
            part = self._run_again(results, without, self._places(results, tried))
            _check(part.values())
            return any(map(any, self._found(part, without)[1])), self._refusal(part, without)

        suspects: set[int] = set()
        self._given_up_by_field = None
        if first.is_key and by_field:
            suspects = _with_key(first, lambda left_out: _has(ran(left_out)[1], first))
        if suspects:
            self._given_up_by_field = _GivenUpByField(first, verdicts, results, self._refused)
        else:

            def fails(left_out: Sequence[int]) -> bool:
                has_failed, refused = ran(left_out)
                return has_failed or refused is not None

            may_have_it = frozenset().union(*first.roots)
            among = [root for root in ids if root in may_have_it]
            if not among or fails(among):
                among = ids
            culprit = _first_to_blame(among, fails)
            if culprit is None:
                raise refusal
            suspects = {culprit}
        self._refused += len(suspects)
        events = len(ids) + sum(map(len, verdicts))
        if self._refused > max(_REFUSED_LEAST, events * _REFUSED_MOST):
            raise TransactionError(
                f"states refuse {self._refused} of {events} events of transaction "
                f"{self._transaction.transaction_id}, and more may follow: the events are not "
                f"the cause, so none is dead-lettered. The last refusal: {refusal}"
            )
        return _given_up_all(suspects, emitted, refusal)

    @property
    def _transaction(self) -> TransactionAttempt:
        assert self._batch.transaction is not None
        return self._batch.transaction.attempt

    def _blamed(
        self, verdicts: Verdicts, results: Results, failed: BatchFailedError
    ) -> list[list[EventVerdict]]:
        """Give up the first event that makes the batch fail."""
        emitted = self._emitted(results)
        ids = _not_among(verdicts, emitted)

        def fails(left_out: Sequence[int]) -> bool:
            tried = _given_up_all(left_out, emitted, failed)
            without = _joined(verdicts, tried)
            part = self._run_again(results, without, self._places(results, tried))
            _check(part.values(), but=Cause.RAISED)
            return _failed(part.values()) is not None

        if not (self._is_last and ids) or fails(ids):
            raise failed
        if not fails(()):
            return [[] for _ in emitted.counts]  # it has passed: the batch is to be run again
        culprit = _first_to_blame(ids, fails)
        return _given_up_all([] if culprit is None else [culprit], emitted, failed)

    def _emitted(self, results: Results) -> EmittedRoots:
        return self._batch.emitted_roots([one.told.roots_file for one in self._spouts(results)])

    def _for_commit(self, result: TaskResult) -> dict[tuple[str, int], Handle]:
        """Return the places of the tuples for the commit phase, of those that a task sent."""
        commit_phase = self._batch.topology.commit_phase
        return {to: where for to, where in result.tuples.items() if to[0] in commit_phase}


class CommitRun(StepRun):
    def __init__(
        self,
        batch: StepBatch,
        sent: Sequence[SentTuples],
        states: Mapping[tuple[str, int], Handle],
        tasks: Tasks,
        *,
        is_new: bool = False,
        unfinished: Sequence[Handle] = (),
    ) -> None:
        super().__init__(batch, (), states, tasks)
        self._sent = sent
        self._unfinished = unfinished
        self._is_tried = is_new and batch.can_try_commit and batch.writers > 1

    def run(self) -> StepResult:
        """Run the phase, and return the records and the states that it has left."""
        results = self.try_out() if self._is_tried else self._all_stages()
        if self._is_tried:
            self._write(results)
        self._take_all(results)
        return self._finished()

    def try_out(self) -> list[TaskResult]:
        """Run the phase without writing. The results have what is to be written."""
        transaction = self._batch.transaction
        assert transaction is not None
        tried = replace(transaction, phase=Phase.COMMIT, is_trial=True)
        whole, self._batch = self._batch, replace(self._batch, transaction=tried)
        try:
            return self._all_stages()
        finally:
            self._batch = whole

    def _write(self, results: Sequence[TaskResult]) -> None:
        tasks = [
            WriteTask(self._batch, component, task, changes)
            for one in results
            if one.batch is not None
            for (component, task), changes in one.batch.changes.items()
        ]
        done = self._tasks.once(tasks)
        failures = (
            [BatchFailure("", Cause.DIED, "a process that writes states died")]
            if done is None
            else [failure for one in done for failure in one.failures]
        )
        if failures:
            raise BatchFailedError(failures, may_have_committed=True)

    def _all_stages(self) -> list[TaskResult]:
        sent = list(self._sent)
        results: list[TaskResult] = []
        for stage in self._batch.plan.stages:
            if not stage.is_commit:
                continue
            tasks = self._stage_tasks(stage, sent, 0)
            done = self._tasks.once([replace(one, unfinished=self._unfinished) for one in tasks])
            if done is None:
                died = BatchFailure("", Cause.DIED, f"a process of {stage.components} died")
                assert self._batch.transaction is not None
                may_have_committed = not self._batch.transaction.is_trial
                raise BatchFailedError([died], may_have_committed=may_have_committed)
            results += done
            _check(results)
            sent += [(one.tuples_file, one.tuples) for one in done]
        return results


def _check(results: Collection[TaskResult], *, but: Cause | None = None) -> None:
    """Raise if a task has failed the try at its batch."""
    failed = _failed(results)
    if failed is not None and any(one.cause is not but for one in failed.failures):
        raise failed


def _failed(results: Collection[TaskResult]) -> BatchFailedError | None:
    """Return why the try at the batch has failed; None if it has not."""
    outcomes = [one.batch for one in results if one.batch is not None]
    if len(outcomes) < len(results):
        raise ConservationError("a task of a transaction does not say how it went")
    failures = [failure for one in outcomes for failure in one.failures]
    if not failures:
        return None
    may_have_committed = any(one.may_have_committed for one in outcomes)
    return BatchFailedError(failures, may_have_committed=may_have_committed)


def _blocked(results: Iterable[TaskResult]) -> dict[bytes, Order]:
    """Return the first event of each key that is known to wait."""
    blocked: dict[bytes, Order] = {}
    for one in results:
        for key, order in one.told.blocked.items():
            blocked[key] = min(order, blocked.get(key, order))
    return blocked


def _given_up(root: int, attempts: int, failed: BatchFailedError) -> EventVerdict:
    """Return the verdict on an event that is given up because the batch fails with it."""
    first = failed.failures[0]
    return EventVerdict.of(
        root,
        EventOutcome.DEAD,
        attempts=attempts,
        retry_at_ms=0,
        failure=TreeFailure(FailReason.EXCEPTION, first.detail, (first.component,)),
    )


def _given_up_all(
    roots: Collection[int], emitted: EmittedRoots, failed: BatchFailedError
) -> list[list[EventVerdict]]:
    """Return the verdicts on events that are given up, by first-stage task."""
    ids, wanted = emitted.ids.tolist(), set(roots)
    attempts = zip(ids, emitted.attempts.tolist(), strict=True)
    verdicts = {
        root: _given_up(root, attempt, failed) for root, attempt in attempts if root in wanted
    }
    return _divided(verdicts, ids, emitted.counts)


def _joined(verdicts: Verdicts, more: Verdicts) -> list[list[EventVerdict]]:
    return [[*had, *new] for had, new in zip(verdicts, more, strict=True)]


def _not_among(verdicts: Verdicts, emitted: EmittedRoots) -> list[int]:
    """Return the ids of the emitted roots without a verdict, in their order."""
    known = {one.id for own in verdicts for one in own}
    return [root for root in emitted.ids.tolist() if root not in known]


def _has(refusal: BatchFailedError | None, failure: BatchFailure) -> bool:
    """Return whether a key of a failure is refused again, for the same bolt."""
    return refusal is not None and any(
        one.component == failure.component and one.keys & failure.keys for one in refusal.failures
    )


def _with_key(
    failure: BatchFailure, is_refused_without: Callable[[Collection[int]], bool]
) -> set[int]:
    """Return the events whose key a state refuses, among those that have its value in a field.

    If the value stands in several fields, each field is tried, with all other such events left out.
    A field that does not make the key is accepted. If no field is accepted, all such events are
    returned: it is not known which of them have the key.
    """
    fields, suspects = failure.roots, set[int]().union(*failure.roots)
    keys, others = [], 0
    for own in fields if len(fields) > 1 else ():
        alone = own.difference(*(other for other in fields if other is not own))
        if alone and not is_refused_without(suspects - alone):
            others += 1
        else:
            keys.append(own)
    return set[int]().union(*keys) if others else suspects


def _first_to_blame(ids: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> int | None:
    """Return the first event that makes the batch fail: it passes up to there. None for none."""
    if not ids or fails(ids):
        return None
    first, last = 0, len(ids)
    while last - first > 1:
        middle = (first + last) // 2
        if fails(ids[middle:]):
            last = middle
        else:
            first = middle
    return ids[first]


def _divided(
    verdicts: Mapping[int, EventVerdict], ids: Sequence[int], counts: Sequence[int]
) -> list[list[EventVerdict]]:
    """Return the verdicts by first-stage task. `counts` says how many ids each emitted."""
    places = iter(ids)
    return [
        [verdicts[root] for root in itertools.islice(places, count) if root in verdicts]
        for count in counts
    ]


_Prepared = TypeVar("_Prepared")
_Committed = TypeVar("_Committed")
_COUNTED = (Cause.RAISED, Cause.REFUSED, Cause.DIED)
"""A bolt's own causes: every further try may fail by them. A batch that was asked to fail, and a
database that is away, are not among them: they pass. A refused value is searched for first."""


class TransactionTries(ABC, Generic[_Prepared, _Committed]):
    """Carries a transaction through.

    As long as no state can have been written, a batch that a bolt fails is processed anew, and its
    result may be another. From then on the same result is committed again. It may be unknown
    whether a state was written: another life may have tried, or a database went away. That is
    settled before a value is refused for good. Otherwise one event would end the job at each start.
    """

    def __init__(self, name: str, policy: RetryPolicy) -> None:
        self._name = name
        self._policy = policy

    @abstractmethod
    def new_attempt(self) -> TransactionAttempt:
        """Return the ids of another try. Its attempt id is larger than all before."""

    @abstractmethod
    def process(
        self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool
    ) -> _Prepared:
        """Run the processing phase, and leave its result where it outlasts this process."""

    @abstractmethod
    def commit(
        self, prepared: _Prepared, attempt: TransactionAttempt, *, is_new: bool
    ) -> _Committed:
        """Run the commit phase of what is prepared."""

    @abstractmethod
    def discard(self, prepared: _Prepared, attempt: TransactionAttempt) -> bool:
        """Forget what is prepared if nothing of it was or will be committed; return whether so."""

    @abstractmethod
    def settles_untouched(self, attempt: TransactionAttempt) -> bool:
        """Make tries up to this one write nothing more; return whether none wrote for good."""

    @abstractmethod
    def wait(self, seconds: float, error: BatchFailedError) -> None:
        """Wait before the next try."""

    def carry_out(
        self, prepared: _Prepared | None = None, *, may_have_committed: bool = False
    ) -> tuple[_Prepared, _Committed]:
        """Try until it is committed."""
        failed, counted = Counter[Phase](), Counter[Phase]()
        tries_commit = False
        if may_have_committed:
            may_have_committed = not self.settles_untouched(self.new_attempt())
        while True:
            attempt = self.new_attempt()
            phase = Phase.PROCESSING if prepared is None else Phase.COMMIT
            try:
                if prepared is None:
                    is_last = counted[phase] + 1 == self._policy.max_attempts
                    prepared = self.process(attempt, is_last=is_last, tries_commit=tries_commit)
                    failed[phase] = counted[phase] = 0
                    phase = Phase.COMMIT
                is_new = not may_have_committed
                return prepared, self.commit(prepared, attempt, is_new=is_new)
            except BatchFailedError as error:
                may_have_committed = may_have_committed or error.may_have_committed
                if may_have_committed and error.cause is Cause.REFUSED:
                    may_have_committed = not self.settles_untouched(attempt)
                failed[phase] += 1
                is_first = error.cause is Cause.REFUSED and not (tries_commit or may_have_committed)
                tries_commit = tries_commit or is_first
                counted[phase] += error.cause in _COUNTED and not is_first
                if counted[phase] and counted[phase] == self._policy.max_attempts:
                    raise TransactionError(
                        f"{self._name} failed {counted[phase]} times, last in {error}"
                    ) from error
                if prepared is not None and not may_have_committed:
                    prepared = None if self.discard(prepared, attempt) else prepared
                self.wait(self._policy.retry_at_ms(failed[phase], 0, 0.5) / 1000, error)
