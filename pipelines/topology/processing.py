"""Transactions of a job: a step's events, processed, prepared in the checkpoint, and committed."""

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from sequitur.consumer.topology import Outputs
from sequitur.consumer.topology.api.bolt import next_tick_ms
from sequitur.consumer.topology.settling.outcomes import due_ms
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
from sequitur.errors import CheckpointError, StateUnavailableError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.sink.sink import Outgoing
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.documents import NO_FORMER_JOB
from sequitur.pipelines.store.storage import delete_all
from sequitur.pipelines.topology.files import OUTPUT_ORDER
from sequitur.pipelines.topology.step_runs import (
    Prepared,
    Processed,
    ProcessTotals,
    ReplayIntake,
    StepRuns,
    StepWork,
)
from sequitur.pipelines.topology.topology_file import (
    check_kind,
    check_outputs,
    check_prepared,
    check_states,
    is_prepared,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import OutputTimestamp
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.consumer.topology.settling.outcomes import RetryPolicy
    from sequitur.consumer.topology.step.run import StepResult
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.sink.sink import OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.documents import FormerJob
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.topology.step_runs import StepTry
    from sequitur.pipelines.workers import Workers


class Committing(Protocol):
    """Is told that a step is about to be committed."""

    def __call__(self, processed: Processed, *, is_again: bool) -> None:
        """Take what became of the step's events, but for what its commit adds."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit."""

    folder: str  # name of the folder that it has written
    result: StepResult


class Transactions:
    """The transactions of a job."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        topology: TransactionalTopology,
        runs: StepRuns,
        policy: RetryPolicy,
        outages: Outages,
        *,
        host: str,
    ) -> None:
        self.host = host
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
        """Return what the commit of a step begins with; None as long as nothing is prepared."""
        return self._checkpoint.prepared(
            step, lambda document: Prepared.from_document(document, self._checkpoint.location())
        )

    def check_prepared(self, prepared: Prepared) -> None:
        """Check that what is prepared is for this topology."""
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
        """Process a step's events, and commit what they come to."""
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
        """Return the ids of another try; the attempt id is larger than those of all before."""
        # They grow within a life, and from one to the next: that has a larger owner generation.
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
        """Wait between two tries."""
        self._outages.tell(f"{name} is tried again in {seconds:.1f} s: {error}")
        if self._outages.pause(seconds):
            raise StopRequestedError

    @property
    def _life(self) -> int:
        """The number of this life of the job, over all its checkpoints."""
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
        """Wait until each database of a state has been told of this life."""
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
        adopted = replace(found, attempt=self.new_attempt(work).attempt_id)
        transaction.write(adopted)
        return adopted


class _StepTransaction(TransactionTries["Prepared", Committed]):
    """The transaction of a step."""

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
        """See `TransactionTries`."""
        return self._transactions.new_attempt(self._work)

    def process(
        self, attempt: TransactionAttempt, *, is_last: bool, tries_commit: bool
    ) -> Prepared:
        """See `TransactionTries`."""
        prepared = self.prepare(attempt, is_last=is_last, tries_commit=tries_commit)
        self.write(prepared)
        return prepared

    def prepare(
        self, attempt: TransactionAttempt, *, is_last: bool = False, tries_commit: bool = False
    ) -> Prepared:
        """Run the processing phase; nothing of it is written down."""
        one = self._in_phase(self._runs.begin(self._work), attempt, Phase.PROCESSING)
        before = self._work.before.states_by_task()
        result = ProcessingRun(
            one.batch, one.givens, before, one.tasks, is_last=is_last, tries_commit=tries_commit
        ).run()
        self._runs.count(self._work, result)
        delete_all(one.batch.folder / "work")
        tasks, commit_phase = self._runs.tasks, self._topology.commit_phase
        processed = replace(
            self._runs.processed(self._work, one, result),
            transaction_id=self._id,
            committers={component: tasks[component] for component in self._topology.committers},
        )
        return Prepared(
            attempt=attempt.attempt_id,
            folder=one.name,
            batch="" if self._transactions.may_be_another_batch(self._id) else uuid4().hex,
            processed=processed,
            sent=result.sent,
            tasks={component: tasks[component] for component in sorted(commit_phase)},
            signature=self._topology.commit_signature,
        )

    def write(self, prepared: Prepared) -> None:
        """Write down what a processing phase came to; from here on the same is committed."""
        self._checkpoint.write_prepared(
            self._step,
            prepared.attempt,
            prepared.to_document(self._checkpoint.location()),
            written=prepared.folder,
        )

    def commit(self, prepared: Prepared, attempt: TransactionAttempt, *, is_new: bool) -> Committed:
        """See `TransactionTries`."""
        if self._committing is not None:
            self._committing(prepared.processed, is_again=self._has_tried)
        self._has_tried = True
        begun = self._runs.begin(self._work, has_events=False)
        one = self._in_phase(begun, attempt, Phase.COMMIT, prepared.batch)
        # What the step before has left: this one may have been processed before that was known.
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
        """See `TransactionTries`."""
        if not self._transactions.give_up(attempt):
            return False
        self._checkpoint.drop_prepared(self._step, prepared.attempt)
        return True

    def settles_untouched(self, attempt: TransactionAttempt) -> bool:
        """See `TransactionTries`."""
        return self._transactions.settles_untouched(attempt)

    def wait(self, seconds: float, error: BatchFailedError) -> None:
        """See `TransactionTries`."""
        self._transactions.wait(seconds, self._title, error)

    def _in_phase(
        self, one: StepTry, attempt: TransactionAttempt, phase: Phase, batch: str = ""
    ) -> StepTry:
        committers = self._work.before.committers
        host = self._transactions.host
        transaction = Transaction(attempt, phase, self._epoch, batch, committers, host)
        return replace(one, batch=replace(one.batch, transaction=transaction))


# A topology behind the reorder stage: what a step releases is given to bolts.
#
# What became of a step's events is written down before anything of it goes out: the files of
# records, the events that wait, what bolts keep. So bolts run once for a step, unless the job dies
# in the middle of them, and a step whose outputs went out in part is completed from the files: the
# same records in the same order.


@dataclass(frozen=True, slots=True)
class StepAhead:
    """A step that is processed while those before it are committed and go out."""

    entry: StepEntry  # what it decided; not logged yet
    processed: Processed  # what became of its events, but for what its commit adds
    prepared: Prepared | None  # what its commit begins with; None if there is nothing to commit
    before: ProcessTotals  # the counts of the steps before, as far as they were known


class Processing:
    """Runs a topology on what steps release."""

    def __init__(
        self,
        workers: Workers,
        checkpoint: Checkpoint,
        *,
        topology: Topology,
        settings: ProcessSettings,
        outputs: Mapping[str, OutputTopic],
        default: OutputTopic,
        spout_tasks: int,
        dead_letters: OutputTopic,
        limit_of: Callable[[str], RecordLimit],
        timestamps: OutputTimestamp,
        outages: Outages,
    ) -> None:
        self._timestamps = timestamps
        self._checkpoint = checkpoint
        self._topology = topology
        self._settings = settings
        self._outputs = dict(outputs)
        self._dead_letters = dead_letters
        self._runs = StepRuns(
            workers,
            checkpoint,
            topology=topology,
            settings=settings,
            outputs=self._outputs,
            default=default,
            spout_tasks=spout_tasks,
            dead_letters=dead_letters,
            limit_of=limit_of,
            is_stopping=lambda: outages.is_over,
        )
        self._newest = Processed()
        self._transactions: Transactions | None = None
        if isinstance(topology, TransactionalTopology):
            # On one machine there is no other host, and its name may change.
            host = "" if is_local(workers.master) else socket.gethostname()
            self._transactions = Transactions(
                checkpoint, topology, self._runs, settings.retry, outages, host=host
            )
        self._requests = ReplayIntake(checkpoint.location("replays"))
        self.most_ahead = settings.max_batches_pending - 1

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        """All topics it writes to."""
        return (*self._outputs.values(), self._dead_letters)

    @property
    def waiting(self) -> tuple[Location, ...]:
        """Files of the events that wait for another attempt, once the newest step is done."""
        return tuple(path for paths in self._newest.waiting.values() for path in paths)

    @property
    def totals(self) -> ProcessTotals:
        """Counts of all steps."""
        return self._newest.totals

    @property
    def is_full(self) -> bool:
        """Whether so many events wait that no new ones may be read."""
        return self._newest.totals.waiting >= self._settings.max_pending

    @property
    def transactions(self) -> tuple[int, str]:
        """The last transaction id, and what databases know the job by; 0 and empty without one."""
        epoch = "" if self._transactions is None else self._transactions.epoch
        return self._newest.transaction_id, epoch

    def open(self, done: int, newest: int, former: FormerJob = NO_FORMER_JOB) -> None:
        """Take up where the job was."""
        root = self._checkpoint.root
        for step in sorted({done, newest} - {-1}):
            found = self._processed(step)
            if found is not None:
                check_states(root, found, self._runs.tasks)
                check_kind(root, found, self._topology)
                if step != done:
                    check_outputs(root, found, self._outputs)
            elif step == done:
                raise CheckpointError(f"{root}: step {step} was not processed")
            if found is not None and step == done:
                self._newest = found
        if done < 0:
            self._newest = replace(self._newest, transaction_id=former.transaction)
        if self._transactions is not None:
            self._transactions.open(self._newest, former)
            prepared = self._transactions.prepared(newest)
            if prepared is not None and self._processed(newest) is None:
                check_outputs(root, prepared.processed, self._outputs)
                self._transactions.check_prepared(prepared)
        elif self._checkpoint.prepared(newest, dict) is not None:
            raise is_prepared(root, newest, self._topology)

    def due_ms(self, now_ms: int) -> int | None:
        """When the next event is to be tried again or replayed; None when none waits."""
        if self._requests.are_there(self._newest.requests):
            return now_ms
        return due_ms(self._newest.next_due_ms, now_ms, policy=self._settings.retry)

    @property
    def tick_due_ms(self) -> int | None:
        """When the next tick is due; None if no bolt has ticks, or before the first step."""
        return next_tick_ms(self._topology.tick_intervals_ms, self._newest.time_ms)

    def process(
        self,
        entry: StepEntry,
        due: Selection | None,
        ahead: StepAhead | None = None,
        committing: Committing | None = None,
    ) -> Processed:
        """Run the topology on what a step releases, unless that was done before the job died."""
        found = self._processed(entry.step)
        if found is not None:
            self._newest = found
            return found
        # The newest step has taken its requests in: it is done, and out.
        self._requests.delete(self._newest.requests)
        self._newest = replace(self._newest, requests=())
        requests = () if ahead is not None else self._requests.take()
        work = self._work(entry, due, self._newest, requests)
        written, kept = None, set[str]()
        if work.is_empty:
            processed = work.nothing()
        elif self._transactions is None:
            processed, written = self._runs.run(work)
        else:
            prepared = None if ahead is None else self._in_turn(ahead)
            processed, written, kept = self._transactions.carry_out(work, prepared, committing)
        self._checkpoint.write_processed(
            entry.step,
            processed.to_document(self._checkpoint.location()),
            written=written,
            kept=processed.folders() | kept,
        )
        if kept:  # a transaction was carried out, by what was prepared
            self._checkpoint.drop_prepared(entry.step)
        self._newest = processed
        return processed

    def process_ahead(
        self, entry: StepEntry, due: Selection | None, before: Processed
    ) -> StepAhead | None:
        """Process a step before those before it are committed; nothing of it is written down."""
        if self._transactions is None or self._requests.are_there(before.requests):
            return None
        work = self._work(entry, due, replace(before, requests=()), ())
        if work.is_empty:
            return StepAhead(entry, work.nothing(), None, before.totals)
        prepared = self._transactions.process(work)
        if prepared is None:
            return None
        return StepAhead(entry, prepared.processed, prepared, before.totals)

    def _in_turn(self, ahead: StepAhead) -> Prepared | None:
        """Return what was prepared ahead, with what commits have added to the counts meanwhile."""
        if ahead.prepared is None:
            return None
        processed = ahead.prepared.processed
        totals, now = processed.totals, self._newest.totals
        totals = replace(
            totals,
            crashes=totals.crashes + now.crashes - ahead.before.crashes,
            outputs=totals.outputs + now.outputs - ahead.before.outputs,
        )
        return replace(ahead.prepared, processed=replace(processed, totals=totals))

    def _work(
        self,
        entry: StepEntry,
        due: Selection | None,
        before: Processed,
        requests: Sequence[Location],
    ) -> StepWork:
        return StepWork.of(
            entry, due, before, requests, topology=self._topology, settings=self._settings
        )

    def outgoing(self, processed: Processed) -> list[Outgoing]:
        """The records of a step, by topic."""
        unfinished: tuple[Location, ...] = ()
        if self._settings.outputs is Outputs.FINISHED:
            unfinished = tuple(processed.unfinished)
        found = [
            Outgoing(
                Selection((Part(tuple(files)),), (), OUTPUT_ORDER, unfinished),
                self._outputs[topic],
                timestamps=self._timestamps,
            )
            for topic, files in processed.records.items()
            if files
        ]
        if processed.dead:
            dead = Selection((Part(tuple(processed.dead)),), (), OUTPUT_ORDER)
            found.append(Outgoing(dead, self._dead_letters, tells_event_time=False))
        return found

    def _processed(self, step: int) -> Processed | None:
        """What became of a step's events; None as long as it is not known."""
        return self._checkpoint.processed(
            step, lambda document: Processed.from_document(document, self._checkpoint.location())
        )
