"""Steps of a topology as the job runs them, files and all, in one process and without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequitur.consumer.topology import EventValues, ProcessSettings
from sequitur.consumer.topology.engine.concurrency import CallPool
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.settling.outcomes import due_ms
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.consumer.topology.step.run import StepRun
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.rows.oversized import read_oversized
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.topology.batch import DEAD_LETTERS, FileBatch, FileInput
from sequitur.pipelines.topology.files import EVENT_COLUMNS, read_pending, write_waiting
from sequitur.pipelines.topology.kept_keys import KeptKeys, counted, divided, with_changes
from sequitur.pipelines.topology.key_files import KeyFiles
from sequitur.pipelines.topology.output_files import OUTPUT_ORDER
from sequitur.pipelines.topology.surviving_tasks import SurvivingTasks
from sequitur.pipelines.workers import ThisProcess
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import Topology
    from sequitur.consumer.topology.step.run import StepResult
    from sequitur.pipelines.store.storage import Location

_WRITES = (
    "write_waiting", "write_dead", "write_unfinished", "write_states", "write_roots", "write_made",
    "write_acks", "write_verdicts", "write_changes", "write_key_log",
)  # fmt: skip
_FOLDERS = ("outputs", "waiting", "unfinished", "states", "work")


_is_dead = threading.Event()


async def die() -> None:
    """End the process out of a call on its event loop. No other call on the loop goes further."""
    await asyncio.sleep(0.1)
    _is_dead.set()
    threading.Event().wait()


class _TasksHere(SurvivingTasks):
    """Runs tasks one after the other, here; `KeyboardInterrupt` stands for a process's death.

    No code of ours takes that for an error of a bolt, so it ends the task as a death does.
    """

    def _survives(self, recorded: Sequence[Any]) -> bool:
        _is_dead.clear()
        complete_some = CallPool.complete_some

        def completing(pool: CallPool) -> None:
            complete_some(pool)
            if _is_dead.is_set():
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(CallPool, "complete_some", completing)
            try:
                for one in recorded:
                    one()
            except KeyboardInterrupt:
                self.crashes += 1
                return False
        return True


class _DiedError(Exception):
    """Stands for the death of the job."""


@dataclass
class StepRuns:
    """The steps of a topology.

    Attributes:
        topology: The topology.
        folder: Where its files are written.
        settings: How it is run.
        partitions: Tasks of the ordered stream.
        now_ms: The next step's time.
        next_due_ms: When an event that waits is due.
        counts: Of all steps.
        waiting: Files of events that wait, by partition.
        reached_ms: The event time that the next step reaches.
        keys: What keyed bolts keep.
        next_timer_ms: When the next timer of a key is due.
        states: Files of what bolts keep.
        number: Of the next step.
        life: Names a run of the job; with it bolts go on from step to step.
        ticks: The bolts that are given ticks in each step.
        watermark_ms: What bolts are told as the watermark.
    """

    topology: Topology
    folder: Path
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    partitions: int = 1
    now_ms: int = 1_000
    next_due_ms: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    waiting: dict[int, list[Location]] = field(default_factory=dict)
    states: Mapping[tuple[str, int], Location] = field(default_factory=dict)
    number: int = 0
    results: list[StepResult] = field(default_factory=list)
    life: str = ""
    ticks: Mapping[str, int] = field(default_factory=dict)
    watermark_ms: int | None = None
    reached_ms: int | None = None
    keys: Sequence[KeptKeys] = ()
    next_timer_ms: int | None = None

    _had: Mapping[str, int] = field(default_factory=dict)  # tasks of each bolt in the step before

    def step(self, given: Iterable[EventValues] = ()) -> None:
        """Run a step with those that wait, and with new events, in the partitions they say."""
        batch = self._batch()
        selection = self._selection(batch, list(given))
        givens = [
            FileInput(selection, tuple(self.waiting.get(place, ())), place)
            for place in range(self.partitions)
        ]
        tasks = _TasksHere(ThisProcess(lambda task: task), batch.folder / "work", max_crashes=2)
        stores = self.topology.key_stores.items()
        tasks_of_keys = {name: batch.plan.tasks[bolt] for name, bolt in stores}
        self.keys = divided(self.keys, self._had, tasks_of_keys, batch.folder / "keyed")
        self._had = tasks_of_keys
        keys = {(one.component, one.task): one for one in self.keys}
        result = StepRun(batch, givens, self.states, tasks, keys).run()
        blocked = counted(result.blocked, self.topology)
        by_field = self.topology.stores_by_field
        self.keys = with_changes(self.keys, result.keys, blocked, by_field, result.tied)
        self.next_timer_ms = result.next_timer_ms
        self.results.append(result)
        self.counts.update(result.counts)
        self.waiting = {place: list(paths) for place, paths in result.waiting.items()}
        self.states, self.next_due_ms = result.states, result.next_due_ms
        self.number += 1

    def give_back(self, given: Iterable[EventValues], task: int = 0) -> None:
        """Give dead letters back to a task of the first stage: they run in the next step."""
        folder = self._batch().folder / "waiting"
        file = write_waiting(folder, [PendingEvent(tuple(one), 0, None) for one in given])
        if file is not None:
            self.waiting.setdefault(task, []).append(file)
        self.next_due_ms = self.now_ms

    def give_back_dead(self) -> None:
        """Give all dead letters back, as `dlq replay` does with what stands in their files."""
        headers = self.dead_headers()
        files = [one["sequitur-oversized-file"].decode() for one in headers]
        root = self.folder
        given = []
        for file, one in zip(files, headers, strict=True):
            whole = read_oversized(root, file)
            time_ms = int(one["sequitur-dlq-event-time-ms"])
            given.append(EventValues(*whole[:3], time_ms, *whole.place, time_ms))
        self.give_back(given)

    def step_that_dies(self, *, after: int) -> bool:
        """Run a step that dies behind so many of its writes; return whether it has more.

        What it has written is there, and no document names it.
        """
        before = replace(self, results=list(self.results), counts=Counter(self.counts))
        left = [after]

        def dying(write: Any) -> Any:
            def counted(*given: Any, **more: Any) -> Any:
                if not left[0]:
                    raise _DiedError
                left[0] -= 1
                return write(*given, **more)

            return counted

        with pytest.MonkeyPatch.context() as patched:
            for name in _WRITES:
                patched.setattr(FileBatch, name, dying(getattr(FileBatch, name)))
            try:
                before.step()
            except _DiedError:
                return True
        return False

    def due_ms(self) -> int | None:
        """When the job would run the next step for those that wait."""
        return due_ms(self.next_due_ms, self.now_ms, policy=self.settings.retry)

    def to_the_end(self, most: int = 100) -> None:
        """Run steps, each when the next event is due, until none waits.

        Raises:
            RuntimeError: After so many some wait still.
        """
        for _ in range(most):
            if self.next_due_ms is not None:
                self.now_ms = max(self.now_ms, self.next_due_ms)
                self.step()
        if self.next_due_ms is not None:
            raise RuntimeError(f"after {most} steps events wait still")

    def kept(self) -> list[tuple[str, bytes]]:
        """The bolts and keys of which something is kept."""
        found = []
        for one in self.keys:
            sources = [file.source for file in one.changes]
            store = KeyFiles(None if one.base is None else one.base.source, sources)
            found += [(one.component, key) for key, _ in store.range(b"", b"\xff" * 16)]
        return found

    def pending(self) -> list[PendingEvent]:
        return read_pending(path for paths in self.waiting.values() for path in paths)

    def records(
        self, output: str, *, is_all: bool = False
    ) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of what went out, of all steps, in order.

        Args:
            output: The output.
            is_all: Also what is of trees that are not done, as with `outputs = "immediate"`.
        """
        names = [one.id for one in self.topology.outputs]
        return self._rows(
            [result.records.get(str(names.index(output)), ()) for result in self.results],
            is_all=is_all,
        )

    def dead(self) -> list[tuple[bytes | None, bytes | None]]:
        return self._rows([result.dead for result in self.results], is_all=True)

    def dead_headers(self) -> list[dict[str, bytes]]:
        return [
            {one["key"]: one["value"] for one in row["headers"]}
            for result in self.results
            for path in result.dead
            for row in pq.read_table(path).to_pylist()
        ]

    def _rows(
        self, steps: Sequence[Sequence[Location]], *, is_all: bool = False
    ) -> list[tuple[bytes | None, bytes | None]]:
        """What the job would write, step after step, partition after partition."""
        out = []
        for result, paths in zip(self.results, steps, strict=True):
            left_out = () if is_all else tuple(result.unfinished)
            going = Selection((Part(tuple(paths)),), (), OUTPUT_ORDER, left_out)
            out += [
                (row["key"], row["value"])
                for partition in range(self.partitions)
                for rows in going.tables(partition, ("key", "value"))
                for row in rows.to_pylist()
            ]
        return out

    @staticmethod
    def _selection(batch: FileBatch, given: Sequence[EventValues]) -> Selection | None:
        """New events, as the reorder stage leaves them."""
        if not given:
            return None
        rows = [
            {
                **dict(zip(EVENT_COLUMNS, one, strict=True)),
                "headers": [{"key": name, "value": said} for name, said in one.headers],
                "output_partition": one.partition,
            }
            for one in given
        ]
        with PartFile(batch.folder / "work", RUN_ARROW_SCHEMA) as file:
            file.write(pa.Table.from_pylist(rows, RUN_ARROW_SCHEMA))
        assert file.location is not None
        return Selection((Part((file.location,)),))

    def _batch(self) -> FileBatch:
        folder = self.folder / str(self.number)
        names = [one.id for one in self.topology.outputs]
        topics = {name: (str(at), self.partitions) for at, name in enumerate(names)}
        places = [*(place for place, _ in topics.values()), DEAD_LETTERS]
        for name in (*_FOLDERS, *(f"outputs/{place}" for place in places)):
            (folder / name).mkdir(parents=True, exist_ok=True)
        return FileBatch(
            topology=self.topology,
            plan=plan(self.topology, self.partitions),
            rules=self.settings.rules,
            ackers=self.partitions if self.settings.ackers is None else self.settings.ackers,
            now_ms=self.now_ms,
            seed=(self.number, self.now_ms),
            folder=folder,
            topics=topics,
            dead_letters=(DEAD_LETTERS, self.partitions),
            root=self.folder,
            watermark_ms=self.watermark_ms,
            ticks=self.ticks,
            life=self.life,
            reached_ms=self.reached_ms,
            key_folder=folder / "keyed",
        )


def event(
    number: int, value: bytes = b"v", *, key: bytes | None = None, partition: int = 0
) -> EventValues:
    return EventValues(key, value, (), number, "in", partition, number, number)


class NoTrace:
    """Takes every step of a tree, and keeps none: it keeps a run off the executor's short ways."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def each_of(*values: Any, error: BaseException | None = None) -> Iterator[Any]:
    """Yield values, then raise an error."""
    yield from values
    if error is not None:
        raise error
