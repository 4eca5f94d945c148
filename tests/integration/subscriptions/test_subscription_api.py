"""`Subscription` on a real broker: what is acked does not come again, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
import uuid
from contextlib import closing
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from sequitur import Backoff, Message, Position, Subscription, SubscriptionType
from sequitur.consumer import Cursor, CursorIdentity, SourcePartition
from sequitur.consumer.subscription.partition_cursor import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.errors import (
    AckBeyondEndError,
    CumulativeAckError,
    MarkDeleteBackError,
    PositionRangeError,
    SubscriptionClosedError,
    SubscriptionError,
    SubscriptionFencedError,
    SubscriptionNameError,
    TopicError,
)
from sequitur.pipelines.subscriptions import consumption
from sequitur.pipelines.subscriptions.backlog import Surveyor
from sequitur.pipelines.subscriptions.cursor_moves import CursorMoves
from sequitur.pipelines.subscriptions.cursor_store import CursorStore
from sequitur.pipelines.subscriptions.registry_store import RegistryStore
from sequitur.producer import KafkaSettings
from tests.support.subscribed_topics import wait_until
from tests.support.subscription_process import SubscriptionProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conftest import MakeBroker, MakeTopic
    from tests.support.brokers import Broker

_TIMEOUT_S = 60.0
_SOON = Backoff(initial_ms=20, maximum_ms=100)
_OFTEN = timedelta(milliseconds=100)
_CALLS = 6
"""That `_refused_calls` makes."""
_FENCED = 7
"""The status of a process that finds its subscription taken over."""


@pytest.fixture
def kafka(broker: Broker) -> KafkaSettings:
    """How to reach the test's broker."""
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture
def name() -> str:
    """A subscription that no other test has."""
    return f"sub-{uuid.uuid4().hex[:8]}"


def _fill(
    kafka: KafkaSettings, topic: str, count: int, *, partitions: int = 1, keys: int = 0
) -> None:
    """Write numbered messages, one partition after the other; by key if there are keys."""
    client = Producer({**kafka.librdkafka(), "linger.ms": 5})
    for number in range(count):
        key = f"key-{number % keys}".encode() if keys else None
        place = (number % keys if keys else number) % partitions
        client.produce(topic, b"%d" % number, key=key, partition=place)
    assert client.flush(30) == 0


def _receive(subscription: Subscription, count: int) -> list[Message]:
    """Receive so many messages; they come."""
    found: list[Message] = []
    for _ in range(count):
        message = subscription.receive(_TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message)
    return found


def _places(messages: Iterable[Message]) -> list[tuple[int, int]]:
    return sorted((one.partition, one.offset) for one in messages)


def _committed(kafka: KafkaSettings, group: str, topic: str, partition: int = 0) -> int:
    with closing(Consumer({**kafka.librdkafka(), "group.id": group})) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        return found.offset


def _is_caught_up(subscription: Subscription) -> Callable[[], bool]:
    return lambda: subscription.stats().backlog == 0


