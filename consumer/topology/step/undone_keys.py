"""Takes keys back to before the events that ackers have found not to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.settling.root import is_timer, timer_of
from sequitur.consumer.topology.step.batch import TaskResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology.step.batch import EventVerdict, Handle, StepBatch, TaskInput


@dataclass(frozen=True, slots=True)
class UndoTask:
    """Leaves what a first-stage task has changed of keys, without what is undone."""

    batch: StepBatch
    given: TaskInput
    log: Handle  # what undoes the task's changes
    timers: Handle  # the timers that it called
    verdicts: Sequence[EventVerdict]  # what becomes of its events that are not done
    wave: int  # the wave of the step that it was in

    def __call__(self) -> TaskResult:
        log = self.batch.read_key_log(self.log)
        unfinished = {one.id for one in self.verdicts}
        undone = log.undo(unfinished)
        dead = {one.id for one in self.verdicts if one.is_dead}
        if dead:
            for root, event in self._timers():
                if root in dead:
                    log.drop(timer_of(event)[0])
        again = (log.left[where].timer_ms for where in undone)
        return TaskResult(
            keys={
                (component, self.given.partition): self.batch.write_changes(changes, self.wave)
                for component, changes in log.changes().items()
            },
            next_timer_ms=min((one for one in again if one is not None), default=None),
            late_for_window=log.late_for_window(unfinished),
            is_open=self.batch.closes and bool(dead),
        )

    def _timers(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        if self.timers is not None:
            yield from self.batch.read_made(self.timers)
        for root, waited in enumerate(self.given.waiting(), self.given.first_id):
            if is_timer(waited.event):
                yield root, waited.event
