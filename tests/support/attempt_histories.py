"""Histories of attempts at steps: several at once, paused, killed, under drivers that take over."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.stored import dump, load
from sequitur.errors import (
    OutputMismatchError,
    SendUnansweredError,
)
from sequitur.kafka.identity import Identity
from sequitur.kafka.leaders import Leaders
from sequitur.kafka.partition import OutputPartition
from sequitur.pipelines.rows.record_layout import KafkaBatch
from sequitur.pipelines.sink import step_planner
from sequitur.pipelines.sink.partition_sender import Assignment, PartitionSender
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.pipelines.sink.step_plans import SequenceEnds
from sequitur.producer import KafkaSettings
from tests.support.document_folder import DocumentFolder
from tests.support.fake_cluster import FakeCluster, FakeWire, Faults
from tests.support.partition_model import PartitionModel
from tests.support.record_bytes import record_bytes
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    import pytest

    from sequitur.kafka.connections import Bound
    from sequitur.pipelines.sink.step_planner import Planned

TOPIC: Final = "out"
EXPIRY_S: Final = 2 * 3600.0
"""Brokers forget after so long: more than answers are trusted and requests are on their way."""
_MOST_TURNS: Final = 400
_TROUBLED_TURNS: Final = 60
_LAST_TURNS: Final = 100


@dataclass(frozen=True, slots=True)
class History:
    """What happens, but for chance.

    Attributes:
        seed: Of what is left to chance.
        rows: Of each step, of each partition, how many rows it has.
        attempts: At each step at once, at most.
        faults: How likely faults are.
        moves: How often, of so many turns, another broker leads.
        idle: How often nothing happens for hours.
        deaths: How often an attempt is killed.
        takeovers: How often a driver takes over.
        trims: How often retention takes the log's beginning.
        first: The sequence that comes first.
        replicas_lag: How seldom followers catch up.
    """

    seed: int
    rows: tuple[tuple[int, ...], ...]
    attempts: int = 2
    faults: Faults = field(default_factory=Faults)
    moves: float = 0.0
    idle: float = 0.0
    deaths: float = 0.0
    takeovers: float = 0.0
    trims: float = 0.0
    first: int = 0
    replicas_lag: float = 0.5


class _Connections:
    """A driver's; stands for `sequitur.kafka.connections.Connections`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: FakeCluster) -> None:
        self._loop = loop
        self.wire = FakeWire(cluster)
        self.leaders = Leaders(self.wire)  # type: ignore[arg-type]  # stands for it

    def run(self, work: Coroutine[Any, Any, Any], _bound: Bound) -> Any:
        return self._loop.run_until_complete(work)

    async def batch_bytes_of(self, _topic: str) -> int:
        return 1 << 18


def laid_out(rows: Sequence[bytes]) -> KafkaBatch:
    records = b"".join(record_bytes(number, None, row) for number, row in enumerate(rows))
    return KafkaBatch(memoryview(records), len(rows), 1_700_000_000_000, 1_700_000_000_000)


