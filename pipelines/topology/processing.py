"""A topology behind the reorder stage: what a step releases is given to bolts.

What became of a step's events is written down before anything of it goes out: the files of records,
the events that wait, what bolts keep. So bolts run once for a step, unless the job dies in the
middle of them, and a step whose outputs went out in part is completed from the files: the same
records in the same order.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sequitur.consumer import BEFORE_ALL_TIME_MS, ConservationError
from sequitur.consumer.topology import Outputs
from sequitur.consumer.topology.api.moment import next_tick_ms, ticks_due, watermark_after
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.settling.pending import due_ms
from sequitur.consumer.topology.step.run import StepRun
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.sink.sink import Outgoing
from sequitur.pipelines.store.files import delete_all
from sequitur.pipelines.topology.batch import DEAD_LETTERS, FileBatch, FileInput
from sequitur.pipelines.topology.crashes import SurvivingTasks
from sequitur.pipelines.topology.event_files import read_pending
from sequitur.pipelines.topology.output_files import OUTPUT_ORDER
from sequitur.pipelines.topology.processed import Processed, ProcessTotals
from sequitur.pipelines.topology.replay_intake import ReplayIntake, write_replayed
from sequitur.pipelines.topology.topology_file import check_outputs, check_states

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from sequitur.consumer import OutputTimestamp, StepEntry
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.sink.sink import OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.files import Location
    from sequitur.producer.kafka.record_limit import RecordLimit

_FOLDERS: Final = ("outputs", "waiting", "unfinished", "states", "work")


class Processing:
    """Runs a topology on what steps release.

    Args:
        outputs: The topics it writes to, by name.
        default: The topic of outputs without one of their own; the first stage has a task for each
            of its partitions.
        dead_letters: The topic for events given up.
        limit_of: Tells what a topic takes of one record.
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
        limit_of: Callable[[str], RecordLimit],
        timestamps: OutputTimestamp,
    ) -> None:
        self._spark = spark
        self._timestamps = timestamps
        self._checkpoint = checkpoint
        self._topology = topology
        self._settings = settings
        self._outputs = dict(outputs)
        self._default = default
        self._dead_letters = dead_letters
        self._limit_of = limit_of
        self._plan = plan(topology, default.partitions)
        self._newest = Processed()
        self._requests = ReplayIntake(checkpoint.location("replays"))
        self._life = uuid4().hex
        folders = {name: str(number) for number, name in enumerate(self._outputs)}
        self._folders = {folder: name for name, folder in folders.items()}
        self._topics = {
            one.id: (folders[topic.name], topic.partitions)
            for one in topology.outputs
            if one.output is not None
            for topic in [self._outputs[one.output.topic or default.name]]
        }

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

    def open(self, done: int, newest: int) -> None:
        """Take up where the job was.

        Args:
            done: The newest step that is done; -1 before the first.
            newest: The newest step that was begun.

        Raises:
            TopologyFileError: The topology does not go with what its bolts have kept, or has put
                out.
            CheckpointError: The step that is done was not processed.
        """
        root = self._checkpoint.root
        for step in sorted({done, newest} - {-1}):
            found = self._processed(step)
            if found is not None:
                check_states(root, found, self._plan.tasks)
                if step != done:
                    check_outputs(root, found, self._outputs)
            elif step == done:
                raise CheckpointError(f"{root}: step {step} was not processed")
            if found is not None and step == done:
                self._newest = found

    def due_ms(self, now_ms: int) -> int | None:
        """When the next event is to be tried again or replayed; None when none waits."""
        has_requests = self._requests.are_there(self._newest.requests)
        return now_ms if has_requests else self._retry_due_ms(now_ms)

    def _retry_due_ms(self, now_ms: int) -> int | None:
        return due_ms(self._newest.next_due_ms, now_ms, policy=self._settings.retry)

    @property
    def tick_due_ms(self) -> int | None:
        """When the next tick is due; None if no bolt has ticks, or before the first step."""
        return next_tick_ms(self._topology.tick_intervals_ms, self._newest.time_ms)

    def process(self, entry: StepEntry, due: Selection | None) -> Processed:
        """Run the topology on what a step releases, unless that was done before the job died.

        Raises:
            BoltCrashError: A task's process dies again and again.
            ConservationError: An event is unaccounted for.
        """
        found = self._processed(entry.step)
        if found is not None:
            self._newest = found
            return found
        # The newest step has taken its requests in: it is done, and out.
        self._requests.delete(self._newest.requests)
        before = self._newest = replace(self._newest, requests=())
        new_requests = self._requests.take()
        retry_due_ms = self._retry_due_ms(entry.logged_ms)
        is_due = retry_due_ms is not None and retry_due_ms <= entry.logged_ms
        ticks = ticks_due(self._topology.tick_intervals_ms, before.time_ms, entry.logged_ms)
        name = None
        if due is None and not is_due and not new_requests and not ticks:
            processed = replace(
                before, step=entry.step, taken=0, records={}, dead=(), unfinished=()
            )
        else:
            name = self._checkpoint.new_name(entry.step)
            processed = self._run(entry, name, due, new_requests, ticks)
        processed = replace(
            processed,
            time_ms=max(entry.logged_ms, before.time_ms or entry.logged_ms),
            watermark_ms=watermark_after(
                before.watermark_ms, reached_ms(entry), processed.least_waiting_ms
            ),
        )
        self._checkpoint.write_processed(
            entry.step,
            processed.to_document(self._checkpoint.location()),
            written=name,
            kept=processed.folders(),
        )
        self._newest = processed
        return processed

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

    def _run(
        self,
        entry: StepEntry,
        name: str,
        due: Selection | None,
        new_requests: Sequence[Location],
        ticks: Mapping[str, int],
    ) -> Processed:
        before, settings = self._newest, self._settings
        folder = self._checkpoint.location(f"topology/{name}")
        records = (f"outputs/{place}" for place in (*self._folders, DEAD_LETTERS))
        for below in (*_FOLDERS, *records):
            (folder / below).mkdir(parents=True, exist_ok=True)
        partitions = self._default.partitions
        batch = FileBatch(
            topology=self._topology,
            plan=self._plan,
            rules=replace(settings.rules, limits=self._output_limits()),
            ackers=partitions if settings.ackers is None else settings.ackers,
            now_ms=entry.logged_ms,
            seed=(entry.step, entry.logged_ms),
            folder=folder,
            topics=self._topics,
            dead_letters=(DEAD_LETTERS, self._dead_letters.partitions),
            root=self._checkpoint.location(),
            letter_limit=self._limit_of(self._dead_letters.name),
            watermark_ms=before.watermark_ms,
            ticks=ticks,
            life=self._life,
        )
        begun_s = time.monotonic()
        waiting_now = before.waiting.values() if new_requests else ()
        replayed = write_replayed(
            new_requests,
            waiting=(one.event for paths in waiting_now for one in read_pending(paths)),
            folder=folder / "waiting",
            partitions=partitions,
        )
        waiting = {
            place: (*before.waiting.get(place, ()), *replayed[place][1])
            for place in range(partitions)
        }
        result = StepRun(
            batch,
            [FileInput(due, waiting[place], place) for place in range(partitions)],
            {(component, task): path for component, task, path in before.states},
            SurvivingTasks(self._spark, folder / "work", max_crashes=settings.max_crashes),
        ).run()
        delete_all(folder / "work")
        added = sum(count for count, _ in replayed)
        busy_ms = round(1000 * (time.monotonic() - begun_s))
        totals = _added(before.totals, result.counts, replayed=added, busy_ms=busy_ms)
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
            least_waiting_ms=result.least_waiting_ms,
        )

    def _output_limits(self) -> dict[str, RecordLimit]:
        return {
            one.id: self._limit_of(one.output.topic or self._default.name)
            for one in self._topology.outputs
            if one.output is not None
        }

    def _processed(self, step: int) -> Processed | None:
        """What became of a step's events; None as long as it is not known."""
        return self._checkpoint.processed(
            step, lambda document: Processed.from_document(document, self._checkpoint.location())
        )


def reached_ms(entry: StepEntry) -> int | None:
    """Event time up to which a step has given all out; None before the first event.

    That is the frontier. In silence, when every partition is idle and nothing is held, it goes on
    with the clock from there, up to the last look at the input: a step may be decided long after
    that, or be another attempt at events that wait.
    """
    clock = entry.clock
    if clock.frontier_ms == BEFORE_ALL_TIME_MS:
        return None
    idle_ms = [one.idle_at_ms for one in clock.partitions.values() if one.was_idle]
    if entry.live_runs or not idle_ms or len(idle_ms) < len(clock.partitions):
        return clock.frontier_ms
    silent_ms = clock.seen_ms - max(one or clock.seen_ms for one in idle_ms)
    return clock.frontier_ms + max(0, silent_ms)


def _added(before: ProcessTotals, counts: Mapping[str, int], **more: int) -> ProcessTotals:
    """Return the counts with those of a step added; how many wait now is one of these."""
    added = {**counts, **more, "pending": counts["waiting"] - before.pending}
    return ProcessTotals(
        **{name: count + added.get(name, 0) for name, count in asdict(before).items()}
    )
