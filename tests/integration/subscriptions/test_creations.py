"""Subscriptions are created and deleted whole, under names that nobody else has."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sequitur import Subscription
from sequitur.consumer.subscription.admin import SubscriptionAdmin, may_take
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.fenced_writer import FencedWriter
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.retention_run import run_retention
from sequitur.errors import SubscriptionConnectedError, SubscriptionError, SubscriptionExistsError
from tests.support.open_subscriptions import commit, committed, group_commit, places, receive
from tests.support.subscribed_topics import is_group_deleted
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics


@pytest.fixture
def topic(topics: SubscribedTopics, make_topic: MakeTopic) -> str:
    topic = make_topic(1, retention_ms=-1)
    topics.fill(topic, 5)
    return topic


def _open(topics: SubscribedTopics, name: str, topic: str) -> None:
    # One that "dies" in the test's process looks alive until its lease is over.
    lease = timedelta(seconds=1)
    with Subscription(topics.kafka, name, topic, position="earliest", lease=lease):
        pass


def _create(topics: SubscribedTopics, name: str, topic: str) -> None:
    group = group_of_new(topics.kafka, name)
    record = SubscriptionRecord(name, (topic,), _EXCLUSIVE, topics.now_ms, group=group)
    SubscriptionAdmin(topics.surveyor).create(record, at=Edge.EARLIEST, fence=True)


def _delete(topics: SubscribedTopics, name: str, _topic: str) -> None:
    SubscriptionAdmin(topics.surveyor).delete(name, force=True)


@pytest.mark.test_all
@pytest.mark.promise("sub-process-dies-creates")
@pytest.mark.parametrize(
    ("act", "is_there_before"),
    [(_create, False), (_open, False), (_open, True), (_delete, True)],
    ids=["create", "open anew", "open", "delete"],
)
def test_wherever_its_process_dies_it_is_there_whole_or_not_at_all(
    topics: SubscribedTopics,
    topic: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[SubscribedTopics, str, str], None],
    *,
    is_there_before: bool,
) -> None:
    """Before each of its writes, in turn; the next try goes on from what the one before left."""
    write = FencedWriter.write
    if is_there_before:
        topics.subscribe(name, topic)
        topics.acks(name, topic, (0, 2))
    for dies_at in count():
        left, has_died = dies_at, False

        def dies(writer: FencedWriter, *args: Any) -> None:
            nonlocal left
            if threading.current_thread() is threading.main_thread():
                if not left:
                    raise SystemExit
                left -= 1
            write(writer, *args)

        with monkeypatch.context() as patched:
            patched.setattr(FencedWriter, "write", dies)
            try:
                act(topics, name, topic)
            except SystemExit:
                has_died = True
        record = topics.surveyor.registry.read().find(name)
        noted = None if record is None else record.partition
        stored = topics.surveyor.cursors.read(name, partition=noted)
        assert (record is None) == (stored is None)
        assert (record is None) != is_there_before or not has_died
        if not has_died:
            break
    assert dies_at > 1
    with Subscription(topics.kafka, name, topic, position="earliest") as subscription:
        first = 2 if act is _open and is_there_before else 0
        assert places(receive(subscription, 5 - first)) == [(0, n) for n in range(first, 5)]


@pytest.mark.promise("sub-subscription-registered-nothing")
def test_one_of_which_nothing_is_stored_begins_nowhere(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """Its acks are not known: it is named, all is kept for it; a reset says where it goes on."""
    other = f"{name}-other"
    for one in (name, other):
        topics.subscribe(one, topic)
    topics.acks(other, topic, (0, 5))
    with topics.surveyor.cursors.take(name) as owner:
        owner.remove()
    with pytest.raises(SubscriptionError, match=f"'{name}' is registered, but has no stored"):
        Subscription(topics.kafka, name, topic, position="earliest")
    moves = CursorMoves(topics.surveyor)
    with pytest.raises(SubscriptionError, match="has no stored cursors"):
        moves.plan_skip(name, None)
    (finding,) = [one for one in topics.check().findings if one.kind is FindingKind.DAMAGED]
    assert finding.subscription == name
    (plan,) = run_retention(topics.surveyor, [topic]).plans
    assert (plan.after, plan.holder) == (0, name)
    moves.carry_out(moves.plan_reset(name, Edge.LATEST))
    with Subscription(topics.kafka, name, topic) as subscription:
        assert subscription.receive(0.2) is None
    assert run_retention(topics.surveyor, [topic]).records == 5


@pytest.mark.promise("sub-process-dies-creates")
def test_of_two_that_create_one_at_once_the_second_is_told(
    topics: SubscribedTopics, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FencedWriter.write

    def meanwhile(writer: FencedWriter, *args: Any) -> None:
        monkeypatch.undo()
        write(writer, *args)
        with Subscription(topics.kafka, name, topic, position="latest"):
            pass

    monkeypatch.setattr(FencedWriter, "write", meanwhile)
    with pytest.raises(SubscriptionExistsError):
        _create(topics, name, topic)
    assert topics.committed(name, topic) == 5


_EXCLUSIVE = SubscriptionType.EXCLUSIVE


def _refused(topics: SubscribedTopics, name: str, topic: str, error: type[Exception]) -> None:
    """Check that a name is refused to whoever creates or opens it, and to a job."""
    group = group_of_new(topics.kafka, name)
    record = SubscriptionRecord(name, (topic,), _EXCLUSIVE, topics.now_ms, group=group)
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
@pytest.mark.parametrize("is_prefixed", [False, True])
def test_a_group_of_others_with_offsets_keeps_its_name(
    topics: SubscribedTopics, topic: str, name: str, *, is_prefixed: bool
) -> None:
    """Whether it is called as the subscription or as its group would be."""
    group = group_of_new(topics.kafka, name) if is_prefixed else name
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


@pytest.mark.own_broker  # no retention runs on the cluster meanwhile
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
@pytest.mark.parametrize("name", ["subscription-checks", "{}-reader", "{}-"])
def test_names_of_groups_of_sequitur_itself_are_refused(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """The group of the checks has members; and what begins so would be taken for a subscription."""
    _refused(topics, name.format(topics.kafka.system_prefix), topic, SubscriptionError)


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
