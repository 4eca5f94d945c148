"""Running a topology on the events of a step: stage after stage, then the ackers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consumer import ConservationError
from pipelines._crashes import SurvivingTasks
from pipelines._part_files import show
from pipelines._process_batch import DEAD_LETTERS, Answer, Batch, Given
from pipelines._process_files import write_table
from pipelines._process_tasks import AckerTask, SpoutTask, StageTask
from pipelines._process_verdicts import Unfinished, VerdictTask, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from consumer.topology import Stage


@dataclass(slots=True)
class StepResult:
    """What became of a step's events.

    Attributes:
        counts: taken, acked, failed, dead, waiting, late_acks, untracked_failures, outputs,
            crashes.
        next_due_ms: When the next event is to be tried again; None without any.
        records: Files of records, by folder in `outputs`.
        dead: Files of dead letters.
        unfinished: Files with places of events that are not done.
        waiting: Files of events that wait, by task of the first stage.
        states: Files of what bolts keep, by component and task.
    """

    counts: Counter[str] = field(default_factory=Counter)
    next_due_ms: int | None = None
    records: dict[str, list[str]] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    waiting: dict[int, list[str]] = field(default_factory=dict)
    states: dict[tuple[str, int], str] = field(default_factory=dict)


class StepRun:
    """Runs a topology on the events of a step.

    Args:
        spark: The session.
        batch: What all tasks share; its folders are there.
        givens: The events of each task of the first stage.
        states: Paths of what bolts kept in the step before.
        max_crashes: See `SurvivingTasks`.
    """

    def __init__(
        self,
        spark: SparkSession,
        batch: Batch,
        givens: Sequence[Given],
        states: Mapping[tuple[str, int], str],
        *,
        max_crashes: int,
    ) -> None:
        self._batch = batch
        self._givens = givens
        self._tasks = SurvivingTasks(spark, batch.path("work"), max_crashes=max_crashes)
        self._result = StepResult(states=dict(states))

    def run(self) -> StepResult:
        """Run it; what became of the events.

        Raises:
            BoltCrashError: Processes die again and again.
            ConservationError: An event is unaccounted for.
        """
        if self._batch.plan.is_local:
            answers = self._tasks.run(self._spout_tasks((0, None), gives_waiting=True))
            self._take_all(answers)
        else:
            self._in_waves()
        self._result.counts["crashes"] = self._tasks.crashes
        return self._result

    def _in_waves(self) -> None:
        """So many new events at a time that no more trees are in flight than there may be."""
        most = self._batch.rules.max_spout_pending
        each = None if most is None else max(1, most // len(self._givens))
        first, has_more = 0, True
        while has_more:
            window = (first, None if each is None else first + each)
            has_more = self._wave(window, gives_waiting=first == 0)
            first += each or 0

    def _wave(self, window: tuple[int, int | None], *, gives_waiting: bool) -> bool:
        spouts = self._tasks.run(self._spout_tasks(window, gives_waiting=gives_waiting))
        if not gives_waiting:
            # Their own waiting events stay as they were, and are written down again.
            self._result.waiting.clear()
            self._result.counts["waiting"] = 0
            self._result.next_due_ms = None
        answers = list(spouts)
        for stage in self._batch.plan.stages[1:]:
            answers += self._tasks.run(self._stage_tasks(stage, answers))
        self._take_all(answers)
        if self._batch.ackers:
            self._settle(spouts, answers, window)
        return any(answer.has_more for answer in spouts)

    def _spout_tasks(
        self, window: tuple[int, int | None], *, gives_waiting: bool
    ) -> list[SpoutTask]:
        own = self._states_of(self._batch.plan.stages[0])
        return [
            SpoutTask(
                batch=self._batch,
                given=given if gives_waiting else self._with_waiting(given),
                states=own.get(given.partition, {}),
                window=window,
                gives_waiting=gives_waiting,
            )
            for given in self._givens
        ]

    def _with_waiting(self, given: Given) -> Given:
        """The events of a task when what waits is what an earlier wave has left."""
        return Given(
            given.selection,
            tuple(self._result.waiting.get(given.partition, ())),
            given.partition,
        )

    def _stage_tasks(self, stage: Stage, answers: Iterable[Answer]) -> list[StageTask]:
        own = self._states_of(stage)
        sources: list[list[tuple[str, dict[str, Any]]]] = [[] for _ in range(stage.tasks)]
        for answer in answers:
            found: dict[int, dict[str, Any]] = {}
            for (component, task), places in answer.tuples.items():
                if component in stage.components:
                    found.setdefault(task, {})[component] = places
            for task, blobs in found.items():
                sources[task].append((str(answer.tuples_file), blobs))
        return [
            StageTask(self._batch, stage, task, tuple(sources[task]), own.get(task, {}))
            for task in range(stage.tasks)
        ]

    def _states_of(self, stage: Stage) -> dict[int, dict[tuple[str, int], str]]:
        """Of each task of a stage what its bolts kept."""
        found: dict[int, dict[tuple[str, int], str]] = {}
        for (component, task), path in self._result.states.items():
            if component in stage.components:
                found.setdefault(task, {})[component, task] = path
        return found

    def _settle(
        self, spouts: Sequence[Answer], answers: Sequence[Answer], window: tuple[int, int | None]
    ) -> None:
        batch = self._batch
        files = tuple(answer.acks_file for answer in answers if answer.acks_file is not None)
        verdicts = self._tasks.repeat([AckerTask(files, one) for one in range(batch.ackers)])
        ids = np.concatenate([unfinished for _, unfinished, _ in verdicts])
        flags = np.concatenate([found for _, _, found in verdicts])
        failures = {
            root: failure
            for answer in reversed(answers)  # the first failure is the one that counts
            for root, failure in answer.failures.items()
        }
        shared = [several for answer in answers for several in answer.shared]
        raised = [one for answer in answers for one in answer.finish_failures]
        detail = "; ".join(f"finish_batch of {who!r}: {why}" for who, why in raised)
        acked = sum(count for count, _, _ in verdicts)
        if not len(ids):
            self._result.counts["acked"] += acked
            return
        roots = [str(answer.roots_file) for answer in spouts]
        tables = decide(batch, roots, Unfinished(ids, flags, failures, shared, detail))
        left = sum(len(table) for table in tables)
        self._result.counts["acked"] += acked + len(ids) - left
        tasks = {
            place: VerdictTask(batch, given, window, write_table(batch.path("work"), table))
            for place, (given, table) in enumerate(zip(self._givens, tables, strict=True))
            if len(table)
        }
        written = self._tasks.repeat(list(tasks.values()))
        accounted = sum(answer.waiting + answer.dead for answer in written)
        if accounted != left:
            raise ConservationError(f"{left} events are not done, {accounted} are accounted for")
        for place, answer in zip(tasks, written, strict=True):
            self._take(place, answer)

    def _take_all(self, answers: Sequence[Answer]) -> None:
        """Take in what all tasks did; what bolts want kept takes the place of what they kept."""
        self._result.states = {
            where: str(self._batch.path("states") / name)
            for answer in answers
            for where, name in answer.states.items()
        }
        for place, answer in enumerate(answers):
            self._take(place, answer)

    def _take(self, place: int, answer: Answer) -> None:
        """Take in what a task did, and show its files."""
        batch, result = self._batch, self._result
        result.counts.update(
            taken=answer.taken,
            acked=answer.acked,
            failed=sum(answer.failed.values()),
            dead=answer.dead,
            waiting=answer.waiting,
            late_acks=answer.late_acks,
            untracked_failures=answer.untracked_failures,
            outputs=answer.outputs,
        )
        if answer.next_due_ms is not None:
            due = result.next_due_ms
            result.next_due_ms = answer.next_due_ms if due is None else min(due, answer.next_due_ms)
        for folder, name in answer.files.items():
            result.records.setdefault(folder, []).extend(self._shown(f"outputs/{folder}", name))
        dead = f"outputs/{batch.topics[DEAD_LETTERS][0]}"
        result.dead += self._shown(dead, answer.dead_file)
        result.unfinished += self._shown("unfinished", answer.unfinished_file)
        if answer.waiting_file is not None:
            waiting = self._shown("waiting", answer.waiting_file)
            result.waiting.setdefault(place, []).extend(waiting)

    def _shown(self, folder: str, name: str | None) -> list[str]:
        return show(self._batch.path(folder), [name])
