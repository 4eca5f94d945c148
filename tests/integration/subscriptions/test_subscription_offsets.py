"""An open `Subscription` on topics that lose records, grow, or are recreated."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from sequitur import Subscription
from sequitur.consumer.subscription import consumption, group_offsets
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    SubscriptionError,
    UnansweredError,
)
from sequitur.producer import KafkaSettings
from tests.support.acls import AUTHORIZER, AclOperation, ResourceType, TopicRights
from tests.support.open_subscriptions import (
    OFTEN,
    TIMEOUT_S,
    committed,
    fill,
    is_caught_up,
    places,
    receive,
)
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker, MakeTopic


def test_markers_of_transactions_count_as_acked(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Markers and records of aborted transactions are acked as absent: the backlog becomes 0."""
    topic = make_topic(1)
    client = Producer({**kafka.librdkafka(), "transactional.id": f"writes-{name}"})
    client.init_transactions(PATIENCE_S)
    for number in range(6):
        client.begin_transaction()
        for _ in range(3):
            client.produce(topic, b"%d" % number, partition=0)
        client.flush(PATIENCE_S)
        (client.abort_transaction if number % 2 else client.commit_transaction)(30)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        for message in receive(subscription, 9):
            assert message.value in {b"0", b"2", b"4"}
            subscription.acknowledge(message)
        wait_until(is_caught_up(subscription))
        subscription.flush()
        found = subscription.stats().cursors[topic, 0]
        assert (found.consumed, found.absent, found.repeated) == (9, 15, 0)
        assert found.mark_delete == 23
        wait_until(lambda: committed(kafka, name, topic) == 24)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert subscription.receive(0.5) is None
        assert subscription.stats().cursors[topic, 0].repeated == 0


@pytest.mark.test_all
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
        client.flush(PATIENCE_S)
        time.sleep(0.3)
        return _offsets(kafka, topic)

    for number in range(50):
        client.produce(topic, b"%d" % number, b"same", 0)
        client.flush(PATIENCE_S)
    wait_until(lambda: len([one for one in offsets() if one < 50]) == 1)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        there = _offsets(kafka, topic)
        for message in receive(subscription, len(there)):
            subscription.acknowledge(message)
        found = subscription.stats()
        assert found.backlog == 0
        assert found.cursors[topic, 0].absent == 49
        assert found.cursors[topic, 0].acked_ranges == 0


def test_deleted_records_count_as_lost(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """What retention deletes, while nobody reads or while it is read, is acked as lost."""
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    fill(kafka, topic, 10)
    with Subscription(kafka, name, topic, position="earliest"):
        pass

    def delete(before: int) -> None:
        admin.delete_records([TopicPartition(topic, 0, before)])[
            TopicPartition(topic, 0, before)
        ].result(PATIENCE_S)

    delete(4)
    with Subscription(
        kafka, name, topic, receiver_queue_size=2, position="earliest"
    ) as subscription:
        assert places(receive(subscription, 2)) == [(0, 4), (0, 5)]
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.lost, found.absent) == (3, 4, 0)
        subscription.acknowledge_cumulative("0:9")
        assert subscription.stats().backlog == 0


