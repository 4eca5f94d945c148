"""One topology twice, step by step: on a tester, and with the job's own tasks and files."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sequitur.consumer.topology import (
    AckedEvent,
    Bolt,
    EventHook,
    EventValues,
    FailedEvent,
    Ordering,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyTester,
)
from sequitur.consumer.topology.api.bolt import ticks_due
from sequitur.kafka.partition import KeyPartitioner
from tests.support.bolts import Neighbours
from tests.support.step_runs import StepRuns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.consumer.topology import OutputCollector, TopologyContext, Tuple
    from sequitur.consumer.topology.engine.plan import OutputRecord

MOST_STEPS = 40


class Notes(EventHook):
    """Takes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_ack(self, done: AckedEvent, /) -> None:
        self.told.append(("acked", done.event.offset, done.attempt))

    def on_fail(self, failed: FailedEvent, /) -> None:
        self.told.append(
            ("failed", failed.event.offset, failed.attempt, failed.failure, failed.is_dead)
        )


class Odd:
    """Refuses to be pickled, or to be made again."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        if self.how == "dump":
            raise TypeError("cannot pickle this")
        return _refuse, ()


def _refuse() -> None:
    raise TypeError("cannot make this")


class Work(Bolt):
    """Emits twice for an event, the two parts of its value; what goes wrong stands in the value.

    A value is what goes wrong, in how many attempts, and whether before the tuples or behind.
    """

    fields = ("key", "value", "extra")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        how, times, where = (tuple["value"] or b"good 0 before").decode().split()
        is_wrong = tuple.attempt <= int(times)
        if is_wrong and where == "before":
            self._go_wrong(how, tuple)
            return
        extra = Odd(how) if is_wrong and how in {"dump", "load"} else None
        anchors = () if how == "unanchored" else tuple
        for part in range(2):
            value = b"%s %d/%d" % (tuple["value"] or b"", part, tuple.attempt)
            self.collector.emit((tuple["key"], value, extra), anchors)
        if is_wrong and where == "after":
            self._go_wrong(how, tuple)
        else:
            self.collector.ack(tuple)

    def _go_wrong(self, how: str, given: Tuple) -> None:
        if how == "raise":
            raise ValueError(how)
        if how == "fail":
            self.collector.fail(given)
        elif how != "forget":
            self.collector.ack(given)


class Second(Bolt):
    """Passes on, and refuses second parts that say so."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        how, times, where = tuple["value"].split()[:3]
        is_second = tuple["value"].split()[3].startswith(b"1/")
        if where == b"below" and how == b"raise" and is_second and tuple.attempt <= int(times):
            raise ValueError("below")
        self.collector.emit((tuple["key"], tuple["value"]), tuple)
        self.collector.ack(tuple)


class Totals(Bolt):
    """Counts over all batches; says so for each tuple, at ticks, and at the end of batches."""

    fields = ("key", "value")

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.count = 0
        self.is_given = False

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.is_tick:
            said = (self.context.task, self.count, self.context.watermark_ms)
            self.collector.emit((None, b"tick %d %d %s" % (*said[:2], str(said[2]).encode())))
        else:
            self.count += 1
            self.is_given = True
            self.collector.emit((tuple["key"], b"%d" % self.count), tuple)
        self.collector.ack(tuple)

    def finish_batch(self) -> None:
        """Say so without an anchor, if there was anything: else a retry of that has no end."""
        if self.is_given:
            self.collector.emit((None, b"end %d %d" % (self.context.task, self.count)))
        self.is_given = False

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


class Last(Bolt):
    """Passes on, and refuses some of what totals tell at ticks and at ends, once or each time."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        value = tuple["value"]
        if value[:3] in {b"tic", b"end"} and tuple.attempt <= crc32(value) % 4:
            raise ValueError("refused")
        self.collector.emit((tuple["key"], value), tuple)
        self.collector.ack(tuple)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topology looks like.

    Attributes:
        groupings: Of the bolts, by name: how each reads the one before it.
        tasks: How many tasks bolts are declared with, by name.
        tracked: Which events are tracked.
    """

    groupings: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, int | None] = field(default_factory=dict)
    tracked: Any = True

    def topology(self, hook: EventHook) -> Topology:
        """A chain of bolts with whatever is in `groupings`, and an output of each."""
        builder = TopologyBuilder("pairs")
        builder.set_spout("events", tracked=self.tracked)
        reads = {"work": "events", "second": "work", "join": "work", "totals": "second"}
        reads["last"] = "totals"
        made = {"work": Work(), "second": Second(), "join": Neighbours(), "totals": Totals()}
        made["last"] = Last()
        for name, grouping in self.groupings.items():
            ticks = 1.0 if name == "totals" else None
            declared = builder.set_bolt(name, made[name], self.tasks.get(name), tick_interval=ticks)
            if grouping == "fields":
                declared.fields_grouping(reads[name], "key")
            else:
                getattr(declared, f"{grouping}_grouping")(reads[name])
            builder.set_output(f"{name}-out", key="key", value="value").local_grouping(name)
        builder.set_hook(hook)
        return builder.build()


