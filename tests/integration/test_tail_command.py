"""`sequitur tail` on a real topic: from where it is told on, and with what comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.errors import UnknownTopicError
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from typer.testing import Result

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

T0 = 1_700_000_000_000


def _fill(broker: Broker, topic: str, rows: list[tuple[int, int, bytes]], **more: str) -> None:
    """Send (partition, timestamp, value); in a transaction that is aborted, if one is named."""
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, **more})
    if more:
        client.init_transactions(PATIENCE_S)
        client.begin_transaction()
    for partition, timestamp_ms, value in rows:
        client.produce(topic, value, b"k", partition=partition, timestamp=timestamp_ms)
    assert client.flush(PATIENCE_S) == 0
    if more:
        client.abort_transaction(PATIENCE_S)


def _environ(broker: Broker) -> dict[str, str]:
    return {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}


def _invoke(broker: Broker, topic: str, *words: str) -> Result:
    command = ["tail", topic, "--json", "--no-follow", *words]
    return CliRunner().invoke(app, command, env=_environ(broker))


def _tail(broker: Broker, topic: str, *words: str) -> list[dict[str, Any]]:
    run = _invoke(broker, topic, *words)
    assert run.exit_code == 0, run.output
    return [json.loads(line) for line in run.stdout.splitlines()]


def _places(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(one["partition"], one["offset"]) for one in records]


@pytest.mark.promise("cli-records-topic-looked")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-n", "3"), [(1, 2), (0, 3), (1, 3)]),
        (("--from-offset", "1:2", "--from-offset", "0:99"), [(1, 2), (1, 3)]),
        (("--from-time", "2023-11-14T22:13:20.030Z"), [(0, 3), (1, 3)]),
        (("--from-latest",), []),
    ],
)
def test_it_begins_where_it_is_told(
    broker: Broker, make_topic: MakeTopic, words: tuple[str, ...], expected: list[tuple[int, int]]
) -> None:
    """By count over all partitions, by offset, by time, at the end."""
    topic = make_topic(2)
    for number in range(4):
        rows = [(0, T0 + 10 * number, b"a"), (1, T0 + 10 * number + 5, b"b")]
        _fill(broker, topic, rows)
    assert sorted(_places(_tail(broker, topic, *words))) == sorted(expected)


@pytest.mark.promise("cli-records-topic-looked")
def test_the_newest_are_found_behind_what_was_aborted(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """Offsets without a record, of which there may be any number, count for none."""
    topic = make_topic(1)
    _fill(broker, topic, [(0, T0 + n, b"%d" % n) for n in range(5)])
    _fill(broker, topic, [(0, T0, b"no")] * 40, **{"transactional.id": topic})
    assert [one["value"] for one in _tail(broker, topic, "-n", "2")] == ["3", "4"]
    assert len(_tail(broker, topic)) == len(_tail(broker, topic, "--from-earliest")) == 5


@pytest.mark.promise("cli-records-topic-looked")
def test_what_comes_is_shown_until_ctrl_c(broker: Broker, make_topic: MakeTopic) -> None:
    """After the newest that were there, each record as it is written; Ctrl-C says nothing."""
    topic = make_topic(2)
    _fill(broker, topic, [(0, T0, b"old"), (0, T0 + 1, b"new")])
    with subprocess.Popen(
        [sys.executable, "-m", "sequitur", "tail", topic, "--json", "-n", "1"],
        env=_environ(broker), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["value"] == "new"
            _fill(broker, topic, [(1, T0, b"then")])
            assert json.loads(following.stdout.readline())["value"] == "then"
            following.send_signal(signal.SIGINT)
            assert following.communicate(timeout=PATIENCE_S) == ("", "")
            assert following.returncode == 130
        finally:
            following.kill()


def test_a_topic_that_is_not_there_and_two_beginnings_are_refused(broker: Broker) -> None:
    both = _invoke(broker, "no-such-topic", "-n", "1", "--from-latest")
    assert both.exit_code == 2
    assert "give one of -n, --from-earliest" in both.output
    absent = _invoke(broker, "no-such-topic")
    assert isinstance(absent.exception, UnknownTopicError)
    assert str(absent.exception) == "topic 'no-such-topic' does not exist"
