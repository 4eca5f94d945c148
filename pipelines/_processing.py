"""A topology behind the reorder stage: what a step releases is given to bolts.

What became of a step's events is written down before anything of it goes out: the files of records,
the events that wait, what bolts keep. So bolts run once for a step, unless the job dies in the
middle of them, and a step whose outputs went out in part is completed from the files: the same
records in the same order.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from consumer import ConservationError, Delivery, LatePolicy
from consumer.topology import Outputs, plan
from pipelines._errors import CheckpointError, TopologyFileError
from pipelines._part_files import make_anew, show
from pipelines._process_batch import DEAD_LETTERS, Batch, Given
from pipelines._process_files import (
    OUTPUT_ORDER,
    Waiting,
    events,
    read_pending,
    write_waiting,
)
from pipelines._process_stages import StepRun
from pipelines._processed import Processed, ProcessTotals
from pipelines._replay_requests import read_request, requests
from pipelines._run_rows import Part
from pipelines._selection import Selection
from pipelines._sink import Outgoing
from producer._partitioner import KeyPartitioner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from consumer import ReorderSettings, StepEntry
    from consumer.topology import ProcessSettings, Topology
    from pipelines._checkpoint import Checkpoint
    from pipelines._process_stages import StepResult
    from pipelines._sink import OutputTopic, Rows

_FOLDERS: Final = ("outputs", "waiting", "unfinished", "states", "work")


class Processing:
    """Runs a topology on what steps release.

    Args:
        spark: The session.
        checkpoint: The job's folder, claimed already.
        topology: The topology.
        settings: How it is run.
        outputs: The topics it writes to, by name.
        default: The topic of outputs without one of their own; the first stage has a task for each
            of its partitions.
        dead_letters: The topic for events given up.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        *,
        topology: Topology,
        settings: ProcessSettings,
        outputs: Mapping[str, OutputTopic],
        default: OutputTopic,
        dead_letters: OutputTopic,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._topology = topology
        self._settings = settings
        self._outputs = dict(outputs)
        self._default = default
        self._dead_letters = dead_letters
        self._plan = plan(topology, default.partitions)
        self._newest = Processed()
        folders = {name: str(number) for number, name in enumerate(self._outputs)}
        self._folders = {folder: name for name, folder in folders.items()}
        self._topics = {
            one.id: (folders[topic.name], topic.partitions)
            for one in topology.outputs
            if one.output is not None
            for topic in [self._outputs[one.output.topic or default.name]]
        } | {DEAD_LETTERS: (DEAD_LETTERS, dead_letters.partitions)}

    @property
    def topics(self) -> tuple[OutputTopic, ...]:
        """All topics it writes to."""
        return (*self._outputs.values(), self._dead_letters)

    @property
    def totals(self) -> ProcessTotals:
        """Counts of all steps."""
        return self._newest.totals

    @property
    def is_full(self) -> bool:
        """Whether so many events wait that no new ones may be read."""
        return self._newest.totals.pending >= self._settings.max_pending

    def open(self, step: int) -> None:
        """Take up where the job was, after this step; -1 before the first."""
        if step >= 0:
            document = self._checkpoint.processed(step)
            if document is None:
                raise CheckpointError(f"{self._checkpoint.root}: step {step} was not processed")
            self._newest = Processed.from_document(document)
            self._check_states()

    def is_processed(self, step: int) -> bool:
        """Whether it is written down what became of a step's events."""
        return self._checkpoint.processed(step) is not None

    def due_ms(self, now_ms: int) -> int | None:
        """When the next event is to be tried again or replayed; None when none waits."""
        return now_ms if self._new_requests() else self._newest.next_due_ms

    def process(self, entry: StepEntry, due: Rows | None) -> Processed:
        """Run the topology on what a step releases, unless that was done before the job died.

        Args:
            entry: The step.
            due: What it releases.

        Raises:
            BoltCrashError: A task's process dies again and again.
            ConservationError: An event is unaccounted for.
        """
        if due is not None and not isinstance(due, Selection):
            raise TypeError("a topology reads what tasks find in files")
        document = self._checkpoint.processed(entry.step)
        if document is not None:
            self._newest = Processed.from_document(document)
            return self._newest
        self._forget()
        before = self._newest
        new_requests = self._new_requests()
        is_due = before.next_due_ms is not None and before.next_due_ms <= entry.logged_ms
        if due is None and not is_due and not new_requests:
            processed = replace(
                before, step=entry.step, taken=0, records={}, dead=(), unfinished=()
            )
        else:
            processed = self._run(entry, due, new_requests)
        self._checkpoint.write_processed(entry.step, processed.to_document())
        self._newest = processed
        return processed

    def outgoing(self, processed: Processed) -> list[Outgoing]:
        """The records of a step, by topic."""
        unfinished: tuple[str, ...] = ()
        if self._settings.outputs is Outputs.FINISHED:
            unfinished = tuple(processed.unfinished)
        found = [
            Outgoing(
                Selection((Part(tuple(files)),), unfinished, OUTPUT_ORDER), self._outputs[topic]
            )
            for topic, files in processed.records.items()
            if files
        ]
        if processed.dead:
            dead = Selection((Part(tuple(processed.dead)),), (), OUTPUT_ORDER)
            found.append(Outgoing(dead, self._dead_letters))
        return found

    def _run(
        self, entry: StepEntry, due: Selection | None, new_requests: Sequence[Path]
    ) -> Processed:
        before, settings = self._newest, self._settings
        folder = self._checkpoint.local(self._checkpoint.topology_folder(entry.step))
        assert folder is not None
        make_anew(folder)
        for name in (*_FOLDERS, *(f"outputs/{place}" for place, _ in self._topics.values())):
            (folder / name).mkdir(exist_ok=True)
        partitions = self._default.partitions
        batch = Batch(
            topology=self._topology,
            plan=self._plan,
            rules=settings.rules,
            retry=settings.retry,
            ackers=partitions if settings.ackers is None else settings.ackers,
            now_ms=entry.logged_ms,
            seed=(entry.step, entry.logged_ms),
            folder=str(folder),
            topics=self._topics,
        )
        begun_s = time.monotonic()
        replayed = self._replayed(batch, new_requests)
        waiting = {
            place: (*before.waiting.get(place, ()), *replayed[place][1])
            for place in range(partitions)
        }
        result = StepRun(
            self._spark,
            batch,
            [Given(due, waiting[place], place) for place in range(partitions)],
            {(component, task): path for component, task, path in before.states},
            max_crashes=settings.max_crashes,
        ).run()
        shutil.rmtree(folder / "work")
        added = sum(count for count, _ in replayed)
        busy_ms = round(1000 * (time.monotonic() - begun_s))
        totals = _added(before.totals, result, replayed=added, busy_ms=busy_ms)
        if totals.taken + totals.replayed != totals.acked + totals.dead + totals.pending:
            raise ConservationError(f"step {entry.step}: an event is unaccounted for: {totals}")
        return Processed(
            step=entry.step,
            taken=result.counts["taken"],
            totals=totals,
            next_due_ms=result.next_due_ms,
            requests=(*before.requests, *(path.name for path in new_requests)),
            records={
                self._folders[place]: paths
                for place, paths in result.records.items()
                if place in self._folders
            },
            dead=result.dead,
            unfinished=result.unfinished,
            waiting=result.waiting,
            states=[(component, task, path) for (component, task), path in result.states.items()],
            tasks={component: self._plan.tasks[component] for component, _ in result.states},
        )

    def _replayed(self, batch: Batch, new_requests: Sequence[Path]) -> list[tuple[int, list[str]]]:
        """Dead letters that are given back: how many for each task, and files of them."""
        partitioner = KeyPartitioner(self._default.partitions)
        given: list[list[Waiting]] = [[] for _ in range(self._default.partitions)]
        known = {
            one.event[4:7]
            for paths in (self._newest.waiting.values() if new_requests else ())
            for one in read_pending(paths)
        }
        for path in new_requests:
            for event in events(read_request(path)):
                if event[4:7] in known:
                    continue  # it waits already: one event cannot have two fates in a step
                known.add(event[4:7])
                key, partition = event[0], event[5] % self._default.partitions
                place = partition if key is None else partitioner.partition(key)
                given[place].append(Waiting(event, 0, None))
        folder = batch.path("waiting")
        return [
            (len(some), show(folder, [write_waiting(folder, some)]) if some else [])
            for some in given
        ]

    def _new_requests(self) -> tuple[Path, ...]:
        folder = self._checkpoint.local(self._checkpoint.replays_folder)
        assert folder is not None
        return tuple(path for path in requests(folder) if path.name not in self._newest.requests)

    def _forget(self) -> None:
        """Delete what no step from now on will read: the newest is done, and out."""
        folder = self._checkpoint.local(self._checkpoint.replays_folder)
        assert folder is not None
        for name in self._newest.requests:
            (folder / name).unlink(missing_ok=True)
        self._newest = replace(self._newest, requests=())
        self._checkpoint.keep_topology(self._newest.steps())

    def _check_states(self) -> None:
        tasks = self._plan.tasks
        for component, had in self._newest.tasks.items():
            if component not in tasks:
                raise TopologyFileError(
                    f"{self._checkpoint.root} keeps state of a bolt {component!r}, which the "
                    "topology has not: give the job a checkpoint of its own, or the bolt back"
                )
            if tasks[component] != had:
                raise TopologyFileError(
                    f"{self._checkpoint.root} keeps state of {had} tasks of bolt {component!r}, "
                    f"which has {tasks[component]} now: tuples would go to other tasks than what "
                    "was kept of them; its parallelism has to stay"
                )


