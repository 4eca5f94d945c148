"""A real broker that has forgotten who wrote a job's rows: nothing twice, none lost."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.errors import OutputMismatchError, RetriableError
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import Untold
from sequitur.pipelines.sink import block_writer
from sequitur.pipelines.sink.partition_sender import PartitionSender
from sequitur.producer import KafkaSettings
from tests.support.brokers import POLL_S
from tests.support.job_output import JobOutput, Life, another_process, expected, laid_out, numbered
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from tests.conftest import MakeBroker
    from tests.support.brokers import Broker
    from tests.support.job_output import Tables

pytestmark = pytest.mark.one_process

_EXPIRY = {
    "producer.id.expiration.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
}
_TIMEOUT_S = PATIENCE_S
_ROWS = 500


class _DiedError(Exception):
    """The task dies here."""


@pytest.fixture(scope="module")
def forgetful(_new_broker: Callable[[Mapping[str, str]], Broker]) -> Iterator[Broker]:
    """A broker that forgets a producer half a second after its last batch."""
    broker = _new_broker(_EXPIRY)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def output(forgetful: Broker, request: pytest.FixtureRequest) -> JobOutput:
    kafka = KafkaSettings(bootstrap_servers=forgetful.bootstrap_servers)
    topic = request.node.name.replace("[", "-").replace("]", "")
    admin = AdminClient(kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_TIMEOUT_S)
    return JobOutput(kafka, topic, partitions=1)


@pytest.fixture(autouse=True)
def _as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows sent as they come, not some megabytes at a time."""
    monkeypatch.setattr(block_writer, "_GIVEN_AT_ONCE", 1)
    monkeypatch.setattr(block_writer, "_MOST_WAITING", 0)


def _write(life: Life, tables: Tables, step: int = 0) -> int:
    return life.task(step).write([(0, laid_out(tables))])[0]


def _die_within(life: Life, step: int = 0) -> None:
    """An attempt that ends when some of its rows are out."""

    def dying() -> Iterator[pa.Table]:
        for number, table in enumerate(numbered(_ROWS, of=f"step {step}")):
            yield table
            if number == 4:
                raise _DiedError

    with pytest.raises(_DiedError):
        _write(life, dying(), step)


def _wait_until_forgotten(life: Life) -> None:
    """Wait until the broker knows nothing of the job's producer id any more."""
    where = OutputPartition(life.output.topic, 0)
    producer_id, _epoch = life.documents.documents["plans/000000000000"]["identity"]
    connections = kept_connections(life.output.kafka)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        told = connections.run(connections.leaders.states([where], producer_id))
        if told[where] is Untold.NOTHING:
            return
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


def _truncate(output: JobOutput) -> None:
    admin = AdminClient(output.kafka.librdkafka())
    everything = TopicPartition(output.topic, 0, -1)
    admin.delete_records([everything])[everything].result(_TIMEOUT_S)


@pytest.mark.promise("order-broker-forgotten-job")
@pytest.mark.parametrize("is_foreign_between", [False, True])
def test_rows_whose_sender_is_forgotten_are_found_in_the_log(
    output: JobOutput, *, is_foreign_between: bool
) -> None:
    """Behind the offset where the step began: what is there is left out, the rest follows."""
    life = output.life()
    assert _write(life, numbered(100, of="first")) == 100
    life.finish(0, {0: 100})
    _die_within(life, 1)
    begun = len(output.values(0))
    assert begun > 100
    if is_foreign_between:
        others = Producer(output.kafka.librdkafka())
        others.produce(output.topic, b"foreign", partition=0)
        assert others.flush(_TIMEOUT_S) == 0
    _wait_until_forgotten(life)
    assert _write(life, numbered(_ROWS, of="step 1", batch_rows=11), 1) == _ROWS
    _wait_until_forgotten(life)
    assert _write(life, numbered(_ROWS, of="step 1"), 1) == _ROWS
    found = [value for value in output.values(0) if value != b"foreign"]
    assert found == expected(100, of="first") + expected(_ROWS, of="step 1")


@pytest.mark.promise("order-broker-forgotten-job")
def test_forgotten_rows_that_are_deleted_are_refused_by_name(output: JobOutput) -> None:
    """Nobody can tell what was there: the next attempt would write it again."""
    life = output.life()
    _die_within(life)
    _truncate(output)
    _wait_until_forgotten(life)
    with pytest.raises(OutputMismatchError, match="the brokers have forgotten who wrote there"):
        _write(life, numbered(_ROWS))
    assert output.values(0) == []


@pytest.mark.test_all
@pytest.mark.promise("order-broker-forgotten-job")
def test_steps_go_on_behind_a_rest(output: JobOutput) -> None:
    """Forgotten between two steps, with records deleted: there is nothing to know of the next."""
    life = output.life()
    rows: list[bytes] = []
    for step in range(4):
        count = random.Random(step).randrange(1, 300)
        if step:
            _wait_until_forgotten(life)
        if step == 2:
            _truncate(output)
            rows = []
        if step == 3:
            life = life.next()
        assert _write(life, numbered(count, of=f"step {step}"), step) == count
        life.finish(step, {0: count})
        rows += expected(count, of=f"step {step}")
        assert output.values(0) == rows


@pytest.mark.promise("order-broker-restarts-records")
def test_broker_that_restarts_without_a_record_takes_nothing_of_a_paused_attempt(
    make_broker: MakeBroker,
) -> None:
    """It knows no producer then, and would take any sequence by a connection that is made anew."""
    broker = make_broker()
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), "out", 1)
    admin = AdminClient(output.kafka.librdkafka())
    admin.create_topics([NewTopic("out", 1, 1)])["out"].result(_TIMEOUT_S)
    life = output.life()
    kafka = another_process(output.kafka)
    life.planned(0)
    paused, connections = life.task(0, kafka), kept_connections(kafka)
    connections.run(connections.batch_bytes_of(output.topic))
    is_there = asyncio.Event()
    sender = PartitionSender(
        connections.leaders, paused.assignment(0), lambda _size: is_there.set()
    )
    (first, *rest) = laid_out(numbered(_ROWS))(1 << 20)
    connections.run(connections.leaders.refresh([output.topic]))
    sending: list[asyncio.Task[int]] = []

    async def begin() -> None:
        sending.append(asyncio.ensure_future(sender.run()))
        sender.add(first)
        await is_there.wait()

    async def go_on() -> None:
        # Another partition's sender would have connected again, and learnt that the broker is back.
        while True:
            await connections.leaders.refresh([output.topic])
            try:
                await connections.leaders.connect(OutputPartition(output.topic, 0))
                break
            except RetriableError:
                await asyncio.sleep(POLL_S)
        for batch in rest:
            sender.add(batch)
        sender.end()
        await sending[0]

    connections.run(begin())
    assert _write(life, numbered(_ROWS)) == _ROWS
    _truncate(output)
    broker.stop()
    broker.start()
    with pytest.raises(OutputMismatchError, match="the brokers have forgotten who wrote there"):
        connections.run(go_on())
    assert output.values(0) == []
