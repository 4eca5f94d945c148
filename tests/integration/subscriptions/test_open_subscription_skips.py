"""An open `Subscription` acks by itself what has expired or is evicted; nobody else may."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from sequitur import Subscription, SubscriptionType
from sequitur.consumer.subscription import skipping
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota, TopicPolicies
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.skipping import skip_due
from sequitur.errors import SubscriptionClosedError, TopicError
from tests.support.subscribed_topics import SubscribedTopics, wait_until

if TYPE_CHECKING:
    from sequitur.consumer.subscription.survey import DueAck
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

_TIMEOUT_S = 60.0
_EVICTS = BacklogQuota(20_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)


@pytest.fixture
def topics(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> SubscribedTopics:
    """A registry of this test alone; an open subscription looks at it often."""
    monkeypatch.setattr(skipping, "SKIPS_EACH_S", 0.1)
    return SubscribedTopics(broker.bootstrap_servers)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
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
    topics: SubscribedTopics, topic: str, name: str, kind: SubscriptionType
) -> None:
    """Of 30 read ahead 20 expire, five of them out; an ack of one of those comes too late."""
    topics.fill(topic, 30, ages_s=lambda one: 3_600 if one < 20 else 0)
    with Subscription(topics.kafka, name, topic, type=kind, position="earliest") as subscription:
        assert _receive(subscription, 5) == [0, 1, 2, 3, 4]
        topics.policies(topic, TopicPolicies(message_ttl_s=600))
        wait_until(lambda: subscription.stats().messages_expired == 20)
        assert _receive(subscription, 10) == list(range(20, 30))
        assert not subscription.acknowledge(f"{topic}:0:4")
        if kind.takes_cumulative_acks:
            assert subscription.acknowledge_cumulative(f"{topic}:0:3") == 0
        assert subscription.stats().backlog == 10
        # It is stored though nothing was acked by the caller, and says so.
        wait_until(lambda: topics.committed(name, topic) == 20)
        assert subscription.stats().to_document()["totalMsgExpired"] == 20
    with Subscription(topics.kafka, name, topic, type=kind, position="earliest") as subscription:
        assert _receive(subscription, 1) == [20]


@pytest.mark.promise("sub-subscription-reset-messages")
def test_what_it_was_reset_to_is_handed_out_though_its_own_acks_are_newer(
    topics: SubscribedTopics, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ages that are known are those of stored cursors; its own have moved on since."""
    topics.fill(topic, 30, ages_s=lambda _one: 3_600)
    topics.policies(topic, TopicPolicies(message_ttl_s=600))
    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 30))
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
        topics.kafka, name, topic, write_interval=stores_late, position="earliest"
    ) as subscription:
        assert _receive(subscription, 10) == list(range(10))
        subscription.flush()  # what the first message that is out has stored, before it is acked
        subscription.acknowledge_cumulative(f"{topic}:0:9")
        seen = looks
        wait_until(lambda: looks >= seen + 2)
        assert topics.committed(name, topic) == 0
        assert subscription.stats().messages_expired == 0
        assert _receive(subscription, 20) == list(range(10, 30))


@pytest.mark.promise("sub-messages-open-subscription", "sub-quota-evicts-messages")
def test_what_a_quota_evicts_is_copied_and_counted(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str, name: str
) -> None:
    """Behind what is acked by the caller, and none of that is copied."""
    copies = make_topic(1)
    topics.fill(topic, 100, size=1_000)
    with Subscription(
        topics.kafka, name, topic, evicted_topic=copies, position="earliest"
    ) as subscription:
        for message in _receive(subscription, 10):
            assert subscription.acknowledge(f"{topic}:0:{message}")
        topics.policies(topic, TopicPolicies(backlog_quota=_EVICTS))
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
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    with pytest.raises(TopicError, match="no-such-topic"):
        Subscription(topics.kafka, name, topic, evicted_topic="no-such-topic", position="earliest")
    assert topics.surveyor.cursors.read(name) is None


def test_a_topic_for_copies_is_not_the_subscriptions_own(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    with pytest.raises(ValueError, match="would come again"):
        Subscription(topics.kafka, name, topic, evicted_topic=topic, position="earliest")
    assert topics.surveyor.cursors.read(name) is None


def test_receivers_are_told_of_the_end_while_the_checks_wait(
    topics: SubscribedTopics, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that wait for brokers hold up the end of `close`, and not its beginning."""
    waits, goes_on = threading.Event(), threading.Event()

    def wait(*_: object, **_options: object) -> list[object]:
        waits.set()
        assert goes_on.wait(_TIMEOUT_S)
        return []

    monkeypatch.setattr(skipping, "skip_due", wait)
    subscription = Subscription(topics.kafka, name, topic, position="earliest")
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
    topic: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The topic for copies is deleted: nothing is evicted, it is told, receivers go on."""
    copies = make_topic(1)
    topics.fill(topic, 100, size=1_000)
    with (
        caplog.at_level(logging.WARNING, "sequitur.subscription"),
        Subscription(
            topics.kafka, name, topic, evicted_topic=copies, position="earliest"
        ) as subscription,
    ):
        admin = AdminClient(topics.kafka.librdkafka())
        admin.delete_topics([copies])[copies].result(30)
        topics.policies(topic, TopicPolicies(backlog_quota=_EVICTS))
        wait_until(lambda: copies in caplog.text)
        assert _receive(subscription, 100) == list(range(100))
        assert subscription.stats().messages_evicted == 0


@pytest.mark.promise("sub-clients-threads")
@pytest.mark.parametrize("expires", [False, True])
def test_two_clients_and_two_threads_are_enough(
    topics: SubscribedTopics, topic: str, name: str, expires: bool
) -> None:
    """Of an open one, also while it looks for partitions and for what has expired."""
    topics.fill(topic, 1)
    if expires:
        topics.policies(topic, TopicPolicies(message_ttl_s=3_600))
    servers = topics.kafka.bootstrap_servers
    counted = subprocess.run(
        [sys.executable, "-m", "tests.support.open_and_count", servers, name, topic],
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
    )
    found = json.loads(counted.stdout)
    assert found["looks"] > 10
    assert (found["handles"], found["own"]) == (2, 2)
    assert found["threads"] <= 12