def test_what_is_acked_does_not_come_again(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Over several lives each message comes until it is acked; a life ends by `close`."""
    topic = make_topic(3)
    _fill(kafka, topic, 300, partitions=3)
    random, left = Random(3), set(itertools.product(range(3), range(100)))
    for _ in range(3):
        with Subscription(kafka, name, topic) as subscription:
            messages = _receive(subscription, len(left))
            assert _places(messages) == sorted(left)
            assert subscription.receive(0) is None
            for message in random.sample(messages, len(messages) * 2 // 3):
                assert subscription.acknowledge(message)
                left.remove((message.partition, message.offset))
            assert subscription.stats().backlog == len(left)


def test_message_is_as_it_was_sent(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Key, value, headers and timestamp are the record's; its bytes are counted."""
    client = Producer(kafka.librdkafka())
    headers: Any = [("a", b"1"), ("a", None)]
    client.produce(topic, b"value", b"key", 2, timestamp=1_700_000_000_000, headers=headers)
    client.produce(topic, None, b"key", 2, timestamp=1_700_000_000_001)
    client.flush(30)
    with Subscription(kafka, name, topic) as subscription:
        one, two = _receive(subscription, 2)
        assert one == Message(
            topic, 2, 0, b"key", b"value", (("a", b"1"), ("a", None)), 1_700_000_000_000, 0
        )
        assert (two.value, two.headers, str(two.position)) == (None, (), f"{topic}:2:1")
        subscription.flush()
        stored = CursorStore(kafka).read(name)
        assert stored is not None
        sizes = stored.cursors[SourcePartition(topic, 2)].sizes
        assert sizes.size_from(0) == len(b"keyvaluea1akey")


def test_hole_at_three(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """All but message 3 is acked: the cursor stands before it, and so do Kafka's own tools."""
    topic = make_topic(1)
    _fill(kafka, topic, 10)
    with Subscription(kafka, name, topic) as subscription:
        for message in _receive(subscription, 10):
            if message.offset != 3:
                subscription.acknowledge(message)
        subscription.flush()
        wait_until(lambda: _committed(kafka, name, topic) == 3)
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.backlog, found.acked_ranges) == (2, 1, 1)
        assert found.individually_deleted == "[(0:3..0:9]]"
    with Subscription(kafka, name, topic) as subscription:
        (message,) = _receive(subscription, 1)
        assert message.position == Position(0, 3, topic)
        subscription.acknowledge(message)
        assert subscription.receive(0.5) is None
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.backlog, found.acked_ranges) == (9, 0, 0)
        assert found.entries_since_first_not_acked == 1
    wait_until(lambda: _committed(kafka, name, topic) == 10)


