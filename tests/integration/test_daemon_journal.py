"""The daemon and its journal: what it takes while Kafka is away, and what the next start does."""

from __future__ import annotations

import json
import random
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.producer.journal.report import inspect_journal
from tests.support.daemon_process import read_partitions
from tests.support.dead_letter_file import read_dead_letters
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker
    from tests.support.daemon_process import DaemonProcess

_HTTP = ("--source", "http:127.0.0.1:0", "--name", "web")


def _lines(numbers: Iterable[int]) -> bytes:
    return b"".join(b'{"n":%d}\n' % n for n in numbers)


def _post(port: int, numbers: Iterable[int], query: str = "") -> int:
    headers = {"Content-Type": "application/x-ndjson"}
    url = f"http://127.0.0.1:{port}/events{query}"
    request = urllib.request.Request(url, _lines(numbers), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def _numbers(broker: Broker, topic: str) -> list[int]:
    (messages,) = read_partitions(broker.bootstrap_servers, topic)
    return [json.loads(message.value())["n"] for message in messages]


def _port(daemon: DaemonProcess) -> int:
    port: int = daemon.wait_for("listening")["port"]
    return port


def _stop(daemon: DaemonProcess) -> dict[str, Any]:
    daemon.signal(signal.SIGTERM)
    return daemon.end()


@pytest.mark.promise("in-kafka-away-events")
@pytest.mark.own_broker
@pytest.mark.either_broker
def test_events_that_were_answered_outlive_a_kill_with_kafka_away(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """202 means kept: `kill -9` the moment after, and the next start sends them, once."""
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, *_HTTP)
    port = _port(daemon)
    assert _post(port, range(10)) == 202
    broker.pause()
    try:
        assert _post(port, range(10, 20)) == 202
        daemon.kill()
    finally:
        broker.resume()
    daemon = start_daemon("--topic", topic, *_HTTP)
    assert _post(_port(daemon), range(20, 30)) == 202
    report = _stop(daemon)
    assert (report["accepted"], report["kept"]) == (10, 0)
    assert report["persisted"] == 10 + report["recovered"] >= 20
    assert _numbers(broker, topic) == list(range(30))


@pytest.mark.test_all
@pytest.mark.promise("in-kafka-away-events")
@pytest.mark.own_broker
@pytest.mark.either_broker
def test_it_starts_and_takes_events_while_kafka_is_away(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """Once it has been there; they are sent by whichever start finds Kafka again."""
    topic = make_topic(partitions=1)
    first = start_daemon("--topic", topic, *_HTTP)
    assert _post(_port(first), range(10)) == 202
    assert _stop(first)["kept"] == 0
    broker.kill()
    try:
        second = start_daemon("--topic", topic, "--drain-timeout", "500 ms", *_HTTP)
        assert _post(_port(second), range(10, 20)) == 202
        report = _stop(second)
        assert (report["accepted"], report["kept"], report["persisted"]) == (10, 10, 0)
    finally:
        broker.start()
    third = start_daemon("--topic", topic, *_HTTP)
    _port(third)
    report = _stop(third)
    assert (report["accepted"], report["recovered"], report["persisted"]) == (0, 10, 10)
    assert _numbers(broker, topic) == list(range(20))


@pytest.mark.own_broker
def test_a_client_that_waits_does_not_hold_up_a_second_signal(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """It is told that nobody knows whether its events are in the topic."""
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, *_HTTP, "--drain-timeout", "1 h")
    port = _port(daemon)
    assert _post(port, range(10), "?wait=persisted") == 201
    broker.pause()
    try:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(_post, port, range(10, 20), "?wait=persisted")
            assert _post(port, range(20, 30)) == 202
            daemon.signal(signal.SIGTERM)
            daemon.wait_for("stopping")
            report = _stop(daemon)
            assert waiting.result(PATIENCE_S) == 502
    finally:
        broker.resume()
    assert report["kept"] == 20
    report = start_daemon("--topic", topic, "--source", "stdin", "--name", "web").end()
    assert report["recovered"] == 20
    assert sorted(_numbers(broker, topic)) == list(range(30))


@pytest.mark.own_broker
def test_what_a_drain_leaves_is_sent_by_the_next_start(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Ended in order, with status 0; also by a second signal, before the drain's limit."""
    topic = make_topic(partitions=1)
    file = tmp_path / "events.jsonl"
    file.write_bytes(_lines(range(1_000)))
    journal = tmp_path / "journal"
    words = (
        *("--topic", topic, "--source", f"file:{file}", "--drain-timeout", "1 h"),
        *("--journal", str(journal)),
    )
    daemon = start_daemon(*words)
    while not _numbers(broker, topic):
        time.sleep(0.05)
    broker.pause()
    try:
        with file.open("ab") as more:
            more.write(_lines(range(1_000, 50_000)))
        while inspect_journal(journal).next_event <= 1_000:  # it reads some of them, or all
            time.sleep(0.05)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("stopping")
        report = _stop(daemon)
    finally:
        broker.resume()
    assert report["kept"] > 0
    assert report["not_persisted"] == 0
    next_report = start_daemon(*words, "--no-follow").end()
    assert next_report["recovered"] == report["kept"]
    assert _numbers(broker, topic) == list(range(50_000))


@pytest.mark.promise("in-line-malformed-utf")
def test_an_event_that_the_topic_does_not_take_goes_to_the_dead_letter_file(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    topic = make_topic(partitions=1, max_message_bytes=2_000)
    large = random.Random(1).randbytes(3_000).hex()
    file = tmp_path / "events.jsonl"
    file.write_bytes(_lines([0]) + b'{"n":1,"text":"%b"}\n' % large.encode() + _lines([2]))
    report = start_daemon(
        *("--topic", topic, "--source", f"file:{file}", "--no-follow", "--name", "reader"),
        *("--dead-letter", str(tmp_path / "dead.jsonl")),
    ).end()
    assert (report["accepted"], report["persisted"], report["dead_lettered"]) == (2, 2, 1)
    assert _numbers(broker, topic) == [0, 2]
    (letter,) = read_dead_letters(tmp_path / "dead.jsonl")
    assert json.loads(letter.raw or b"") == {"n": 1, "text": large}
    assert letter.where == f"on the way to topic {topic}"
    assert "max.message.bytes is 2000" in letter.reason


@pytest.mark.promise("in-processes-take-journal")
def test_two_daemons_cannot_have_one_name(make_topic: MakeTopic, start_daemon: StartDaemon) -> None:
    """The second is told who has it, and ends with 3."""
    topic = make_topic()
    first = start_daemon("--topic", topic, *_HTTP)
    _port(first)
    second = start_daemon("--topic", topic, *_HTTP)
    second.process.wait(PATIENCE_S)
    assert second.process.returncode == 3
    assert f"is held by process {first.process.pid}" in second.log
