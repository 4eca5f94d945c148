"""The two phases of a transaction: what bolts make of a step's events, and its commit.

What the processing phase leaves is what every try at the commit begins with, so that a commit which
is repeated commits the same. It holds no event that has failed: where one does, the phase is run
again without it, until none fails.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from sequitur.consumer._errors import ConservationError
from sequitur.consumer.topology.api.failure import FailReason, TreeFailure
from sequitur.consumer.topology.settling.settlement import EventOutcome
from sequitur.consumer.topology.step.events import EventVerdict
from sequitur.consumer.topology.step.run import StepRun
from sequitur.consumer.topology.transactional.phase import BatchFailure, Cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.step.batch import Handle, StepBatch
    from sequitur.consumer.topology.step.events import TaskInput
    from sequitur.consumer.topology.step.run import SentTuples, StepResult, Tasks
    from sequitur.consumer.topology.step.task_result import TaskResult


class BatchFailedError(Exception):
    """A try at a transaction failed; nothing is left of it but what may have been committed.

    Attributes:
        failures: Why it failed.
        may_have_committed: Whether a committer may have written state.
    """

    def __init__(self, failures: Sequence[BatchFailure], *, may_have_committed: bool) -> None:
        super().__init__("; ".join(f"{who or 'a task'}: {why}" for who, _, why in failures))
        self.failures = tuple(failures)
        self.may_have_committed = may_have_committed

    @property
    def cause(self) -> Cause:
        """Of all causes the one that weighs most."""
        causes = {one.cause for one in self.failures}
        weighed = (Cause.RAISED, Cause.DIED, Cause.UNAVAILABLE, Cause.ASKED)
        return next(cause for cause in weighed if cause in causes)


class ProcessingRun(StepRun):
    """Runs the processing phase of a transaction; see `StepRun`.

    Args:
        batch: What all tasks share.
        givens: The events of each task of the first stage.
        states: What bolts kept in the step before.
        tasks: Runs the tasks.
        is_last: Whether a bolt that raises for what belongs to the batch has no further try: then
            an event is searched for without which it does not.
    """

    def __init__(
        self,
        batch: StepBatch,
        givens: Sequence[TaskInput],
        states: Mapping[tuple[str, int], Handle],
        tasks: Tasks,
        *,
        is_last: bool = False,
    ) -> None:
        super().__init__(batch, givens, states, tasks)
        self._is_last = is_last
        self._name = batch.run
        self._passes = itertools.count(1)

    def run(self) -> StepResult:
        """Run it, again and again without the events that have failed.

        Returns:
            What became of the events; its `sent` is what the commit phase begins with.

        Raises:
            BatchFailedError: A bolt failed the batch, or something failed that is not an event's.
            ConservationError: An event, or a record that a bolt emitted, is unaccounted for.
        """
        verdicts: list[list[EventVerdict]] = [[] for _ in self._givens]
        while True:
            spouts, results = self._all_stages(verdicts)
            _check(results, but=Cause.RAISED)
            acked, found = self._verdicts(spouts, results)
            if not any(found):
                # What a bolt raises over a part of an event would be no fault without the event.
                failed = _failed(results)
                if failed is None:
                    break
                found = self._blamed(verdicts, spouts, failed)
            verdicts = [[*had, *new] for had, new in zip(verdicts, found, strict=True)]
        kept = {
            place: state
            for place, state in self._result.states.items()
            if place[0] in self._batch.topology.commit_phase
        }
        # What committers and those behind them make of it counts in the commit phase alone.
        self._take_all([one for one in results if not one.is_rehearsal])
        self._result.states = {**kept, **self._result.states}
        self._result.counts["acked"] += acked
        self._leave(verdicts, [one.roots_file for one in spouts], (0, None))
        self._result.sent = [
            (one.tuples_file, wanted)
            for one in results
            if not one.is_rehearsal and (wanted := self._for_commit(one))
        ]
        return self._finished()

    def _blamed(
        self,
        verdicts: Sequence[Sequence[EventVerdict]],
        spouts: Sequence[TaskResult],
        failed: BatchFailedError,
    ) -> list[list[EventVerdict]]:
        """Give up the first event that the batch fails with, and does not fail up to.

        Args:
            verdicts: What became of those that are taken out, by task.
            spouts: What the first stage gave out.
            failed: Why the batch has failed.

        Raises:
            BatchFailedError: No event is to blame, or there is another try.
        """
        emitted = self._batch.emitted_roots([one.roots_file for one in spouts])
        ids = emitted.ids.tolist()

        def fails(count: int) -> bool:
            left_out = {root: _given_up(root, 0, failed) for root in ids[count:]}
            tried = _divided(left_out, ids, emitted.counts)
            _, results = self._all_stages(
                [[*had, *new] for had, new in zip(verdicts, tried, strict=True)]
            )
            _check(results, but=Cause.RAISED)
            return _failed(results) is not None

        if not (self._is_last and ids) or fails(0):
            raise failed
        if not fails(len(ids)):
            return [[] for _ in emitted.counts]  # it has passed: the batch is to be run again
        first, last = 0, len(ids)
        while last - first > 1:
            middle = (first + last) // 2
            if fails(middle):
                last = middle
            else:
                first = middle
        to_blame = _given_up(ids[first], int(emitted.attempts[first]), failed)
        return _divided({ids[first]: to_blame}, ids, emitted.counts)

    def _all_stages(
        self, verdicts: Sequence[Sequence[EventVerdict]]
    ) -> tuple[list[TaskResult], list[TaskResult]]:
        """Run all stages; return the results of the first, and of all."""
        # Of several passes the last one counts: no bolt of another goes on in it.
        self._batch = replace(self._batch, run=f"{self._name}.{next(self._passes)}")
        excluded = [self._batch.write_verdicts(own) if own else None for own in verdicts]
        spouts = self._tasks.run(self._spout_tasks((0, None), 0, excluded))
        return spouts, self._with_later_stages(spouts, 0)

    def _for_commit(self, result: TaskResult) -> dict[tuple[str, int], Handle]:
        """Return where the tuples for the commit phase stand among those that a task sent."""
        commit_phase = self._batch.topology.commit_phase
        return {to: where for to, where in result.tuples.items() if to[0] in commit_phase}


class CommitRun(StepRun):
    """Runs a try at the commit phase of a transaction.

    Args:
        batch: What all tasks share.
        sent: What the processing phase has left.
        states: What bolts kept in the step before.
        tasks: Runs the tasks.
    """

    def __init__(
        self,
        batch: StepBatch,
        sent: Sequence[SentTuples],
        states: Mapping[tuple[str, int], Handle],
        tasks: Tasks,
    ) -> None:
        super().__init__(batch, (), states, tasks)
        self._sent = sent

    def run(self) -> StepResult:
        """Run it, and return the records and the states that it has left.

        Raises:
            BatchFailedError: It failed: it is to be tried again.
            ConservationError: A record that a bolt emitted is unaccounted for.
        """
        sent = list(self._sent)
        results: list[TaskResult] = []
        for stage in self._batch.plan.stages:
            if not stage.is_commit:
                continue
            done = self._tasks.once(self._stage_tasks(stage, sent, 0))
            if done is None:
                died = BatchFailure("", Cause.DIED, f"a process of {stage.components} died")
                raise BatchFailedError([died], may_have_committed=True)
            results += done
            _check(results)
            sent += [(one.tuples_file, one.tuples) for one in done]
        self._take_all(results)
        return self._finished()


def _check(results: Sequence[TaskResult], *, but: Cause | None = None) -> None:
    """Check that no task has failed the try at its batch.

    Args:
        results: Of all tasks.
        but: Failures of this cause alone are passed over.

    Raises:
        BatchFailedError: One has.
    """
    failed = _failed(results)
    if failed is not None and any(one.cause is not but for one in failed.failures):
        raise failed


def _failed(results: Sequence[TaskResult]) -> BatchFailedError | None:
    """Return why the try at the batch has failed; None if it has not."""
    outcomes = [one.batch for one in results if one.batch is not None]
    if len(outcomes) < len(results):
        raise ConservationError("a task of a transaction does not say how it went")
    failures = [failure for one in outcomes for failure in one.failures]
    if not failures:
        return None
    may_have_committed = any(one.may_have_committed for one in outcomes)
    return BatchFailedError(failures, may_have_committed=may_have_committed)


def _given_up(root: int, attempts: int, failed: BatchFailedError) -> EventVerdict:
    """Return the verdict on an event that is given up since its batch fails with it."""
    first = failed.failures[0]
    return EventVerdict.of(
        root,
        EventOutcome.DEAD,
        attempts=attempts,
        retry_at_ms=0,
        failure=TreeFailure(FailReason.EXCEPTION, first.detail, (first.component,)),
    )


def _divided(
    verdicts: Mapping[int, EventVerdict], ids: Sequence[int], counts: Sequence[int]
) -> list[list[EventVerdict]]:
    """Return verdicts by the tasks of the first stage, which emitted so many of the ids each."""
    places = iter(ids)
    return [
        [verdicts[root] for root in itertools.islice(places, count) if root in verdicts]
        for count in counts
    ]
