"""Two installations on one cluster: each acts for its own subscriptions, and keeps the other's."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    Retention,
    TopicPolicies,
)
from sequitur.consumer.subscription.retention import Holder
from sequitur.consumer.subscription.retention_run import run_retention
from sequitur.errors import BacklogQuotaError
from sequitur.kafka.control import control_topic
from sequitur.producer import IdempotentProducer, Persisted, ProducerSettings
from tests.support.subscribed_topics import SubscribedTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeTopic

pytestmark = pytest.mark.promise("sub-two-installations-share")


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(1, retention_ms=-1)


@pytest.fixture
def others(topics: SubscribedTopics, make_system_prefix: Callable[[], str]) -> SubscribedTopics:
    """Another installation."""
    another = {"system_prefix": make_system_prefix()}
    return SubscribedTopics(topics.kafka.model_copy(update=another))


def _both(topics: SubscribedTopics, others: SubscribedTopics, topic: str) -> None:
    """Let each have a subscription `billing`: of ten messages one has acked all, the other four."""
    topics.fill(topic, 10)
    for installation, stop in ((topics, 10), (others, 4)):
        installation.subscribe("billing", topic)
        installation.acks("billing", topic, (0, stop))


def test_retention_keeps_what_the_other_has_not_acked(
    topics: SubscribedTopics, others: SubscribedTopics, topic: str
) -> None:
    """Whatever is said of other groups; each deletes what both have acked."""
    _both(topics, others, topic)
    run = run_retention(topics.surveyor, [topic], despite_other_groups=True)
    (plan,) = run.plans
    group = f"{others.kafka.system_prefix}-billing"
    assert (plan.after, plan.held_by, plan.holder) == (4, Holder.SUBSCRIPTION, group)
    assert topics.start_of(topic) == 4
    others.acks("billing", topic, (4, 7))
    assert run_retention(others.surveyor, [topic]).records == 3
    assert run_retention(topics.surveyor, [topic]).records == 0


def test_one_that_has_no_cursor_yet_holds_everything(
    topics: SubscribedTopics, others: SubscribedTopics, topic: str
) -> None:
    """No consumer group tells of it."""
    topics.fill(topic, 10)
    topics.subscribe("billing", topic)
    topics.acks("billing", topic, (0, 10))
    others.subscribe("new", topic)
    (plan,) = run_retention(topics.surveyor, [topic], despite_other_groups=True).plans
    assert (plan.records, plan.holder) == (0, f"{others.kafka.system_prefix}-new")


def test_the_others_retention_is_kept_to(
    topics: SubscribedTopics, others: SubscribedTopics, topic: str
) -> None:
    """As long as it has a subscription on the topic."""
    _both(topics, others, topic)
    others.policies(topic, TopicPolicies(retention=Retention(-1, -1)))
    (plan,) = run_retention(topics.surveyor, [topic]).plans
    assert (plan.records, plan.held_by) == (0, Holder.RETENTION)


@pytest.mark.own_broker  # no retention runs on the cluster meanwhile
def test_a_record_of_the_other_that_cannot_be_read_refuses_all(
    topics: SubscribedTopics, others: SubscribedTopics, topic: str
) -> None:
    topics.fill(topic, 10)
    topics.subscribe("billing", topic)
    topics.acks("billing", topic, (0, 10))
    others.surveyor.registry.ensure()
    writer = FencedWriter(topics.kafka, f"{topic}-writes", name="a newer version")
    where, key = control_topic(others.kafka), json.dumps(["subscription", "new"]).encode()
    try:
        writer.write([TopicWrite(where, 0, key, b'{"format":99}')])
        run = run_retention(topics.surveyor, [topic])
        assert run.records == 0
        assert f"'{others.kafka.system_prefix}-new' may be on it" in run.refusals[0].sentence
    finally:
        writer.write([TopicWrite(where, 0, key, None)])
        writer.close()
    assert run_retention(topics.surveyor, [topic]).records == 10


def test_an_eviction_moves_no_cursor_of_the_other(
    topics: SubscribedTopics, others: SubscribedTopics, topic: str
) -> None:
    """Nor does what expires, or a deletion of who has its name."""
    topics.fill(topic, 100, size=1_000, ages_s=lambda _one: 60)
    for installation in (topics, others):
        installation.subscribe("slow", topic)
        installation.acks("slow", topic, (0, 1))
    quota = BacklogQuota(50_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(topic, TopicPolicies(quota, message_ttl_s=3_600))
    (evicted,) = topics.check().acked
    assert evicted.stop > 1
    assert (topics.committed("slow", topic), others.committed("slow", topic)) == (evicted.stop, 1)
    topics.check(after_s=7_200)
    assert (topics.committed("slow", topic), others.committed("slow", topic)) == (100, 1)
    topics.policies(topic, TopicPolicies(subscription_expiration_time_minutes=1))
    for passed_s, expired in ((0.0, ()), (60.0, ("slow",))):
        topics.passed_s += passed_s
        assert topics.check(after_s=7_200).expired == expired
    assert others.committed("slow", topic) == 1
    assert list(others.surveyor.registry.read().subscriptions) == ["slow"]
    assert not any(one.has_limit for one in others.check().quotas)


async def test_a_producer_hears_its_own_installation_only(
    topics: SubscribedTopics, others: SubscribedTopics, make_topic: MakeTopic, topic: str
) -> None:
    """What the first says of the topic holds its producers, and no other's."""
    quota = TopicPolicies(backlog_quota=BacklogQuota(100, None, BacklogPolicy.PRODUCER_EXCEPTION))
    another_topic = make_topic(1)
    for installation, limited in ((topics, topic), (others, another_topic)):
        installation.fill(limited, 10)
        installation.subscribe("slow", topic, another_topic)
        installation.policies(limited, quota)
        await asyncio.to_thread(installation.check)
    settings = ProducerSettings(backlog_quota=True)
    async with (
        IdempotentProducer(topics.kafka, settings) as producer,
        IdempotentProducer(others.kafka, settings) as another,
    ):
        await _refused(producer, topic)
        await _refused(another, another_topic)  # it has read all that was said before
        assert isinstance(await (await another.send(topic, b"{}")), Persisted)
        assert isinstance(await (await producer.send(another_topic, b"{}")), Persisted)


async def _refused(producer: IdempotentProducer, topic: str) -> None:
    """Wait until a producer refuses events for a topic."""
    while True:
        try:
            await (await producer.send(topic, b"{}"))
        except BacklogQuotaError:
            return
