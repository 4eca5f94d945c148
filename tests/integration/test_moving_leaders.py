"""Leaders that move under load, on three real brokers: nothing lost, nothing twice, in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.protocol.fetch import FetchRequest

from sequitur.kafka.leaders import Leaders
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.producer_ids import ProducerState
from sequitur.kafka.reader import RACK, Reader
from sequitur.kafka.wire import Wire
from sequitur.pipelines.sink import block_writer
from sequitur.pipelines.sink.partition_sender import PartitionSender
from sequitur.producer import IdempotentProducer, KafkaSettings, Persisted
from tests.support.daemon_process import read_partitions
from tests.support.events import Event, send
from tests.support.job_output import JobOutput, expected, laid_out, numbered, records_of
from tests.support.three_brokers import ThreeBrokers
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.sink.block_writer import BlockWriter
    from sequitur.producer import Delivery, Outcome

# The limit ends a hang, also on a slow machine.
pytestmark = pytest.mark.one_process

_PARTITIONS = 3
_BURST = 200
_STEP_ROWS = 1500
_LIMIT = 100_000
_POLL_S = 0.05


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    started = ThreeBrokers(tmp_path_factory.mktemp("three"))
    yield started
    started.close()


@pytest.mark.test_all
@pytest.mark.promise("in-broker-restarts-leader")
async def test_leaders_that_move_under_load_cost_nothing(brokers: ThreeBrokers) -> None:
    """Two brokers in turn give up what they lead, and get it back, while events are sent."""
    topic = "moving"
    await asyncio.to_thread(brokers.make_topic, topic, _PARTITIONS)
    outcomes = await _send_while_leaders_move(brokers, topic)
    logs = await asyncio.to_thread(read_partitions, brokers.bootstrap_servers, topic)
    values = [[int(message.value()) for message in log] for log in logs]
    assert sum(a >= b for log in values for a, b in pairwise(log)) == 0
    assert sorted(value for log in values for value in log) == list(range(len(outcomes)))
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Persisted)
        assert outcome.offset is None or values[outcome.partition][outcome.offset] == number


async def _send_while_leaders_move(brokers: ThreeBrokers, topic: str) -> list[Outcome]:
    deliveries: list[Delivery] = []

    async def move() -> None:
        for node in (2, 3):
            await asyncio.to_thread(brokers.move_leaders, topic, node)

    async with IdempotentProducer(brokers.bootstrap_servers) as producer:
        moving = asyncio.create_task(move())
        while not moving.done() or not deliveries:
            for _ in range(_BURST):
                number = len(deliveries)
                value, partition = b"%d" % number, number % _PARTITIONS
                deliveries.append(await producer.send(topic, value, partition=partition))
            await deliveries[-1]
        await moving
        return list(await asyncio.gather(*deliveries))


@pytest.mark.test_all
@pytest.mark.promise("order-answers-brokers-lost")
def test_rows_are_written_once_while_leaders_move(
    brokers: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step after step, each partition's rows in many batches, several on their way at a time."""
    monkeypatch.setattr(block_writer, "_GIVEN_AT_ONCE", 1)
    monkeypatch.setattr(block_writer, "_MOST_WAITING", 8_000)
    topic = "moving-rows"
    brokers.make_topic(topic, _PARTITIONS)
    kafka = KafkaSettings(bootstrap_servers=brokers.bootstrap_servers)
    output = JobOutput(kafka, topic, _PARTITIONS)
    life = output.life()
    counts = dict.fromkeys(range(_PARTITIONS), _STEP_ROWS)

    def move() -> None:
        for node in (2, 3):
            brokers.move_leaders(topic, node)

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        step = -1
        while not moving.done() or step < 1:
            step += 1
            rows = [(one, laid_out(_step_rows(step, one))) for one in counts]
            assert life.task(step).write(rows) == counts
            life.finish(step, counts)
        moving.result()
    for one in counts:
        assert output.values(one) == [
            row for number in range(step + 1) for row in _values(number, one)
        ]


def _step_rows(step: int, partition: int) -> Iterator[Any]:
    return numbered(_STEP_ROWS, of=_name(step, partition))


def _values(step: int, partition: int) -> list[bytes]:
    return expected(_STEP_ROWS, of=_name(step, partition))


def _name(step: int, partition: int) -> str:
    return f"step {step} partition {partition}"


