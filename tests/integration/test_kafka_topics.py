"""What the reorder job asks of Kafka beside Spark."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
    NewTopic,
)

from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.errors import TopicError, UnansweredError
from sequitur.kafka import admin as kafka_topics
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering import batch_size as row_probe
from sequitur.pipelines.ordering.batch_size import mean_row_bytes
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


_NO_LIMIT = (1 << 63) - 1
"""What a broker says where there is none."""


@pytest.mark.promise("order-partitions-added-job")
def test_ends_of_a_partition_that_was_just_added(broker: Broker, topic: str) -> None:
    """A partition created after our client looked last has an end like any other."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topics = KafkaTopics(kafka)
    before = [SourcePartition(topic, number) for number in range(4)]
    assert dict.fromkeys(before, 0) == topics.high_watermarks(before)
    admin = AdminClient(kafka.librdkafka())
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(PATIENCE_S)
    producer = Producer(kafka.librdkafka())
    wait_until(
        lambda: 5 in producer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    )
    producer.produce(topic, b"value", partition=5)
    assert producer.flush(PATIENCE_S) == 0
    after = [*before, SourcePartition(topic, 4), SourcePartition(topic, 5)]
    assert {**dict.fromkeys(after, 0), after[5]: 1} == topics.high_watermarks(after)


def test_ends_of_a_partition_that_does_not_come_are_an_error(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 1.0)
    outages = Outages(1.0, 0, wait=threading.Event().wait)
    topics = KafkaTopics(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), outages)
    with pytest.raises(TopicError, match="do not list the topics' offsets"):
        topics.high_watermarks([SourcePartition(topic, 7)])


@pytest.mark.promise("order-input-topic-deleted")
def test_a_topic_that_is_made_anew_has_another_id(broker: Broker, topic: str) -> None:
    """By it a topic is known from an older one of its name; one that is not there has none."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topics = KafkaTopics(kafka)
    assert topics.ids([]) == {}
    before = topics.ids([topic, "no-such-topic"])
    assert list(before) == [topic]
    assert topics.ids([topic]) == before
    admin = AdminClient(kafka.librdkafka())
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: not topics.ids([topic]))
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(PATIENCE_S)
    wait_until(lambda: bool(topics.ids([topic])))
    assert topics.ids([topic]) != before


@pytest.mark.promise("order-backfill-years-ago")
def test_what_topics_do_with_timestamps_is_known(broker: Broker, make_topic: MakeTopic) -> None:
    """Whether they keep them, how old they may be and how new: half of each limit is left free."""
    topics = KafkaTopics(KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    for config, expected in (
        ({"message_timestamp_type": "LogAppendTime", "retention_ms": -1}, (False, None)),
        ({"retention_ms": 3_600_000}, (True, 1_800_000)),
        ({"retention_ms": 3_600_000, "message_timestamp_before_max_ms": 60_000}, (True, 30_000)),
        ({"cleanup_policy": "compact", "retention_ms": 3_600_000}, (True, None)),
    ):
        found = topics.timestamps(make_topic(partitions=1, **config))
        limit = found.oldest_ms
        assert (found.are_kept, None if limit == _NO_LIMIT // 2 else limit) == expected
        assert found.newest_ms == 1_800_000
    narrow = topics.timestamps(make_topic(partitions=1, message_timestamp_after_max_ms=60_000))
    assert narrow.newest_ms == 30_000


@pytest.mark.promise("sub-clients-threads")
def test_the_threads_own_connections_tell_the_same(broker: Broker, make_topic: MakeTopic) -> None:
    """Ids, partitions, settings, and where logs begin and end, now and at a time."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    names = [*(make_topic(3) for _ in range(4)), "no-such-topic"]
    client = Producer(kafka.librdkafka())
    for number in range(10):
        client.produce(names[0], b"", partition=0, timestamp=1_000 * (number + 1))
    assert client.flush(PATIENCE_S) == 0
    told, asked = KafkaTopics(kafka), Surveyor(kafka, by_thread=True).topics
    where = [SourcePartition(names[0], one) for one in range(3)]
    assert asked.ids(names) == told.ids(names)
    assert len(asked.ids(names)) == 4
    assert asked.counts(names) == told.counts(names)
    assert asked.partitions(names[-1]) is None
    assert asked.extents(names, {names[0]: [4_500]}) == told.extents(names, {names[0]: [4_500]})
    assert asked.high_watermarks(where) == told.high_watermarks(where)
    assert asked.offsets_since(where, 4_500) == told.offsets_since(where, 4_500)
    assert asked.offsets_since(where, 4_500)[where[0]] == 4
    assert asked.matching("", names.__contains__, ()) == dict.fromkeys(names[:-1], 3)
    assert asked.known_retentions(names) == told.known_retentions(names)
    assert len(asked.known_retentions(names)) == 4
    assert asked.record_limit(names[0]) == told.record_limit(names[0])
    assert asked.timestamps(names[0]) == told.timestamps(names[0])


