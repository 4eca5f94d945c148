"""A job that is to stop waits for no broker that hangs, and the next life sends what is left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from sequitur import ReorderSettings
from sequitur.base.retry import Outages
from sequitur.consumer.reorder.step_log import NOTHING_DONE
from sequitur.errors import SendUnansweredError, SinkUnansweredError, UnansweredError
from sequitur.kafka import connections
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.sink.sink import Outgoing, OutputTopic, TopicSink
from tests.support.attempt_histories import laid_out
from tests.support.document_folder import DocumentFolder
from tests.support.fake_cluster import FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from sequitur.pipelines.rows.selection import Batches, Selection

_ROWS: Final = [b"a", b"b", b"c"]
_TOPIC: Final = OutputTopic("out", 2)
_HOURS_S: Final = 10_000.0


class _Wire(FakeWire):
    """Its brokers replicate at once, and hang from a request on: they answer none any more."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.hangs_at: str | None = None
        self.is_hanging = False
        self.pause_s = 0.0

    async def ask(self, node: int, request: Any) -> Any:
        await self._hang("ask")
        return await super().ask(node, request)

    async def refresh(self, topics: Any = ()) -> bool:
        await self._hang("refresh")
        return await super().refresh(topics)

    def produce(self, node: int, topics: Any) -> Awaitable[Any]:
        async def answered() -> Any:
            answer = super(_Wire, self).produce(node, topics)
            await asyncio.sleep(self.pause_s + 0.01)
            for where in self.cluster.partitions:
                self.cluster.replicate(where)
            await self._hang("produce")
            return await answer

        return asyncio.ensure_future(answered())

    async def _hang(self, at: str) -> None:
        self.is_hanging |= at == self.hangs_at
        if self.is_hanging:
            await asyncio.sleep(_HOURS_S)


class _Workers:
    """Run tasks in this thread; those that wait for brokers end once they are cancelled."""

    parallelism = 2

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._is_stopping: Callable[[], bool] = bool

    def run(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._wire.hangs_at == "tasks":
            self._wire.is_hanging = True
            wait_until(self._is_stopping)
            raise RuntimeError("cancelled")
        assert not self._is_stopping()
        return [task() for task in tasks]

    @contextlib.contextmanager
    def ended_at(self, is_stopping: Callable[[], bool], grace_s: float) -> Iterator[None]:
        del grace_s
        self._is_stopping = is_stopping
        try:
            yield
        except RuntimeError as error:
            raise StopRequestedError from error

    def reason_of(self, _error: Exception) -> None:
        return None


class _Selection:
    """The same rows for each partition."""

    def over(self, _count: int) -> _Selection:
        return self

    def each(self, partitions: range, _rule: object) -> Iterator[Batches]:
        for number in partitions:
            yield number, lambda _limit: (laid_out([row]) for row in _ROWS)


@dataclass
class _Job:
    wire: _Wire
    sink: TopicSink
    stop: threading.Event

    def write(self, *, reads: int | None) -> list[int]:
        outgoing = Outgoing(cast("Selection", _Selection()), _TOPIC, reads=reads)
        now_ms = time.time_ns() // 1_000_000
        return self.sink.write([outgoing], 0, now_ms, now_ms)

    def rows(self) -> list[list[bytes | None]]:
        return [one.rows() for one in self.wire.cluster.partitions.values()]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Job]:
    """A sink that is open, and has not written."""
    where = [OutputPartition(_TOPIC.name, one) for one in range(_TOPIC.partitions)]
    partitions = {one: PartitionModel(leader=one.partition) for one in where}
    wire = _Wire(FakeCluster(partitions=partitions, clock=time.monotonic))
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    monkeypatch.setattr(connections, "_kept", {})
    monkeypatch.setattr(connections, "_STOPPING_S", 0.3)
    stop = threading.Event()
    settings = ReorderSettings(
        input_topics=("in",), output_topic=_TOPIC.name, event_time="json:at", checkpoint="none"
    )
    sink = TopicSink(
        cast("Any", _Workers(wire)),
        KafkaSettings(bootstrap_servers="unused:1"),
        settings,
        cast("Any", DocumentFolder()),
        Outages(_HOURS_S, 0, wait=stop.wait, tell=len),
    )
    sink.open([_TOPIC], newest=-1, done=NOTHING_DONE)
    yield _Job(wire, sink, stop)
    wire.is_hanging = False
    connections.close_own()


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize(
    ("hangs_at", "reads", "raised"),
    [
        ("refresh", 0, UnansweredError),  # while the step is planned
        ("ask", 0, UnansweredError),
        ("produce", 0, SinkUnansweredError),  # the driver sends
        ("tasks", None, StopRequestedError),  # tasks send
    ],
)
def test_a_job_that_is_to_stop_sends_no_longer_to_a_broker_that_hangs(
    job: _Job, hangs_at: str, reads: int | None, raised: type[Exception]
) -> None:
    """The step is finished once brokers answer: each row is there once, and counted."""
    job.wire.hangs_at = hangs_at
    threading.Timer(0.1, job.stop.set).start()
    with pytest.raises(raised):
        job.write(reads=reads)
    assert job.wire.is_hanging
    assert job.stop.is_set()
    job.stop.clear()
    job.wire.hangs_at, job.wire.is_hanging = None, False
    assert job.write(reads=reads) == [len(_ROWS) * _TOPIC.partitions]
    assert job.rows() == [_ROWS] * _TOPIC.partitions


@pytest.mark.promise("order-ctrl-sigterm-job")
@pytest.mark.parametrize("reads", [0, None])
def test_a_job_that_is_to_stop_sends_all_while_brokers_answer(job: _Job, reads: int | None) -> None:
    """However long that takes altogether."""
    job.stop.set()
    job.wire.pause_s = 0.2
    begun_s = time.monotonic()
    assert job.write(reads=reads) == [len(_ROWS) * _TOPIC.partitions]
    assert job.rows() == [_ROWS] * _TOPIC.partitions
    assert time.monotonic() - begun_s > 0.3


def test_a_second_try_at_a_step_asks_what_the_first_has_sent(
    job: _Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step that was just planned nothing is out, and tasks do not ask; once only."""
    asks_first: list[set[bool]] = []

    def run(tasks: Sequence[Any]) -> list[Any]:
        asks_first.append({one.writer.begun_s is None for one in tasks})
        found = [task() for task in tasks]
        if len(asks_first) == 1:
            raise SendUnansweredError("the answer was lost")
        return found

    monkeypatch.setattr(job.sink._workers, "run", run)
    assert job.write(reads=None) == [len(_ROWS) * _TOPIC.partitions]
    assert job.rows() == [_ROWS] * _TOPIC.partitions
    assert asks_first == [{False}, {True}]
