"""`sequitur verify` on a real topic: what it counts is what is there."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from sequitur.kafka.records import encode_event_id
from sequitur.producer import EVENT_ID_HEADER
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


def _fill(broker: Broker, topic: str, rows: list[tuple[int, int]]) -> None:
    """Send (sequence, event time) to one partition with a client that is not ours."""
    client = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for sequence, event_time_ms in rows:
        client.produce(
            topic,
            key=b"k",
            value=json.dumps({"at": event_time_ms}).encode(),
            headers=[(EVENT_ID_HEADER, encode_event_id("p", sequence))],
        )
    assert client.flush(PATIENCE_S) == 0


def _verify(
    broker: Broker, *arguments: str, event_time: str = "json:at"
) -> subprocess.CompletedProcess[str]:
    words = [*arguments, *(("--event-time", event_time) if event_time else ())]
    return subprocess.run(
        [sys.executable, "-m", "sequitur", "verify", *words],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_an_orderly_topic_holds(broker: Broker, make_topic: MakeTopic) -> None:
    """Nothing missing, doubled or out of order: status 0, as a table."""
    topic = make_topic(1)
    _fill(broker, topic, [(0, 5), (1, 5), (2, 8)])
    run = _verify(broker, topic)
    assert run.returncode == 0, run.stderr
    assert "holds" in run.stdout


def test_what_is_wrong_is_counted_and_told_by_the_status(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """One inversion, one gap, one duplicate: each in its place in the JSON, and status 1."""
    topic = make_topic(1)
    _fill(broker, topic, [(0, 5), (1, 9), (1, 9), (3, 7)])
    run = _verify(broker, topic, "--json")
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)
    assert (found["records"], found["event_inversions"]) == (4, 1)
    assert (found["missing"], found["duplicates"], found["holds"]) == (1, 1, False)


@pytest.mark.promise("cli-sequitur-verify-finds")
def test_a_producer_of_two_topics_has_no_gap_in_both_together(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """In one of them alone there is a gap, and the sentence says what it may be."""
    here, there = make_topic(1), make_topic(1)
    _fill(broker, here, [(0, 5), (2, 3)])
    _fill(broker, there, [(1, 9), (3, 1)])
    alone = _verify(broker, here, event_time="")
    assert alone.returncode == 1, alone.stderr
    assert "p: 1 of its events up to sequence 2 are not in" in alone.stdout
    assert "lost, or went to another topic (name it with --also)" in alone.stdout
    together = _verify(broker, here, "--also", there, event_time="")
    assert together.returncode == 0, together.stdout
    assert (
        _verify(broker, here, "--also", there).returncode == 1
    )  # by event time it is not in order


@pytest.mark.promise("cli-sequitur-verify-reads")
def test_an_empty_topic_does_not_hold(broker: Broker, make_topic: MakeTopic) -> None:
    """Whoever checks a topic expects something in it."""
    run = _verify(broker, make_topic(1))
    assert run.returncode == 1, run.stderr
    assert "the topic is empty" in run.stdout


def test_a_topic_that_is_not_there_is_named(broker: Broker) -> None:
    """A sentence and a status of its own, no traceback, and no topic made by asking."""
    run = _verify(broker, "no-such-topic")
    assert run.returncode == 3
    assert run.stderr.strip() == "sequitur: topic 'no-such-topic' does not exist"


def test_a_wrong_event_time_is_named(broker: Broker) -> None:
    """The setting that makes no sense stands in the sentence."""
    run = _verify(broker, "t", event_time="jsn:at")
    assert run.returncode == 3
    assert "jsn:at" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_topic_that_is_never_at_rest_is_read_to_where_it_was(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """Who checks a live topic gets an answer, of what was there when it was asked for."""
    topic = make_topic(1)
    _fill(broker, topic, [(n, n) for n in range(3)])
    stop = threading.Event()

    def write_on() -> None:
        for sequence in itertools.count(3):
            if stop.wait(0.005):
                return
            _fill(broker, topic, [(sequence, sequence)])

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        run = _verify(broker, topic, "--json")
    finally:
        stop.set()
        writer.join()
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["records"] >= 3
