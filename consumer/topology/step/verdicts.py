"""What the ackers' verdicts mean for each event, where a topology runs in several stages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.consumer.topology.engine.rules import Ordering
from sequitur.consumer.topology.settling.acker import AckFlag
from sequitur.consumer.topology.settling.made_tuple import is_made
from sequitur.consumer.topology.settling.root import never_acked
from sequitur.consumer.topology.settling.settlement import EventOutcome, settle
from sequitur.consumer.topology.step.events import EventVerdict
from sequitur.consumer.topology.step.task_result import TaskResult
from sequitur.consumer.topology.step.unfinished import UnfinishedEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.settling.settlement import Settlement
    from sequitur.consumer.topology.step.batch import Handle, StepBatch
    from sequitur.consumer.topology.step.events import EmittedRoots, TaskInput, Window


@dataclass(frozen=True, slots=True)
class UnfinishedRoots:
    """The roots that ackers found not to be done."""

    ids: Any
    flags: Any
    failures: Mapping[int, TreeFailure]  # why roots failed, as far as tasks know
    shared: Sequence[tuple[int, ...]]  # ids of roots that share an output


def decide(
    batch: StepBatch, roots: Sequence[Handle], found: UnfinishedRoots
) -> list[list[EventVerdict]]:
    """Decide what becomes of the events that are not done, by the tasks of the first stage."""
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
    settled = settle(
        emitted.keys.astype(np.int64),
        emitted.attempts.astype(np.int64),
        {place: failure.reason for place, failure in failures.items()},
        held,
        now_ms=batch.now_ms,
        policy=batch.rules.retry,
        random=random.Random(hash(batch.seed)).random(),
        shared=[places_of(several) for several in found.shared],
        keeps_order=batch.rules.ordering is Ordering.KEY,
    )
    verdicts, begin = [], 0
    for count in emitted.counts:
        left = settled.outcomes[begin : begin + count] != EventOutcome.DONE
        verdicts.append(_verdicts(np.flatnonzero(left) + begin, emitted, failures, settled))
        begin += count
    return verdicts


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
    """Leaves the events of a task of the first stage that are not done."""

    batch: StepBatch  # what all tasks share
    given: TaskInput  # the task's events
    window: Window  # which of the new ones it took in
    verdicts: Handle  # what becomes of those that are not done
    roots: Handle  # the roots that the task emitted
    # tuples that tasks have made by themselves: those that wait, wait with the task's
    made: Sequence[Handle] = ()

    def __call__(self) -> TaskResult:
        """Leave them."""
        verdicts = {one.id: one for one in self.batch.read_verdicts(self.verdicts)}
        unfinished = UnfinishedEvents(self.batch)
        result = TaskResult()
        attempts = self._attempts()
        done = []
        for root, _, event in self.given.all(self.window):
            verdict = verdicts.get(root)
            if verdict is not None:
                unfinished.add(event, verdict)
            elif root in attempts and not is_made(event):
                done.append((event, attempts[root]))
        for root, event in (one for several in self.made for one in self.batch.read_made(several)):
            if root in verdicts:
                unfinished.add(event, verdicts[root])
        unfinished.write(result)
        unfinished.notify_hook(done)
        return result

    def _attempts(self) -> Mapping[int, int]:
        """Return the attempts of the roots that were emitted; none without a hook."""
        return {} if self.batch.topology.hook is None else self.batch.attempts_of(self.roots)
