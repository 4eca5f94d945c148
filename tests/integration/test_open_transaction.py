"""A job that was killed leaves transactions open; its next start does not wait for their end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition

from sequitur.consumer import CommitToken
from sequitur.pipelines.kafka.commit_tokens import CommitTokens
from sequitur.producer import KafkaSettings
from tests.support.document_folder import DocumentFolder

if TYPE_CHECKING:
    from tests.support.brokers import Broker

_PARTITION = 2


def test_transaction_left_open_holds_up_no_start(broker: Broker, topic: str) -> None:
    """The token of a transaction that nobody ended yet hides none of those that are committed."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    folder, partitions, app = DocumentFolder(), {topic: 4}, f"app-{topic}"
    first = CommitTokens(kafka, app=app, documents=folder)
    first.open(partitions, newest=-1, done=-1)
    token = CommitToken(job=first.job, step=0, rows=1, partitions=4)
    dead = Producer({**kafka.librdkafka(), "transactional.id": f"{app}.{topic}.{_PARTITION}"})
    group = {**kafka.librdkafka(), "group.id": f"{app}.commits"}
    with contextlib.closing(Consumer(group)) as consumer:
        dead.init_transactions()
        dead.begin_transaction()
        dead.produce(topic, b"row", partition=_PARTITION)
        dead.send_offsets_to_transaction(
            [TopicPartition(topic, _PARTITION, token.offset, token.metadata)],
            consumer.consumer_group_metadata(),
        )
    try:
        second = CommitTokens(kafka, app=app, documents=folder)
        second.open(partitions, newest=0, done=-1)
        assert second.job == first.job
    finally:
        dead.abort_transaction()
