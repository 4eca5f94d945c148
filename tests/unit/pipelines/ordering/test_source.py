"""Rows are read in the driver or in tasks: each once, and what fails is told by its kind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.protocol.fetch import FetchRequest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import LogRangeError, UnansweredError
from sequitur.kafka import connections
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.reader import RACK
from sequitur.kafka.record_batch import Stamp, new_builder, seal, stamped
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.attempts import attempt_number
from sequitur.pipelines.local.workers import ProcessWorkers
from sequitur.pipelines.ordering import source
from sequitur.pipelines.ordering.source import KafkaSource, parts_of
from sequitur.pipelines.rows.run_writer import RunWriter
from sequitur.pipelines.workers import ThisProcess
from tests.support.fake_cluster import NODES, FakeCluster, FakeWire
from tests.support.parquet_files import parquet_files
from tests.support.partition_model import PartitionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.workers import Workers

# Else each process imports this module, and pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
_ROWS: Final = 12
_BATCH: Final = 4
_T0: Final = 1_700_000_000_000
_WHERE: Final = [SourcePartition("t", number) for number in range(NODES)]
_SPANS: Final = {_WHERE[0]: (0, _ROWS), _WHERE[1]: (3, 9), _WHERE[2]: (5, 5)}
_READ: Final = sum(stop - first for first, stop in _SPANS.values())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Three partitions, each with a leader of its own."""
    cluster = FakeCluster(clock=lambda: 0.0)
    for number in range(NODES):
        model = PartitionModel(leader=number)
        for first in range(0, _ROWS, _BATCH):
            builder = new_builder(1 << 16)
            for row in range(first, first + _BATCH):
                value = b'{"at": %d}' % (_T0 + row)
                assert builder.append(row - first, _T0, b"k", value, []) is not None
            model.append(stamped(seal(builder, "none"), Stamp(number, 0, first)), 0)
        model.replicate()
        cluster.partitions[OutputPartition("t", number)] = model
    wire = FakeWire(cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    monkeypatch.setattr(connections, "_kept", {})
    yield cluster
    connections.close_own()


def _no_pattern(pattern: str) -> Any:
    raise AssertionError(pattern)


class _Case:
    def __init__(self, folder: Path, workers: Workers | None = None, **settings: Any) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.waits = 0
        self.settings = ReorderSettings.model_validate(
            {
                "input_topics": ["t"],
                "output_topic": "out",
                "event_time": "json:at",
                "checkpoint": "x",
                **settings,
            }
        )
        self.writer = RunWriter(
            folder=folder,
            event_time=self.settings.event_time,
            frontier_ms=-1,
            bounds=self.settings.bounds(_T0),
        )
        self.outages = Outages(60.0, 0, wait=self.wait, tell=self.told.append)
        self.source = KafkaSource(
            KafkaSettings(bootstrap_servers="unused:1"),
            self.settings,
            workers or ThisProcess(lambda task: task, parallelism=2),
            self.outages,
            _no_pattern,
        )

    def wait(self, seconds: float) -> bool:
        self.waits += bool(seconds)
        return False

    def read(self) -> int:
        found = self.source.read_into(self.writer, step=0, spans=_SPANS, partitions=3)
        return sum(one.read for one in found)


@pytest.mark.promise("order-small-batches")
@pytest.mark.parametrize(("small_rows", "files"), [(0, 2), (_READ, 1)], ids=["tasks", "driver"])
def test_ranges_are_read_in_the_driver_or_in_tasks(
    cluster: FakeCluster, tmp_path: Path, small_rows: int, files: int
) -> None:
    case = _Case(tmp_path, small_batch_rows=small_rows)
    assert case.read() == _READ
    assert len(parquet_files(tmp_path)) == files
    assert not case.told
    assert cluster.partitions[OutputPartition("t", 0)].end == _ROWS


class _Silent(FakeWire):
    """The leader of partition 1 takes requests, and answers none."""

    async def ask(self, node: int, request: Any) -> Any:
        if node == 1:
            await asyncio.sleep(3_600)
        return await super().ask(node, request)


@pytest.mark.promise("order-broker-hangs")
def test_rows_of_other_leaders_are_staged_while_one_hangs(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read before the batch is planned, which has them alone; no task waits for more."""
    wire = _Silent(cluster)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    monkeypatch.setattr(source, "PATIENCE_S", 0.3)
    case = _Case(tmp_path)
    monkeypatch.setattr(case.source._workers, "run", _no_pattern)
    spans = {**_SPANS, _WHERE[2]: (5, 9)}
    read = case.source.read_ahead(spans, 3) or {}
    # These brokers send a batch at a time.
    assert read == {_WHERE[0]: (0, _BATCH), _WHERE[1]: (3, 3), _WHERE[2]: (5, 2 * _BATCH)}
    (found,) = case.source.read_into(case.writer, step=0, spans=read, partitions=3)
    assert found.read == _offsets(read)
    assert "not all of t-1 is read in 0.3 s" in case.told[0]


@pytest.mark.promise("order-rack")
def test_the_rack_is_that_of_the_machine_that_reads(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks leave the driver as data, and its rack does not go with them."""
    told: list[str] = []
    answer = FakeWire._answer

    async def noting(wire: FakeWire, node: int, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            told.append(request._rack_id)
        return await answer(wire, node, request)

    def elsewhere(task: Callable[[], Any]) -> Callable[[], Any]:
        sent = cloudpickle.dumps(task)
        monkeypatch.setenv(RACK, "the worker's")
        found: Callable[[], Any] = cloudpickle.loads(sent)
        return found

    monkeypatch.setattr(FakeWire, "_answer", noting)
    monkeypatch.setenv(RACK, "the driver's")
    case = _Case(tmp_path, ThisProcess(elsewhere, parallelism=1), small_batch_rows=0)
    assert case.read() == _READ
    assert set(told) == {"the worker's"}
    assert cluster.partitions[OutputPartition("t", 0)].end == _ROWS


@pytest.mark.promise("order-sparks-own-progress")
def test_tasks_that_read_are_described_by_their_step_ranges_and_offsets(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str | None] = []
    case = _Case(tmp_path, small_batch_rows=0)
    run = case.source._workers.run

    def noting(tasks: Any, *, title: str | None = None) -> Any:
        titles.append(title)
        return run(tasks, title=title)

    monkeypatch.setattr(case.source._workers, "run", noting)
    case.source.read_into(case.writer, step=7, spans=_SPANS, partitions=3)
    assert titles == [f"step 7 reads {_READ} offsets in 2 ranges of t"]
    assert cluster.partitions[OutputPartition("t", 0)].end == _ROWS


def test_what_is_deleted_is_told_by_its_kind(cluster: FakeCluster, tmp_path: Path) -> None:
    """A task may be another process, of whose errors nothing but the text comes here."""
    cluster.partitions[OutputPartition("t", 1)].start = 5
    with pytest.raises(LogRangeError, match="begins at offset 5, and not at 3"):
        _Case(tmp_path, small_batch_rows=0).read()


@pytest.mark.promise("order-brokers-away-partition")
def test_tasks_wait_for_brokers_as_long_as_patience_goes(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _Case(tmp_path, small_batch_rows=0)
    run = case.source._workers.run
    failures = [UnansweredError("no leader answers")] * 3
    monkeypatch.setattr(
        case.source._workers,
        "run",
        lambda tasks, **how: [failures.pop()] if failures else run(tasks, **how),
    )
    assert case.read() == _READ
    assert case.waits == 3
    assert cluster.partitions[OutputPartition("t", 0)].end == _ROWS


class _Processes(ProcessWorkers):
    """Processes whose tasks have the cluster in their own memory."""

    cluster: FakeCluster
    dies = False
    hangs: Path | None = None
    pids: frozenset[int] = frozenset()

    def run(
        self, tasks: Sequence[Callable[[], Any]], *, retries: bool = True, title: str | None = None
    ) -> list[Any]:
        on_cluster = [
            functools.partial(_on_cluster, self.cluster, task, dies=self.dies, hangs=self.hangs)
            for task in tasks
        ]
        found = super().run(on_cluster, retries=retries, title=title)
        self.pids = frozenset(pid for _, pid in found)
        return [answer for answer, _ in found]


class _Hanging(FakeWire):
    """A leader takes a request for rows, and answers none; a file says that it has one."""

    hangs: Path

    async def ask(self, node: int, request: Any) -> Any:
        if isinstance(request, FetchRequest) and node == 0:
            self.hangs.touch()
            await asyncio.sleep(3_600)
        return await super().ask(node, request)


def _on_cluster(
    cluster: FakeCluster, task: Callable[[], Any], *, dies: bool, hangs: Path | None
) -> tuple[Any, int]:
    """Do a task; the process of its first attempt may die, once the rows are staged."""
    wire = FakeWire(cluster)
    if hangs is not None:
        wire = _Hanging(cluster)
        wire.hangs = hangs
    vars(connections)["Wire"] = lambda *_args, **_options: wire
    try:
        answer = task()
    finally:
        connections.close_own()
    if dies and not attempt_number():
        os.kill(os.getpid(), signal.SIGKILL)
    return answer, os.getpid()


@pytest.fixture(scope="module")
def running() -> Iterator[_Processes]:
    with contextlib.closing(_Processes(2)) as workers:
        yield workers


@pytest.fixture
def processes(running: _Processes, cluster: FakeCluster) -> _Processes:
    running.cluster, running.dies, running.hangs = cluster, False, None
    return running


@pytest.mark.promise("order-local-runner-needs")
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_large_batches_are_read_by_ranges_in_processes(
    processes: _Processes, tmp_path: Path, *, dies: bool
) -> None:
    """Each row once; files of an attempt that has died are named by nobody."""
    processes.dies = dies
    case = _Case(tmp_path, processes, small_batch_rows=0)
    found = case.source.read_into(case.writer, step=0, spans=_SPANS, partitions=3)
    assert len(found) == 2
    assert os.getpid() not in processes.pids
    named = [tmp_path / str(one.file) for one in found]
    read = pa.concat_tables([pq.read_table(one) for one in named]).to_pylist()
    assert sorted((one["partition"], one["offset"]) for one in read) == [
        (where.partition, offset) for where, span in _SPANS.items() for offset in range(*span)
    ]
    assert len(parquet_files(tmp_path)) == (4 if dies else 2)


@pytest.mark.promise("order-broker-hangs")
def test_a_job_that_is_to_stop_waits_for_no_task_that_waits_for_a_leader(
    processes: _Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task itself has a minute for that leader. Its batch is planned, and is read again."""
    monkeypatch.setattr("sequitur.pipelines.ordering.source._GRACE_S", 0.0)
    hangs = tmp_path / "hangs"
    processes.hangs = hangs
    case = _Case(tmp_path, processes, small_batch_rows=0)
    monkeypatch.setattr(case.source, "_is_stopping", hangs.exists)
    with pytest.raises(StopRequestedError):
        case.read()
    assert hangs.exists()
    processes.hangs = None
    assert _Case(tmp_path, processes, small_batch_rows=0).read() == _READ


def test_what_is_deleted_is_told_by_its_kind_from_a_process(
    processes: _Processes, tmp_path: Path
) -> None:
    processes.cluster.partitions[OutputPartition("t", 1)].start = 5
    with pytest.raises(LogRangeError, match="begins at offset 5, and not at 3"):
        _Case(tmp_path, processes, small_batch_rows=0).read()


@pytest.mark.promise("order-input-partitions-rows")
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
    st.integers(1, 5),
    st.booleans(),
)
def test_each_offset_is_read_by_one_task(
    ranges: list[tuple[int, int]], tasks: int, is_whole: bool
) -> None:
    spans = {
        SourcePartition("t", number): (first, first + rows)
        for number, (first, rows) in enumerate(ranges)
    }
    parts = parts_of(spans, tasks, is_whole=is_whole)
    every = [
        (where, offset)
        for part in parts
        for where, (first, stop) in part.items()
        for offset in range(first, stop)
    ]
    wanted = [(where, offset) for where, span in spans.items() for offset in range(*span)]
    assert sorted(every) == sorted(wanted)
    assert len(parts) <= tasks
    if is_whole:
        assert len([where for part in parts for where in part]) == len({w for w, _ in wanted})
    elif parts:
        tasks = min(tasks, len({where for where, _ in wanted}))
        assert max(map(_offsets, parts)) == -(-len(wanted) // tasks)


def _offsets(part: Spans) -> int:
    return sum(stop - first for first, stop in part.values())


@pytest.mark.promise("order-input-one-partition")
@pytest.mark.parametrize(
    ("rows", "is_whole", "sizes"),
    [
        (40_000, False, [10_000] * 4),
        (12_000, False, [6_000, 6_000]),
        (9_000, False, [9_000]),
        (40_000, True, [40_000]),
    ],
)
def test_one_partition_is_read_by_as_many_tasks_as_are_worth_it(
    rows: int, is_whole: bool, sizes: list[int]
) -> None:
    parts = parts_of({_WHERE[0]: (7, 7 + rows)}, 4, is_whole=is_whole)
    assert [*map(_offsets, parts)] == sizes
