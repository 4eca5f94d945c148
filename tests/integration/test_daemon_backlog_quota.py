"""The daemon under backlog quotas: its source waits, whatever the policy, and no event is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.support.control_topic import ControlTopic
from tests.support.daemon_health import DaemonHealth
from tests.support.daemon_process import read_partitions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker

pytestmark = pytest.mark.own_broker

_HEALTH = ("--health", "127.0.0.1:0", "--backlog-quota")
_BOTH_POLICIES = pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])


def _lines(numbers: range) -> str:
    return "".join(f'{{"n":{number}}}\n' for number in numbers)


def _numbers(broker: Broker, topic: str) -> list[int]:
    (messages,) = read_partitions(broker.bootstrap_servers, topic)
    return [json.loads(message.value())["n"] for message in messages]


@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
@pytest.mark.parametrize("durability", ["journal", "none"])
def test_the_source_waits_until_the_quota_is_kept(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, policy: str, durability: str
) -> None:
    """Beyond `delivery_timeout`, too; each event arrives once, in order, and the report says so."""
    topic = make_topic(partitions=1)
    control = ControlTopic(broker.bootstrap_servers)
    control.write(topic, policy)
    daemon = start_daemon(
        *("--topic", topic, "--source", "stdin", *_HEALTH),
        *("--durability", durability, "--delivery-timeout", "500 ms"),
        stdin=subprocess.PIPE,
    )
    health = DaemonHealth(daemon)
    health.until(lambda: "producer" in health.unready())
    assert f"topic {topic} takes no events ({policy})" in health.unready()["producer"]
    assert "subscription 'billing'" in health.unready()["producer"]
    assert daemon.process.stdin is not None
    daemon.process.stdin.write(_lines(range(100)))
    daemon.process.stdin.close()
    # By the policy to hold, that is once a wait of `delivery_timeout` was over.
    health.until(lambda: health.metric("backlog_quota_refused_total"))
    assert bool(health.metric("backlog_quota_held_total")) == (policy == "producer_request_hold")
    assert health.metric("events_accepted_total") == 0
    assert health.metric("backlog_quota_ratio") == 1.2
    assert health.metric("ready") == 0
    control.lift(topic)
    report = daemon.end()
    assert (report["accepted"], report["persisted"]) == (100, 100)
    assert _numbers(broker, topic) == list(range(100))


@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
def test_a_daemon_that_is_stopped_meanwhile_loses_nothing(
    broker: Broker,
    make_topic: MakeTopic,
    start_daemon: StartDaemon,
    tmp_path: Path,
    policy: str,
) -> None:
    """It ends at once; the next one begins where the source was left."""
    topic = make_topic(partitions=1)
    control = ControlTopic(broker.bootstrap_servers)
    lines = tmp_path / "lines.jsonl"
    lines.write_text(_lines(range(10)))
    flags = ("--topic", topic, "--source", f"file:{lines}", "--name", "reader", *_HEALTH)
    daemon = start_daemon(*flags)
    health = DaemonHealth(daemon)
    health.until(lambda: health.metric("events_persisted_total") == 10)
    control.write(topic, policy)
    health.until(lambda: "producer" in health.unready())
    with lines.open("a") as file:
        file.write(_lines(range(10, 20)))
    counts = ("backlog_quota_held_total", "backlog_quota_refused_total")
    health.until(lambda: any(health.metric(name) for name in counts))
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["accepted"] == 10
    control.lift(topic)
    daemon = start_daemon(*flags)
    health = DaemonHealth(daemon)
    health.until(lambda: health.metric("events_persisted_total") == 10)
    daemon.signal(signal.SIGTERM)
    daemon.end()
    assert _numbers(broker, topic) == list(range(20))


@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
def test_http_clients_are_told_to_try_again(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, policy: str
) -> None:
    """503, as while the buffer is full; nothing of the request was accepted."""
    topic = make_topic(partitions=1)
    control = ControlTopic(broker.bootstrap_servers)
    control.write(topic, policy)
    daemon = start_daemon(
        *("--topic", topic, "--source", "http:127.0.0.1:0", "--http-room-timeout", "200 ms"),
        *_HEALTH,
    )
    health = DaemonHealth(daemon)
    health.until(lambda: "producer" in health.unready())
    url = f"http://127.0.0.1:{daemon.wait_for('listening')['port']}/events"
    request = urllib.request.Request(
        url, _lines(range(2)).encode(), {"Content-Type": "application/x-ndjson"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value as answer:
        assert (answer.code, json.loads(answer.read())["accepted"]) == (503, 0)
    control.lift(topic)
    health.until(lambda: not health.unready())
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 202
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["persisted"] == 2
    assert _numbers(broker, topic) == [0, 1]