def check_settings(reorder: ReorderSettings, process: ProcessSettings, topology: Topology) -> None:
    """Check that settings go together with a topology.

    Raises:
        TopologyFileError: They do not; the message names the setting.
    """
    if reorder.delivery is not Delivery.EXACTLY_ONCE:
        raise TopologyFileError(
            f'reorder.delivery = "{reorder.delivery}": a topology\'s outputs are written '
            "exactly-once only"
        )
    if reorder.late_policy is LatePolicy.EMIT:
        raise TopologyFileError(
            'reorder.late_policy = "emit": late events would reach bolts out of order; '
            "send them to a topic"
        )
    written = [*topology.topics(reorder.output_topic), *reorder.written_topics[1:]]
    written.append(process.dead_letters(reorder.output_topic))
    twice = [name for name in written if written.count(name) > 1]
    if twice:
        raise TopologyFileError(f"topic {twice[0]!r} is written to for two purposes")
    read = [name for name in written if name in reorder.input_topics]
    if read:
        raise TopologyFileError(f"topic {read[0]!r} is read, and written to by the topology")


def _added(
    before: ProcessTotals, result: StepResult, *, replayed: int, busy_ms: int
) -> ProcessTotals:
    counts = result.counts
    return ProcessTotals(
        taken=before.taken + counts["taken"],
        replayed=before.replayed + replayed,
        acked=before.acked + counts["acked"],
        dead=before.dead + counts["dead"],
        pending=counts["waiting"],
        failed=before.failed + counts["failed"],
        outputs=before.outputs + counts["outputs"],
        late_acks=before.late_acks + counts["late_acks"],
        untracked_failures=before.untracked_failures + counts["untracked_failures"],
        crashes=before.crashes + counts["crashes"],
        busy_ms=before.busy_ms + busy_ms,
    )