@pytest.mark.promise("order-answers-brokers-lost")
async def test_rows_that_a_leader_alone_has_are_not_done(
    brokers: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower stands still, and the leader tells of all rows: then it is killed.

    An attempt that died had sent the last of them. Who took the leader's word would end the step,
    and these rows would be gone with the leader.
    """
    topic, leader, follower = "alone", 2, 3
    await asyncio.to_thread(brokers.make_topic_of, topic, leader, follower)
    kafka = KafkaSettings(bootstrap_servers=brokers.bootstrap_servers)
    output = JobOutput(kafka, topic, partitions=1)
    has_asked = threading.Event()
    real = Leaders.last_sequence_in_log

    async def last_sequence_in_log(leaders: Leaders, *args: Any) -> Any:
        try:
            return await real(leaders, *args)
        finally:
            has_asked.set()

    monkeypatch.setattr(Leaders, "last_sequence_in_log", last_sequence_in_log)
    # Whoever has connections does not ask the broker that stands still for anything.
    async with (
        _leaders(kafka, topic) as dying,
        _leaders(kafka, topic) as watching,
        _thread() as in_thread,
    ):
        life = await in_thread(output.life)
        task = await in_thread(life.task)
        first = [(0, laid_out([records_of(expected(20))]))]
        assert await in_thread(task.write, first) == {0: 20}
        task = await in_thread(life.task)
        await asyncio.to_thread(brokers.pause, follower)
        try:
            await _die_when_the_leader_has_all(dying, watching, task)
            rows = [(0, laid_out([records_of(expected(30))]))]
            attempt = asyncio.ensure_future(in_thread(task.write, rows))
            assert await asyncio.to_thread(has_asked.wait, 60)
            assert not attempt.done()
        finally:
            await asyncio.to_thread(brokers.let_follower_lead, topic, leader, follower)
        assert await attempt == {0: 30}
        assert await in_thread(output.values, 0) == expected(30)


async def _die_when_the_leader_has_all(
    leaders: Leaders, watching: Leaders, task: BlockWriter
) -> None:
    """An attempt at 30 rows that ends once the leader, and nobody else, has the last of them."""
    where = OutputPartition(task.topic, 0)
    sender = PartitionSender(leaders, replace(task, begun_s=time.time()).assignment(0))
    batches: list[KafkaBatch] = [
        *laid_out([records_of(expected(20)), records_of(expected(30)[20:])])(_LIMIT)
    ]
    for batch in batches:
        sender.add(batch)
    sender.end()
    sending = asyncio.create_task(sender.run())
    while True:
        told = (await watching.states([where], task.identity.producer_id))[where]
        if isinstance(told, ProducerState) and told.last_sequence == 29:
            break
        assert not sending.done()
        await asyncio.sleep(_POLL_S)
    assert (await watching.ends([where]))[where] == 20
    sending.cancel()


@pytest.mark.test_all
@pytest.mark.promise("order-rack")
def test_the_replica_of_this_machines_rack_is_read(
    brokers: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker's own choice; the leader is asked once, and then that replica alone."""
    topic, leader, follower = "racks", 2, 3
    brokers.make_topic_of(topic, leader, follower)
    kafka = KafkaSettings(bootstrap_servers=brokers.bootstrap_servers)
    send(kafka, topic, (Event(value=b"%d" % number, partition=0) for number in range(1_000)))
    asked: list[int] = []
    ask = Wire.ask

    async def noting(wire: Wire, node: int, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            asked.append(node)
        return await ask(wire, node, request)

    monkeypatch.setattr(Wire, "ask", noting)
    monkeypatch.setenv(RACK, f"rack-{follower}")
    reader = Reader(kafka=kafka, partition_bytes=1_000)
    found = [record.value for _, record in reader.rows({SourcePartition(topic, 0): (0, 1_000)})]
    assert found == [b"%d" % number for number in range(1_000)]
    assert asked[0] == leader
    assert set(asked[1:]) == {follower}


@contextlib.asynccontextmanager
async def _thread() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Runs functions in one thread, which keeps its connections."""
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        yield lambda *call: loop.run_in_executor(pool, *call)


@contextlib.asynccontextmanager
async def _leaders(kafka: KafkaSettings, topic: str) -> AsyncIterator[Leaders]:
    """Connections of one's own: a broker answers those of one in order, a batch included."""
    wire = Wire(kafka, client_id="test", request_timeout=timedelta(seconds=30))
    await wire.start()
    try:
        leaders = Leaders(wire)
        # A broker that has not learned of the topic yet knows no leader. Who asked again later
        # might ask the broker that stands still.
        while wire.leader(topic, 0) is None:
            await leaders.refresh([topic])
        yield leaders
    finally:
        await wire.close()