def event(number: int, key: bytes | None, value: bytes, partitions: int) -> EventValues:
    """An event where the reorder stage puts it: by its key, and without one by its number."""
    place = number % partitions
    if key is not None:
        place = KeyPartitioner(partitions).partition(key)
    return EventValues(key, value, (), number, "in", place, number, number)


class Pair:
    """A topology on a tester, and as the job's tasks run it.

    Args:
        shape: The topology.
        settings: How it is run; without jitter, which is random in either.
        partitions: Tasks of the ordered stream.
        folder: Where the job's files are written.
    """

    def __init__(
        self, shape: Shape, settings: ProcessSettings, partitions: int, folder: Path
    ) -> None:
        self._notes = Notes(), Notes()
        self.tester = TopologyTester(
            shape.topology(self._notes[0]), settings, partitions=partitions
        )
        self.tester.advance(1)
        topology = shape.topology(self._notes[1])
        self.job = StepRuns(topology, folder, settings, partitions, life="pair")
        self._outputs = [one.id for one in self.job.topology.outputs]
        self._partitioner = KeyPartitioner(partitions)
        self._written: dict[str, list[Any]] = {name: [] for name in self._outputs}
        self._before_ms: int | None = None
        self._is_immediate = settings.outputs == "immediate"

    def step(self, new: Sequence[EventValues] = ()) -> None:
        """Run a step on both, and compare all that came of it."""
        tester, job = self.tester, self.job
        job.now_ms = round(tester.now_s * 1000)
        job.watermark_ms = tester.watermark_ms
        intervals_ms = job.topology.tick_intervals_ms
        job.ticks = ticks_due(intervals_ms, self._before_ms, job.now_ms)
        self._before_ms = job.now_ms
        counts = {name: len(tester.outputs[name]) for name in self._outputs}
        tester.run(new)
        for name, count in counts.items():
            self._written[name] += self._by_partition(tester.outputs[name][count:])
        job.step(new)
        assert self._of_tester() == self._of_job()

    @property
    def dead_events(self) -> int:
        """How many dead letters are events, and not what bolts made by themselves."""
        return sum(one.event.topic == "in" for one in self.tester.dead_letters)

    def to_the_end(self) -> None:
        """Run steps until no event waits."""
        for _ in range(MOST_STEPS):
            due_s = self.tester.next_retry_s
            if due_s is None:
                return
            self.tester.advance(max(0.0, due_s - self.tester.now_s))
            self.step()
        raise RuntimeError("some events wait still")

    def _by_partition(self, records: Sequence[OutputRecord]) -> list[Any]:
        """As a job writes records: by the partition of their topic, and therein in order."""

        def partition(record: OutputRecord) -> int:
            if record.key is not None:
                return self._partitioner.partition(record.key)
            return int(record.root.event[5]) % self._partitioner.partitions

        return [(one.key, one.value) for one in sorted(records, key=partition)]

    def _of_tester(self) -> dict[str, Any]:
        tester = self.tester
        waiting = [*tester.failed, *tester.held]
        return {
            "outputs": self._written,
            "dead": sorted(
                (one.event.offset, one.reason.value, one.attempts, " > ".join(one.path), one.detail)
                for one in tester.dead_letters
            ),
            "told": self._notes[0].told,
            "waiting": sorted(one.offset for one in waiting),
            "failed": sorted(one.offset for one in tester.failed),
            "due": tester.next_retry_s,
            "counts": (
                len(tester.acked),
                len(tester.dead_letters),
                len(waiting),
                tester.late_acks,
                tester.untracked_failures,
                tester.made,
                tester.made_acked,
            ),
            "states": {place: pickle.loads(state) for place, state in tester._states.items()},
        }

    def _of_job(self) -> dict[str, Any]:
        job = self.job
        counts, pending = job.counts, job.pending()
        letters = [
            {name: (said or b"").decode() for name, said in one.items()}
            for one in job.dead_headers()
        ]
        # Without ackers the hook is told of nobody, and with them not of untracked events.
        acked = counts["acked"]
        if job.settings.ackers != 0:
            acked = sum(told[0] == "acked" for told in self._notes[1].told)
        return {
            "outputs": {
                name: job.records(name, is_all=self._is_immediate) for name in self._outputs
            },
            "dead": sorted(
                (
                    int(one["sequitur-source-offset"]),
                    one["sequitur-dlq-reason"],
                    int(one["sequitur-dlq-attempts"]),
                    one["sequitur-dlq-path"],
                    one["sequitur-dlq-traceback"],
                )
                for one in letters
            ),
            "told": self._notes[1].told,
            "waiting": sorted(one.event[6] for one in pending),
            "failed": sorted(one.event[6] for one in pending if one.reason is not None),
            "due": None if job.next_due_ms is None else job.next_due_ms / 1000,
            "counts": (
                acked,
                counts["dead"] + counts["made_dead"],
                len(pending),
                counts["late_acks"],
                counts["untracked_failures"],
                counts["made"],
                counts["made_acked"],
            ),
            "states": {
                place: pickle.loads(path.read_bytes()) for place, path in job.states.items()
            },
        }


def settings(**given: Any) -> ProcessSettings:
    """Settings without jitter, and with short waits."""
    given = {"max_attempts": 2, "ordering": Ordering.KEY} | given
    return ProcessSettings(retry_jitter=0, retry_delay=timedelta(milliseconds=100), **given)
