"""A real broker that has forgotten the producer, or lost what it sent: nothing twice, none lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic

from sequitur.kafka.wire import Wire
from sequitur.producer import IdempotentProducer, KafkaSettings, Persisted, ProducerSettings, Record
from sequitur.producer.delivery.sequencer import Sequencer
from tests.support.daemon_process import read_partitions
from tests.support.lossy_wire import LossyWire
from tests.support.outcomes import InLog
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from sequitur.kafka.identity import Identity
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = pytest.mark.one_process

_EXPIRY = {
    "producer.id.expiration.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
}
_LARGEST_SEQUENCE = 2**31 - 1
_ADMIN_TIMEOUT_S = PATIENCE_S


@pytest.fixture(scope="module")
def forgetful(_new_broker: Callable[[Mapping[str, str]], Broker]) -> Iterator[Broker]:
    """A broker that forgets a producer half a second after its last batch."""
    broker = _new_broker(_EXPIRY)
    broker.start()
    yield broker
    broker.close()


class Lives:
    """Lives of one producer with a journal, and its topic of one partition."""

    def __init__(self, broker: Broker, journal: Path, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.wires: list[LossyWire] = []
        self._journal = journal
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

    def producer(self) -> IdempotentProducer:
        settings = ProducerSettings(
            name="me",
            journal=self._journal,
            linger=timedelta(0),
            close_timeout=timedelta(milliseconds=100),
        )
        return IdempotentProducer(self.broker.bootstrap_servers, settings)

    def wire(self, *args: Any, **kwargs: Any) -> LossyWire:
        self.wires.append(LossyWire(*args, **kwargs))
        return self.wires[-1]

    def make_topic(self, partitions: int = 1) -> None:
        """Make it, and wait for the broker: it may still take batches for one that was deleted."""
        new = NewTopic(self.topic, num_partitions=partitions, replication_factor=1)
        self._admin.create_topics([new])[self.topic].result(_ADMIN_TIMEOUT_S)
        wait_until(self._is_empty)

    def _is_empty(self) -> bool:
        where = TopicPartition(self.topic, 0)
        asked = self._admin.list_offsets({where: OffsetSpec.latest()})  # type: ignore[no-untyped-call] # has no annotations
        try:
            return bool(asked[where].result(_ADMIN_TIMEOUT_S).offset == 0)
        except KafkaException:  # there is none at this moment
            return False

    def delete_topic(self) -> None:
        self._admin.delete_topics([self.topic])[self.topic].result(_ADMIN_TIMEOUT_S)

    def truncate(self) -> None:
        everything = TopicPartition(self.topic, 0, -1)
        deleted = self._admin.delete_records([everything])
        deleted[everything].result(_ADMIN_TIMEOUT_S)

    async def send_and_lose_the_answer(self, producer: IdempotentProducer, value: bytes) -> Any:
        """The event is in the log; the producer does not know it, and can do nothing more."""
        self.wires[-1].mode = "lose"
        delivery = await producer.send(self.topic, value)
        await self.wires[-1].lost.wait()
        return delivery

    async def live_and_leave_a_doubt(self) -> None:
        """A life after which 1 is done with, 2 is in the log without an answer, 3 is not."""
        async with self.producer() as producer:
            assert await (await producer.send(self.topic, b"1")) == InLog(0, 0)
            await self.send_and_lose_the_answer(producer, b"2")
            await (await producer.accept(self.topic, [Record(b"3")])).journaled

    async def live_on(self) -> None:
        """A life that sends what the last one left, and one event more."""
        async with self.producer() as producer:
            assert isinstance(await (await producer.send(self.topic, b"4")), Persisted)

    async def until_forgotten(self) -> None:
        """Wait until the broker knows nothing of the producer any more."""
        identity = self.wires[0].identity
        assert identity is not None
        kafka = KafkaSettings(bootstrap_servers=self.broker.bootstrap_servers)
        wire = Wire(kafka, client_id="watcher", request_timeout=timedelta(seconds=10))
        await wire.start()
        await wire.refresh([self.topic])
        while await wire.last_sequence(self.topic, 0, identity) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await wire.close()

    def values(self) -> list[bytes]:
        (messages,) = read_partitions(self.broker.bootstrap_servers, self.topic)
        return [message.value() for message in messages]


@pytest.fixture
def make_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Broker, str], Lives]:
    """A producer whose connections the test may cut."""

    def make(broker: Broker, topic: str) -> Lives:
        lives = Lives(broker, tmp_path / "journal", topic)
        monkeypatch.setattr("sequitur.producer._client.Wire", lives.wire)
        return lives

    return make


@pytest.fixture
def forgotten(
    make_lives: Callable[[Broker, str], Lives], forgetful: Broker, request: pytest.FixtureRequest
) -> Lives:
    lives = make_lives(forgetful, request.node.name)
    lives.make_topic()
    return lives


@pytest.fixture
def lives(
    make_lives: Callable[[Broker, str], Lives], broker: Broker, make_topic: MakeTopic
) -> Lives:
    return make_lives(broker, make_topic(partitions=1))


@pytest.mark.promise("in-broker-state-producer")
async def test_an_expired_producer_id_doubles_nothing_after_a_restart(forgotten: Lives) -> None:
    """What the log holds is found there by event id; what it does not hold is sent."""
    await forgotten.live_and_leave_a_doubt()
    await forgotten.until_forgotten()
    assert forgotten.values() == [b"1", b"2"]
    await forgotten.live_on()
    assert forgotten.values() == [b"1", b"2", b"3", b"4"]


@pytest.mark.test_all
@pytest.mark.promise("in-broker-state-producer")
async def test_an_expired_producer_id_doubles_nothing_in_a_running_producer(
    forgotten: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker took a batch, the answer was lost, and then it forgot us: the log tells."""
    # As 60 s are to the usual 24 h.
    monkeypatch.setattr("sequitur.producer.delivery.sender._REST_S", 0.1)
    async with forgotten.producer() as producer:
        assert await (await producer.send(forgotten.topic, b"1")) == InLog(0, 0)
        second = await forgotten.send_and_lose_the_answer(producer, b"2")
        await forgotten.until_forgotten()
        forgotten.wires[-1].mode = "whole"
        assert isinstance(await second, Persisted)
        assert await (await producer.send(forgotten.topic, b"3")) == InLog(0, 2)
        # And once more, with nothing in doubt: it has merely rested for too long.
        await forgotten.until_forgotten()
        assert await (await producer.send(forgotten.topic, b"4")) == InLog(0, 3)
    assert forgotten.values() == [b"1", b"2", b"3", b"4"]


