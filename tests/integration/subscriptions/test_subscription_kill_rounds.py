"""`kill -9` of a receiver at any moment, again and again: stored acks hold, and nothing is lost.

The process acks at random, fails some messages, and says which acks are stored. What fails too
often is a dead letter. After the last round a receiver in the test's own process gets all that is
left; nothing is missing, and what was out is known to have been.

`SEQUITUR_KILL_ROUNDS=50` runs more rounds, and `SEQUITUR_KILL_SEED` chooses other moments.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from sequitur import Position, Subscription, SubscriptionType
from sequitur.cli.dead_letters import DeadLetter
from sequitur.cli.topic_reader import read_topic
from tests.support.subscription_process import SubscriptionProcess
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_ROUNDS = max(1, int(os.environ.get("SEQUITUR_KILL_ROUNDS", "4")))
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_PARTITIONS = 3
_KEYS = 20
_NEW_EACH_ROUND = 600
_LONGEST_S = 0.6
_TIMEOUT_S = PATIENCE_S


@pytest.mark.promise("sub-message-open-subscription")
@pytest.mark.parametrize("type_", [SubscriptionType.EXCLUSIVE, SubscriptionType.KEY_SHARED])
def test_stored_acks_outlive_kill(
    kafka: KafkaSettings, make_topic: MakeTopic, type_: SubscriptionType
) -> None:
    """What is stored as acked never comes in a later life; what is not acked does come."""
    topic, letters = make_topic(_PARTITIONS), make_topic(1)
    name = f"kill-{uuid.uuid4().hex[:8]}"
    random, client = Random(_SEED), Producer(kafka.librdkafka())
    written: set[Position] = set()
    acked: set[Position] = set()
    stored: set[Position] = set()
    out: set[Position] = set()
    ends = dict.fromkeys(range(_PARTITIONS), 0)
    for life in range(_ROUNDS):
        for number in range(_NEW_EACH_ROUND):
            key = number % _KEYS
            partition = key % _PARTITIONS
            client.produce(topic, b"%d" % number, b"%d" % key, partition)
            written.add(Position(partition, ends[partition], topic))
            ends[partition] += 1
        assert client.flush(_TIMEOUT_S) == 0
        process = SubscriptionProcess(kafka, name, topic, type_, life, letters)
        try:
            before = len(stored)
            process.wait_for(lambda one: len(one.stored) > 0)
            _wait_for_a_letter(kafka, letters, is_asked=life == _ROUNDS - 1)
            time.sleep(random.uniform(0, _LONGEST_S))
        finally:
            process.kill()
        assert process.end == ""
        assert not stored & set(process.received), f"life {life}: stored acks came again"
        acked |= process.acked
        stored |= process.stored
        out = process.out
        assert len(stored) > before
    left: dict[Position, int] = {}
    with Subscription(kafka, name, topic, type=type_, position="earliest") as subscription:
        backlog = subscription.stats().backlog
        while len(left) < backlog:
            message = subscription.receive(_TIMEOUT_S)
            assert message is not None, f"{len(left)} of {backlog} came"
            left[message.position] = message.redelivery_count
            assert subscription.acknowledge(message)
        assert subscription.receive(0.5) is None
        assert subscription.stats().backlog == 0
    assert not left.keys() & stored
    # What was out at the last write counts: it is known to have come before.
    assert out
    assert all(left[one] > 0 for one in out & left.keys())
    # A kill between a letter and its ack repeats the letter, and no more than that.
    dead = Counter(
        Position(one.source.partition, one.source.offset, one.source.topic)
        for one in map(DeadLetter.of, read_topic(kafka, letters))
    )
    assert dead
    assert dead.total() <= len(dead) * 2
    assert dead.keys() <= written
    # Some acks are stored without its having said so: the kill came first.
    assert stored <= acked <= written
    assert written - left.keys() - dead.keys() <= acked, "lost"


def _wait_for_a_letter(kafka: KafkaSettings, letters: str, *, is_asked: bool) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while is_asked and not list(read_topic(kafka, letters)):
        assert time.monotonic() < deadline, "nothing failed too often"