@pytest.mark.test_all
def test_a_group_that_may_not_be_seen_hinders_no_subscription(
    make_broker: MakeBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are for Kafka's tools: acks are stored all the same, and nobody waits for it."""
    monkeypatch.setattr(group_offsets, "CLOSE_S", 10 * PATIENCE_S)
    broker = make_broker(AUTHORIZER)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    _create(AdminClient(kafka.librdkafka()), "open", {})
    fill(kafka, "open", 10)
    for denied in ((AclOperation.READ,), (AclOperation.DESCRIBE, AclOperation.READ)):
        mine = f"{name}-{len(denied)}"
        with Subscription(kafka, mine, "open", position="earliest"):
            pass
        group = TopicRights(broker.bootstrap_servers, f"sequitur-{mine}", ResourceType.GROUP)
        group.deny(*denied)
        subscription = Subscription(kafka, mine, "open")
        for message in receive(subscription, 10):
            subscription.acknowledge(message)
        subscription.flush()
        assert subscription.receive(1) is None
        begun_s = time.monotonic()
        subscription.close()
        assert time.monotonic() - begun_s < PATIENCE_S
        with Subscription(kafka, mine, "open") as subscription:
            assert subscription.stats().backlog == 0


def test_topic_that_was_created_anew(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A cursor beyond the end of a topic is an error, and not a wait until it has grown."""
    topic = make_topic(1)
    fill(kafka, topic, 10)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        subscription.acknowledge_cumulative("0:9")
    _make_anew(kafka, topic)
    with (
        pytest.raises(SubscriptionError, match="the topic was recreated"),
        Subscription(kafka, name, topic, position="earliest") as subscription,
    ):
        subscription.receive(TIMEOUT_S)


@pytest.mark.promise("sub-topic-open-subscription")
@pytest.mark.parametrize("is_made_anew", [True, False], ids=["recreated", "deleted"])
def test_topic_that_is_deleted_while_it_is_open(
    kafka: KafkaSettings,
    name: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_made_anew: bool,
) -> None:
    """Messages of another topic of its name are not taken for those of this one, nor waited for."""
    monkeypatch.setattr(consumption, "NEW_PARTITIONS_EACH_S", 0.1)
    looks, look = threading.Event(), consumption.Consumption._look_for_partitions

    def look_once_it_is_done(opened: consumption.Consumption) -> None:
        if looks.is_set():  # between the two there is none, which is said, too
            look(opened)

    monkeypatch.setattr(consumption.Consumption, "_look_for_partitions", look_once_it_is_done)
    topic = make_topic(1)
    fill(kafka, topic, 10)
    subscription = Subscription(kafka, name, topic, position="earliest")
    for message in receive(subscription, 10):
        subscription.acknowledge(message)
    subscription.flush()
    if is_made_anew:
        _make_anew(kafka, topic)
        fill(kafka, topic, 30)  # its first ten have offsets that are acked
        expected = "recreated"
    else:
        admin = AdminClient(kafka.librdkafka())
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        expected = "is gone: it was deleted"
    looks.set()
    with pytest.raises(SubscriptionError, match=f"{topic}.* {expected}"):
        receive(subscription, 1_000)
    with pytest.raises(SubscriptionError, match=expected):
        subscription.stats()
    subscription.close()


def test_topic_that_was_created_anew_and_is_longer(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """It is known by its id: its messages are not taken for acked ones, and a reset begins anew."""
    topic = make_topic(1)
    fill(kafka, topic, 3)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        subscription.acknowledge_cumulative("0:2")
    _make_anew(kafka, topic)
    fill(kafka, topic, 5)
    with pytest.raises(SubscriptionError, match="the topic was recreated"):
        Subscription(kafka, name, topic, position="earliest")
    moves = CursorMoves(Surveyor(kafka))
    moves.carry_out(moves.plan_reset(name, Edge.EARLIEST), fence=True)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert places(receive(subscription, 5)) == [(0, offset) for offset in range(5)]


def test_acks_behind_a_hole_and_beyond_the_end(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """They are of messages that brokers have lost, and would pass over the ones that come now."""
    topic = make_topic(1)
    fill(kafka, topic, 5)
    with Subscription(kafka, name, topic, position="earliest"):
        pass
    cursor = Cursor(CursorIdentity(name, topic, 0))
    cursor.ack_range(2, 10, end=10)
    with CursorStore(kafka).take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(cursor)])
    with pytest.raises(SubscriptionError, match="has acked up to before 10"):
        Subscription(kafka, name, topic, position="earliest")


def test_partitions_that_are_added(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that comes later is read from its beginning, also with `latest`."""
    monkeypatch.setattr(consumption, "NEW_PARTITIONS_EACH_S", 0.2)
    topic = make_topic(1)
    admin = AdminClient(kafka.librdkafka())
    with Subscription(kafka, name, topic, position="latest") as subscription:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
        wait_until(lambda: len(admin.list_topics(topic, 30).topics[topic].partitions) == 3)
        fill(kafka, topic, 6, partitions=3)
        messages = receive(subscription, 6)
        assert {one.partition for one in messages} == {0, 1, 2}
        for message in messages:
            subscription.acknowledge(message)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert subscription.receive(0.5) is None
        assert len(subscription.stats().cursors) == 3


@pytest.mark.promise("sub-open-long-outage")
@pytest.mark.test_all
@pytest.mark.parametrize("outage_s", [0, 45], ids=["restart", "longer than a request waits"])
def test_an_outage_loses_no_ack(make_broker: MakeBroker, name: str, outage_s: float) -> None:
    """Acks made while the broker is away are stored once it is back, and messages come again.

    A write waits half a minute for it: in a long outage it gives up twice.
    """
    broker = make_broker()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    _create(AdminClient(kafka.librdkafka()), "orders", {})
    fill(kafka, "orders", 10)
    with Subscription(
        kafka, name, "orders", write_interval=OFTEN, position="earliest"
    ) as subscription:
        messages = receive(subscription, 10)
        (broker.stop if outage_s else broker.kill)()
        begun_s = time.monotonic()
        for message in messages[:7]:
            subscription.acknowledge(message)
        while time.monotonic() - begun_s < outage_s:
            assert not _is_flushed(subscription)
        broker.start()
        wait_until(lambda: _is_flushed(subscription))
        fill(kafka, "orders", 5)
        assert places(receive(subscription, 5)) == [(0, offset) for offset in range(10, 15)]
        if not outage_s:  # the group's offset, by which Kafka's tools go, may come long behind
            wait_until(lambda: committed(kafka, name, "orders") == 7)
    with Subscription(kafka, name, "orders", position="earliest") as subscription:
        assert places(receive(subscription, 8)) == [(0, offset) for offset in range(7, 15)]


def _is_flushed(subscription: Subscription) -> bool:
    """Store what is acked; False while the brokers do not answer."""
    try:
        subscription.flush()
    except UnansweredError:
        return False
    return True


def _create(admin: AdminClient, topic: str, config: dict[str, str]) -> None:
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(PATIENCE_S)
    wait_until(lambda: topic in admin.list_topics(timeout=PATIENCE_S).topics)


def _make_anew(kafka: KafkaSettings, topic: str) -> None:
    """Delete a topic, and create another of its name."""
    admin = AdminClient(kafka.librdkafka())
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: _is_created(admin, topic))


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
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is not None:
                return found
            offset = message.offset()
            assert offset is not None
            found.append(offset)