def test_without_brokers_the_threads_own_connections_say_so() -> None:
    impatient = Outages(0, 0, wait=lambda _: False, tell=len)
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    surveyor = Surveyor(kafka, outages=impatient, by_thread=True)
    with pytest.raises(UnansweredError, match="do not list their topics: no answer"):
        surveyor.topics.counts(["t"])


@pytest.mark.promise("cli-job-run-broker", "order-output-topic-compacted")
def test_topics_are_looked_at_before_spark_starts(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Missing ones, one that is read and written, a number of partitions that is not so.

    And side topics that are compacted.
    """
    topic = make_topic()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)

    def check(**settings: Any) -> None:
        given = {
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "checkpoint": str(tmp_path / "state"),
        }
        check_before_start(kafka, ReorderSettings.model_validate(given | settings))

    check(input_topics=[topic])
    check(input_pattern=f"{topic}(-.*)?")
    check(input_pattern=r"\p{Alnum}+")  # Java's own: left to the job
    with pytest.raises(TopicError, match="input topic 'no-such-topic' does not exist"):
        check(input_topics=[topic, "no-such-topic"])
    with pytest.raises(TopicError, match="matches no topic"):
        check(input_pattern="no-such-.*")
    with pytest.raises(TopicError, match=r"matches '.*\.ordered', which the job writes"):
        check(input_pattern=f"{topic}.*")
    with pytest.raises(TopicError, match=r"matches '.*-copies', which the job writes"):
        check(input_pattern=f"{topic}(-.*)?", evicted_topic=f"{topic}-copies", subscription="s")
    output = make_topic(partitions=2)
    with pytest.raises(TopicError, match="has 2 partitions, not output_partitions = 5"):
        check(input_topics=[topic], output_topic=output, output_partitions=5)
    compacted = make_topic(cleanup_policy="compact,delete")
    for aside in ("late_topic", "quarantine_topic"):
        with pytest.raises(TopicError, match=f"topic '{compacted}' is compacted"):
            check(input_topics=[topic], **{aside: compacted})
    check(input_topics=[topic], output_topic=compacted)


@pytest.mark.promise("order-rows-large-900")
@pytest.mark.parametrize(
    ("size", "rows"),
    [(100, 20), (600_000, 20), (900_000, 1_100)],
)
def test_rows_are_looked_at_for_their_size(
    broker: Broker, make_topic: MakeTopic, size: int, rows: int
) -> None:
    """However well they are packed; what was read already, and partitions without, do not count.

    A thousand that are packed into one answer are a GB, which the look must not wait for.
    """
    topic = make_topic(partitions=2)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    producer = Producer({**kafka.librdkafka(), "compression.type": "zstd"})
    for _ in range(rows):
        producer.produce(topic, bytes(size), partition=0)
        producer.poll(0)
        while len(producer) > 100:
            producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    unread = {SourcePartition(topic, 0): (0, rows), SourcePartition(topic, 1): (0, 0)}
    assert mean_row_bytes(kafka, unread) == size
    assert mean_row_bytes(kafka, {SourcePartition(topic, 0): (rows, rows)}) == 0


def test_transactions_without_a_row_are_not_waited_for(
    broker: Broker, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is unread is aborted, or the end of a transaction: a look is over all the same."""
    topic = make_topic(partitions=2)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    producer = Producer({**kafka.librdkafka(), "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"{}", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    producer.abort_transaction(PATIENCE_S)
    monkeypatch.setattr(row_probe, "_FIRST_S", PATIENCE_S)
    begun_s = time.monotonic()
    unread = {SourcePartition(topic, number): (0, 2) for number in range(2)}
    assert mean_row_bytes(kafka, unread) == len(b"{}")
    assert time.monotonic() - begun_s < PATIENCE_S
