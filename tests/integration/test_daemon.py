"""The daemon as a process of its own: what it sends, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from producer import EVENT_ID_HEADER, parse_event_id

if TYPE_CHECKING:
    from collections.abc import Callable


def _start(bootstrap_servers: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sequitur", "produce", *arguments],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_log(daemon: subprocess.Popen[str], event: str) -> None:
    assert daemon.stderr is not None
    for line in daemon.stderr:
        if event in line:
            return
    pytest.fail(f"the daemon ended without saying {event!r}")


def _end(daemon: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the daemon to end well; its report."""
    output, log = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, log
    report: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    assert report["accepted"] == (
        report["persisted"] + report["not_persisted"] + report["possibly_persisted"]
    )
    return report


def _consumer(broker: Any, topic: str, partitions: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    return consumer


def _read(broker: Any, topic: str, count: int, partitions: int) -> list[Any]:
    consumer = _consumer(broker, topic, partitions)
    messages = [consumer.poll(30) for _ in range(count)]
    assert consumer.poll(0.3) is None
    consumer.close()
    return messages


def test_real_readings_arrive_once_and_in_order(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """A topic that was missing has, at the end, each cpu's samples in order, and no others."""
    topic = make_topic() + "-daemon"
    before_ms = int(time.time() * 1000)
    report = _end(
        _start(
            broker.bootstrap_servers,
            *("--topic", topic, "--partitions", "2", "--duration", "1 s", "--name", "reader"),
            *("--send-delay", "300 ms"),
        )
    )
    cpus = psutil.cpu_count() or 1
    assert report["persisted"] == report["accepted"] > 10 * cpus
    messages = _read(broker, topic, report["persisted"], 2)
    by_key: dict[bytes, list[Any]] = {}
    for message in messages:
        by_key.setdefault(message.key(), []).append(message)
    assert len(by_key) == cpus
    for key, own in by_key.items():
        samples = [json.loads(message.value()) for message in own]
        assert {(f"{s['hostname']}|{s['cpu']}").encode() for s in samples} == {key}
        assert all(0.0 <= sample["usage"] <= 100.0 for sample in samples)
        moments = [sample["occurred_at"] for sample in samples]
        assert before_ms < moments[0]
        assert all(a <= b for a, b in pairwise(moments))
        # Each was sent after its delay: the record's own timestamp says when.
        assert all(m.timestamp()[1] - t >= 299 for m, t in zip(own, moments, strict=True))
    ids = [parse_event_id(dict(message.headers())[EVENT_ID_HEADER]) for message in messages]
    assert {event_id.producer for event_id in ids} == {report["name"]}
    assert {event_id.sequence for event_id in ids} == set(range(len(messages)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_it(
    broker: Any, make_topic: Callable[..., str], number: signal.Signals
) -> None:
    """It sends what it holds back, waits for the answers, and ends with 0."""
    topic = make_topic(partitions=1)
    daemon = _start(broker.bootstrap_servers, "--topic", topic, "--send-delay", "1 s")
    consumer = _consumer(broker, topic, 1)
    assert consumer.poll(30) is not None
    consumer.close()
    daemon.send_signal(number)
    report = _end(daemon)
    assert report["persisted"] == report["accepted"]
    assert len(_read(broker, topic, report["accepted"], 1)) == report["accepted"]


def test_a_signal_ends_it_while_it_looks_for_a_broker() -> None:
    """Nothing was accepted, and nothing is waited for."""
    daemon = _start("127.0.0.1:1", "--topic", "t")
    _wait_for_log(daemon, "starting")
    daemon.send_signal(signal.SIGTERM)
    started = time.monotonic()
    report = _end(daemon)
    assert time.monotonic() - started < 5
    assert report["accepted"] == 0


def test_a_second_signal_ends_it_at_once(broker: Any, make_topic: Callable[..., str]) -> None:
    """With the broker away it would drain for long; every event is still told of."""
    topic = make_topic(partitions=1)
    daemon = _start(broker.bootstrap_servers, "--topic", topic, "--drain-timeout", "1 min")
    consumer = _consumer(broker, topic, 1)
    assert consumer.poll(30) is not None
    consumer.close()
    broker.pause()
    try:
        daemon.send_signal(signal.SIGTERM)
        _wait_for_log(daemon, "stopping")
        daemon.send_signal(signal.SIGTERM)
        started = time.monotonic()
        report = _end(daemon)
        assert time.monotonic() - started < 5
    finally:
        broker.resume()
    assert report["persisted"] > 0
    assert report["possibly_persisted"] + report["not_persisted"] > 0
