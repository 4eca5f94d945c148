"""The daemon without the right to write: its events wait, in their order, and none is given up."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.acls import AUTHORIZER, AclOperation, TopicRights
from tests.support.daemon_health import DaemonHealth
from tests.support.daemon_process import read_partitions
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeBroker
    from tests.integration.conftest import StartDaemon

_TOPIC = "guarded"
_LINES = 2_000


@pytest.mark.promise("in-right-write-topic")
@pytest.mark.parametrize(
    "denied",
    [
        pytest.param([AclOperation.WRITE], id="write"),
        pytest.param([AclOperation.WRITE, AclOperation.DESCRIBE], id="write-and-describe"),
    ],
)
def test_a_right_that_is_taken_away_and_given_back_costs_no_event(
    make_broker: MakeBroker,
    start_daemon: StartDaemon,
    tmp_path: Path,
    denied: list[AclOperation],
) -> None:
    """`/readyz` says what is missing, the source waits; also where the daemon is killed then."""
    broker = make_broker(AUTHORIZER)
    servers = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(PATIENCE_S)
    rights = TopicRights(servers, _TOPIC)
    lines = tmp_path / "lines.jsonl"
    lines.write_text(_lines(0, 10))
    flags = (
        *("--topic", _TOPIC, "--source", f"file:{lines}", "--name", "guarded"),
        *("--no-create-topic", "--health", "127.0.0.1:0", "--linger", "1 ms"),
    )
    health = DaemonHealth(start_daemon(*flags, bootstrap_servers=servers))
    health.until(lambda: health.metric("events_persisted_total") == 10)
    rights.deny(*denied)
    with lines.open("a") as file:
        file.write(_lines(10, 20))
    health.until(lambda: "TOPIC_AUTHORIZATION_FAILED" in str(health.unready()))
    with lines.open("a") as file:
        file.write(_lines(20, _LINES))
    retried = health.metric("batches_retried_total") or 0.0
    health.until(lambda: (health.metric("batches_retried_total") or 0.0) > retried + 2)
    assert (health.metric("events_accepted_total") or 0) < _LINES
    assert health.metric("events_refused_total") == 0
    assert health.metric("events_not_persisted_total") == 0
    health.daemon.kill()
    daemon = start_daemon(*flags, bootstrap_servers=servers)
    health = DaemonHealth(daemon)
    health.until(lambda: "TOPIC_AUTHORIZATION_FAILED" in str(health.unready()))
    rights.allow_all()
    health.until(lambda: not health.unready())
    health.until(lambda: _persisted(servers) == _LINES)
    assert health.metric("events_refused_total") == 0
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["dead_lettered"] == 0
    (messages,) = read_partitions(servers, _TOPIC)
    assert [json.loads(message.value())["n"] for message in messages] == list(range(_LINES))


def _lines(start: int, end: int) -> str:
    return "".join(f'{{"n":{number}}}\n' for number in range(start, end))


def _persisted(servers: str) -> int:
    return len(read_partitions(servers, _TOPIC)[0])