class Run:
    """One run of a history.

    Attributes:
        refused: Why it was refused to go on, if it was.
    """

    def __init__(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        self._history = history
        self._random = Random(history.seed)
        self._loop = VirtualTimeLoop()
        self.cluster = FakeCluster(Random(history.seed + 1), history.faults, clock=self._loop.time)
        count = len(history.rows[0])
        self._where = [OutputPartition(TOPIC, number) for number in range(count)]
        for number, where in enumerate(self._where):
            self.cluster.partitions[where] = PartitionModel(leader=number % 3)
        self._documents = DocumentFolder()
        self._tasks: list[asyncio.Task[None]] = []
        self._sent: SequenceEnds | None = None
        self._returned: set[int] = set()
        self._done = -1
        self._errors: list[BaseException] = []
        self._is_calm = False
        self.refused: str | None = None
        monkeypatch.setattr(step_planner, "kept_connections", self._connections)
        monkeypatch.setattr(step_planner, "time", self)

    def time(self) -> float:
        return self._loop.time()

    def _connections(self, _kafka: object, _bound: Bound) -> _Connections:
        return _Connections(self._loop, self.cluster)

    def go(self) -> None:
        """Run it to its end, and look at what readers see."""
        asyncio.set_event_loop(self._loop)
        chaos = self._loop.create_task(self._chaos())
        try:
            self._all_steps()
        except OutputMismatchError as error:
            self.refused = str(error)
        finally:
            self._loop.run_until_complete(self._end(chaos))
            self._loop.close()
            asyncio.set_event_loop(None)
        for failed in self._errors:
            # Several attempts may be refused alike.
            if self.refused is None or not isinstance(failed, OutputMismatchError):
                raise failed

    def rows_of(self, step: int, partition: int) -> list[bytes]:
        count = self._history.rows[step][partition]
        return [f"{step}:{number}".encode() for number in range(count)]

    def expected(self, partition: int) -> list[bytes]:
        """What readers of a partition see, of the steps that are done."""
        return [row for step in range(self._done + 1) for row in self.rows_of(step, partition)]

    def seen(self, partition: int) -> list[bytes | None]:
        return self.cluster.partitions[self._where[partition]].rows()

    def _all_steps(self) -> None:
        plans = self._driver(newest=-1)
        for step in range(len(self._history.rows)):
            plans = self._step(plans, step)
            self._is_calm = False
            while self._chance(self._history.takeovers):
                plans = self._driver(newest=self._done)

    def _driver(self, newest: int) -> StepPlanner:
        kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
        sent = self._sent
        if sent is None and self._history.first:
            # So many rows are there, and their retention is over.
            identity = Identity(7, self.cluster.epoch + 1)
            firsts = tuple(self._history.first for _ in self._where)
            sent = SequenceEnds("cluster", identity, {TOPIC: (b"topic".hex(), firsts)})
        plans = StepPlanner(kafka, app="app", documents=self._documents)
        plans.open({TOPIC: len(self._where)}, newest=newest, done=self._done, sent=sent)
        self.cluster.tell("a driver takes over")
        return plans

    def _step(self, plans: StepPlanner, step: int) -> StepPlanner:
        """Drivers and attempts follow each other until one has returned; the last driver."""
        topics = {TOPIC: len(self._where)}
        planned = plans.of_step(step, topics)
        for turn in range(_MOST_TURNS):
            # After a while all is well, so that the step comes to an end.
            self._is_calm = turn > _TROUBLED_TURNS
            self.cluster.faults = Faults() if self._is_calm else self._history.faults
            if step in self._returned:
                break
            if self._chance(self._history.takeovers):
                if self._chance(0.3):
                    self._kill()
                plans = self._driver(newest=step)
                planned = plans.of_step(step, topics)
            running = sum(not task.done() for task in self._tasks)
            if running < self._history.attempts or (self._is_calm and turn % 10 == 0):
                self._begin(step, planned, planned.begun_s if self._chance(0.7) else None)
            elif self._chance(self._history.deaths):
                self._kill()
            pause_s = self._random.random() * (30 if self._is_calm or self._chance(0.05) else 0.02)
            self._loop.run_until_complete(asyncio.sleep(pause_s))
            self._check_errors()
        assert step in self._returned, "no attempt comes to an end"
        rows = {w: len(self.rows_of(step, w.partition)) for w in self._where}
        plans.written(step, {w: count for w, count in rows.items() if count})
        self._done = step
        assert plans.sent is not None
        self._sent = load(SequenceEnds, dump(plans.sent))
        self.cluster.tell(f"step {step} is done")
        if self._chance(self._history.deaths):
            self._kill()
        return plans

    def _begin(self, step: int, planned: Planned, begun_s: float | None) -> None:
        wire = FakeWire(self.cluster)
        self.cluster.tell(f"an attempt at step {step}, begun_s {begun_s}")
        task = self._loop.create_task(self._attempt(wire, step, planned, begun_s))
        self._tasks.append(task)

    def _kill(self) -> None:
        running = [task for task in self._tasks if not task.done()]
        if running:
            self.cluster.tell("an attempt dies")
            self._random.choice(running).cancel()

    async def _attempt(
        self, wire: FakeWire, step: int, planned: Planned, begun_s: float | None
    ) -> None:
        random = Random(self._random.random())
        leaders = Leaders(wire)  # type: ignore[arg-type]  # stands for it
        await wire.refresh()
        try:
            async with asyncio.TaskGroup() as group:
                for where in self._where:
                    rows = self.rows_of(step, where.partition)
                    if not rows:
                        continue
                    plan = planned.plan.topics[TOPIC]
                    sender = PartitionSender(
                        leaders,
                        Assignment(
                            where,
                            planned.plan.identity,
                            plan.firsts[where.partition],
                            plan.ends[where.partition],
                            begun_s,
                        ),
                        clock=self._loop.time,
                    )
                    group.create_task(self._run(sender, where, step, rows))
                    group.create_task(_feed(sender, rows, random))
        except ExceptionGroup as errors:
            self._fail(step, errors.exceptions[0])
        else:
            self.cluster.tell(f"an attempt at step {step} returns")
            self._returned.add(step)

    def _fail(self, step: int, error: Exception) -> None:
        self.cluster.tell(f"an attempt at step {step} fails: {error!r}")
        # What one of a step that is done says, nobody hears; one that gets no answer is repeated.
        is_heard = step > self._done and step not in self._returned
        if is_heard and not isinstance(error, SendUnansweredError):
            self._errors.append(error)

    async def _run(
        self, sender: PartitionSender, where: OutputPartition, step: int, rows: list[bytes]
    ) -> None:
        assert await sender.run() == len(rows)
        seen = self.cluster.partitions[where].rows()
        begin = sum(len(self.rows_of(one, where.partition)) for one in range(step))
        if seen[begin : begin + len(rows)] != rows:
            self._errors.append(AssertionError(f"an attempt at step {step} returned too early"))

    async def _chaos(self) -> None:
        history, random = self._history, Random(self._history.seed + 2)
        while True:
            await asyncio.sleep(random.random() * (30 if random.random() < 0.2 else 0.01))
            where = random.choice(self._where)
            partition = self.cluster.partitions[where]
            if self._is_calm:
                self.cluster.replicate(where)
                continue
            if random.random() < history.idle:
                self.cluster.replicate(where)
                await self._idle(random.random() * 3 * EXPIRY_S)
            partition.forget(self._loop.time(), EXPIRY_S)
            if random.random() < history.moves:
                if random.random() < 0.5:
                    partition.shorten_memory()
                shown = random.choice([None, partition.replicated - random.randrange(1, 9)])
                kept = random.randrange(3)
                self.cluster.move(where, kept, None if shown is None else max(shown, 0))
            elif random.random() > history.replicas_lag:
                self.cluster.replicate(where, random.choice([1, 2, None]))
            if random.random() < history.trims:
                partition.delete_to(random.randrange(partition.replicated + 1))
                self.cluster.tell(f"the log of {where} begins at {partition.start}")

    async def _idle(self, pause_s: float) -> None:
        """Nothing befalls the cluster for so long, or until all is to be well."""
        for _ in range(int(pause_s / 60)):
            if self._is_calm:
                return
            await asyncio.sleep(60)

    async def _end(self, chaos: asyncio.Task[None]) -> None:
        """What is on its way arrives, attempts that live on come to an end."""
        chaos.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await chaos
        self.cluster.faults = Faults()
        for _ in range(_LAST_TURNS):
            for where, partition in self.cluster.partitions.items():
                self.cluster.replicate(where)
                partition.forget(self._loop.time(), EXPIRY_S)
            # Those that are paused go on after all: brokers may have forgotten them by then.
            await asyncio.sleep(3 * self._history.faults.paused_s / _LAST_TURNS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check_errors(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._errors.append(task.exception() or AssertionError())
        for error in self._errors:
            if isinstance(error, OutputMismatchError):
                self._errors.remove(error)
                raise error
        if self._errors:
            raise self._errors.pop()

    def _chance(self, share: float) -> bool:
        return not self._is_calm and self._random.random() < share


async def _feed(sender: PartitionSender, rows: list[bytes], random: Random) -> None:
    """Cut the rows as no other attempt does, and give them one after the other."""
    at = 0
    while at < len(rows):
        count = min(random.choice((1, 1, 2, 3, 5)), len(rows) - at)
        sender.add(laid_out(rows[at : at + count]))
        at += count
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 0.01)
    sender.end()
