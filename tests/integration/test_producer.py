"""The producer on a real broker, checked by a reader that shares no code with it."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions

from sequitur.base.process import StampClock, wall_clock_ms
from sequitur.cli.topic_reader import watermarks
from sequitur.kafka.admin import create_topic
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_format import Compression
from sequitur.kafka.wire import Wire
from sequitur.producer import (
    EVENT_ID_HEADER,
    IdempotentProducer,
    KafkaSettings,
    NotPersisted,
    Persisted,
    ProducerSettings,
    Record,
    parse_event_id,
)
from tests.support.outcomes import InLog
from tests.support.producers import kill
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.either_broker


def _read(broker: Any, topic: str) -> dict[int, list[Message]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    partitions: list[int] = []
    while not partitions:  # a topic takes a moment to be known everywhere
        partitions = list(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
    ends = {p: watermarks(consumer, topic, p)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found: dict[int, list[Message]] = {p: [] for p in partitions}
    while any(len(found[p]) < ends[p] for p in partitions):
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found[message.partition() or 0].append(message)
    consumer.close()
    return found


def _producer(broker: Any, **settings: Any) -> IdempotentProducer:
    return IdempotentProducer(broker.bootstrap_servers, ProducerSettings(**settings))


@pytest.mark.promise("in-tasks-send-once")
async def test_many_tasks_send_once_and_in_order(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """Each event is there once, where its outcome says, and each task's events in order."""
    topic = make_topic(partitions=4)
    tasks, each = 20, 300
    outcomes: dict[bytes, Any] = {}

    async def send(task: int) -> None:
        deliveries = {}
        for number in range(each):
            value = b"%d:%d" % (task, number)
            deliveries[value] = await producer.send(topic, value, key=b"%d" % task)
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        for value, delivery in deliveries.items():
            outcomes[value] = await delivery

    async with _producer(broker) as producer, asyncio.TaskGroup() as group:
        for task in range(tasks):
            group.create_task(send(task))
    found = _read(broker, topic)
    assert sum(map(len, found.values())) == tasks * each
    for partition, messages in found.items():
        by_task = defaultdict(list)
        for message in messages:
            value = message.value() or b""
            assert outcomes[value] == InLog(partition, message.offset() or 0)
            sender, _, place = value.partition(b":")
            by_task[sender].append(int(place))
        assert all(numbers == list(range(each)) for numbers in by_task.values())


@pytest.mark.promise("in-headers-dropped")
@pytest.mark.parametrize("compression", get_args(Compression))
async def test_what_goes_in_comes_out(
    broker: Any, make_topic: Callable[..., str], compression: Compression
) -> None:
    """Value, key, headers and timestamp, in each codec, as librdkafka reads them."""
    topic = make_topic(partitions=1)
    records = [
        Record(b"value %d " % n * 20, key=b"key", headers=[("h", b"\x00\xff"), ("none", None)])
        for n in range(100)
    ]
    records += [Record(None, key=b"tombstone"), Record(b"", timestamp_ms=1_700_000_000_123)]
    async with _producer(broker, compression=compression) as producer:
        result = await (await producer.send_many(topic, records))
        name = producer.name
    assert result.persisted == len(records)
    messages = _read(broker, topic)[0]
    assert [(m.key(), m.value()) for m in messages] == [(r.key, r.value) for r in records]
    first = dict(messages[0].headers() or [])
    assert first == {"h": b"\x00\xff", "none": None, EVENT_ID_HEADER: f"{name}:0".encode()}
    assert messages[-1].timestamp()[1] == 1_700_000_000_123
    last_id = dict(messages[-1].headers() or [])[EVENT_ID_HEADER]
    assert isinstance(last_id, bytes)
    assert parse_event_id(last_id).sequence == len(records) - 1


async def test_keys_go_where_java_sends_them(broker: Any, make_topic: Callable[..., str]) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415 - the other side of this test only

    ours, theirs = make_topic(partitions=5), make_topic(partitions=5)
    keys = [b"key-%d" % number for number in range(500)]
    async with _producer(broker) as producer:
        await (await producer.send_many(ours, [Record(key, key=key) for key in keys]))
    other = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in keys:
        other.produce(theirs, key, key)
    other.flush()
    by_us, by_them = _read(broker, ours), _read(broker, theirs)
    for partition in range(5):
        assert {m.key() for m in by_us[partition]} == {m.key() for m in by_them[partition]}


