"""`Subscription` on a real broker: what is acked does not come again, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import subprocess
import sys
import threading
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from sequitur import Message, Position, Subscription, SubscriptionType
from sequitur.consumer.subscription import skipping
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.partition_reader import PartitionReader
from sequitur.consumer.subscription.partitions import WORTH_A_SEEK
from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota, TopicPolicies
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.skipping import skip_due
from sequitur.consumer.subscription.subscription_state import SubscriptionState
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
from sequitur.kafka.partition import SourcePartition
from tests.support.open_subscriptions import (
    OFTEN,
    SOON,
    TIMEOUT_S,
    committed,
    fill,
    is_caught_up,
    places,
    receive,
)
from tests.support.subscribed_topics import SubscribedTopics
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from sequitur.consumer.subscription.survey import DueAck
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic


def test_what_is_acked_does_not_come_again(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Over several lives each message comes until it is acked; a life ends by `close`."""
    topic = make_topic(3)
    fill(kafka, topic, 300, partitions=3)
    random, left = Random(3), set(itertools.product(range(3), range(100)))
    for _ in range(3):
        with Subscription(kafka, name, topic, position="earliest") as subscription:
            messages = receive(subscription, len(left))
            assert places(messages) == sorted(left)
            assert subscription.receive(0) is None
            for message in random.sample(messages, len(messages) * 2 // 3):
                assert subscription.acknowledge(message)
                left.remove((message.partition, message.offset))
            assert subscription.stats().backlog == len(left)


@pytest.mark.promise("sub-hole-reopened")
def test_far_behind_a_hole_only_what_is_left_is_read(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on behind all that is acked, and misses nothing that comes later."""
    topic, count = make_topic(1), 2 * WORTH_A_SEEK
    fill(kafka, topic, count)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        subscription.acknowledge_many(Position(0, one, topic) for one in range(1, count - 1))
    moved: list[int] = []
    move = PartitionReader.move

    def noted(reader: PartitionReader, where: SourcePartition, offset: int) -> None:
        moved.append(offset)
        move(reader, where, offset)

    monkeypatch.setattr(PartitionReader, "move", noted)
    with Subscription(kafka, name, topic) as subscription:
        assert places(receive(subscription, 2)) == [(0, 0), (0, count - 1)]
        fill(kafka, topic, 1)
        assert places(receive(subscription, 1)) == [(0, count)]
        assert moved == [count - 1]
        assert subscription.stats().backlog == 3


def test_message_is_as_it_was_sent(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Key, value, headers and timestamp are the record's; its bytes are counted."""
    client = Producer(kafka.librdkafka())
    headers: Any = [("a", b"1"), ("a", None)]
    client.produce(topic, b"value", b"key", 2, timestamp=1_700_000_000_000, headers=headers)
    client.produce(topic, None, b"key", 2, timestamp=1_700_000_000_001)
    client.flush(PATIENCE_S)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        one, two = receive(subscription, 2)
        assert (one.topic, one.partition, one.offset, one.redelivery_count) == (topic, 2, 0, 0)
        assert (one.key, one.value, one.timestamp_ms) == (b"key", b"value", 1_700_000_000_000)
        assert one.headers == (("a", b"1"), ("a", None))
        assert (two.value, two.headers, str(two.position)) == (None, (), f"{topic}:2:1")
        subscription.flush()
        stored = CursorStore(kafka).read(name)
        assert stored is not None
        sizes = stored.cursors[SourcePartition(topic, 2)].sizes
        assert sizes.size_from(0) == len(b"keyvaluea1akey")


def test_hole_at_three(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """All but message 3 is acked: the cursor stands before it, and so do Kafka's own tools."""
    topic = make_topic(1)
    fill(kafka, topic, 10)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        for message in receive(subscription, 10):
            if message.offset != 3:
                subscription.acknowledge(message)
        subscription.flush()
        wait_until(lambda: committed(kafka, name, topic) == 3)
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.backlog, found.acked_ranges) == (2, 1, 1)
        assert found.individually_deleted == "[(0:3..0:9]]"
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        (message,) = receive(subscription, 1)
        assert message.position == Position(0, 3, topic)
        subscription.acknowledge(message)
        assert subscription.receive(0.5) is None
        found = subscription.stats().cursors[topic, 0]
        assert (found.mark_delete, found.backlog, found.acked_ranges) == (9, 0, 0)
        assert found.entries_since_first_not_acked == 1
    wait_until(lambda: committed(kafka, name, topic) == 10)


def test_many_are_received_and_acked_at_once(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Those that are there come; all acks of a call count, or none if one is refused."""
    topic = make_topic(2)
    fill(kafka, topic, 40, partitions=2)
    with Subscription(kafka, name, topic, type="Shared", position="earliest") as subscription:
        messages: list[Message] = []
        while len(messages) < 40:
            found = subscription.receive_many(15, TIMEOUT_S)
            assert 0 < len(found) <= 15
            messages += found
        assert len(set(places(messages))) == 40
        assert subscription.receive_many(15, 0) == []
        one, *others = messages
        with pytest.raises(AckBeyondEndError):
            subscription.acknowledge_many([*messages, f"{topic}:1:20"])
        with pytest.raises(PositionRangeError):
            subscription.acknowledge_many([one, f"{topic}:2:0"])
        assert subscription.stats().backlog == 40
        assert subscription.acknowledge(one)
        found_threads = [0]

        def ack_in_thread() -> None:
            found_threads[0] = subscription.acknowledge_many([*reversed(messages), one])

        thread = threading.Thread(target=ack_in_thread)
        thread.start()
        thread.join()
        assert found_threads == [len(others)]
        assert (subscription.stats().backlog, subscription.stats().unacked_messages) == (0, 0)
        assert subscription.acknowledge_many([]) == 0
        with pytest.raises(ValueError, match="expected at least 1"):
            subscription.receive_many(0)


def test_many_of_one_key_come_one_by_one(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Key_Shared: of each key one is out, however many are asked for."""
    topic = make_topic(1)
    fill(kafka, topic, 30, keys=3)
    with Subscription(kafka, name, topic, type="Key_Shared", position="earliest") as subscription:
        wait_until(lambda: subscription.stats().cursors[topic, 0].read_position == 30)
        for first in range(0, 30, 3):
            found = subscription.receive_many(30, TIMEOUT_S)
            assert [one.offset for one in found] == [first, first + 1, first + 2]
            assert subscription.acknowledge_many(found) == 3


def test_acks_by_position(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Messages that were not received are acked by position; what is no position is refused."""
    topic = make_topic(2)
    fill(kafka, topic, 20, partitions=2)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
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
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        wanted = [(0, offset) for offset in range(2, 10)] + [(1, 8), (1, 9)]
        assert places(receive(subscription, 10)) == wanted


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_cumulative_ack_is_refused_where_receivers_share(
    kafka: KafkaSettings, name: str, topic: str, type_: Any
) -> None:
    """Another receiver may have an earlier message, so one ack for all is refused, as in Pulsar."""
    fill(kafka, topic, 3)
    with Subscription(kafka, name, topic, type=type_, position="earliest") as subscription:
        messages = receive(subscription, 3)
        with pytest.raises(CumulativeAckError, match=f"is of type {type_}"):
            subscription.acknowledge_cumulative(messages[2])
        assert subscription.stats().backlog == 3


def test_failed_message_comes_before_the_later_ones_of_its_key(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Exclusive: what was out behind a failed message comes again behind it; other keys go on."""
    topic = make_topic(1)
    fill(kafka, topic, 6, keys=2)  # key-0: 0, 2, 4; key-1: 1, 3, 5
    with Subscription(
        kafka, name, topic, negative_ack_backoff=SOON, position="earliest"
    ) as subscription:
        messages = receive(subscription, 6)
        assert subscription.negative_acknowledge(messages[0])
        assert not subscription.negative_acknowledge(messages[2])  # it was taken back
        assert subscription.acknowledge(messages[4])  # it was, too; its ack counts
        for message in (messages[1], messages[3], messages[5]):
            subscription.acknowledge(message)
        again = receive(subscription, 2)
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
    fill(kafka, topic, 600, partitions=3, keys=12)
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
        kafka,
        name,
        topic,
        type=type_,
        negative_ack_backoff=SOON,
        write_interval=OFTEN,
        position="earliest",
    ) as subscription:
        receivers = 4 if type_ == "Key_Shared" else 1
        threads = [threading.Thread(target=work, args=[subscription]) for _ in range(receivers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S * 2)
        assert done.is_set()
        wait_until(is_caught_up(subscription))
    assert {key: sorted(offsets) for key, offsets in acked.items()} == acked
    assert all(len(set(offsets)) == 50 for offsets in acked.values())


def test_ack_timeout(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A message without an ack comes again; a late negative ack of the first time is void."""
    topic = make_topic(1)
    fill(kafka, topic, 1)
    with Subscription(
        kafka,
        name,
        topic,
        ack_timeout=timedelta(milliseconds=50),
        negative_ack_backoff=SOON,
        position="earliest",
    ) as subscription:
        (first,) = receive(subscription, 1)
        (second,) = receive(subscription, 1)
        assert (second.offset, second.redelivery_count) == (0, 1)
        assert not subscription.negative_acknowledge(first)
        assert subscription.acknowledge(first)
        assert subscription.receive(0.5) is None
        assert subscription.stats().ack_timeouts >= 1


def test_limit_of_unacked_messages(kafka: KafkaSettings, name: str, topic: str) -> None:
    """No more is handed out than may be unacked, and it says so; an ack lets one more out."""
    fill(kafka, topic, 20, partitions=4)
    with Subscription(
        kafka, name, topic, max_unacked_messages=5, position="earliest"
    ) as subscription:
        messages = receive(subscription, 5)
        assert subscription.receive(0.3) is None
        found = subscription.stats()
        assert (found.is_blocked, found.unacked_messages) == (True, 5)
        subscription.acknowledge(messages[0])
        receive(subscription, 1)


def test_small_receiver_queue_reads_all(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A topic is read to its end through a queue of two messages."""
    topic = make_topic(2)
    fill(kafka, topic, 500, partitions=2)
    with Subscription(
        kafka, name, topic, receiver_queue_size=2, position="earliest"
    ) as subscription:
        for _ in range(500):
            (message,) = receive(subscription, 1)
            subscription.acknowledge(message)
        assert subscription.stats().backlog == 0


def test_position_latest(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A new subscription begins behind what is there; one that is there goes on where it was."""
    topic = make_topic(1)
    fill(kafka, topic, 5)
    with Subscription(kafka, name, topic, position="latest") as subscription:
        fill(kafka, topic, 2)
        assert places(receive(subscription, 2)) == [(0, 5), (0, 6)]
    with Subscription(kafka, name, topic, position="latest") as subscription:
        assert places(receive(subscription, 2)) == [(0, 5), (0, 6)]


def test_topic_that_is_not_there(kafka: KafkaSettings, name: str) -> None:
    with pytest.raises(TopicError, match="does not exist"):
        Subscription(kafka, name, "no-such-topic", position="earliest")
    with pytest.raises(SubscriptionNameError):
        Subscription(kafka, "a/b", "no-such-topic", position="earliest")


@pytest.mark.promise("sub-subscription-opened-created")
def test_a_new_subscription_has_to_say_where_it_begins(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """It is refused before it is registered; one that is there goes on, whatever is said."""
    topic = make_topic(1)
    fill(kafka, topic, 3)
    with pytest.raises(SubscriptionError, match="say where it begins"):
        Subscription(kafka, name, topic)
    assert name not in Surveyor(kafka).registry.read().subscriptions
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert subscription.acknowledge("0:0")
    with Subscription(kafka, name, topic) as subscription:
        assert places(receive(subscription, 2)) == [(0, 1), (0, 2)]
    with Subscription(kafka, name, topic, position="latest") as subscription:
        assert places(receive(subscription, 2)) == [(0, 1), (0, 2)]


def test_what_does_not_fit_is_refused_before_anybody_is_fenced(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Another type, other topics: an error, and whoever has the subscription keeps it."""
    topic, other = make_topic(1), make_topic(1)
    fill(kafka, topic, 2)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        with pytest.raises(SubscriptionError, match="is of type Exclusive on"):
            Subscription(kafka, name, topic, type="Shared", position="earliest")
        with pytest.raises(SubscriptionError, match="is of type Exclusive on"):
            Subscription(kafka, name, [topic, other], position="earliest")
        receive(subscription, 2)
        subscription.acknowledge("0:0")
        subscription.flush()


def test_subscription_of_a_job_is_refused(kafka: KafkaSettings, name: str, topic: str) -> None:
    with CursorStore(kafka).take(name) as owner:
        owner.write(SubscriptionState(checkpoint="c1"), [])
        with pytest.raises(SubscriptionError, match="is that of a Spark job"):
            Subscription(kafka, name, topic, position="earliest")
        assert not owner.is_fenced
        owner.write(SubscriptionState(checkpoint="c1", step=2), [])


def test_closed_subscription(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Calls after `close` are refused by name; a second `close` does nothing."""
    subscription = Subscription(kafka, name, topic, position="earliest")
    subscription.close()
    with pytest.raises(SubscriptionClosedError):
        subscription.receive(0)
    with pytest.raises(SubscriptionClosedError):
        subscription.flush()
    subscription.close()


def test_a_wait_may_have_any_length(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Infinity is for ever, and so is an ack timeout of two million years."""
    topic = make_topic(1)
    with Subscription(
        kafka, name, topic, ack_timeout=timedelta.max, position="earliest"
    ) as subscription:
        found: list[Message | None] = []
        receiver = threading.Thread(
            target=lambda: found.extend(subscription.receive(left) for left in (math.inf, None))
        )
        receiver.start()
        fill(kafka, topic, 1)
        wait_until(lambda: subscription.stats().unacked_messages == 1)
        fill(kafka, topic, 1)
        receiver.join(TIMEOUT_S)
        assert [one and one.offset for one in found] == [0, 1]
        subscription.acknowledge_cumulative("0:1")
        subscription.flush(math.inf)


def test_an_offset_that_is_no_whole_number_changes_nothing(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A table with gaps has floats where offsets were; one of NumPy's whole numbers is one."""
    topic = make_topic(1)
    fill(kafka, topic, 5)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        with pytest.raises(TypeError):
            subscription.acknowledge(Position(0, cast("int", 3.0)))
        assert subscription.acknowledge(Position(0, cast("int", np.int64(3))))
        assert subscription.acknowledge_cumulative("0:4") == 4
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert subscription.stats().backlog == 0


def test_two_topics(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A subscription on two topics has a cursor for each partition of both."""
    one, two = make_topic(1), make_topic(1)
    fill(kafka, one, 3)
    fill(kafka, two, 4)
    with Subscription(kafka, name, [one, two], position="earliest") as subscription:
        messages = receive(subscription, 7)
        assert sorted(message.topic for message in messages) == sorted([one] * 3 + [two] * 4)
        with pytest.raises(PositionRangeError):
            subscription.acknowledge("0:0")
        subscription.acknowledge_cumulative(f"{two}:0:3")
    with Subscription(kafka, name, [two, one], position="earliest") as subscription:
        assert {message.topic for message in receive(subscription, 3)} == {one}


def test_error_in_a_with_block_is_not_hidden(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """What went wrong in the block is raised, also where `close` fails for a takeover."""
    topic = make_topic(1)
    fill(kafka, topic, 1)

    def fail() -> None:
        with (
            Subscription(kafka, name, topic, position="earliest") as first,
            Subscription(kafka, name, topic, take_over=True),
        ):
            with contextlib.suppress(SubscriptionFencedError):  # it may know by now
                first.acknowledge("0:0")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


_TIMEOUT_S = PATIENCE_S
_EVICTS = BacklogQuota(20_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)


@pytest.fixture
def topics(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> SubscribedTopics:
    """A registry of this test alone; an open subscription looks at it often."""
    monkeypatch.setattr(skipping, "SKIPS_EACH_S", 0.1)
    return SubscribedTopics(kafka)


@pytest.fixture
def lone_topic(make_topic: MakeTopic) -> str:
    return make_topic(1, retention_ms=-1)


def _receive(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        message = subscription.receive(_TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message.offset)
    return found


@pytest.mark.promise("sub-messages-open-subscription")
@pytest.mark.parametrize("kind", SubscriptionType)
def test_what_expires_while_it_is_open_is_acked_and_not_handed_out(
    topics: SubscribedTopics, lone_topic: str, name: str, kind: SubscriptionType
) -> None:
    """Of 30 read ahead 20 expire, five of them out; an ack of one of those comes too late."""
    topics.fill(lone_topic, 30, ages_s=lambda one: 3_600 if one < 20 else 0)
    with Subscription(
        topics.kafka, name, lone_topic, type=kind, position="earliest"
    ) as subscription:
        assert _receive(subscription, 5) == [0, 1, 2, 3, 4]
        topics.policies(lone_topic, TopicPolicies(message_ttl_s=600))
        wait_until(lambda: subscription.stats().messages_expired == 20)
        assert _receive(subscription, 10) == list(range(20, 30))
        assert not subscription.acknowledge(f"{lone_topic}:0:4")
        if kind.takes_cumulative_acks:
            assert subscription.acknowledge_cumulative(f"{lone_topic}:0:3") == 0
        assert subscription.stats().backlog == 10
        # It is stored though nothing was acked by the caller, and says so.
        wait_until(lambda: topics.committed(name, lone_topic) == 20)
        assert subscription.stats().to_document()["totalMsgExpired"] == 20
    with Subscription(
        topics.kafka, name, lone_topic, type=kind, position="earliest"
    ) as subscription:
        assert _receive(subscription, 1) == [20]


@pytest.mark.promise("sub-subscription-reset-messages")
def test_what_it_was_reset_to_is_handed_out_though_its_own_acks_are_newer(
    topics: SubscribedTopics, lone_topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ages that are known are those of stored cursors; its own have moved on since."""
    topics.fill(lone_topic, 30, ages_s=lambda _one: 3_600)
    topics.policies(lone_topic, TopicPolicies(message_ttl_s=600))
    topics.subscribe(name, lone_topic)
    topics.acks(name, lone_topic, (0, 30))
    moves = CursorMoves(topics.surveyor)
    moves.carry_out(moves.plan_reset(name, Edge.EARLIEST))
    looks = 0

    def look(*positional: Any, **named: Any) -> list[DueAck]:
        nonlocal looks
        found = skip_due(*positional, **named)
        looks += 1
        return found

    monkeypatch.setattr(skipping, "skip_due", look)
    stores_late = timedelta(minutes=10)
    with Subscription(
        topics.kafka, name, lone_topic, write_interval=stores_late, position="earliest"
    ) as subscription:
        assert _receive(subscription, 10) == list(range(10))
        subscription.flush()  # what the first message that is out has stored, before it is acked
        subscription.acknowledge_cumulative(f"{lone_topic}:0:9")
        seen = looks
        wait_until(lambda: looks >= seen + 2)
        assert topics.committed(name, lone_topic) == 0
        assert subscription.stats().messages_expired == 0
        assert _receive(subscription, 20) == list(range(10, 30))


@pytest.mark.promise("sub-messages-open-subscription", "sub-quota-evicts-messages")
def test_what_a_quota_evicts_is_copied_and_counted(
    topics: SubscribedTopics, make_topic: MakeTopic, lone_topic: str, name: str
) -> None:
    """Behind what is acked by the caller, and none of that is copied."""
    copies = make_topic(1)
    topics.fill(lone_topic, 100, size=1_000)
    with Subscription(
        topics.kafka, name, lone_topic, evicted_topic=copies, position="earliest"
    ) as subscription:
        for message in _receive(subscription, 10):
            assert subscription.acknowledge(f"{lone_topic}:0:{message}")
        topics.policies(lone_topic, TopicPolicies(backlog_quota=_EVICTS))
        wait_until(lambda: subscription.stats().messages_evicted > 0)
        stats = subscription.stats()
        first = 10 + stats.messages_evicted
        assert stats.backlog == 100 - first
        assert 10 <= stats.backlog <= 20  # below nine tenths of the limit, and no lower than needed
        assert _receive(subscription, 1) == [first]
    # Whoever checks it from now on copies there, too.
    assert topics.surveyor.registry.read().require(name).evicted_topic == copies
    logs = topics.surveyor.survey([copies]).logs
    (log,) = logs.values()
    # A transaction's marker may take an offset as well.
    assert log.end - log.start >= stats.messages_evicted


def test_a_topic_for_copies_that_is_not_there_is_named(
    topics: SubscribedTopics, lone_topic: str, name: str
) -> None:
    with pytest.raises(TopicError, match="no-such-topic"):
        Subscription(
            topics.kafka, name, lone_topic, evicted_topic="no-such-topic", position="earliest"
        )
    assert topics.surveyor.cursors.read(name) is None


def test_a_topic_for_copies_is_not_the_subscriptions_own(
    topics: SubscribedTopics, lone_topic: str, name: str
) -> None:
    with pytest.raises(ValueError, match="would come again"):
        Subscription(topics.kafka, name, lone_topic, evicted_topic=lone_topic, position="earliest")
    assert topics.surveyor.cursors.read(name) is None


def test_receivers_are_told_of_the_end_while_the_checks_wait(
    topics: SubscribedTopics, lone_topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that wait for brokers hold up the end of `close`, and not its beginning."""
    waits, goes_on = threading.Event(), threading.Event()

    def wait(*_: object, **_options: object) -> list[object]:
        waits.set()
        assert goes_on.wait(_TIMEOUT_S)
        return []

    monkeypatch.setattr(skipping, "skip_due", wait)
    subscription = Subscription(topics.kafka, name, lone_topic, position="earliest")
    assert waits.wait(_TIMEOUT_S)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    try:
        with pytest.raises(SubscriptionClosedError):
            subscription.receive(_TIMEOUT_S / 2)
        assert closing.is_alive()
    finally:
        goes_on.set()
        closing.join()


@pytest.mark.promise("sub-messages-open-subscription")
def test_a_failure_of_the_checks_does_not_end_it(
    topics: SubscribedTopics,
    make_topic: MakeTopic,
    lone_topic: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The topic for copies is deleted: nothing is evicted, it is told, receivers go on."""
    copies = make_topic(1)
    topics.fill(lone_topic, 100, size=1_000)
    with (
        caplog.at_level(logging.WARNING, "sequitur.subscription"),
        Subscription(
            topics.kafka, name, lone_topic, evicted_topic=copies, position="earliest"
        ) as subscription,
    ):
        admin = AdminClient(topics.kafka.librdkafka())
        admin.delete_topics([copies])[copies].result(PATIENCE_S)
        topics.policies(lone_topic, TopicPolicies(backlog_quota=_EVICTS))
        wait_until(lambda: copies in caplog.text)
        assert _receive(subscription, 100) == list(range(100))
        assert subscription.stats().messages_evicted == 0


@pytest.mark.promise("sub-clients-threads")
@pytest.mark.parametrize("expires", [False, True])
def test_two_clients_and_two_threads_are_enough(
    topics: SubscribedTopics, lone_topic: str, name: str, expires: bool
) -> None:
    """Of an open one, also while it looks for partitions and for what has expired."""
    topics.fill(lone_topic, 1)
    if expires:
        topics.policies(lone_topic, TopicPolicies(message_ttl_s=3_600))
    where = topics.kafka.bootstrap_servers, topics.kafka.system_prefix
    counted = subprocess.run(
        [sys.executable, "-m", "tests.support.open_and_count", *where, name, lone_topic],
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
    )
    found = json.loads(counted.stdout)
    assert found["looks"] > 10
    assert (found["handles"], found["own"]) == (2, 2)
    assert found["threads"] <= 12
