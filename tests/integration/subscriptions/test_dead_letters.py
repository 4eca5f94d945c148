"""Messages that fail again and again: counted over lives, and dead letters in the end."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from sequitur import Subscription
from sequitur.cli.dead_letters import DeadLetter
from sequitur.cli.topic_reader import read_topic
from sequitur.errors import TopicError
from tests.support.open_subscriptions import SOON, TIMEOUT_S, fill, receive
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic


@pytest.mark.promise("sub-message-open-subscription")
def test_one_that_fails_too_often_is_a_dead_letter(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """The letter says where it was and how often it failed; others are acked as ever."""
    topic, letters = make_topic(1), make_topic(1)
    fill(kafka, topic, 6, keys=2)
    opened = partial(
        Subscription, kafka, name, topic, type="Key_Shared", negative_ack_backoff=SOON,
        max_redeliver_count=2, dead_letter_topic=letters, position="earliest",
    )  # fmt: skip
    counts: list[int] = []
    with opened() as subscription:
        while subscription.stats().backlog:
            for message in subscription.receive_many(10, 0.1):
                if message.offset == 2:
                    counts.append(message.redelivery_count)
                    assert subscription.negative_acknowledge(message)
                else:
                    assert subscription.acknowledge(message)
        assert subscription.stats().dead_letters == 1
        assert subscription.stats().to_document()["msgBacklog"] == 0
    assert counts == [0, 1, 2]
    (letter,) = map(DeadLetter.of, read_topic(kafka, letters))
    assert letter.source == (topic, 0, 2)
    assert (letter.subscription, letter.reason, letter.attempts) == (name, "failed", 3)
    assert (letter.key, letter.value, letter.headers) == (b"key-0", b"2", ())
    with opened() as subscription:
        assert subscription.receive(0.2) is None


@pytest.mark.promise("sub-message-open-subscription")
def test_deliveries_are_counted_over_lives(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """What was out when a process ended counts once more; what it had not received does not."""
    topic, letters = make_topic(1), make_topic(1)
    fill(kafka, topic, 5)
    opened = partial(
        Subscription, kafka, name, topic, max_redeliver_count=1, dead_letter_topic=letters,
        position="earliest", negative_ack_backoff=SOON,
    )  # fmt: skip
    for life in range(2):
        with opened() as subscription:
            found = receive(subscription, 2)
            assert [(one.offset, one.redelivery_count) for one in found] == [(0, life), (1, life)]
    with opened() as subscription:
        found = receive(subscription, 3)
        assert [(one.offset, one.redelivery_count) for one in found] == [(2, 0), (3, 0), (4, 0)]
        wait_until(lambda: subscription.stats().dead_letters == 2)
        assert subscription.stats().cursors[topic, 0].mark_delete == 1
    dead = list(map(DeadLetter.of, read_topic(kafka, letters)))
    assert [(one.source.offset, one.reason) for one in dead] == [(0, "crash"), (1, "crash")]


@pytest.mark.promise("sub-dead-letters-subscription")
def test_letter_that_is_refused_is_written_later(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Too large for its topic: its message is not acked until it is there; others go on."""
    topic, letters = make_topic(1), make_topic(1)
    fill(kafka, topic, 3)
    _limit(kafka, letters, 80)
    with (
        caplog.at_level(logging.WARNING, "sequitur.subscription"),
        Subscription(
            kafka, name, topic, type="Shared", max_redeliver_count=0, dead_letter_topic=letters,
            position="earliest",
        ) as subscription,
    ):  # fmt: skip
        one, two, three = receive(subscription, 3)
        assert subscription.negative_acknowledge(two)
        wait_until(lambda: "no dead letter" in caplog.text)
        assert subscription.acknowledge_many([one, three]) == 2
        assert subscription.stats().backlog == 1
        assert subscription.receive(0) is None
        _limit(kafka, letters, 1_000_000)
        wait_until(lambda: subscription.stats().backlog == 0)
    assert [DeadLetter.of(found).source.offset for found in read_topic(kafka, letters)] == [1]


@pytest.mark.promise("sub-dead-letters-subscription")
def test_letter_that_is_refused_takes_no_other_with_it(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Each is measured by itself, also where several are written at once."""
    topic, letters = make_topic(1), make_topic(1)
    values = [b"x" * 400] * 8
    values[2] = b"x" * 5_000
    producer = Producer(kafka.librdkafka())
    for value in values:
        producer.produce(topic, value=value, partition=0)
    producer.flush(TIMEOUT_S)
    _limit(kafka, letters, 2_000)
    with Subscription(
        kafka, name, topic, type="Shared", max_redeliver_count=0, dead_letter_topic=letters,
        position="earliest",
    ) as subscription:  # fmt: skip
        for message in receive(subscription, len(values)):
            assert subscription.negative_acknowledge(message)
        wait_until(lambda: subscription.stats().dead_letters == len(values) - 1)
        assert subscription.stats().backlog == 1
    found = [DeadLetter.of(letter).source.offset for letter in read_topic(kafka, letters)]
    assert sorted(found) == [0, 1, 3, 4, 5, 6, 7]


def test_what_makes_no_sense_is_refused(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    opened = partial(Subscription, kafka, name, topic, position="earliest")
    with pytest.raises(ValueError, match="both or neither"):
        opened(max_redeliver_count=3)
    with pytest.raises(ValueError, match=r"dead_letter_topic .* is on it"):
        opened(max_redeliver_count=3, dead_letter_topic=topic)
    with pytest.raises(TopicError, match="not-there"):
        opened(max_redeliver_count=3, dead_letter_topic="not-there")


def _limit(kafka: KafkaSettings, topic: str, most: int) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    limit = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(limit)
    client = AdminClient(kafka.librdkafka())
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
