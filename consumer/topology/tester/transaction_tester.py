"""Runs a transactional topology on plain lists, or on the tuples of its own spout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.step.run import StepResult, TasksHere
from sequitur.consumer.topology.step.transaction_run import (
    BatchFailedError,
    CommitRun,
    ProcessingRun,
    TransactionTries,
)
from sequitur.consumer.topology.tester.in_memory import InMemoryInput
from sequitur.consumer.topology.tester.tester import TopologyTester
from sequitur.consumer.topology.transactional.attempt import (
    Phase,
    Transaction,
    TransactionAttempt,
    attempts_of_life,
)
from sequitur.consumer.topology.transactional.builder import (
    TransactionalTopology,
    create_states,
)
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from sequitur.consumer.topology.transactional.spouts import MemoryMetadataStore
from sequitur.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from sequitur.consumer.topology._settings import ProcessSettings
    from sequitur.consumer.topology.settling.outcomes import RetryPolicy
    from sequitur.consumer.topology.step.batch import Handle
    from sequitur.consumer.topology.tester.in_memory import InMemoryBatch, Inputs
    from sequitur.consumer.topology.transactional.spouts import MetadataStore

_OFFSET_BITS: Final = 32
"""A spout's own tuple has the transaction's number above these bits of its offset."""


class FailedTry(NamedTuple):
    """An attempt of a transaction that failed.

    Attributes:
        attempt: The try.
        detail: Why it failed.
    """

    attempt: TransactionAttempt
    detail: str


class TransactionTester(TopologyTester):
    """Runs a transactional topology as a job does. See `TopologyTester`.

    Each batch is a transaction. The tester repeats it until it is committed, and moves the clock
    between two attempts. `run_batch` runs a batch of a spout of the topology's own. ::

        tester = TransactionTester(topology)
        tester.run([("page 1", "to be or not to be")])
        assert tester.transaction_id == 1

    Args:
        topology: The topology.
        settings: How the topology is run.
        parallelism: See `TopologyTester`.
        partitions: See `TopologyTester`. If the topology has a spout of its own, the builder says
            how many tasks it has.
        seed: See `TopologyTester`.
        epoch: Name of the checkpoint, as databases store it.
        metadata: Store for the transactions of the topology's own spout. Default: in memory.
        resumes_after: The last committed transaction of an earlier life. 0: none.
        life: Number of this life over the same databases. A later life needs a larger number, which
            distinguishes its attempts from earlier ones.

    Attributes:
        transaction_id: The last committed transaction.
        failed_tries: Attempts that failed.

    Raises:
        TopologyError: A setting does not fit transactions, or the topology is not transactional.
    """

    _runs_transactions: ClassVar[bool] = True

    def __init__(
        self,
        topology: TransactionalTopology,
        settings: ProcessSettings | None = None,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        partitions: int | None = None,
        seed: int = 0,
        epoch: str = "tester",
        metadata: MetadataStore | None = None,
        resumes_after: int = 0,
        life: int = 1,
    ) -> None:
        is_keyed = topology.is_keyed
        why = None if settings is None else settings.why_not_transactional(is_keyed=is_keyed)
        if why is not None:
            raise TopologyError(f"topology {topology.name!r} is transactional: {why}")
        if topology.is_transactional and not topology.is_of_ordered_stream:
            partitions = topology.parallelism or 1
        super().__init__(
            topology, settings, parallelism=parallelism, partitions=partitions, seed=seed
        )
        self._epoch = epoch
        self._transactional = topology
        self._committed = self._committers_tasks() if resumes_after else {}
        self._spout: SpoutBatches | None = None
        self._emitted_last = self._acked_before = 0
        self._tried = attempts_of_life(life - 1)  # attempt id of the last try at a transaction
        self._tried_before = self._tried  # and the one before the first try at each
        create_states(topology, epoch)
        if not topology.is_of_ordered_stream:
            store = MemoryMetadataStore() if metadata is None else metadata
            self._spout = SpoutBatches(
                topology.source,
                store,
                partitions or 1,
                topology=topology.name,
                component=topology.spout.id,
                config=topology.config,
            )
        self.transaction_id = resumes_after
        self.failed_tries: list[FailedTry] = []

    def run(self, events: Iterable[Any] = (), *, watermark_ms: int | None = None) -> None:
        """Run a batch. See `TopologyTester.run`.

        Where the topology has a spout of its own, it is a batch of that spout, which may have
        nothing to emit, with the events that wait.

        Raises:
            TopologyError: There are events, and the topology has a spout of its own.
            TransactionError: A bolt failed the batch as often as it may. With the same events,
                the next `run` goes on with the transaction.
        """
        if self._spout is None:
            super().run(events, watermark_ms=watermark_ms)
            return
        if list(events):
            spout = self._transactional.spout.id
            raise TopologyError(f"spout {spout!r} emits by itself: call run_batch, without events")
        self._run((), self._emitted, watermark_ms)

    def run_batch(self) -> bool:
        """Run a batch of the topology's own spout. Return whether there was one.

        Raises:
            TopologyError: Its spout is the ordered stream: use `run`.
            TransactionError: See `run`.
        """
        if self._spout is None:
            spout = self._transactional.spout.id
            raise TopologyError(f"spout {spout!r} is the ordered stream: give `run` its events")
        if not self._spout.is_ready():
            return False
        self._run((), self._emitted)
        return True

    def _emitted(self, attempt: TransactionAttempt) -> list[InMemoryInput]:
        """Return the input of each task in one try: the tuples of the topology's own spout."""
        assert self._spout is not None
        if attempt.transaction_id == self._emitted_last:
            self._spout.failed(attempt.transaction_id)
        emitted = self._spout.emit(attempt)
        self._emitted_last = attempt.transaction_id
        # Waiting tuples of earlier batches keep their offsets: the transaction tells them apart.
        name, first = self._transactional.spout.id, attempt.transaction_id << _OFFSET_BITS
        return [
            InMemoryInput(
                [
                    EventValues(None, values[1:], (), self._now_ms, name, task, first + number, 0)  # type: ignore[arg-type]  # the value is what the spout emitted
                    for number, values in enumerate(own)
                ],
                tuple(self._waiting.get(task, ())),
                task,
            )
            for task, own in enumerate(emitted)
        ]

    def _carried_out(self, batch: InMemoryBatch, inputs: Inputs) -> StepResult:
        tries = _Tries(
            batch,
            inputs,
            self._states,
            self._keys,
            Transaction(
                TransactionAttempt(self.transaction_id + 1, self._tried),
                epoch=self._epoch,
                committed=self._committed,
            ),
            self._settings.retry,
            self._failed,
            self._forget,
        )
        self._acked_before = len(self.acked)
        try:
            prepared, committed = tries.carry_out()
        except BaseException:
            # The next run is a further try at it.
            self._forget()
            self._tried = tries.attempt.attempt_id
            raise
        self._tried = self._tried_before
        self.transaction_id += 1
        self._committed = self._committers_tasks()
        if self._spout is not None:
            self._spout.committed(self.transaction_id)
        return merged(prepared, committed, self._transactional.commit_phase)

    def _committers_tasks(self) -> dict[str, int]:
        return {
            component: self._plan.tasks[component] for component in self._transactional.committers
        }

    def _failed(self, attempt: TransactionAttempt, seconds: float, error: BatchFailedError) -> None:
        self.failed_tries.append(FailedTry(attempt, str(error)))
        self.advance(seconds)

    def _forget(self) -> None:
        """Forget the acks and the emitted batch of a processing phase that failed."""
        del self.acked[self._acked_before :]
        if self._spout is not None and self._emitted_last == self.transaction_id + 1:
            self._spout.failed(self._emitted_last)


