"""An open `Subscription` that another process, a command or a fork takes over says so."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sequitur import Subscription, SubscriptionType
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    SubscriptionClosedError,
    SubscriptionConnectedError,
    SubscriptionFencedError,
)
from tests.support.open_subscriptions import (
    TIMEOUT_S,
    committed,
    fill,
    places,
    receive,
)
from tests.support.subscription_process import SubscriptionProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic

_SHORT = timedelta(seconds=3)
"""A lease that is renewed each second."""
_CALLS = 6
"""That `_refused_calls` makes."""
_FENCED = 7
"""The status of a process that finds its subscription taken over."""


def test_reset_that_was_not_noted(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Cursors of a new epoch count; the registry names it once the subscription is opened."""
    topic = make_topic(1)
    fill(kafka, topic, 3)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        subscription.acknowledge_cumulative("0:2")
    with CursorStore(kafka).take(name) as owner:
        cursor = Cursor(CursorIdentity(name, topic, 0), start=1)
        owner.write(SubscriptionState(epoch=1, written_ms=7), [PartitionCursor(cursor)])
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        assert places(receive(subscription, 2)) == [(0, 1), (0, 2)]
    record = RegistryStore(kafka).read().require(name)
    assert (record.epoch, record.reset_ms) == (1, 7)


def test_each_call_tells_of_a_takeover(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Whoever opens it again has it: the first is told by every call, and its acks are void."""
    topic = make_topic(1)
    fill(kafka, topic, 10)
    first = Subscription(kafka, name, topic, type="Failover", position="earliest")
    messages = receive(first, 10)
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
    with Subscription(kafka, name, topic, type="Failover", take_over=True) as second:
        assert places(receive(second, 9)) == [(0, offset) for offset in range(1, 10)]
        first.acknowledge(messages[1])
        with pytest.raises(SubscriptionFencedError, match="was taken over by another process"):
            first.flush(TIMEOUT_S)
        thread.join(TIMEOUT_S)
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
    first = Subscription(kafka, name, topic, position="earliest", lease=_SHORT)
    with (
        Subscription(kafka, name, topic, take_over=True),
        pytest.raises(SubscriptionFencedError),
    ):
        first.receive(TIMEOUT_S)
    first.close()


def test_takeover_by_a_second_process(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A process that is taken over from ends by the error; what it has stored does not come."""
    topic = make_topic(2)
    fill(kafka, topic, 400, partitions=2)
    failover = SubscriptionType.FAILOVER
    first = SubscriptionProcess(kafka, name, topic, failover, 1)
    first.wait_for(lambda one: len(one.stored) > 20)
    second = SubscriptionProcess(kafka, name, topic, failover, 2, take_over=True)
    first.wait_for(lambda one: one.end == "fenced")
    second.wait_for(lambda one: len(one.stored) > 20)
    for process in (first, second):
        process.kill()
    assert not first.stored & set(second.received)
    assert not first.stored & second.stored


@pytest.mark.promise("sub-subscription-reset-skipped")
def test_who_has_a_subscription_that_a_command_resets_is_told_so(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """The next owner begins at the messages that are to come again."""
    topic = make_topic(1)
    fill(kafka, topic, 5)
    subscription = Subscription(kafka, name, topic, position="earliest")
    receive(subscription, 5)
    subscription.acknowledge_cumulative("0:4")
    subscription.flush()
    moves = CursorMoves(Surveyor(kafka))
    moves.carry_out(moves.plan_reset(name, Edge.EARLIEST), fence=True)
    with pytest.raises(SubscriptionFencedError):
        subscription.receive(TIMEOUT_S)
    subscription.close()
    with Subscription(kafka, name, topic) as subscription:
        assert places(receive(subscription, 5)) == [(0, offset) for offset in range(5)]


@pytest.mark.promise("sub-subscription-opened-process")
@pytest.mark.parametrize("type_", [SubscriptionType.EXCLUSIVE, SubscriptionType.KEY_SHARED])
def test_another_is_refused_while_it_is_held(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, type_: SubscriptionType
) -> None:
    """The one that has it is not disturbed, and once it ends the next one waits for nothing."""
    topic = make_topic(1)
    fill(kafka, topic, 2)
    with Subscription(kafka, name, topic, type=type_, position="earliest", lease=_SHORT) as first:
        with pytest.raises(SubscriptionConnectedError, match=r"has a consumer .* process"):
            Subscription(kafka, name, topic, type=type_)
        assert first.acknowledge(receive(first, 1)[0])
        first.flush()
    with Subscription(kafka, name, topic, type=type_) as second:
        assert places(receive(second, 1)) == [(0, 1)]


@pytest.mark.promise("sub-subscription-opened-process")
def test_failover_waits_until_the_one_before_it_ends(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """By its close or, as here, its death, which is known at once on one machine."""
    topic = make_topic(1)
    fill(kafka, topic, 100)
    failover = SubscriptionType.FAILOVER
    first = SubscriptionProcess(kafka, name, topic, failover, 1)
    first.wait_for(lambda one: len(one.stored) > 20)
    second = SubscriptionProcess(kafka, name, topic, failover, 2)
    stored = len(first.stored)
    first.wait_for(lambda one: len(one.stored) > stored)
    assert second.received == []
    first.kill()
    assert first.end == ""
    second.wait_for(lambda one: len(one.received) > 0)
    second.kill()
    assert not first.stored & set(second.received)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_has_nothing_of_it(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """It has no thread that would write its acks: it is told so, and the parent goes on."""
    topic = make_topic(1)
    fill(kafka, topic, 3)
    with Subscription(kafka, name, topic, position="earliest") as subscription:
        receive(subscription, 1)
        child = os.fork()
        if child == 0:
            os._exit(_refused_calls(subscription))
        assert os.waitpid(child, 0)[1] >> 8 == _CALLS
        assert [one.offset for one in receive(subscription, 2)] == [1, 2]
        subscription.acknowledge_cumulative("0:2")
        wait_until(lambda: committed(kafka, name, topic) == 3)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_beside_one_that_was_taken_over_lives(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Its error keeps what librdkafka has opened, and to let go of that ends a forked process."""
    topic = make_topic(1)
    fill(kafka, topic, 3)
    former = Subscription(kafka, name, topic, position="earliest", lease=_SHORT)
    with Subscription(kafka, name, topic, take_over=True):
        with pytest.raises(SubscriptionFencedError):
            receive(former, _CALLS)  # more than there are
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
