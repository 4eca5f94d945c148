"""A topology in Spark's tasks.

The first stage reads the events that are due, and gives out those that waited, then the new ones.
Stages behind it read the tuples that earlier ones have sent them. Where one stage is all there is,
its tasks know by themselves what became of each event; else the ackers' tasks do
(`pipelines._process_stages`).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from consumer.topology import (
    AckLedger,
    EventValues,
    Executor,
    FailReason,
    Place,
    Root,
    Sent,
    TopologyError,
    random_ids,
)
from consumer.topology._acker import columns
from pipelines._process_batch import WHOLE, Answer, Batch, Given, Trial
from pipelines._process_files import (
    ExchangeFile,
    OutputFiles,
    Waiting,
    read_acks,
    read_tuples,
    with_init,
    write_acks,
    write_roots,
)
from pipelines._process_settling import crashed, killer, settle_files
from pipelines._watchdog import ending_overrun_calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from consumer.topology import Stage

_COLLECTED_EACH: Final = 200_000
"""New objects between two looks for garbage: tuples make none, and there are many of them."""
_STAGE_BITS: Final = 10


@dataclass(frozen=True, slots=True)
class SpoutTask:
    """A task of the first stage.

    Attributes:
        batch: What all tasks share.
        given: Its events.
        states: Paths of what its bolts kept in the step before.
        window: Which of the new events it takes in.
        gives_waiting: Whether those that wait are given out when they are due.
        trial: What is given out of all that.
    """

    batch: Batch
    given: Given
    states: Mapping[tuple[str, int], str]
    window: tuple[int, int | None] = (0, None)
    gives_waiting: bool = True
    trial: Trial = WHOLE

    @property
    def weight(self) -> int:
        """About how many new events there are."""
        given = self.given
        return 0 if given.selection is None else given.selection.rows_at_most(given.partition)

    def count(self) -> int:
        """How much there is to give out."""
        return sum(1 for _ in self.given.all(self.window))

    def __call__(self) -> Answer:
        """Run it."""
        batch, stage, partition = self.batch, self.batch.plan.stages[0], self.given.partition
        outputs = OutputFiles(batch.path("outputs"), batch.topics, partition)
        sends = ExchangeFile(batch.path("work")) if not batch.plan.is_local else None
        executor = _executor(self.batch, stage, partition, outputs, sends, self.states)
        answer = Answer()
        left: list[Waiting] = []
        dead: list[Waiting] = []
        with _running(executor, batch):
            if self.trial == WHOLE:
                self._give_waiting(executor, left)
                answer.taken = self._give_new(executor)
            else:
                answer.taken = self._try(executor, left, dead)
            executor.finish()
            answer.states = _write_states(executor, batch)
        answer.has_more = self._has_more(answer.taken)
        answer.acked = executor.acked
        self._settle(executor, answer, left, dead)
        if sends is not None:
            sends.close()
            answer.tuples_file, answer.tuples = str(sends.path), sends.index
            given_out = [root for root in executor.roots() if root.is_tracked]
            _tell_ackers(executor, given_out, batch, answer, is_spout=True)
            answer.acked += sum(not root.is_tracked for root in executor.roots())
        _tell_counts(executor, outputs, answer)
        return answer

    def _new(self) -> Iterator[tuple[Any, ...]]:
        return itertools.islice(self.given.new(), *self.window)

    def _give_waiting(self, executor: Executor, left: list[Waiting]) -> None:
        """Give out what waited and is due."""
        for waited in self.given.waiting():
            if self._stays(waited, executor):
                left.append(waited)
            else:
                executor.feed(self._root(executor, waited.event, waited.attempts + 1), waited.event)

    def _give_new(self, executor: Executor) -> int:
        """Give out new events; how many."""
        taken, feed, next_id = 0, executor.feed, executor.next_id
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        if isinstance(tracked, bool):
            for taken, event in enumerate(self._new(), 1):  # noqa: B007 - the last number counts
                feed(Root(next_id(), event, 1, 0.0, tracked), event)
        else:
            for taken, event in enumerate(self._new(), 1):  # noqa: B007 - the last number counts
                feed(self._root(executor, event, 1), event)
        return taken

    def _try(self, executor: Executor, left: list[Waiting], dead: list[Waiting]) -> int:
        """Give out a part of all that, and not what kills; how many new events were among it."""
        taken = 0
        for place, (waited, event) in self.trial.of(self.given.all(self.window)):
            attempt = 1 if waited is None else waited.attempts + 1
            taken += waited is None
            if waited is not None and self._stays(waited, executor):
                left.append(waited)
            elif place in self.trial.poison:
                dead.append(killer(event, attempt))
            else:
                executor.feed(self._root(executor, event, attempt), event)
        return taken

    def _root(self, executor: Executor, event: tuple[Any, ...], attempt: int) -> Root:
        tracked: Any = self.batch.topology.spout.tracked if self.batch.ackers else False
        if not isinstance(tracked, bool):
            try:
                tracked = bool(tracked(EventValues(*event)))
            except Exception as error:
                spout = self.batch.topology.spout.id
                raise TopologyError(f"spout {spout!r}: `tracked` raised {error!r}") from error
        return Root(executor.next_id(), event, attempt, 0.0, tracked)

    def _stays(self, waited: Waiting, executor: Executor) -> bool:
        """Whether an event that waits goes on doing so; then it holds up those of its key."""
        key, order = waited.event[0], waited.event[3:7]
        is_due = waited.retry_at_ms is None or waited.retry_at_ms <= self.batch.now_ms
        if self.gives_waiting and is_due and not executor.is_blocked(key, order):
            return False
        executor.block(key, order)
        return True

    def _has_more(self, taken: int) -> bool:
        return self.window[1] is not None and taken == self.window[1] - self.window[0]

    def _settle(
        self, executor: Executor, answer: Answer, left: list[Waiting], dead: list[Waiting]
    ) -> None:
        batch = self.batch
        # One number for all: events that failed together are tried again together, as a join needs.
        drawn = random.Random(hash((*batch.seed, self.given.partition))).random()
        retries: dict[Root, int] = {}
        for root in executor.settled:
            if root.failure is not None and not batch.retry.is_last(root.attempt):
                retries[root] = batch.retry.retry_at_ms(root.attempt, batch.now_ms, drawn)
        for several in executor.together:
            # What they put out together they have to put out together when they are tried again.
            if times := [retries[root] for root in several if root in retries]:
                retries.update((root, max(times)) for root in several if not root.is_done)
        for root in executor.settled:
            if root.failure is None:
                left.append(Waiting(root.event, root.attempt - 1, retries.get(root)))
                continue
            reason = root.failure.reason.value
            answer.failed[reason] = answer.failed.get(reason, 0) + 1
            told = (reason, root.failure.detail, " > ".join(root.failure.path))
            one = Waiting(root.event, root.attempt, retries.get(root), *told)
            (left if root in retries else dead).append(one)
        if killers := sum(one.reason == FailReason.CRASH.value for one in dead):
            answer.failed[FailReason.CRASH.value] = killers
        unfinished = [Place(*root.event[4:7]) for root in executor.settled]
        settle_files(batch, answer, left, dead, unfinished)


@dataclass(frozen=True, slots=True)
class StageTask:
    """A task of a later stage.

    Attributes:
        batch: What all tasks share.
        stage: The stage.
        task: The task's number.
        sources: Files of tuples, and where in each those of a component's task stand.
        states: Paths of what its bolts kept in the step before.
        trial: What is given out of its tuples.
    """

    batch: Batch
    stage: Stage
    task: int
    sources: tuple[tuple[str, Mapping[str, list[tuple[int, int]]]], ...]
    states: Mapping[tuple[str, int], str]
    trial: Trial = WHOLE

    @property
    def weight(self) -> int:
        """About how large its tuples are."""
        return sum(
            length for _, blobs in self.sources for places in blobs.values() for _, length in places
        )

    def count(self) -> int:
        """How much there is to give out."""
        return len(self._input())

    def __call__(self) -> Answer:
        """Run it."""
        batch, stage = self.batch, self.stage
        number = stage.number << _STAGE_BITS | self.task
        outputs = OutputFiles(batch.path("outputs"), batch.topics, number)
        sends = ExchangeFile(batch.path("work"))
        executor = _executor(batch, stage, self.task, outputs, sends, self.states)
        answer = Answer()
        with _running(executor, batch):
            for place, (component, sent) in self.trial.of(self._input()):
                if place in self.trial.poison:
                    executor.give_up(sent, crashed((*sent.path, component)))
                else:
                    executor.receive(component, self.task, sent)
            executor.finish()
            answer.states = _write_states(executor, batch)
        sends.close()
        answer.tuples_file, answer.tuples = str(sends.path), sends.index
        _tell_ackers(executor, executor.roots(), batch, answer, is_spout=False)
        _tell_counts(executor, outputs, answer)
        return answer

    def _input(self) -> list[tuple[str, Sent]]:
        """Its tuples, in the order of the events they come from."""
        found = [
            (component, Sent(*sent))
            for path, blobs in self.sources
            for component, places in blobs.items()
            for sent in read_tuples(path, places)
        ]
        found.sort(key=lambda one: max(root.order for root, _ in one[1].trees))
        return found


@dataclass(frozen=True, slots=True)
class AckerTask:
    """An acker: tells which of its roots are done.

    Attributes:
        files: What tasks know of roots.
        acker: Its number.
    """

    files: tuple[str, ...]
    acker: int

    def __call__(self) -> tuple[int, Any, Any]:
        """How many are done, and of the others id and flags."""
        ledger = AckLedger()
        for path in self.files:
            ledger.add(*read_acks(path, self.acker))
        verdicts = ledger.verdicts()
        return verdicts.acked, verdicts.unfinished, verdicts.flags


def _executor(  # noqa: PLR0917 - private, and each is of a type of its own
    batch: Batch,
    stage: Stage,
    task: int,
    outputs: OutputFiles,
    sends: ExchangeFile | None,
    states: Mapping[tuple[str, int], str],
) -> Executor:
    kept = {
        place: pickle.loads(Path(path).read_bytes())  # noqa: S301 - what our own task wrote
        for place, path in states.items()
    }
    return Executor(
        batch.topology,
        batch.plan.placement(stage, task),
        batch.rules,
        clock=time.monotonic,
        next_id=random_ids((*batch.seed, stage.number, task)),
        write=outputs.write,
        send=None if sends is None else sends.send,
        states=kept,
    )


@contextlib.contextmanager
def _running(executor: Executor, batch: Batch) -> Iterator[None]:
    """What holds while a topology runs in a task: calls end in time, and bolts clean up."""
    threshold = gc.get_threshold()
    gc.set_threshold(_COLLECTED_EACH, *threshold[1:])
    try:
        with ending_overrun_calls(executor, batch.rules.message_timeout_s):
            yield
    finally:
        gc.set_threshold(*threshold)
        executor.close()


def _tell_counts(executor: Executor, outputs: OutputFiles, answer: Answer) -> None:
    answer.late_acks = executor.late_acks
    answer.untracked_failures = executor.untracked_failures
    answer.files = outputs.close()
    answer.outputs = outputs.count


def _tell_ackers(
    executor: Executor, roots: Sequence[Root], batch: Batch, answer: Answer, *, is_spout: bool
) -> None:
    ids, values, flags = columns(roots)
    if is_spout:
        flags = with_init(flags)
        answer.roots_file = write_roots(batch.path("work"), roots)
    if batch.ackers:
        answer.acks_file = write_acks(batch.path("work"), ids, values, flags, batch.ackers)
    answer.finish_failures = list(executor.finish_failures)
    answer.failures = {root.id: root.failure for root in roots if root.failure is not None}
    shared = [[root.id for root in several if root.is_tracked] for several in executor.shared]
    answer.shared = [tuple(several) for several in shared if len(several) > 1]


def _write_states(executor: Executor, batch: Batch) -> dict[tuple[str, int], str]:
    names = {}
    for place, state in executor.states().items():
        names[place] = f"{uuid4().hex}.pickle"
        batch.path("states").joinpath(names[place]).write_bytes(state)
    return names
