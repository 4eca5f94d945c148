"""Transactions of a job: a step's events, processed, prepared in the checkpoint, and committed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from msgspec import structs

from sequitur.base.stored import dump, load
from sequitur.consumer.topology.state.store import StateKind
from sequitur.consumer.topology.step.transaction_run import (
    BatchFailedError,
    CommitRun,
    ProcessingRun,
    TransactionTries,
)
from sequitur.consumer.topology.transactional.attempt import (
    Phase,
    Transaction,
    TransactionAttempt,
    attempts_of_life,
    life_of_attempt,
)
from sequitur.consumer.topology.transactional.builder import (
    TransactionalTopology,
    create_states,
    give_up,
    writes_states_only,
)
from sequitur.errors import StateUnavailableError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB
from sequitur.pipelines.store.storage import delete_all
from sequitur.pipelines.topology.processed import Prepared, Processed
from sequitur.pipelines.topology.topology_file import check_prepared, without_keys

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.base.retry import Outages
    from sequitur.consumer.topology.settling.outcomes import RetryPolicy
    from sequitur.consumer.topology.step.run import StepResult
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.job_identity import FormerJob
    from sequitur.pipelines.topology.step_runs import StepRuns, StepTry, StepWork


class Committing(Protocol):
    """Is called when a step is about to be committed."""

    def __call__(self, processed: Processed, *, is_again: bool) -> None:
        """Take what became of the step's events, without what its commit adds."""


@dataclass(frozen=True, slots=True)
class Committed:
    folder: str  # name of the folder that it has written
    result: StepResult


class Transactions:
    def __init__(
        self,
        checkpoint: Checkpoint,
        topology: TransactionalTopology,
        runs: StepRuns,
        policy: RetryPolicy,
        outages: Outages,
        *,
        host: str,
        drop_state: Collection[str] = (),
    ) -> None:
        self.host = host
        self._drop_state = drop_state
        self._checkpoint = checkpoint
        self._topology = topology
        self._runs = runs
        self._policy = policy
        self._outages = outages
        self._attempts = itertools.count(1)
        self._former = NO_FORMER_JOB
        self.epoch = ""
        self._has_tables = False

    def open(self, newest: Processed, former: FormerJob) -> None:
        """Take up where the job was; databases that do not answer are waited for later."""
        self._former = former
        self.epoch = self._checkpoint.transaction_epoch(
            is_new=newest.transaction_id == former.transaction, inherited=former.transactions
        )
        try:
            self._create_states()
        except StateUnavailableError as error:
            self._outages.tell(f"state of topology {self._topology.name!r}: {error}")

    def prepared(self, step: int) -> Prepared | None:
        """Return what the commit of a step begins with; None if nothing is prepared."""
        found = self._checkpoint.prepared(
            step, partial(load, Prepared, root=self._checkpoint.location())
        )
        if found is None:
            return None
        processed = without_keys(found.processed, self._drop_state)
        return structs.replace(found, processed=processed)

    def check_prepared(self, prepared: Prepared) -> None:
        check_prepared(self._checkpoint.root, prepared, self._topology, self._runs.tasks)

    def process(self, work: StepWork) -> Prepared | None:
        """Try the processing phase of a step once, ahead of its turn."""
        try:
            return self._of(work).prepare(self.new_attempt(work))
        except BatchFailedError:
            return None  # it has its tries when it is its turn

    def carry_out(
        self, work: StepWork, ahead: Prepared | None, committing: Committing | None
    ) -> tuple[Processed, str, set[str]]:
        transaction = self._of(work, committing)
        # Before it is asked what is prepared: what an older life prepares from here on it cannot
        # commit any more.
        self._outlast_databases()
        found = self.prepared(work.entry.step)
        if found is not None:
            self.check_prepared(found)
            found = self._adopted(found, work, transaction)
        elif ahead is not None:
            transaction.write(ahead)
        prepared, committed = transaction.carry_out(
            found or ahead, may_have_committed=found is not None
        )
        processed = self._runs.with_commit(prepared.processed, committed.result)
        return processed, committed.folder, {prepared.folder}

    def new_attempt(self, work: StepWork) -> TransactionAttempt:
        """Return the ids of another try; its attempt id is larger than all before."""
        # They grow within a life, and with each life: the next one has a larger owner generation.
        attempt_id = attempts_of_life(self._life) + next(self._attempts)
        return TransactionAttempt(work.before.transaction_id + 1, attempt_id)

    def settles_untouched(self, last: TransactionAttempt) -> bool:
        """Have tries up to this one write nothing more; whether none has written for good.

        What a committer without states of ours has written, nobody knows.
        """
        return writes_states_only(self._topology) and self.give_up(last)

    def give_up(self, last: TransactionAttempt) -> bool:
        """Have databases refuse what tries up to this one write late.

        Returns whether the next attempt at the transaction may have other events.
        """
        try:
            is_untouched = give_up(self._topology, self.epoch, last)
        except StateUnavailableError as error:
            self._outages.tell(f"state of topology {self._topology.name!r}: {error}")
            return False
        return is_untouched or self.may_be_another_batch(last.transaction_id)

    def may_be_another_batch(self, transaction_id: int) -> bool:
        """Tell whether databases may have this transaction id already, with other events.

        They may have the transaction that a job was at when it lost its checkpoint. Opaque states
        are then computed again, from the values before it. With other states the database refuses
        the repeat, and this is false.
        """
        former = self._former.transaction
        states = [one for several in self._topology.states.values() for one in several.values()]
        is_opaque = all(one.kind is StateKind.OPAQUE for one in states)
        return bool(self._former.transactions) and transaction_id == former + 1 and is_opaque

    def wait(self, seconds: float, name: str, error: Exception) -> None:
        self._outages.tell(f"{name} is tried again in {seconds:.1f} s: {error}")
        if self._outages.pause(seconds):
            raise StopRequestedError

    @property
    def _life(self) -> int:
        """Number of this life of the job, over all its checkpoints."""
        return self._former.lives + self._checkpoint.owner

    def _of(self, work: StepWork, committing: Committing | None = None) -> _StepTransaction:
        return _StepTransaction(
            self,
            self._checkpoint,
            self._topology,
            self._runs,
            self._policy,
            work=work,
            epoch=self.epoch,
            committing=committing,
        )

    def _outlast_databases(self) -> None:
        """Wait until each database of a state knows this life."""
        for failed in itertools.count(1):
            try:
                self._create_states()
            except StateUnavailableError as error:
                pause_s = self._policy.retry_at_ms(failed, 0, 0.5) / 1000
                self.wait(pause_s, f"state of topology {self._topology.name!r}", error)
            else:
                return

    def _create_states(self) -> None:
        if not self._has_tables:
            least_attempt = attempts_of_life(self._life)
            create_states(self._topology, self.epoch, least_attempt)
            self._has_tables = True

    def _adopted(self, found: Prepared, work: StepWork, transaction: _StepTransaction) -> Prepared:
        """Return what an earlier life has prepared, written down as this life's.

        That life may be about to discard it, since its own try at the commit has failed: what this
        one commits must still be there for the next.
        """
        if life_of_attempt(found.attempt) == self._life:
            return found
        adopted = structs.replace(found, attempt=self.new_attempt(work).attempt_id)
        transaction.write(adopted)
        return adopted


