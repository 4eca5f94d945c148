"""A subscription is created and deleted whole, wherever its process dies, on a real broker."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest

from sequitur import Subscription
from sequitur.consumer.subscription.admin import SubscriptionAdmin
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.fenced_writer import FencedWriter
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType
from sequitur.consumer.subscription.retention_run import run_retention
from sequitur.errors import SubscriptionError, SubscriptionExistsError
from tests.support.open_subscriptions import places, receive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.subscription.fenced_writer import TopicWrite
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
    record = SubscriptionRecord(name, (topic,), SubscriptionType.EXCLUSIVE, topics.now_ms)
    SubscriptionAdmin(topics.surveyor).create(record, at=Edge.EARLIEST, fence=True)


def _delete(topics: SubscribedTopics, name: str, _topic: str) -> None:
    SubscriptionAdmin(topics.surveyor).delete(name, force=True)


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

        def dies(writer: FencedWriter, records: Iterable[TopicWrite]) -> None:
            nonlocal left
            if threading.current_thread() is threading.main_thread():
                if not left:
                    raise SystemExit
                left -= 1
            write(writer, records)

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
    with pytest.raises(SubscriptionError, match=f"'{name}' is registered, and nothing is stored"):
        Subscription(topics.kafka, name, topic, position="earliest")
    moves = CursorMoves(topics.surveyor)
    with pytest.raises(SubscriptionError, match="nothing is stored of it"):
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

    def meanwhile(writer: FencedWriter, records: Iterable[TopicWrite]) -> None:
        monkeypatch.undo()
        write(writer, records)
        with Subscription(topics.kafka, name, topic, position="latest"):
            pass

    monkeypatch.setattr(FencedWriter, "write", meanwhile)
    with pytest.raises(SubscriptionExistsError):
        _create(topics, name, topic)
    assert topics.committed(name, topic) == 5
