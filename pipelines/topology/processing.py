"""A topology behind the reorder stage: what a step releases is given to bolts.

What became of a step's events is written down before anything of it goes out: the files of records,
the events that wait, what bolts keep. So bolts run once for a step, unless the job dies in the
middle of them. A step whose outputs went out in part is completed from the files: the same records
in the same order.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sequitur.base.stored import dump, load
from sequitur.consumer.topology import Outputs
from sequitur.consumer.topology.api.bolt import next_tick_ms
from sequitur.consumer.topology.settling.outcomes import due_ms
from sequitur.consumer.topology.transactional.builder import (
    TransactionalTopology,
)
from sequitur.errors import CheckpointError
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import OutputSelection, Selection
from sequitur.pipelines.sink.sink import Outgoing
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB
from sequitur.pipelines.topology.kept_keys import keys_by_bolt
from sequitur.pipelines.topology.output_files import OUTPUT_ORDER
from sequitur.pipelines.topology.processed import Prepared, Processed, ProcessTotals
from sequitur.pipelines.topology.replays import ReplayIntake
from sequitur.pipelines.topology.step_runs import StepRuns, StepWork, reached_by
from sequitur.pipelines.topology.topology_file import (
    check_dropped,
    check_keys,
    check_kind,
    check_outputs,
    check_states,
    is_prepared,
    without_keys,
)
from sequitur.pipelines.topology.transactions import Committing, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import OutputTimestamp
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.sink.sink import OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.job_identity import FormerJob
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.topology.kept_keys import BoltKeys
    from sequitur.pipelines.workers import Workers


@dataclass(frozen=True, slots=True)
class StepAhead:
    """A step that is processed while the steps before it are committed and go out."""

    entry: StepEntry  # what it decided; not logged yet
    processed: Processed  # what became of its events, without what its commit adds
    prepared: Prepared | None  # what its commit begins with; None if there is nothing to commit
    before: ProcessTotals  # the counts of the steps before, as far as they were known


class Processing:
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
        drop_state: Collection[str] = (),
    ) -> None:
        self._drop_state = drop_state
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
                checkpoint,
                topology,
                self._runs,
                settings.retry,
                outages,
                host=host,
                drop_state=drop_state,
            )
        self._requests = ReplayIntake(checkpoint.location("replays"))
        self.most_ahead = settings.max_batches_pending - 1

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        return (*self._outputs.values(), self._dead_letters)

    @property
    def waiting(self) -> tuple[Location, ...]:
        """Files of the events that wait for another attempt, once the newest step is done."""
        return tuple(path for paths in self._newest.waiting.values() for path in paths)

    @property
    def totals(self) -> ProcessTotals:
        return self._newest.totals

    @property
    def late_for_window(self) -> Mapping[str, int]:
        """How many events were late for a window and are done, by bolt."""
        return self._newest.late_for_window

    @property
    def keys(self) -> Mapping[str, BoltKeys]:
        """What keyed bolts keep, by bolt."""
        return keys_by_bolt(self._newest.keys)

    @property
    def is_full(self) -> bool:
        """Whether so many events wait that no new ones may be read."""
        return self._newest.totals.waiting >= self._settings.max_pending

    @property
    def transactions(self) -> tuple[int, str]:
        """The last transaction id, and the job's name in databases; 0 and empty without one."""
        epoch = "" if self._transactions is None else self._transactions.epoch
        return self._newest.transaction_id, epoch

    def open(self, done: int, newest: int, former: FormerJob = NO_FORMER_JOB) -> None:
        root = self._checkpoint.root
        check_dropped(root, self._drop_state, self._topology)
        for step in sorted({done, newest} - {-1}):
            found = self._processed(step)
            if found is not None:
                self._check_kept(found)
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
                self._check_kept(prepared.processed)
                self._transactions.check_prepared(prepared)
        elif self._checkpoint.prepared(newest, dict) is not None:
            raise is_prepared(root, newest, self._topology)

    def _check_kept(self, found: Processed) -> None:
        root, runs, topology = self._checkpoint.root, self._runs, self._topology
        check_keys(root, found, topology)
        check_states(root, found, runs.tasks, runs.tasks_of_keys, topology.stores_by_field)

    def due_ms(self, now_ms: int) -> int | None:
        """When the next retry or replay is due; None if none waits."""
        if self._requests.are_there(self._newest.requests):
            return now_ms
        return due_ms(self._newest.next_due_ms, now_ms, policy=self._settings.retry)

    def are_timers_due(self, clock: EventClock, *, has_held: bool) -> bool:
        """Tell whether a timer of a key is due by what clocks have reached."""
        return self._newest.has_timers(reached_by(clock, has_held=has_held))

    @property
    def has_timers(self) -> bool:
        """Whether a key has a timer, for which silence is watched."""
        return self._newest.next_timer_ms is not None

    @property
    def has_windows(self) -> bool:
        """Whether windows may be open that a drain closes."""
        return bool(self._topology.draining) and self.has_timers

    @property
    def tick_due_ms(self) -> int | None:
        """When the next tick is due; None if no bolt has ticks, or before the first step."""
        return next_tick_ms(self._topology.tick_intervals_ms, self._newest.time_ms)

    def close(self) -> None:
        """End the work beside the steps that has not begun. Further steps may begin more."""
        self._runs.close()

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
        # The newest step has taken its requests: it is done and sent.
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
            dump(processed, self._checkpoint.location()),
            written=written,
            kept=processed.folders() | kept,
            keys=self._runs.keep(processed) if self._topology.is_keyed else None,
        )
        if kept:  # a transaction was carried out with what was prepared
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
        """Return what was prepared ahead, with the counts that commits have added since."""
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
        unfinished: tuple[Location, ...] = ()
        if self._settings.outputs is Outputs.FINISHED:
            unfinished = tuple(processed.unfinished)
        found = [
            Outgoing(
                OutputSelection((Part(tuple(files)),), (), OUTPUT_ORDER, unfinished),
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
        """Return what became of a step's events; None if it is not known yet."""
        found = self._checkpoint.processed(
            step, partial(load, Processed, root=self._checkpoint.location())
        )
        return None if found is None else without_keys(found, self._drop_state)
