"""Runs a topology on plain lists, with a clock that is moved by hand: no Kafka, no Spark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from sequitur.base.copy_headers import FailReason
from sequitur.consumer.topology._settings import Outputs, ProcessSettings
from sequitur.consumer.topology.api.bolt import ticks_due, watermark_after
from sequitur.consumer.topology.api.builder import (
    EVENT_FIELDS,
    AckedEvent,
    EventHook,
    FailedEvent,
    notify,
)
from sequitur.consumer.topology.api.tuple import EventValues, Place
from sequitur.consumer.topology.engine.key_groups import shown_key
from sequitur.consumer.topology.engine.key_store import MemoryKeyStore
from sequitur.consumer.topology.engine.plan import (
    Plan,
    plan,
    plan_apart,
    random_ids,
)
from sequitur.consumer.topology.engine.runner import Instances
from sequitur.consumer.topology.settling.outcomes import due_ms
from sequitur.consumer.topology.settling.root import (
    is_made,
    is_own,
    is_timer,
    readable,
    timer_of,
)
from sequitur.consumer.topology.step.batch import components_of
from sequitur.consumer.topology.step.room import Room
from sequitur.consumer.topology.step.run import CountedRuns, StepRun, TasksHere, latest
from sequitur.consumer.topology.tester.in_memory import InMemoryBatch, InMemoryInput, in_order
from sequitur.consumer.topology.tester.tuple_trees import TreeRecorder
from sequitur.errors import TopologyError
from sequitur.kafka.partition import KeyPartitioner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.topology.api.builder import Topology
    from sequitur.consumer.topology.engine.plan import OutputRecord
    from sequitur.consumer.topology.step.batch import Handle, PendingEvent
    from sequitur.consumer.topology.step.run import StepResult
    from sequitur.consumer.topology.tester.in_memory import Inputs, Written
    from sequitur.consumer.topology.tester.tuple_trees import TupleTree

_MS = 1000
_TOPIC: Final = "events"
_SHORTEST: Final = 2
_LONGEST: Final = 3

_running: ContextVar[TopologyTester] = ContextVar("_running")


class TopologyTester:
    """Runs a topology on plain lists.

    Each `run` is a batch: events that wait for another attempt and whose time has come, then the
    new ones in event-time order. ::

        tester = TopologyTester(topology)
        tester.run([{"value": "to be or not to be"}])
        assert tester.records("counts")[-1] == (b"be", b"2")
        print(tester.trees[0].as_text())

    It runs what a job runs: stage after stage, an executor for each task, tuples pickled between
    stages, and ackers that find out which trees are done. It leaves out Kafka and Spark, and what
    depends on them: the time-out of a call that hangs, concurrent calls, and a process that dies.

    Args:
        topology: The topology.
        settings: How the topology is run.
        parallelism: Number of tasks of bolts that are declared without one, or a mapping from bolts
            to numbers. Without it, a bolt has as many tasks as its stage.
        partitions: Number of tasks of the ordered stream: the partitions of the output topic. The
            stages are then those of such a job. Without it there is one task, but the stages of a
            job with many, so that faults between stages show.
        seed: Seed of all random numbers: edges and the jitter of retries.
        ids: The first edges, in the order in which they are drawn. Further edges are random.

    Attributes:
        outputs: Records of finished trees, by output, in order. With `outputs = "immediate"`,
            records of all trees. Within a batch they are in the order of their events.
        acked: Events whose trees are done, in the order in which the tester found out.
        dead_letters: Events that were dead-lettered.
        trees: The tree of each attempt of each event.
        made: How many tuples for other bolts were made by bolts themselves, at ticks and ends of
            batches. Of the lists of events, only `failed`, `held` and `dead_letters` include them.
        made_acked: How many of these tuples are done.
        late_acks: Acks of tuples whose tree had failed already.
        late_for_window: How many events were late for a window or a join and are done, by bolt.
        untracked_failures: Failures of untracked trees.
        finish_failures: Bolts whose `finish_batch` raised, each with the exception.
    """

    _runs_transactions: ClassVar[bool] = False

    def __init__(
        self,
        topology: Topology,
        settings: ProcessSettings | None = None,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        partitions: int | None = None,
        seed: int = 0,
        ids: Iterable[int] = (),
    ) -> None:
        if topology.is_transactional is not self._runs_transactions:
            raise TopologyError(
                f"topology {topology.name!r} is run by a "
                + ("TransactionTester" if topology.is_transactional else "TopologyTester")
            )
        self._settings = settings or ProcessSettings()
        why = self._settings.why_not_keyed(by_field=bool(topology.keyed_by_field))
        if topology.is_keyed and why is not None:
            raise TopologyError(f"process.{why}: topology {topology.name!r} has keyed bolts")
        self._hook = _Hook(self, topology.hook)
        self._topology = replace(topology, hook=self._hook)
        self._plan = _planned(topology, parallelism, partitions)
        self._partitioner = KeyPartitioner(partitions or 1)
        self._seed = seed
        self._next_id = _those_then(ids, random_ids([seed, 1]))
        self._now_s = 0.0
        self._offset = 0
        self._waiting: dict[int, list[Handle]] = {}
        self._next_due_ms: int | None = None
        self._states: Mapping[tuple[str, int], Handle] = {}
        self._keys: dict[tuple[str, int], MemoryKeyStore] = {}
        self._instances = Instances()
        self._counted = CountedRuns()
        self._room = Room()
        self._runs = itertools.count(1)
        self._batches = 0
        self._ran_ms: int | None = None
        self._reached_ms: int | None = None
        self._watermark_ms: int | None = None
        self._closes = False
        self._closed_ms: dict[str, int] = {}
        self.outputs: dict[str, list[OutputRecord]] = {one.id: [] for one in topology.outputs}
        self.acked: list[EventValues] = []
        self.dead_letters: list[DeadLetteredEvent] = []
        self.trees: list[TupleTree] = []
        self.made = self.made_acked = 0
        self.late_acks = 0
        self.late_for_window: Counter[str] = Counter()
        self.untracked_failures = 0
        self.finish_failures: list[tuple[str, str]] = []

    @staticmethod
    def running() -> TopologyTester:
        """Return the tester whose `run` is in progress, for a bolt that moves its clock.

        Raises:
            LookupError: None is.
        """
        return _running.get()

    @property
    def now_s(self) -> float:
        """The time of the clock, in seconds from 0."""
        return self._now_s

    @property
    def failed(self) -> list[EventValues]:
        """Events and tuples of bolts that wait for a retry.

        A tuple that a bolt made at a tick, or at the end of a batch, is shown as its dead letter
        would be: its topic is `component/task`, and its value JSON.
        """
        return [self._shown(one) for one in self._pending() if one.reason is not None]

    @property
    def held(self) -> list[EventValues]:
        """Events and tuples of bolts that wait for an earlier one of their key."""
        return [self._shown(one) for one in self._pending() if one.reason is None]

    @property
    def next_retry_s(self) -> float | None:
        """When the next waiting event may run. None if none waits."""
        next_ms = due_ms(self._next_due_ms, self._now_ms, policy=self._settings.retry)
        return None if next_ms is None else next_ms / _MS

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that bolts see in the next batch."""
        return self._watermark_ms

    def records(self, output: str) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of each record of an output."""
        return [(record.key, record.value) for record in self.outputs[output]]

    def advance(self, seconds: float) -> None:
        """Move the clock. A bolt may do so, too: see `running`.

        Raises:
            ValueError: Backwards.
        """
        if seconds < 0:
            raise ValueError(f"seconds = {seconds}: the clock does not go back")
        self._now_s += seconds

    def run(self, events: Iterable[Any] = (), *, watermark_ms: int | None = None) -> None:
        """Run a batch.

        Bolts whose tick is due get it first. The watermark that they see is what all earlier
        batches have reached.

        Args:
            events: `EventValues`; or mappings with some of its fields; or a key, a value and
                perhaps an event time in ms. Text is encoded, other values become JSON, and an
                event without a time has that of the clock.
            watermark_ms: Event time that is reached with this batch, where that is more than the
                events' own, as in silence.

        Raises:
            BoltError: A bolt cannot be prepared, or say what it wants kept.
            BoltStateError: What a bolt wants kept cannot be pickled.
            TopologyError: The spout's `tracked` raised.
            ValueError: An item is not an event.
        """
        new = sorted((self._event(given) for given in events), key=lambda event: event[3:7])
        self._run(new, lambda _: self._inputs(new), watermark_ms)

    def drain(self) -> None:
        """Close all windows, as a job with `--drain` does at its end.

        Events that fail are tried again until none waits, before windows close and after it. The
        clock moves from retry to retry.
        """
        self.retry_all()
        self._closes = True
        try:
            self.run()
            self.retry_all()
        finally:
            self._closes = False

    def _run(
        self, new: Sequence[EventValues], inputs: Inputs, watermark_ms: int | None = None
    ) -> None:
        recorder = TreeRecorder()
        self._hook.batch = recorder
        token = _running.set(self)
        times_ms = [self._reached_ms, watermark_ms, *(event.event_time_ms for event in new)]
        known = [time_ms for time_ms in times_ms if time_ms is not None]
        self._reached_ms = max(known, default=None)
        try:
            batch = self._batch(recorder)
            result = self._carried_out(batch, inputs)
            self._counted.add(self._batches, result.runs)
        finally:
            _running.reset(token)
        if not batch.ackers:
            self.acked += new
        self._take_in(result)
        self._ran_ms, self._batches = batch.now_ms, self._batches + 1
        waiting_ms = result.least_waiting_ms
        self._watermark_ms = watermark_after(self._watermark_ms, self._reached_ms, waiting_ms)

    def close(self) -> None:
        """Call `cleanup` of all bolts."""
        self._instances.close()

    def retry(self) -> None:
        """Run a batch without new events: of waiting events whose time has come."""
        self.run()

    def retry_all(self) -> None:
        """Move the clock from retry to retry, until each event is acked or dead-lettered."""
        while (next_s := self.next_retry_s) is not None:
            self.advance(max(0.0, next_s - self._now_s))
            self.run()

    def _pending(self) -> list[PendingEvent]:
        return in_order(some for several in self._waiting.values() for some in several)

    def _inputs(self, new: Sequence[EventValues]) -> list[InMemoryInput]:
        """Return the events of each first-stage task, by key or partition as in the job."""
        partitions = self._partitioner.partitions
        events: list[list[EventValues]] = [[] for _ in range(partitions)]
        for event in new:
            place = event.partition % partitions
            if event.key is not None:
                place = self._partitioner.partition(event.key)
            events[place].append(event)
        return [
            InMemoryInput(own, tuple(self._waiting.get(place, ())), place)
            for place, own in enumerate(events)
        ]

    def _carried_out(self, batch: InMemoryBatch, inputs: Inputs) -> StepResult:
        return StepRun(batch, inputs(None), self._states, TasksHere(), self._keys).run()

    def _batch(self, recorder: TreeRecorder) -> InMemoryBatch:
        ackers = self._settings.ackers
        return InMemoryBatch(
            topology=self._topology,
            plan=self._plan,
            rules=self._settings.rules,
            ackers=self._partitioner.partitions if ackers is None else ackers,
            now_ms=self._now_ms,
            seed=(self._batches, self._seed),
            watermark_ms=self._watermark_ms,
            reached_ms=self._reached_ms,
            closes=self._closes,
            closed_ms=self._closed_ms,
            room=self._room.times,
            ticks=ticks_due(self._topology.tick_intervals_ms, self._ran_ms, self._now_ms),
            now_s=lambda: self._now_s,
            next_edge=self._next_id,
            kept=self._instances,
            recorder=recorder,
            run=str(next(self._runs)),
            counted=self._counted.names,
        )

    def _take_in(self, result: StepResult) -> None:
        self._waiting, self._states = result.waiting, result.states
        self._next_due_ms = result.next_due_ms
        self._room.take_in(result)
        for where, several in result.keys.items():
            store = self._keys.setdefault(where, MemoryKeyStore())
            for changes in several:
                store.take_in(changes)
        self.made += result.counts["made"]
        self.made_acked += result.counts["made_acked"]
        self.late_acks += result.counts["late_acks"]
        self.late_for_window.update(result.late_for_window)
        self._closed_ms = latest(self._closed_ms, result.closed_ms)
        self.untracked_failures += result.counts["untracked_failures"]
        self.finish_failures += result.finish_failures
        self.dead_letters += [
            _dead_letter(one, self._shown(one)) for several in result.dead for one in several
        ]
        self.trees += self._hook.trees(result)
        unfinished: set[int] = set()
        if self._settings.outputs is Outputs.FINISHED:
            unfinished.update(root for several in result.unfinished for root in several)
        for output, parts in result.records.items():
            written = sorted((one for part in parts for one in part), key=_order)
            self.outputs[output] += [
                record for _, record in written if record.root.id not in unfinished
            ]

    def _shown(self, one: PendingEvent) -> EventValues:
        event = EventValues(*one.event)
        if not is_made(event):
            bolt = timer_of(event)[0].component if is_timer(event) else None
            if bolt in self._topology.stores_by_field:
                return event._replace(key=shown_key(event.key or b""))
            return event
        _, value = readable(event, self._topology)
        return event._replace(key=event.topic.encode(), value=value)

    @property
    def _now_ms(self) -> int:
        return round(self._now_s * _MS)

    def _event(self, given: Any) -> EventValues:
        offset, now_ms = self._offset, self._now_ms
        self._offset += 1
        if isinstance(given, EventValues):
            return given
        if isinstance(given, Mapping):
            fields = dict(given)
        elif isinstance(given, Sequence) and _SHORTEST <= len(given) <= _LONGEST:
            fields = dict(zip(("key", "value", "event_time_ms"), given, strict=False))
        else:
            raise ValueError(
                f"{given!r} is not an event: give a mapping, or key, value and time in ms"
            )
        unknown = [name for name in fields if name not in EVENT_FIELDS]
        if unknown:
            known = ", ".join(EVENT_FIELDS)
            raise ValueError(f"event {given!r} has a field {unknown[0]!r}, expected: {known}")
        time_ms = fields.get("event_time_ms", now_ms)
        return EventValues(
            key=_encoded(fields.get("key")),
            value=_encoded(fields.get("value")),
            headers=fields.get("headers", ()),
            event_time_ms=time_ms,
            topic=fields.get("topic", _TOPIC),
            partition=fields.get("partition", 0),
            offset=fields.get("offset", offset),
            timestamp_ms=fields.get("timestamp_ms", time_ms),
        )


@dataclass(frozen=True, slots=True)
class DeadLetteredEvent:
    """An event that was dead-lettered.

    Attributes:
        event: The event.
        reason: Why its last attempt failed.
        detail: A traceback, or another description.
        attempts: How often it was tried.
        path: The components that the failed tuple had passed, the spout first.
    """

    event: EventValues
    reason: FailReason
    detail: str
    attempts: int
    path: tuple[str, ...]


class _Hook(EventHook):
    """Records what becomes of events, and notifies the topology's own hook."""

    def __init__(self, tester: TopologyTester, own: EventHook | None) -> None:
        self._tester = tester
        self._own = own
        self._verdicts: dict[Place, str] = {}
        self.batch = TreeRecorder()

    def on_ack(self, done: AckedEvent, /) -> None:
        self._verdicts[Place(*done.event[4:7])] = "acked"
        self._tester.acked.append(done.event)
        self._pass_on(done)

    def on_fail(self, failed: FailedEvent, /) -> None:
        end = "dead-lettered" if failed.is_dead else "to be tried again"
        self._verdicts[Place(*failed.event[4:7])] = f"failed ({failed.failure.reason}), {end}"
        self._pass_on(failed)

    def trees(self, result: StepResult) -> list[TupleTree]:
        """Return the trees of the batch that ended, each with its verdict."""
        self._note_made(result)
        for tree in self.batch.trees:
            heard = self._verdicts.get(Place(*tree.event[4:7]), "held")
            tree.verdict = heard if tree.is_tracked else "untracked"
        self._verdicts.clear()
        return self.batch.trees

    def _note_made(self, result: StepResult) -> None:
        """Note what became of the tuples that bolts made. Hooks are not notified of them."""
        verdicts = {
            Place(*one.event[4:7]): "acked" for one in self.batch.trees if is_own(one.event)
        }
        waiting = (one for several in result.waiting.values() for one in several)
        for several, end in ((waiting, "to be tried again"), (result.dead, "dead-lettered")):
            for one in (one for some in several for one in some):
                if is_own(one.event):
                    said = "held" if one.reason is None else f"failed ({one.reason}), {end}"
                    verdicts[Place(*one.event[4:7])] = said
        self._verdicts |= verdicts

    def _pass_on(self, what: AckedEvent | FailedEvent) -> None:
        if self._own is not None:
            notify(self._own, what)


def _order(written: Written) -> tuple[Any, ...]:
    return written.order


def _dead_letter(one: PendingEvent, event: EventValues) -> DeadLetteredEvent:
    reason, path = FailReason(one.reason or ""), components_of(one.path)
    return DeadLetteredEvent(event, reason, one.detail or "", one.attempts, path)


def _planned(
    topology: Topology, parallelism: int | Mapping[str, int] | None, partitions: int | None
) -> Plan:
    if isinstance(parallelism, int):
        parallelism = {one.id: parallelism for one in topology.bolts}
    if partitions is None:
        return plan_apart(topology, 1, parallelism)
    return plan(topology, partitions, parallelism)


def _those_then(first: Iterable[int], then: Callable[[], int]) -> Callable[[], int]:
    return itertools.chain(first, iter(then, None)).__next__


def _encoded(given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return given.encode() if isinstance(given, str) else msgspec.json.encode(given)