def test_acks_by_position(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Messages that were not received are acked by position; what is no position is refused."""
    topic = make_topic(2)
    _fill(kafka, topic, 20, partitions=2)
    with Subscription(kafka, name, topic) as subscription:
        assert subscription.acknowledge("0:0")
        assert subscription.acknowledge(Position(0, 1))
        assert subscription.acknowledge_cumulative(f"{topic}:1:7") == 8
        assert not subscription.acknowledge("1:5")
        assert subscription.stats().cursors[topic, 1].repeated == 1
        with pytest.raises(AckBeyondEndError):
            subscription.acknowledge("0:10")
        with pytest.raises(AckBeyondEndError):
            subscription.acknowledge_cumulative("0:10")
        with pytest.raises(MarkDeleteBackError):
            subscription.acknowledge_cumulative("1:3")
        with pytest.raises(PositionRangeError):
            subscription.acknowledge("2:0")
        with pytest.raises(PositionRangeError):
            subscription.acknowledge("other:0:0")
    with Subscription(kafka, name, topic) as subscription:
        wanted = [(0, offset) for offset in range(2, 10)] + [(1, 8), (1, 9)]
        assert _places(_receive(subscription, 10)) == wanted


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_cumulative_ack_is_refused_where_receivers_share(
    kafka: KafkaSettings, name: str, topic: str, type_: Any
) -> None:
    """Another receiver may have an earlier message, so one ack for all is refused, as in Pulsar."""
    _fill(kafka, topic, 3)
    with Subscription(kafka, name, topic, type=type_) as subscription:
        messages = _receive(subscription, 3)
        with pytest.raises(CumulativeAckError, match=f"is of type {type_}"):
            subscription.acknowledge_cumulative(messages[2])
        assert subscription.stats().backlog == 3


def test_failed_message_comes_before_the_later_ones_of_its_key(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Exclusive: what was out behind a failed message comes again behind it; other keys go on."""
    topic = make_topic(1)
    _fill(kafka, topic, 6, keys=2)  # key-0: 0, 2, 4; key-1: 1, 3, 5
    with Subscription(kafka, name, topic, negative_ack_backoff=_SOON) as subscription:
        messages = _receive(subscription, 6)
        assert subscription.negative_acknowledge(messages[0])
        assert not subscription.negative_acknowledge(messages[2])  # it was taken back
        assert subscription.acknowledge(messages[4])  # it was, too; its ack counts
        for message in (messages[1], messages[3], messages[5]):
            subscription.acknowledge(message)
        again = _receive(subscription, 2)
        assert [(one.offset, one.redelivery_count) for one in again] == [(0, 1), (2, 1)]
        assert subscription.receive(0.3) is None
        found = subscription.stats()
        assert (found.negative_acks, found.taken_back, found.messages_redelivered) == (1, 2, 2)
        assert found.unacked_messages == 2


@pytest.mark.parametrize("type_", ["Key_Shared", "Failover"])
def test_order_of_each_key_outlives_failures(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, type_: Any
) -> None:
    """A third of all messages fails, with four receivers where they share: keys stay in order."""
    topic = make_topic(3)
    _fill(kafka, topic, 600, partitions=3, keys=12)
    acked: dict[bytes | None, list[int]] = {}
    done = threading.Event()
    lock, random = threading.Lock(), Random(11)

    def work(subscription: Subscription) -> None:
        while not done.is_set():
            message = subscription.receive(0.2)
            if message is None:
                continue
            with lock:
                fails = random.random() < 1 / 3
                if not fails:
                    acked.setdefault(message.key, []).append(message.offset)
                    if sum(map(len, acked.values())) == 600:
                        done.set()
            if fails:
                assert subscription.negative_acknowledge(message)
            else:
                assert subscription.acknowledge(message)

    with Subscription(
        kafka, name, topic, type=type_, negative_ack_backoff=_SOON, write_interval=_OFTEN
    ) as subscription:
        receivers = 4 if type_ == "Key_Shared" else 1
        threads = [threading.Thread(target=work, args=[subscription]) for _ in range(receivers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_TIMEOUT_S * 2)
        assert done.is_set()
        wait_until(_is_caught_up(subscription))
    assert {key: sorted(offsets) for key, offsets in acked.items()} == acked
    assert all(len(set(offsets)) == 50 for offsets in acked.values())


def test_ack_timeout(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A message without an ack comes again; a late negative ack of the first time is void."""
    topic = make_topic(1)
    _fill(kafka, topic, 1)
    with Subscription(
        kafka, name, topic, ack_timeout=timedelta(milliseconds=50), negative_ack_backoff=_SOON
    ) as subscription:
        (first,) = _receive(subscription, 1)
        (second,) = _receive(subscription, 1)
        assert (second.offset, second.redelivery_count) == (0, 1)
        assert not subscription.negative_acknowledge(first)
        assert subscription.acknowledge(first)
        assert subscription.receive(0.5) is None
        assert subscription.stats().ack_timeouts >= 1


def test_limit_of_unacked_messages(kafka: KafkaSettings, name: str, topic: str) -> None:
    """No more is handed out than may be unacked, and it says so; an ack lets one more out."""
    _fill(kafka, topic, 20, partitions=4)
    with Subscription(kafka, name, topic, max_unacked_messages=5) as subscription:
        messages = _receive(subscription, 5)
        assert subscription.receive(0.3) is None
        found = subscription.stats()
        assert (found.is_blocked, found.unacked_messages) == (True, 5)
        subscription.acknowledge(messages[0])
        _receive(subscription, 1)


def test_small_receiver_queue_reads_all(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A topic is read to its end through a queue of two messages."""
    topic = make_topic(2)
    _fill(kafka, topic, 500, partitions=2)
    with Subscription(kafka, name, topic, receiver_queue_size=2) as subscription:
        for _ in range(500):
            (message,) = _receive(subscription, 1)
            subscription.acknowledge(message)
        assert subscription.stats().backlog == 0


def test_position_latest(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A new subscription begins behind what is there; one that is there goes on where it was."""
    topic = make_topic(1)
    _fill(kafka, topic, 5)
    with Subscription(kafka, name, topic, position="latest") as subscription:
        _fill(kafka, topic, 2)
        assert _places(_receive(subscription, 2)) == [(0, 5), (0, 6)]
    with Subscription(kafka, name, topic, position="latest") as subscription:
        assert _places(_receive(subscription, 2)) == [(0, 5), (0, 6)]


def test_topic_that_is_not_there(kafka: KafkaSettings, name: str) -> None:
    """A topic that does not exist, and a name that Kafka does not take, are refused."""
    with pytest.raises(TopicError, match="does not exist"):
        Subscription(kafka, name, "no-such-topic")
    with pytest.raises(SubscriptionNameError):
        Subscription(kafka, "a/b", "no-such-topic")


def test_what_does_not_fit_is_refused_before_anybody_is_fenced(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Another type, other topics: an error, and whoever has the subscription keeps it."""
    topic, other = make_topic(1), make_topic(1)
    _fill(kafka, topic, 2)
    with Subscription(kafka, name, topic) as subscription:
        with pytest.raises(SubscriptionError, match="is of type Exclusive on"):
            Subscription(kafka, name, topic, type="Shared")
        with pytest.raises(SubscriptionError, match="is of type Exclusive on"):
            Subscription(kafka, name, [topic, other])
        _receive(subscription, 2)
        subscription.acknowledge("0:0")
        subscription.flush()


def test_subscription_of_a_job_is_refused(kafka: KafkaSettings, name: str, topic: str) -> None:
    """A Spark job's cursors are its own."""
    with CursorStore(kafka).take(name) as owner:
        owner.write(SubscriptionState(checkpoint="c1"), [])
        with pytest.raises(SubscriptionError, match="is that of a Spark job"):
            Subscription(kafka, name, topic)
        assert not owner.is_fenced
        owner.write(SubscriptionState(checkpoint="c1", step=2), [])


def test_reset_that_was_not_noted(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Cursors of a new epoch count; the registry names it once the subscription is opened."""
    topic = make_topic(1)
    _fill(kafka, topic, 3)
    with Subscription(kafka, name, topic) as subscription:
        subscription.acknowledge_cumulative("0:2")
    with CursorStore(kafka).take(name) as owner:
        cursor = Cursor(CursorIdentity(name, topic, 0), start=1)
        owner.write(SubscriptionState(epoch=1, written_ms=7), [PartitionCursor(cursor)])
    with Subscription(kafka, name, topic) as subscription:
        assert _places(_receive(subscription, 2)) == [(0, 1), (0, 2)]
    record = RegistryStore(kafka).read().require(name)
    assert (record.epoch, record.reset_ms) == (1, 7)


def test_each_call_tells_of_a_takeover(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Whoever opens it again has it: the first is told by every call, and its acks are void."""
    topic = make_topic(1)
    _fill(kafka, topic, 10)
    first = Subscription(kafka, name, topic, type="Failover")
    messages = _receive(first, 10)
    first.acknowledge(messages[0])
    first.flush()
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            first.receive()
        except SubscriptionFencedError as error:
            waiting.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with Subscription(kafka, name, topic, type="Failover") as second:
        assert _places(_receive(second, 9)) == [(0, offset) for offset in range(1, 10)]
        first.acknowledge(messages[1])
        with pytest.raises(SubscriptionFencedError, match="was taken over by another process"):
            first.flush(_TIMEOUT_S)
        thread.join(_TIMEOUT_S)
        assert len(waiting) == 1
        calls: list[Callable[[], object]] = [
            lambda: first.receive(0),
            lambda: first.acknowledge(messages[2]),
            lambda: first.acknowledge_cumulative(messages[2]),
            lambda: first.negative_acknowledge(messages[2]),
            first.flush,
            first.stats,
            first.close,
        ]
        for call in calls:
            with pytest.raises(SubscriptionFencedError):
                call()
        second.acknowledge(messages[5])
        second.flush()
        assert second.stats().backlog == 8


def test_idle_owner_notices_a_takeover(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Who waits for messages and acks nothing is told, too; it closes without an error."""
    first = Subscription(kafka, name, topic)
    with Subscription(kafka, name, topic), pytest.raises(SubscriptionFencedError):
        first.receive(_TIMEOUT_S)
    first.close()


def test_takeover_by_a_second_process(
    broker: Broker, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A process that is taken over from ends by the error; what it has stored does not come."""
    topic = make_topic(2)
    _fill(kafka, topic, 400, partitions=2)
    failover = SubscriptionType.FAILOVER
    first = SubscriptionProcess(broker.bootstrap_servers, name, topic, failover, 1)
    first.wait_for(lambda one: len(one.stored) > 20)
    second = SubscriptionProcess(broker.bootstrap_servers, name, topic, failover, 2)
    first.wait_for(lambda one: one.end == "fenced")
    second.wait_for(lambda one: len(one.stored) > 20)
    for process in (first, second):
        process.kill()
    assert not first.stored & set(second.received)
    assert not first.stored & second.stored


def test_closed_subscription(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Calls after `close` are refused by name; a second `close` does nothing."""
    subscription = Subscription(kafka, name, topic)
    subscription.close()
    with pytest.raises(SubscriptionClosedError):
        subscription.receive(0)
    with pytest.raises(SubscriptionClosedError):
        subscription.flush()
    subscription.close()


def test_markers_of_transactions_count_as_acked(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Markers and records of aborted transactions are acked as absent: the backlog becomes 0."""
    topic = make_topic(1)
    client = Producer({**kafka.librdkafka(), "transactional.id": f"writes-{name}"})
    client.init_transactions(30)
    for number in range(6):
        client.begin_transaction()
        for _ in range(3):
            client.produce(topic, b"%d" % number, partition=0)
        client.flush(30)
        (client.abort_transaction if number % 2 else client.commit_transaction)(30)
    with Subscription(kafka, name, topic) as subscription:
        for message in _receive(subscription, 9):
            assert message.value in {b"0", b"2", b"4"}
            subscription.acknowledge(message)
        wait_until(_is_caught_up(subscription))
        subscription.flush()
        found = subscription.stats().cursors[topic, 0]
        assert (found.consumed, found.absent, found.repeated) == (9, 15, 0)
        assert found.mark_delete == 23
        wait_until(lambda: _committed(kafka, name, topic) == 24)
    with Subscription(kafka, name, topic) as subscription:
        assert subscription.receive(0.5) is None
        assert subscription.stats().cursors[topic, 0].repeated == 0


def test_compacted_offsets_count_as_acked(make_broker: MakeBroker, name: str) -> None:
    """Offsets that compaction has removed, before and while it is read, leave no hole."""
    broker = make_broker({"log.cleaner.backoff.ms": "100"})
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topic, admin = "compacted", AdminClient(kafka.librdkafka())
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "1048576",
        "segment.ms": "200",
    }
    _create(admin, topic, config)
    client = Producer(kafka.librdkafka())

    def offsets() -> list[int]:
        """Write one more, which ends an old segment, and read all."""
        client.produce(topic, b"", b"%d" % time.monotonic_ns(), 0)
        client.flush(30)
        time.sleep(0.3)
        return _offsets(kafka, topic)

    for number in range(50):
        client.produce(topic, b"%d" % number, b"same", 0)
        client.flush(30)
    wait_until(lambda: len([one for one in offsets() if one < 50]) == 1)
    with Subscription(kafka, name, topic) as subscription:
        there = _offsets(kafka, topic)
        for message in _receive(subscription, len(there)):
            subscription.acknowledge(message)
        found = subscription.stats()
        assert found.backlog == 0
        assert found.cursors[topic, 0].absent == 49
        assert found.cursors[topic, 0].acked_ranges == 0


def test_deleted_records_count_as_acked(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """What retention deletes, while nobody reads or while it is read, is acked as absent."""
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    _fill(kafka, topic, 10)
    with Subscription(kafka, name, topic):
        pass

    def delete(before: int) -> None:
        admin.delete_records([TopicPartition(topic, 0, before)])[
            TopicPartition(topic, 0, before)
        ].result(30)

    delete(4)
    with Subscription(kafka, name, topic, receiver_queue_size=2) as subscription:
        assert _places(_receive(subscription, 2)) == [(0, 4), (0, 5)]
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.absent) == (3, 4)
        subscription.acknowledge_cumulative("0:9")
        assert subscription.stats().backlog == 0


def test_topic_that_was_created_anew(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A cursor beyond the end of a topic is an error, and not a wait until it has grown."""
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    _fill(kafka, topic, 10)
    with Subscription(kafka, name, topic) as subscription:
        subscription.acknowledge_cumulative("0:9")
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: _is_created(admin, topic))
    with (
        pytest.raises(SubscriptionError, match="the topic was created anew"),
        Subscription(kafka, name, topic) as subscription,
    ):
        subscription.receive(_TIMEOUT_S)


def test_topic_that_was_created_anew_and_is_longer(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """It is known by its id: its messages are not taken for acked ones, and a reset begins anew."""
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    _fill(kafka, topic, 3)
    with Subscription(kafka, name, topic) as subscription:
        subscription.acknowledge_cumulative("0:2")
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: _is_created(admin, topic))
    _fill(kafka, topic, 5)
    with pytest.raises(SubscriptionError, match="the topic was created anew"):
        Subscription(kafka, name, topic)
    moves = CursorMoves(Surveyor(kafka))
    moves.carry_out(moves.plan_reset(name, Edge.EARLIEST), fence=True)
    with Subscription(kafka, name, topic) as subscription:
        assert _places(_receive(subscription, 5)) == [(0, offset) for offset in range(5)]


def test_acks_behind_a_hole_and_beyond_the_end(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """They are of messages that brokers have lost, and would pass over the ones that come now."""
    topic = make_topic(1)
    _fill(kafka, topic, 5)
    with Subscription(kafka, name, topic):
        pass
    cursor = Cursor(CursorIdentity(name, topic, 0))
    cursor.ack_range(2, 10, end=10)
    with CursorStore(kafka).take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(cursor)])
    with pytest.raises(SubscriptionError, match="has acked up to before 10"):
        Subscription(kafka, name, topic)


def test_one_that_is_quiet_learns_that_a_command_has_reset_it(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to write, and would wait beside messages that are to come again."""
    monkeypatch.setattr(consumption, "PROVES_EACH_S", 0.2)
    topic = make_topic(1)
    _fill(kafka, topic, 5)
    subscription = Subscription(kafka, name, topic)
    _receive(subscription, 5)
    subscription.acknowledge_cumulative("0:4")
    subscription.flush()
    moves = CursorMoves(Surveyor(kafka))
    moves.carry_out(moves.plan_reset(name, Edge.EARLIEST), fence=True)
    with pytest.raises(SubscriptionFencedError, match="was reset"):
        subscription.receive(_TIMEOUT_S)
    subscription.close()
    with Subscription(kafka, name, topic) as subscription:
        assert _places(_receive(subscription, 5)) == [(0, offset) for offset in range(5)]


def test_a_wait_may_have_any_length(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Infinity is for ever, and so is an ack timeout of two million years."""
    topic = make_topic(1)
    with Subscription(kafka, name, topic, ack_timeout=timedelta.max) as subscription:
        found: list[Message | None] = []
        receiver = threading.Thread(
            target=lambda: found.extend(subscription.receive(left) for left in (math.inf, None))
        )
        receiver.start()
        _fill(kafka, topic, 1)
        wait_until(lambda: subscription.stats().unacked_messages == 1)
        _fill(kafka, topic, 1)
        receiver.join(_TIMEOUT_S)
        assert [one and one.offset for one in found] == [0, 1]
        subscription.acknowledge_cumulative("0:1")
        subscription.flush(math.inf)


def test_an_offset_that_is_no_whole_number_changes_nothing(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A table with gaps has floats where offsets were; one of NumPy's whole numbers is one."""
    topic = make_topic(1)
    _fill(kafka, topic, 5)
    with Subscription(kafka, name, topic) as subscription:
        with pytest.raises(TypeError):
            subscription.acknowledge(Position(0, cast("int", 3.0)))
        assert subscription.acknowledge(Position(0, cast("int", np.int64(3))))
        assert subscription.acknowledge_cumulative("0:4") == 4
    with Subscription(kafka, name, topic) as subscription:
        assert subscription.stats().backlog == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_has_nothing_of_it(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """It has no thread that would write its acks: it is told so, and the parent goes on."""
    topic = make_topic(1)
    _fill(kafka, topic, 3)
    with Subscription(kafka, name, topic) as subscription:
        _receive(subscription, 1)
        child = os.fork()
        if child == 0:
            os._exit(_refused_calls(subscription))
        assert os.waitpid(child, 0)[1] >> 8 == _CALLS
        assert [one.offset for one in _receive(subscription, 2)] == [1, 2]
        subscription.acknowledge_cumulative("0:2")
    assert _committed(kafka, name, topic) == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_beside_one_that_was_taken_over_lives(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Its error keeps what librdkafka has opened, and to let go of that ends a forked process."""
    topic = make_topic(1)
    _fill(kafka, topic, 3)
    former = Subscription(kafka, name, topic)
    with Subscription(kafka, name, topic):
        with pytest.raises(SubscriptionFencedError):
            _receive(former, _CALLS)  # more than there are
        child = os.fork()
        if child == 0:
            os._exit(_FENCED if _is_fenced(former) else 1)
        assert os.waitpid(child, 0)[1] == _FENCED << 8
        with contextlib.suppress(SubscriptionFencedError):
            former.close()


def _is_fenced(subscription: Subscription) -> bool:
    try:
        subscription.receive(0)
    except SubscriptionFencedError:
        return True
    return False


def _refused_calls(subscription: Subscription) -> int:
    """Return how many calls say that the subscription is not open here; to close it is allowed."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: subscription.receive(0),
        lambda: subscription.acknowledge("0:0"),
        lambda: subscription.acknowledge_cumulative("0:0"),
        lambda: subscription.negative_acknowledge("0:0"),
        lambda: subscription.flush(1),
        subscription.stats,
    )
    refused = 0
    for call in calls:
        try:
            call()
        except SubscriptionClosedError:
            refused += 1
    subscription.close()
    return refused


def test_partitions_that_are_added(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that comes later is read from its beginning, also with `latest`."""
    monkeypatch.setattr(consumption, "NEW_PARTITIONS_EACH_S", 0.2)
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    with Subscription(kafka, name, topic, position="latest") as subscription:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        wait_until(lambda: len(admin.list_topics(topic, 30).topics[topic].partitions) == 3)
        _fill(kafka, topic, 6, partitions=3)
        messages = _receive(subscription, 6)
        assert {one.partition for one in messages} == {0, 1, 2}
        for message in messages:
            subscription.acknowledge(message)
    with Subscription(kafka, name, topic) as subscription:
        assert subscription.receive(0.5) is None
        assert len(subscription.stats().cursors) == 3


def test_broker_that_restarts(make_broker: MakeBroker, name: str) -> None:
    """Acks made while the broker is away are stored once it is back, and messages come again."""
    broker = make_broker()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    _create(AdminClient(kafka.librdkafka()), "orders", {})
    _fill(kafka, "orders", 10)
    with Subscription(kafka, name, "orders", write_interval=_OFTEN) as subscription:
        messages = _receive(subscription, 10)
        broker.kill()
        for message in messages[:7]:
            subscription.acknowledge(message)
        broker.start()
        subscription.flush()
        _fill(kafka, "orders", 5)
        assert _places(_receive(subscription, 5)) == [(0, offset) for offset in range(10, 15)]
    wait_until(lambda: _committed(kafka, name, "orders") == 7)
    with Subscription(kafka, name, "orders") as subscription:
        assert _places(_receive(subscription, 8)) == [(0, offset) for offset in range(7, 15)]


def test_two_topics(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A subscription on two topics has a cursor for each partition of both."""
    one, two = make_topic(1), make_topic(1)
    _fill(kafka, one, 3)
    _fill(kafka, two, 4)
    with Subscription(kafka, name, [one, two]) as subscription:
        messages = _receive(subscription, 7)
        assert sorted(message.topic for message in messages) == sorted([one] * 3 + [two] * 4)
        with pytest.raises(PositionRangeError):
            subscription.acknowledge("0:0")
        subscription.acknowledge_cumulative(f"{two}:0:3")
    with Subscription(kafka, name, [two, one]) as subscription:
        assert {message.topic for message in _receive(subscription, 3)} == {one}


def test_error_in_a_with_block_is_not_hidden(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """What went wrong in the block is raised, also where `close` fails for a takeover."""
    topic = make_topic(1)
    _fill(kafka, topic, 1)

    def fail() -> None:
        with Subscription(kafka, name, topic) as first, Subscription(kafka, name, topic):
            first.acknowledge("0:0")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def _create(admin: AdminClient, topic: str, config: dict[str, str]) -> None:
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(30)
    wait_until(lambda: topic in admin.list_topics(timeout=30).topics)


def _is_created(admin: AdminClient, topic: str) -> bool:
    """Create a topic; False while one of its name is being deleted."""
    try:
        _create(admin, topic, {})
    except KafkaException:
        return False
    return True


def _offsets(kafka: KafkaSettings, topic: str) -> list[int]:
    """Return the offsets of partition 0 that hold a record."""
    options = {"group.id": "looks", "enable.partition.eof": True}
    found: list[int] = []
    with closing(Consumer({**kafka.librdkafka(), **options})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None
            if message.error() is not None:
                return found
            offset = message.offset()
            assert offset is not None
            found.append(offset)