class _StepTransaction(TransactionTries["Prepared", Committed]):
    def __init__(
        self,
        transactions: Transactions,
        checkpoint: Checkpoint,
        topology: TransactionalTopology,
        runs: StepRuns,
        policy: RetryPolicy,
        *,
        work: StepWork,
        epoch: str,
        committing: Committing | None,
    ) -> None:
        self._id, self._step = work.before.transaction_id + 1, work.entry.step
        self._title = f"transaction {self._id} of topology {topology.name!r} (step {self._step})"
        super().__init__(self._title, policy)
        self._transactions = transactions
        self._checkpoint = checkpoint
        self._topology = topology
        self._runs = runs
        self._work = work
        self._epoch = epoch
        self._committing = committing
        self._has_tried = False

    def new_attempt(self) -> TransactionAttempt:
        return self._transactions.new_attempt(self._work)

    def process(
        self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool
    ) -> Prepared:
        prepared = self.prepare(attempt, is_last=is_last, tries_commit=tries_commit)
        self.write(prepared)
        return prepared

    def prepare(
        self, attempt: TransactionAttempt, *, is_last: bool = False, tries_commit: bool = False
    ) -> Prepared:
        """Run the processing phase; nothing of it is written down."""
        one = self._in_phase(self._runs.begin(self._work), attempt, Phase.PROCESSING)
        work = self._runs.with_keys(self._work, one)
        result = ProcessingRun(
            one.batch,
            one.givens,
            work.before.states_by_task(),
            one.tasks,
            keys=work.before.keys_by_task(),
            is_last=is_last,
            tries_commit=tries_commit,
        ).run()
        self._runs.count(work, result)
        delete_all(one.batch.folder / "work")
        tasks, commit_phase = self._runs.tasks, self._topology.commit_phase
        processed = structs.replace(
            self._runs.processed(work, one, result),
            transaction_id=self._id,
            committers={component: tasks[component] for component in self._topology.committers},
        )
        return Prepared(
            attempt=attempt.attempt_id,
            folder=one.name,
            batch="" if self._transactions.may_be_another_batch(self._id) else uuid4().hex,
            processed=processed,
            sent=tuple(result.sent),
            tasks={component: tasks[component] for component in sorted(commit_phase)},
            signature=self._topology.commit_signature,
        )

    def write(self, prepared: Prepared) -> None:
        """Write down the result of a processing phase; from then on the same is committed."""
        self._checkpoint.write_prepared(
            self._step,
            prepared.attempt,
            dump(prepared, self._checkpoint.location()),
            written=prepared.folder,
            keys=prepared.processed.key_folders(),
        )

    def commit(self, prepared: Prepared, attempt: TransactionAttempt, *, is_new: bool) -> Committed:
        if self._committing is not None:
            self._committing(prepared.processed, is_again=self._has_tried)
        self._has_tried = True
        begun = self._runs.begin(self._work, has_events=False)
        one = self._in_phase(begun, attempt, Phase.COMMIT, prepared.batch)
        # What the step before has left: this step may have been processed before it was known.
        before = self._work.before.states_by_task()
        result = CommitRun(
            one.batch,
            prepared.sent,
            before,
            one.tasks,
            is_new=is_new,
            unfinished=prepared.processed.unfinished,
        ).run()
        self._runs.count(self._work, result)
        delete_all(one.batch.folder / "work")
        return Committed(one.name, result)

    def discard(self, prepared: Prepared, attempt: TransactionAttempt) -> bool:
        if not self._transactions.give_up(attempt):
            return False
        self._checkpoint.drop_prepared(self._step, prepared.attempt)
        return True

    def settles_untouched(self, attempt: TransactionAttempt) -> bool:
        return self._transactions.settles_untouched(attempt)

    def wait(self, seconds: float, error: BatchFailedError) -> None:
        self._transactions.wait(seconds, self._title, error)

    def _in_phase(
        self, one: StepTry, attempt: TransactionAttempt, phase: Phase, batch: str = ""
    ) -> StepTry:
        committers = self._work.before.committers
        host = self._transactions.host
        transaction = Transaction(attempt, phase, self._epoch, batch, committers, host)
        return replace(one, batch=replace(one.batch, transaction=transaction))
