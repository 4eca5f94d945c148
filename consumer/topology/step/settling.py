"""Events that are not done: they wait, or are given up; either is left behind, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.consumer.topology.api.hooks import AckedEvent, FailedEvent, tell
from sequitur.consumer.topology.api.tuple import EventValues, FailReason, Failure
from sequitur.consumer.topology.engine.rules import Ordering
from sequitur.consumer.topology.settling.pending import next_due_ms, numbered
from sequitur.consumer.topology.step.parts import Answer, StepBatch, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def leave_unfinished(
    batch: StepBatch,
    answer: Answer,
    left: list[Waiting],
    dead: Sequence[Waiting],
    unfinished: Sequence[int],
) -> None:
    """Leave what became of events that are not done.

    Args:
        batch: What all tasks share.
        answer: Gets counts, and what is left.
        left: Events that wait; they are put in order.
        dead: Events given up.
        unfinished: Ids of the roots of events whose outputs may not go out.
    """
    left.sort(key=lambda one: (*one.event[3:7],))
    answer.waiting, answer.dead = len(left), len(dead)
    answer.next_due_ms = _next_due_ms(left, batch)
    answer.least_waiting_ms = left[0].event[3] if left else None
    answer.waiting_file = batch.write_waiting(left)
    if dead:
        answer.dead_file = batch.write_dead(dead)
    if unfinished:
        answer.unfinished_file = batch.write_unfinished(unfinished)


def tell_hook(
    batch: StepBatch,
    done: Iterable[tuple[tuple[Any, ...], int]],
    again: Iterable[Waiting],
    dead: Iterable[Waiting],
) -> None:
    """Tell the topology's hook, if it has one.

    Args:
        batch: What all tasks share.
        done: Events that are acked, and which attempt that was.
        again: Events that were given out now, and wait for another attempt or for each other.
        dead: Events given up.
    """
    hook = batch.topology.hook
    if hook is None:
        return
    took_ms = max(0, batch.time_ms() - batch.now_ms)
    for event, attempt in done:
        tell(hook, AckedEvent(EventValues(*event), attempt, took_ms))
    for is_dead, several in ((False, again), (True, dead)):
        for one in several:
            if one.reason is None:
                continue
            path = tuple(one.path.split(" > ")) if one.path else ()
            failure = Failure(FailReason(one.reason), one.detail or "", path)
            event = EventValues(*one.event)
            tell(hook, FailedEvent(event, one.attempts, took_ms, failure, is_dead))


def _next_due_ms(left: Sequence[Waiting], batch: StepBatch) -> int | None:
    """When the next event is to be tried again: one that waits for nobody is due at once."""
    due_ms = next_due_ms(
        numbered(one.event[0] for one in left),
        retry_times(left),
        keeps_order=batch.rules.ordering is Ordering.KEY,
    )
    return None if due_ms is None else max(due_ms, batch.now_ms)


def retry_times(waiting: Iterable[Waiting]) -> Any:
    """When each of the events that wait may run; 0 of one that is held."""
    return np.array([one.retry_at_ms or 0 for one in waiting], np.int64)


def killer(event: tuple[Any, ...], attempt: int) -> Waiting:
    """An event that kills the process it is given to, as it is given up.

    Args:
        event: Its values.
        attempt: Which attempt that was.
    """
    failure = crashed(())
    return Waiting(event, attempt, None, failure.reason.value, failure.detail, "")


def crashed(path: tuple[str, ...]) -> Failure:
    """Why what kills a process is given up.

    Args:
        path: The components that the tuple had come through.
    """
    return Failure(FailReason.CRASH, "the process died whenever it was given this", path)