@pytest.mark.promise("in-topic-deleted-recreated")
async def test_a_truncated_log_and_an_expired_id_lose_nothing(forgotten: Lives) -> None:
    """Nobody can tell any more what was there: what has no answer is there again, once."""
    await forgotten.live_and_leave_a_doubt()
    forgotten.truncate()
    await forgotten.until_forgotten()
    await forgotten.live_on()
    assert forgotten.values() == [b"2", b"3", b"4"]


@pytest.mark.promise("in-topic-deleted-recreated")
async def test_a_truncated_log_costs_nothing_while_the_broker_knows_us(lives: Lives) -> None:
    """What it had taken before is not sent again, although the log holds it no more."""
    await lives.live_and_leave_a_doubt()
    lives.truncate()
    await lives.live_on()
    assert lives.values() == [b"3", b"4"]


@pytest.mark.promise("in-topic-deleted-recreated")
async def test_a_topic_made_anew_gets_what_has_no_answer(lives: Lives) -> None:
    """Between two lives: the new topic holds nothing, and its broker knows nobody."""
    await lives.live_and_leave_a_doubt()
    lives.delete_topic()
    lives.make_topic()
    await lives.live_on()
    assert lives.values() == [b"2", b"3", b"4"]


@pytest.mark.promise("in-topic-deleted-recreated")
async def test_a_topic_made_anew_under_a_running_producer_goes_on(lives: Lives) -> None:
    """What was told as persisted went with the old topic; the rest is in the new one, in order."""
    async with lives.producer() as producer:
        await (await producer.send_many(lives.topic, [b"0"] * 5))
        second = await lives.send_and_lose_the_answer(producer, b"1")
        lives.delete_topic()
        lives.make_topic()
        lives.wires[-1].mode = "whole"
        assert await second == InLog(0, 0)
        outcomes = [await (await producer.send(lives.topic, b"%d" % n)) for n in range(2, 5)]
    assert {type(outcome) for outcome in outcomes} == {Persisted}
    assert lives.values() == [b"1", b"2", b"3", b"4"]


@pytest.mark.promise("in-topic-gets-partitions")
async def test_a_topic_made_anew_with_fewer_partitions_is_followed(lives: Lives) -> None:
    """What was for a partition that is gone is told of; flush ends, and new events go on."""
    lives.delete_topic()
    lives.make_topic(partitions=3)
    async with lives.producer() as producer:
        assert await (await producer.send(lives.topic, b"0", partition=2)) == InLog(2, 0)
        lost = await lives.send_and_lose_the_answer(producer, b"1")
        gone = await producer.send(lives.topic, b"2", partition=2)
        lives.delete_topic()
        lives.make_topic(partitions=1)
        lives.wires[-1].mode = "whole"
        async with asyncio.timeout(PATIENCE_S):
            await producer.flush()
            assert isinstance(await (await producer.send(lives.topic, b"3")), Persisted)
        assert not isinstance(await gone, Persisted)
    assert lives.values()[-1] == b"3"
    del lost


@pytest.mark.promise("in-sequence-goes-negative")
async def test_sequences_go_from_the_largest_to_zero(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^31-1 is followed by 0, as the broker wants it; aiokafka goes on with -2^31."""

    def near_its_end(identity: Identity, **other: Any) -> Sequencer[Any]:
        return Sequencer[Any](identity, next_sequence=_LARGEST_SEQUENCE - 2, **other)

    monkeypatch.setattr(
        "sequitur.producer.delivery.routes.Sequencer", defaultdict(lambda: near_its_end)
    )
    async with lives.producer() as producer:
        outcomes = [await (await producer.send(lives.topic, b"%d" % n)) for n in range(6)]
        assert producer.statistics().renewals == 0
        batch = await (await producer.send_many(lives.topic, [b"6"] * 10))
    assert outcomes == [InLog(0, n) for n in range(6)]
    assert batch.persisted == 10
    assert lives.values() == [*(b"%d" % n for n in range(6)), *[b"6"] * 10]
    assert lives.wires[-1].base_sequences[:5] == [*range(_LARGEST_SEQUENCE - 2, 2**31), 0, 1]
