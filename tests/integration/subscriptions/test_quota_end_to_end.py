"""A backlog quota from end to end: checks in a process, a producer in another, a broker between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota, TopicPolicies
from sequitur.errors import BacklogQuotaError
from sequitur.producer import IdempotentProducer, Persisted, ProducerSettings
from tests.support.waiting import PATIENCE_S, until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.producer.quota import QuotaStatistics
    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics

_LIMIT = 50_000
_EVENT = Random(1).randbytes(1_000)  # does not get smaller
_POLL_S = 0.02
_CHECKS_OF_THEIR_OWN = """
import sys
from sequitur.consumer.subscription.led_checks import watch
from sequitur.producer import KafkaSettings
kafka = KafkaSettings(bootstrap_servers=sys.argv[1], system_prefix=sys.argv[2])
watch(kafka, tell=bool, valid_for_ms=4_000)
"""
"""What `sequitur subscription maintain` runs, with states that are stale soon."""


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(1, retention_ms=-1)


@contextlib.contextmanager
def _process(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program beside the test; it ends with it."""
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environ})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _watching(topics: SubscribedTopics) -> Iterator[None]:
    """Have `sequitur subscription maintain` run beside the test."""
    with _process("-m", "sequitur", "subscription", "maintain", **topics.environ) as process:
        yield
        assert process.poll() is None


def _limit(
    topics: SubscribedTopics, topic: str, policy: BacklogPolicy, *subscriptions: str
) -> None:
    for name in subscriptions:
        topics.subscribe(name, topic)
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(_LIMIT, None, policy)))


def _producer(topics: SubscribedTopics, **settings: Any) -> IdempotentProducer:
    given = ProducerSettings(backlog_quota=True, **settings)
    return IdempotentProducer(topics.kafka, given)


def _quota(producer: IdempotentProducer) -> QuotaStatistics:
    quota = producer.statistics().quota
    assert quota is not None
    return quota


async def _send(producer: IdempotentProducer, topic: str) -> int:
    outcome = await (await producer.send(topic, _EVENT))
    assert isinstance(outcome, Persisted)
    assert outcome.offset is not None
    return outcome.offset


async def _send_until_held(producer: IdempotentProducer, topic: str) -> asyncio.Task[int]:
    """Send events until one waits for the quota; return that one."""
    before = _quota(producer).held
    while True:
        sending = asyncio.create_task(_send(producer, topic))
        await until(lambda: sending.done() or _quota(producer).held > before)  # noqa: B023 - awaited here
        if not sending.done():
            return sending
        await sending


async def _send_until_refused(producer: IdempotentProducer, topic: str) -> BacklogQuotaError:
    while True:
        try:
            await _send(producer, topic)
        except BacklogQuotaError as error:
            return error


@pytest.mark.test_all
@pytest.mark.promise("sub-checks-made-process")
async def test_sends_wait_for_a_cursor(topics: SubscribedTopics, topic: str) -> None:
    """Until it moves; and one that has waited for its time raises."""
    _limit(topics, topic, BacklogPolicy.PRODUCER_REQUEST_HOLD, "slow")
    with _watching(topics):
        async with _producer(topics) as producer:
            held = await _send_until_held(producer, topic)
            async with _producer(topics, delivery_timeout=timedelta(seconds=1)) as hasty:
                error = await _send_until_refused(hasty, topic)
            assert "also after a wait" in str(error)
            assert error.state.subscription == "slow"
            assert not held.done()
            end = producer.statistics().accepted + hasty.statistics().accepted
            assert end * len(_EVENT) > _LIMIT
            await asyncio.to_thread(topics.acks, "slow", topic, (0, end))
            assert await held == end
            await _send(producer, topic)


@pytest.mark.promise("sub-checks-made-process")
async def test_sends_are_refused_until_acks_make_room(topics: SubscribedTopics, topic: str) -> None:
    _limit(topics, topic, BacklogPolicy.PRODUCER_EXCEPTION, "quick", "slow")
    with _watching(topics):
        async with _producer(topics) as producer:
            error = await _send_until_refused(producer, topic)
            state, end = error.state, producer.statistics().accepted
            assert state.limit_bytes == _LIMIT
            assert state.backlog_bytes is not None
            assert state.backlog_bytes >= _LIMIT
            assert (state.policy, _quota(producer).held) == ("producer_exception", 0)
            await asyncio.to_thread(topics.acks, "quick", topic, (0, end))
            with pytest.raises(BacklogQuotaError):
                await producer.send(topic, _EVENT)
            await asyncio.to_thread(topics.acks, "slow", topic, (0, end))
            await producer.wait_for_quota(topic)
            assert await _send(producer, topic) == end


@pytest.mark.test_all
@pytest.mark.promise("sub-checks-made-process")
async def test_the_slowest_cursor_makes_way(topics: SubscribedTopics, topic: str) -> None:
    """The backlog falls below nine tenths, nobody else's cursor moves, and no send waits."""
    _limit(topics, topic, BacklogPolicy.CONSUMER_BACKLOG_EVICTION, "quick", "slow")
    async with _producer(topics) as producer:
        sent = [await _send(producer, topic) for _ in range(100)]
        await asyncio.to_thread(topics.acks, "quick", topic, (0, 90))
        with _watching(topics):
            told = asyncio.create_task(
                asyncio.to_thread(wait_until, lambda: topics.told(topic) is not None)
            )
            while not told.done():
                sent.append(await _send(producer, topic))
                await asyncio.sleep(_POLL_S)
            await told
        assert sent == list(range(len(sent)))
        assert (_quota(producer).held, _quota(producer).refused) == (0, 0)
    state = topics.told(topic)
    assert state is not None
    assert state.policy is None
    slow = topics.committed("slow", topic)
    assert slow is not None
    # Nine tenths of the limit have room for 45 events at most, and at least 100 were there.
    assert 100 - 45 < slow <= len(sent)
    assert (topics.committed("quick", topic) or 0) == max(90, slow)


@pytest.mark.test_all
@pytest.mark.promise("sub-checks-made-process")
async def test_sends_go_on_when_the_checks_are_killed(topics: SubscribedTopics, topic: str) -> None:
    """Once what they said last is stale, though nobody has acked anything.

    Those of a producer that starts meanwhile, too: what it finds counts from then on.
    """
    _limit(topics, topic, BacklogPolicy.PRODUCER_REQUEST_HOLD, "slow")
    where = topics.kafka.bootstrap_servers, topics.kafka.system_prefix
    with _process("-c", _CHECKS_OF_THEIR_OWN, *where) as checks:
        async with _producer(topics) as producer:
            held = await _send_until_held(producer, topic)
            checks.kill()
            checks.wait()
            state = await asyncio.to_thread(topics.told, topic)
            assert state is not None
            assert state.policy == "producer_request_hold"
            begun_s = time.monotonic()
            async with _producer(topics) as starting:
                await asyncio.gather(held, await _send_until_held(starting, topic))
            assert time.monotonic() - begun_s > state.valid_for_ms / 2_000
            await _send(producer, topic)
