"""Names that a subscription may have, on a real broker: what others have they keep."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sequitur import Subscription
from sequitur.consumer.subscription.admin import SubscriptionAdmin
from sequitur.consumer.subscription.names import may_take
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType
from sequitur.errors import SubscriptionConnectedError, SubscriptionError, SubscriptionExistsError
from tests.support.open_subscriptions import commit, committed, group_commit
from tests.support.subscribed_topics import is_group_deleted, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics

_EXCLUSIVE = SubscriptionType.EXCLUSIVE


@pytest.fixture
def topic(topics: SubscribedTopics, make_topic: MakeTopic) -> str:
    topic = make_topic(1, retention_ms=-1)
    topics.fill(topic, 5)
    return topic


def _refused(topics: SubscribedTopics, name: str, topic: str, error: type[Exception]) -> None:
    """Check that a name is refused to whoever creates or opens it, and to a job."""
    record = SubscriptionRecord(name, (topic,), _EXCLUSIVE, topics.now_ms)
    for take in (
        lambda: SubscriptionAdmin(topics.surveyor).create(record, at=Edge.LATEST),
        lambda: Subscription(topics.kafka, name, topic, position="latest"),
        lambda: may_take(topics.surveyor, name, _EXCLUSIVE, [topic], grows=True),
    ):
        with pytest.raises(error, match=name):
            take()
    assert topics.surveyor.registry.read().find(name) is None
    assert topics.surveyor.cursors.read(name) is None


@pytest.mark.promise("sub-subscription-created-opened")
@pytest.mark.parametrize("prefix", ["", "sequitur-"])
def test_a_group_of_others_with_offsets_keeps_its_name(
    topics: SubscribedTopics, topic: str, name: str, prefix: str
) -> None:
    """Whether it is called as the subscription or as its group would be."""
    group = f"{prefix}{name}"
    commit(topics.kafka, group, TopicPartition(topic, 0, 3))
    _refused(topics, name, topic, SubscriptionExistsError)
    assert group_commit(topics.kafka, group, topic).offset == 3


@pytest.mark.promise("sub-subscription-created-opened")
def test_a_live_group_of_others_keeps_its_partitions(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """Its member would lose them to the subscription."""
    options = {"group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with closing(Consumer({**topics.kafka.librdkafka(), **options})) as member:
        member.subscribe([topic])
        wait_until(lambda: member.poll(0.1) is not None)
        _refused(topics, name, topic, SubscriptionConnectedError)
        member.poll(0.5)
        assert member.assignment() == [TopicPartition(topic, 0)]


@pytest.mark.promise("sub-subscription-created-opened")
def test_a_share_group_keeps_its_name(topics: SubscribedTopics, topic: str, name: str) -> None:
    shares = ShareConsumer({**topics.kafka.librdkafka(), "group.id": name})
    shares.subscribe([topic])
    try:
        wait_until(lambda: (shares.poll(0.1), name in topics.surveyor.groups.kinds())[1])
        _refused(topics, name, topic, SubscriptionExistsError)
    finally:
        shares.close()
        admin = AdminClient(topics.kafka.librdkafka())
        wait_until(lambda: is_group_deleted(admin, name))


@pytest.mark.promise("sub-subscription-created-opened")
@pytest.mark.parametrize("name", ["subscription-checks", "sequitur-reader", "sequitur-"])
def test_names_of_groups_of_sequitur_itself_are_refused(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """The group of the checks has members; and what begins so would be taken for a subscription."""
    _refused(topics, name, topic, SubscriptionError)


@pytest.mark.promise("sub-subscription-created-opened")
def test_a_subscription_of_another_kind_or_topic_keeps_its_name(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str, name: str
) -> None:
    """A job may add topics, and leave out those that are gone."""
    other = make_topic(1)
    topics.subscribe(name, topic, other)

    def take(kind: SubscriptionType, *wanted: str, grows: bool = False) -> bool:
        found = may_take(topics.surveyor, name, kind, wanted, grows=grows)
        return found is not None

    assert take(_EXCLUSIVE, other, topic)
    for kind, *wanted in (
        (SubscriptionType.SHARED, topic, other),
        (_EXCLUSIVE, topic),
        (_EXCLUSIVE, topic, other, "third"),
    ):
        with pytest.raises(SubscriptionError, match="open it as it is, or delete it first"):
            take(kind, *wanted)
    assert take(_EXCLUSIVE, topic, other, "third", grows=True)
    with pytest.raises(SubscriptionError, match="open it as it is"):
        take(_EXCLUSIVE, topic, "third", grows=True)
    topics.surveyor.topics.partitions = lambda topic: None if topic == other else 1  # type: ignore[method-assign]
    assert take(_EXCLUSIVE, topic, "third", grows=True)


@pytest.mark.promise("sub-process-dies-creates")
def test_a_deletion_that_left_its_groups_offsets_leaves_the_name_free(
    topics: SubscribedTopics, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def dies(_group: str) -> None:
        raise SystemExit

    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 4))
    assert committed(topics.kafka, name, topic) == 4
    with monkeypatch.context() as patched:
        patched.setattr(topics.surveyor.groups, "delete", dies)
        with pytest.raises(SystemExit):
            SubscriptionAdmin(topics.surveyor).delete(name, force=True)
    assert committed(topics.kafka, name, topic) == 4
    assert may_take(topics.surveyor, name, _EXCLUSIVE, [topic]) is None
