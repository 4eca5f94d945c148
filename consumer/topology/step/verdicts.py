"""What the ackers' verdicts mean for each event, where a topology runs in several stages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.consumer.topology.api.tuple import never_acked
from sequitur.consumer.topology.engine.rules import Ordering
from sequitur.consumer.topology.settling.acker import AckFlag
from sequitur.consumer.topology.settling.pending import EventOutcome, settle
from sequitur.consumer.topology.step.parts import Answer, StepBatch, Verdict, Waiting
from sequitur.consumer.topology.step.settling import leave_unfinished, tell_hook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.api.tuple import Failure
    from sequitur.consumer.topology.settling.pending import Settlement
    from sequitur.consumer.topology.step.parts import Given, GivenOut, Handle, Window


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The roots that ackers have found not to be done.

    Attributes:
        ids: Their ids.
        flags: Their flags.
        failures: Why roots failed, as far as a task told.
        shared: Ids of roots that share an output.
        raised: Bolts whose `finish_batch` raised, and what.
    """

    ids: Any
    flags: Any
    failures: Mapping[int, Failure]
    shared: Sequence[tuple[int, ...]]
    raised: Sequence[tuple[str, str]] = ()


def decide(batch: StepBatch, roots: Sequence[Handle], found: Unfinished) -> list[list[Verdict]]:
    """What becomes of the events that are not done, by the tasks of the first stage.

    Args:
        batch: What all tasks share.
        roots: The events that each of these has given out.
        found: Which are not done.
    """
    given = batch.given_out(roots)
    ids, attempts = given.ids, given.attempts
    order = np.argsort(ids)

    def places_of(wanted: Any) -> Any:
        return order[np.searchsorted(ids, np.asarray(wanted, np.uint64), sorter=order)]

    forgotten = never_acked(batch.topology.spout.id, found.raised)
    failures: dict[int, Failure] = {}
    failed, held, gone = (np.zeros(len(ids), np.bool_) for _ in range(3))
    places = places_of(found.ids)
    for place, root, flags in zip(
        places.tolist(), found.ids.tolist(), found.flags.tolist(), strict=True
    ):
        failure = found.failures.get(root)
        if failure is None and flags & AckFlag.HELD:
            held[place] = True
        else:
            failures[place] = failure or forgotten
            failed[place] = True
    for place, failure in failures.items():
        gone[place] = batch.rules.retry.gives_up(int(attempts[place]), failure.reason)
    settled = settle(
        given.keys.astype(np.int64),
        attempts.astype(np.int64),
        failed,
        held,
        gone,
        now_ms=batch.now_ms,
        policy=batch.rules.retry,
        random=random.Random(hash(batch.seed)).random(),
        shared=[places_of(several) for several in found.shared],
        keeps_order=batch.rules.ordering is Ordering.KEY,
    )
    verdicts, begin = [], 0
    for count in given.counts:
        left = settled.outcomes[begin : begin + count] != EventOutcome.DONE
        verdicts.append(_verdicts(np.flatnonzero(left) + begin, given, failures, settled))
        begin += count
    return verdicts


def _verdicts(
    places: Any, given: GivenOut, failures: Mapping[int, Failure], settled: Settlement
) -> list[Verdict]:
    columns = (
        given.ids[places].tolist(),
        given.attempts[places].tolist(),
        settled.retry_at_ms[places].tolist(),
        (settled.outcomes[places] == EventOutcome.DEAD).tolist(),
    )
    verdicts = []
    for place, root, attempt, retry_at_ms, is_dead in zip(places.tolist(), *columns, strict=True):
        failure = failures.get(place)
        if failure is None:
            held = (root, attempt - 1, retry_at_ms or None, is_dead, None, None, None)
            verdicts.append(Verdict(*held))
            continue
        told = (failure.reason.value, failure.detail, " > ".join(failure.path))
        verdicts.append(Verdict(root, attempt, retry_at_ms or None, is_dead, *told))
    return verdicts


@dataclass(frozen=True, slots=True)
class VerdictTask:
    """Leaves the events of a task of the first stage that are not done.

    Attributes:
        batch: What all tasks share.
        given: The task's events.
        window: Which of the new ones it took in.
        verdicts: What becomes of those that are not done.
        roots: The events that the task has given out.
    """

    batch: StepBatch
    given: Given
    window: Window
    verdicts: Handle
    roots: Handle

    def __call__(self) -> Answer:
        """Leave them."""
        batch = self.batch
        verdicts = {one.id: one for one in batch.read_verdicts(self.verdicts)}
        left: list[Waiting] = []
        dead: list[Waiting] = []
        answer = Answer()
        tried = self._tried()
        done = []
        for root, _, event in self.given.all(self.window):
            verdict = verdicts.get(root)
            if verdict is None:
                if root in tried:
                    done.append((event, tried[root]))
                continue
            _, attempts, retry_at_ms, is_dead, reason, detail, path = verdict
            one = Waiting(event, attempts, retry_at_ms, reason, detail, path)
            (dead if is_dead else left).append(one)
            if reason is not None:
                answer.failed[reason] = answer.failed.get(reason, 0) + 1
        leave_unfinished(batch, answer, left, dead, list(verdicts))
        tell_hook(batch, done, left, dead)
        return answer

    def _tried(self) -> Mapping[int, int]:
        """The roots that were given out, and which attempt that was; none without a hook."""
        return {} if self.batch.topology.hook is None else self.batch.tried(self.roots)
