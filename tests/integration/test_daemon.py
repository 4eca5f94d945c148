"""The daemon as a process of its own: how it starts, how it ends, what it tells."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from sequitur.producer import EVENT_ID_HEADER, parse_event_id
from sequitur.producer.daemon.daemon import _LOOK_AFTER_S, _LOOK_S
from tests.support.daemon_process import read_partitions
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker
    from tests.support.daemon_process import DaemonProcess

_NOWHERE = "127.0.0.1:1"
_ACCEPTED = "sequitur_producer_events_accepted_total"
_PERSISTED = "sequitur_producer_events_persisted_total"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def _told_of(report: dict[str, Any]) -> int:
    told: int = report["persisted"] + report["not_persisted"] + report["possibly_persisted"]
    return told


def _metric(port: int, name: str) -> float:
    """One of the daemon's own counts, now."""
    lines = _get(port, "/metrics")[1].splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def _wait_until_above(daemon: DaemonProcess, port: int, name: str, value: float) -> None:
    while not _metric(port, name) > value:
        assert daemon.process.poll() is None, daemon.log
        time.sleep(0.02)


def _wait_for_events(broker: Broker, topic: str) -> None:
    while not any(read_partitions(broker.bootstrap_servers, topic)):
        time.sleep(0.05)


