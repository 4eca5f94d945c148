"""`sequitur measure` on a real topic: what it reads, in which order, and how it says that."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.cli.measure import merged, spans_of
from sequitur.errors import UnknownTopicError
from sequitur.kafka.partition import SourcePartition
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from sequitur.kafka.settings import KafkaSettings
    from tests.conftest import MakeTopic

Row = tuple[int, int, int]
"""Partition, and how many seconds ago timestamp and event time are."""


def _fill(kafka: KafkaSettings, topic: str, rows: list[Row], **more: str) -> None:
    """Send rows; in a transaction that stays open, if one is named."""
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, **more})
    if more:
        client.init_transactions(PATIENCE_S)
        client.begin_transaction()
    now_ms = time.time_ns() // 1_000_000
    for partition, sent_s, happened_s in rows:
        client.produce(
            topic,
            json.dumps({"at": now_ms - 1_000 * happened_s}).encode(),
            partition=partition,
            timestamp=now_ms - 1_000 * sent_s,
        )
    assert client.flush(PATIENCE_S) == 0


def _invoke(kafka: KafkaSettings, topic: str, *words: str, event_time: str = "json:at") -> Any:
    environ = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    command = ["measure", topic, "--event-time", event_time, *words]
    return CliRunner().invoke(app, command, env={**environ, "COLUMNS": "120"})


def _measured(kafka: KafkaSettings, topic: str, *words: str) -> dict[str, Any]:
    run = _invoke(kafka, topic, "--json", *words)
    assert run.exit_code == 0, run.output
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.promise("cli-measure-reads")
def test_partitions_are_merged_by_timestamp_up_to_where_they_end(
    kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """What is written meanwhile is left out, and so is what is deleted or not committed."""
    topic = make_topic(3)
    _fill(kafka, topic, [(0, 90, 90), (0, 50, 50), (0, 10, 10), (1, 70, 70), (1, 30, 30)])
    _fill(kafka, topic, [(1, 1, 1)], **{"transactional.id": topic})
    spans = spans_of(kafka, topic)
    places = {where.partition: span for where, span in spans.items()}
    assert places == {0: (0, 3), 1: (0, 2), 2: (0, 0)}
    _fill(kafka, topic, [(0, 0, 0), (2, 0, 0)])
    held = {where: span for where, span in spans.items() if span[1]}
    read = [(where.partition, record.offset) for where, record in merged(kafka, held)]
    assert read == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    first = TopicPartition(topic, 0, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_records([first])[first].result(PATIENCE_S)
    read = [(where.partition, record.offset) for where, record in merged(kafka, held)]
    assert read == [(1, 0), (0, 1), (1, 1), (0, 2)]
    assert spans_of(kafka, topic)[SourcePartition(topic, 0)] == (1, 4)


def test_a_partition_without_records_holds_nothing_up(
    kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """All were sent in one moment, as by a load of a file: the empty one never falls idle."""
    topic = make_topic(2)
    _fill(kafka, topic, [(0, 9, 60), (0, 9, 40), (0, 9, 50)])
    found = _measured(kafka, topic)
    assert [one["late"] for one in found["delays"]] == [1, 1, 0, 0]
    assert list(found["partitions"]) == ["0"]


def test_a_partition_is_late_though_all_was_sent_in_one_moment(
    kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """Were one partition read to its end before the next, the other would hold the frontier."""
    topic = make_topic(2)
    few = [(0, 9, 600 - 10 * n + (20 if n % 10 == 9 else 0)) for n in range(50)]
    many = [(1, 9, 600 - n) for n in range(500)]
    _fill(kafka, topic, few + many)
    found = _measured(kafka, topic)
    assert found["partitions"]["0"]["most_ms"] >= 10_000
    late = {one["delay_ms"]: one["late"] for one in found["delays"]}
    assert late[1_000] >= 4


def test_a_table_says_what_a_delay_puts_in_order(
    kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """By partition, by delay, and the delay to write; with --last only the records since then."""
    topic = make_topic(1)
    rows = [(0, 4_000, 4_030)] + [(0, 3_990 - n, 3_990 - n) for n in range(5)] + [(0, 20, 20)]
    _fill(kafka, topic, [*rows, (0, 20, 24), (0, 19, 19)])
    run = _invoke(kafka, topic)
    assert run.exit_code == 0, run.output
    assert f"Topic {topic}: 9 records" in run.stdout
    found = _measured(kafka, topic)
    assert [found["records"], found["usable"], found["is_interrupted"]] == [9, 9, False]
    assert [one["late"] for one in found["delays"]] == [1, 0, 0, 0]
    proposed = found["proposed"]
    assert 4_000 <= proposed["delay_ms"] <= 4_400
    assert f'delay = "{proposed["delay_ms"]} ms" puts 100.00 % of the records in order: 9 of 9' in (
        run.stdout
    )
    assert _measured(kafka, topic, "--last", "1h")["records"] == 3
    assert _measured(kafka, topic, "--last", "30d")["records"] == 9


@pytest.mark.promise("cli-measure-unusable")
def test_what_cannot_be_measured_is_named(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    """A topic that is not there, without records, or without event times; and wrong words."""
    topic = make_topic(1)
    run = _invoke(kafka, topic)
    assert run.exit_code == 1
    assert run.stderr.strip().endswith(f"topic {topic!r} is empty: there is nothing to measure")
    _fill(kafka, topic, [(0, 7_200, 0)])
    run = _invoke(kafka, topic, "--last", "1h")
    assert run.exit_code == 1
    assert "has no record of the last 1 h: give a longer --last" in run.stderr
    run = _invoke(kafka, topic, event_time="json:when")
    assert run.exit_code == 4
    assert (
        "no record has a usable event time, of 1 that were read, event-time-missing: "
        "event_time = 'json:when', and they have the field at" in run.stderr
    )
    assert isinstance(_invoke(kafka, "no-such-topic").exception, UnknownTopicError)
    run = _invoke(kafka, topic, "--last", "soon")
    assert run.exit_code == 2
    assert "--last 'soon': expected a duration" in run.stderr