class _Tries(TransactionTries[StepResult, StepResult]):
    def __init__(  # noqa: PLR0917 - private, and each is of a type of its own
        self,
        batch: InMemoryBatch,
        inputs: Inputs,
        states: Mapping[tuple[str, int], Handle],
        keys: Mapping[tuple[str, int], Handle],
        transaction: Transaction,
        policy: RetryPolicy,
        failed: Callable[[TransactionAttempt, float, BatchFailedError], None],
        forget: Callable[[], None],
    ) -> None:
        number = transaction.attempt.transaction_id
        super().__init__(f"transaction {number} of {batch.topology.name!r}", policy)
        self._batch = batch
        self._inputs = inputs
        self._states = states
        self._keys = keys
        self._transaction = transaction
        self._failed = failed
        self._forget = forget
        self.attempt = transaction.attempt

    def new_attempt(self) -> TransactionAttempt:
        number, tried = self.attempt
        self.attempt = TransactionAttempt(number, tried + 1)
        return self.attempt

    def process(
        self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool
    ) -> StepResult:
        batch = self._in_phase(attempt, Phase.PROCESSING)
        return ProcessingRun(
            batch,
            self._inputs(attempt),
            self._states,
            TasksHere(),
            keys=self._keys,
            is_last=is_last,
            tries_commit=tries_commit,
        ).run()

    def commit(
        self, prepared: StepResult, attempt: TransactionAttempt, *, is_new: bool
    ) -> StepResult:
        return CommitRun(
            self._in_phase(attempt, Phase.COMMIT),
            prepared.sent,
            prepared.states,
            TasksHere(),
            is_new=is_new,
            unfinished=prepared.unfinished,
        ).run()

    def discard(self, prepared: StepResult, attempt: TransactionAttempt) -> bool:
        """Return True: no earlier try is alive in this process."""
        del prepared, attempt
        self._forget()
        return True

    def settles_untouched(self, attempt: TransactionAttempt) -> bool:
        """Return False: only a job asks the databases."""
        del attempt
        return False

    def wait(self, seconds: float, error: BatchFailedError) -> None:
        self._failed(self.attempt, seconds, error)

    def _in_phase(self, attempt: TransactionAttempt, phase: Phase) -> InMemoryBatch:
        transaction = replace(self._transaction, attempt=attempt, phase=phase)
        run = f"{self._batch.run}.{attempt.attempt_id}.{phase.value}"
        return replace(self._batch, transaction=transaction, run=run)


def merged(
    prepared: StepResult, committed: StepResult, commit_phase: Collection[str]
) -> StepResult:
    """Return the result of a step from those of its two phases."""
    records = {
        name: [*prepared.records.get(name, ()), *committed.records.get(name, ())]
        for name in {**prepared.records, **committed.records}
    }
    counts = prepared.counts.copy()
    for name in ("emitted", "outputs", "crashes"):
        counts[name] += committed.counts[name]
    states = {place: one for place, one in prepared.states.items() if place[0] not in commit_phase}
    states.update(committed.states)
    runs = (*prepared.runs, *committed.runs)
    unfinished = [*prepared.unfinished, *committed.unfinished]
    return replace(
        prepared,
        records=records,
        unfinished=unfinished,
        states=states,
        counts=counts,
        sent=[],
        runs=runs,
    )