def test_real_readings_arrive_once_and_in_order(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """A topic that was missing has, at the end, each cpu's samples in order, and no others."""
    topic = make_topic() + "-daemon"
    before_ms = int(time.time() * 1000)
    daemon = start_daemon(
        *("--topic", topic, "--partitions", "2", "--duration", "1 s", "--name", "reader"),
        *("--send-delay", "300 ms"),
    )
    report = daemon.end()
    cpus = psutil.cpu_count() or 1
    assert report["persisted"] == report["accepted"] > 10 * cpus
    partitions = read_partitions(broker.bootstrap_servers, topic)
    assert len(partitions) == 2
    messages = [message for partition in partitions for message in partition]
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
    assert {event_id.sequence for event_id in ids} == set(range(report["persisted"]))


@pytest.mark.promise("in-ctrl-sigterm-sighup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_it(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, number: signal.Signals
) -> None:
    """It sends what it holds back, waits for the answers, and ends with 0."""
    topic = make_topic(partitions=1)
    daemon = start_daemon("--topic", topic, "--send-delay", "1 s")
    _wait_for_events(broker, topic)
    daemon.signal(number)
    report = daemon.end()
    assert report["persisted"] == report["accepted"]
    assert len(read_partitions(broker.bootstrap_servers, topic)[0]) == report["accepted"]


@pytest.mark.promise("in-ctrl-sigterm-sighup")
def test_it_outlives_its_terminal_where_nohup_says_so(
    make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    topic = make_topic(partitions=1)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        daemon = start_daemon(
            *("--topic", topic, "--source", "stdin", "--format", "text"), stdin=subprocess.PIPE
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert daemon.process.stdin is not None
    daemon.wait_for("producer started")
    daemon.signal(signal.SIGHUP)
    daemon.process.stdin.write("1\n")
    daemon.process.stdin.close()
    assert daemon.end()["persisted"] == 1
    assert "stopping" not in daemon.log


def test_a_signal_ends_it_while_it_looks_for_a_broker(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--topic", "t", bootstrap_servers=_NOWHERE)
    daemon.wait_for("starting")
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["accepted"] == 0


@pytest.mark.promise("cli-produce-events-given")
def test_a_wrong_port_is_told_with_the_cause(start_daemon: StartDaemon) -> None:
    """Before a user loses patience; it goes on trying, since Kafka may come up later."""
    assert _LOOK_AFTER_S + _LOOK_S < 3  # as is promised
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = f"127.0.0.1:{silent.getsockname()[1]}"
        for servers, cause in (
            (_NOWHERE, f"no broker can be reached: {_NOWHERE}: Connection refused"),
            (other, "somebody accepts connections, and does not answer as a broker"),
        ):
            daemon = start_daemon("--topic", "t", "--name", "n", bootstrap_servers=servers)
            told = daemon.wait_for("no Kafka yet")
            assert (told["bootstrap_servers"], told["reason"]) == (servers, cause)
            assert daemon.process.poll() is None
            daemon.signal(signal.SIGTERM)
            daemon.end()


@pytest.mark.test_all
@pytest.mark.own_broker
@pytest.mark.either_broker
def test_it_waits_for_kafka_to_come_up(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """It lives and is not ready, says so, and goes on once there is a broker."""
    topic = make_topic(partitions=1)
    broker.stop()
    port = _free_port()
    daemon = start_daemon("--topic", topic, "--health", f"127.0.0.1:{port}")
    daemon.wait_for("health")
    assert _get(port, "/livez")[0] == 200
    status, answer = _get(port, "/readyz")
    assert (status, list(json.loads(answer)["unready"])) == (503, ["kafka"])
    broker.start()
    _wait_for_events(broker, topic)
    assert _get(port, "/readyz")[0] == 200
    daemon.signal(signal.SIGTERM)
    report = daemon.end()
    assert report["persisted"] == report["accepted"] > 0


@pytest.mark.promise("in-second-signal")
@pytest.mark.own_broker
def test_a_second_signal_ends_it_at_once(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """With the broker away it would drain for long; every event is still told of."""
    topic = make_topic(partitions=1)
    port = _free_port()
    daemon = start_daemon(
        *("--topic", topic, "--drain-timeout", "1 h", "--durability", "none"),
        *("--health", f"127.0.0.1:{port}"),
    )
    daemon.wait_for("producer started")
    _wait_until_above(daemon, port, _PERSISTED, 0)
    broker.pause()
    try:
        _wait_until_above(daemon, port, _ACCEPTED, _metric(port, _ACCEPTED))
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("stopping")
        daemon.signal(signal.SIGTERM)
        report = daemon.end(status=1)
    finally:
        broker.resume()
    assert report["persisted"] > 0
    assert report["possibly_persisted"] + report["not_persisted"] > 0
    assert report["accepted"] == _told_of(report)


@pytest.mark.promise("in-closing-hangs-kafka")
@pytest.mark.own_broker
def test_a_drain_keeps_its_limit(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """With Kafka killed while it ran, it ends when the limit is over, and tells of each event."""
    topic = make_topic(partitions=1)
    port = _free_port()
    daemon = start_daemon(
        *("--topic", topic, "--drain-timeout", "1 s", "--durability", "none"),
        *("--health", f"127.0.0.1:{port}"),
    )
    daemon.wait_for("producer started")
    _wait_until_above(daemon, port, _PERSISTED, 0)
    broker.kill()
    try:
        _wait_until_above(daemon, port, _ACCEPTED, _metric(port, _ACCEPTED))
        daemon.signal(signal.SIGTERM)
        started = time.monotonic()
        report = daemon.end(status=1)
        assert time.monotonic() - started > 0.9
    finally:
        broker.start()
    assert report["accepted"] == _told_of(report) > report["persisted"] > 0


def test_metrics_and_report_count_the_same(
    make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b'{"n":1}\nnonsense\n{"n":2}\n')
    port = _free_port()
    daemon = start_daemon(
        *("--topic", make_topic(partitions=1), "--health", f"127.0.0.1:{port}"),
        *("--source", f"file:{lines}"),
    )
    daemon.wait_for("producer started")
    text = ""
    while "sequitur_producer_events_persisted_total 2.0" not in text:
        assert daemon.process.poll() is None
        time.sleep(0.05)
        text = _get(port, "/metrics")[1]
    assert "sequitur_producer_events_refused_total 1.0" in text
    assert "sequitur_producer_ready 1.0" in text
    daemon.signal(signal.SIGTERM)
    report = daemon.end()
    assert (report["persisted"], report["dead_lettered"]) == (2, 1)


def test_a_log_for_people_is_no_json(start_daemon: StartDaemon) -> None:
    """Time, level, event, logger, fields; nothing of it on standard output."""
    daemon = start_daemon("--topic", "t", "--log-format", "console", bootstrap_servers=_NOWHERE)
    while "starting" not in daemon.log:
        assert daemon.process.poll() is None
    daemon.signal(signal.SIGTERM)
    daemon.end()
    (line,) = [line for line in daemon.log.splitlines() if "starting" in line]
    assert "[info     ] starting" in line
    assert "topic=t" in line
    assert "\x1b" not in daemon.log


@pytest.mark.promise("in-setting-address-folder")
def test_settings_that_are_refused_end_it_with_2(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--source", "tape", "--health", "nowhere")
    daemon.process.wait(PATIENCE_S)
    assert daemon.process.returncode == 2
    assert "produce.source = 'tape'" in daemon.log
    assert "produce.health = 'nowhere'" in daemon.log
    assert "missing setting produce.topic" in daemon.log
    assert "--topic" in daemon.log


def test_a_source_that_cannot_be_read_ends_it_with_3(
    make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """What was accepted before is told of, and why it ended."""
    missing = tmp_path / "missing.jsonl"
    daemon = start_daemon("--topic", make_topic(), "--source", f"file:{missing}", "--no-follow")
    report = daemon.end(status=3)
    assert report["error"] == f"the source failed: {missing} is not there"
    assert report["accepted"] == 0


@pytest.mark.promise("in-setting-address-folder")
def test_an_address_in_use_ends_it_before_kafka_is_asked(start_daemon: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--topic", "t", "--source", f"http:{address}")
        daemon = start_daemon(*words, bootstrap_servers=_NOWHERE)
        daemon.process.wait(PATIENCE_S)
    assert daemon.process.returncode == 3
    assert f"produce-events: cannot listen on {address}" in daemon.log
    assert len(daemon.log.splitlines()) == 1


def test_a_health_address_in_use_ends_it_with_3(start_daemon: StartDaemon) -> None:
    """Nobody would know how it does."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = start_daemon("--topic", "t", "--health", address)
        daemon.process.wait(PATIENCE_S)
    assert daemon.process.returncode == 3
    assert f"cannot listen on {address}" in daemon.log


@pytest.mark.promise("in-events-accepted-kafka")
@pytest.mark.own_broker
def test_it_is_not_ready_while_nothing_is_taken(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon
) -> None:
    """With Kafka away and a journal that is full; it says so, and is ready again when Kafka is."""
    topic = make_topic(partitions=1)
    port, http_port = _free_port(), _free_port()
    daemon = start_daemon(
        *("--topic", topic, "--source", f"http:127.0.0.1:{http_port}"),
        *("--health", f"127.0.0.1:{port}", "--journal-limit", "1 MiB", "--buffer-size", "200 kB"),
        *("--http-room-timeout", "200 ms", "--compression", "none"),
    )
    daemon.wait_for("listening")
    assert _post(http_port, b'{"n":1}') == 202
    assert _get(port, "/readyz")[0] == 200
    broker.stop()
    with ThreadPoolExecutor() as threads:
        posting: list[Future[int]] = []
        while (readiness := _get(port, "/readyz"))[0] == 200:
            if len(posting) < 40:
                posting.append(threads.submit(_post, http_port, b'"%b"' % (b"x" * 100_000)))
            time.sleep(0.05)
        assert set(json.loads(readiness[1])["unready"]) == {"producer"}
        assert _get(port, "/livez")[0] == 200
        broker.start()
        statuses = [each.result() for each in posting]
    assert set(statuses) <= {202, 503}
    while _get(port, "/readyz")[0] != 200:
        time.sleep(0.05)
    assert _post(http_port, b'{"n":2}') == 202
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["persisted"] == 2 + statuses.count(202)


_HANG_S = 4 * PATIENCE_S
"""Longer than a broker takes to start on a slow machine, and less than a test may take."""


def _post(port: int, body: bytes) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/events", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