@pytest.mark.promise("in-event-large-topic")
async def test_an_event_over_the_topics_limit_fails_alone(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """The limit is the topic's own, and asked for; the neighbours are persisted."""
    topic = make_topic(partitions=1, **{"max.message.bytes": "5000"})
    incompressible = bytes(range(256)) * 40
    async with _producer(broker, compression="none") as producer:
        deliveries = [await producer.send(topic, v) for v in (b"1", incompressible, b"2")]
        outcomes = await asyncio.gather(*deliveries)
    assert [type(outcome) for outcome in outcomes] == [Persisted, NotPersisted, Persisted]
    assert "max.message.bytes is 5000" in str(outcomes[1])
    assert [m.value() for m in _read(broker, topic)[0]] == [b"1", b"2"]


@pytest.mark.promise("in-broker-refuses-batch-large")
async def test_a_batch_over_a_lowered_limit_is_split(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """The limit shrinks under the producer; the broker refuses, and all get through in order."""
    topic = make_topic(partitions=1)
    async with _producer(broker, compression="none", linger=timedelta(milliseconds=50)) as producer:
        await (await producer.send(topic, b"0"))
        _set_limit(broker, topic, "2000")
        events = [b"%05d" % number + b"x" * 95 for number in range(1, 500)]
        outcomes = []
        while True:  # until the broker has heard of its new limit
            ticket = await producer.send_many(topic, events)
            outcomes.append(await ticket)
            counts = producer.statistics()
            if counts.batches_split:
                break
        large = await (await producer.send(topic, b"y" * 3000))
        assert counts.renewals >= 1
    assert {(found.accepted, found.persisted) for found in outcomes} == {(499, 499)}
    assert isinstance(large, NotPersisted)
    messages = _read(broker, topic)[0]
    assert [m.value() for m in messages] == [b"0", *events * len(outcomes)]


@pytest.mark.promise("in-event-large-topic-raised")
async def test_a_raised_limit_and_a_new_partition_are_noticed(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """Both are the topic's at once for other clients; the cluster takes a moment to spread them."""
    topic = make_topic(partitions=1, max_message_bytes=2_000)
    large = b"y" * 3_000
    async with _producer(broker, compression="none") as producer:
        refused = [await (await producer.send(topic, large))]
        refused.append(await (await producer.send(topic, b"", partition=1)))
        assert [type(outcome) for outcome in refused] == [NotPersisted] * 2
        _set_limit(broker, topic, "9000")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            await _until_persisted(producer, topic, large)
            await _until_persisted(producer, topic, large, partition=1)


async def _until_persisted(
    producer: IdempotentProducer, topic: str, value: bytes, **more: Any
) -> None:
    while True:
        if isinstance(await (await producer.send(topic, value, **more)), Persisted):
            return
        await asyncio.sleep(0.1)


def _set_limit(broker: Any, topic: str, max_message_bytes: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    limit = ConfigEntry(
        "max.message.bytes", max_message_bytes, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[limit])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@pytest.mark.promise("in-topic-missing")
async def test_a_topic_that_is_not_there_is_told(broker: Any) -> None:
    """No event is accepted for it, none is silently dropped, and nobody asks for it any more."""
    async with _producer(broker, topic_timeout=timedelta(seconds=1)) as producer:
        outcome = await (await producer.send("no-such-topic", b"1"))
        assert outcome == NotPersisted("topic no-such-topic is not there, for 1 s")
        assert producer._wire is not None
        assert "no-such-topic" not in producer._wire._client._topics


@pytest.mark.promise("in-topic-missing")
async def test_a_missing_topic_is_created_if_that_is_wanted(broker: Any) -> None:
    topic = f"wanted-{uuid.uuid4().hex}"
    async with _producer(broker, create_topics=True) as producer:
        assert isinstance(await (await producer.send(topic, b"1")), Persisted)
    assert sum(map(len, _read(broker, topic).values())) == 1


async def test_the_broker_tells_our_last_sequence(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """DescribeProducers on the real wire: what we sent last, and nothing of strangers."""
    topic = make_topic(partitions=1)
    async with _producer(broker) as producer:
        await (await producer.send_many(topic, [b"x"] * 42))
        assert producer._running is not None
        identity = producer._running.identities.current
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    wire = Wire(kafka, client_id="test", request_timeout=timedelta(seconds=10))
    await wire.start()
    await wire.refresh([topic])
    assert await wire.last_sequence(topic, 0, identity) == 41
    assert await wire.last_sequence(topic, 0, Identity(identity.producer_id, 5)) is None
    await wire.close()


async def test_a_topic_is_created_once(broker: Any, make_topic: Callable[..., str]) -> None:
    """The second time it is there already, which is no error."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topic = make_topic() + "-created"
    assert await create_topic(kafka, topic, partitions=3, replication_factor=-1)
    assert not await create_topic(kafka, topic, partitions=3, replication_factor=-1)
    assert len(_read(broker, topic)) == 3


@pytest.mark.own_broker
@pytest.mark.promise("in-answer-lost-connection")
async def test_a_broker_that_pauses_costs_nothing(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """Requests run into their timeout and are sent again: each event is there once, in order."""
    topic = make_topic(partitions=2)
    async with _producer(broker, request_timeout=timedelta(seconds=1)) as producer:
        await (await producer.send(topic, b"-1", partition=0))
        deliveries = []
        await asyncio.to_thread(broker.pause)
        try:
            for number in range(2_000):
                deliveries.append(await producer.send(topic, b"%d" % number, partition=number % 2))
                if number % 200 == 0:
                    await asyncio.sleep(0.15)
        finally:
            await asyncio.to_thread(broker.resume)
        outcomes = await asyncio.gather(*deliveries)
        assert producer.statistics().batches_retried > 0
    assert {type(outcome) for outcome in outcomes} == {Persisted}
    _check_numbers(_read(broker, topic), 2_000)


@pytest.mark.own_broker
@pytest.mark.promise("in-broker-restarts-leader")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_broker_that_restarts_costs_nothing(
    broker: Any, make_topic: Callable[..., str], how: str
) -> None:
    """It ends with batches in flight, and comes back: each event is there once, in order."""
    topic = make_topic(partitions=2)
    async with _producer(broker) as producer:

        async def send() -> list[Any]:
            deliveries = []
            for number in range(6_000):
                deliveries.append(await producer.send(topic, b"%d" % number, partition=number % 2))
                if number % 20 == 0:
                    await asyncio.sleep(0.005)
            return await asyncio.gather(*deliveries)

        sending = asyncio.create_task(send())
        await _persisted(producer, 500)
        await asyncio.to_thread(getattr(broker, how))
        await asyncio.to_thread(broker.start)
        outcomes = await sending
    assert {type(outcome) for outcome in outcomes} == {Persisted}
    _check_numbers(_read(broker, topic), 6_000)


async def _persisted(producer: IdempotentProducer, count: int) -> None:
    while producer.statistics().persisted < count:  # noqa: ASYNC110 - the producer has no event
        await asyncio.sleep(0.01)


def _check_numbers(found: dict[int, list[Message]], count: int) -> None:
    numbers = {
        partition: [int(message.value() or b"") for message in messages]
        for partition, messages in found.items()
    }
    for of_partition in numbers.values():
        assert all(before < after for before, after in pairwise(of_partition))
    everything = {number for of_partition in numbers.values() for number in of_partition}
    assert everything - {-1} == set(range(count))


@pytest.mark.promise("in-event-topic-name")
async def test_a_name_that_no_topic_has_harms_no_other(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """Asked for once, it would be asked for with every other name, and no broker could answer."""
    known, other = make_topic(), make_topic()
    async with asyncio.timeout(PATIENCE_S), _producer(broker) as producer:
        await producer.send_and_wait(known, b"1")
        with pytest.raises(ValueError, match="expected a topic name"):
            await producer.send("tenant-\udcff", b"")
        await producer.send_and_wait(other, b"2")
        await producer.send_and_wait(known, b"3")


@pytest.mark.promise("in-machine-clock-hours")
async def test_a_clock_that_is_hours_ahead_costs_no_event(
    broker: Any, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The broker says what time it is; lives that end in between send the same numbers."""
    ahead_ms = 3 * 3_600_000
    topic = make_topic(partitions=2)
    sent: list[bytes] = []
    for life in range(4):
        producer = _producer(broker, name="ahead", journal=tmp_path / "journal", batch_size=2_000)
        producer._clock = StampClock(lambda: wall_clock_ms() + ahead_ms)
        await producer.start()
        deliveries = []
        for number in range(300):
            value = b"%d:%04d" % (life, number)
            sent.append(value)
            deliveries.append(await producer.send(topic, value, key=b"%d" % (number % 2)))
        if life < 3:
            await asyncio.gather(*(delivery.journaled for delivery in deliveries))
            await asyncio.wait(deliveries, timeout=life * 0.05)
            await kill(producer)
            assert producer._wire is not None
            await producer._wire.close()
        else:
            assert {type(outcome) for outcome in await asyncio.gather(*deliveries)} == {Persisted}
            counts = producer.statistics()
            await producer.close()
            assert (counts.not_persisted, counts.possibly_persisted) == (0, 0)
    found = [message for messages in _read(broker, topic).values() for message in messages]
    now_ms = wall_clock_ms()
    assert all(message.timestamp()[1] <= now_ms for message in found)
    assert sorted(message.value() or b"" for message in found) == sorted(sent)
    for messages in _read(broker, topic).values():
        for key in (b"0", b"1"):
            values = [message.value() for message in messages if message.key() == key]
            assert values == [value for value in sent if value in set(values)]
