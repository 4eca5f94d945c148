"""Records with a header whose name is no UTF-8, as programs in Go may write it: all readers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.subscription import Subscription
from tests.support.odd_headers import LATIN_1, send_odd_headers

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

_NAMES: Final = (LATIN_1, b"\xff\xfe", b"half \xed\xa0\xbd", b"cut \xc3", b"\xf5\x80\x80\x80")
_AS_READ: Final = ("\ufffd\ufffd", "\ufffd\ufffd", "half \ufffd", "cut \ufffd", "\ufffd" * 4)


def _values(topic: str) -> list[bytes]:
    return [f"{topic} {name!r} {number}".encode() for name in _NAMES for number in range(3)]


@pytest.fixture
def odd_topic(broker: Broker, make_topic: MakeTopic) -> str:
    """A topic in which every third record has a plain header, and the others odd ones."""
    topic = make_topic(partitions=1)

    async def fill() -> None:
        values = iter(_values(topic))
        for name in _NAMES:
            some = [next(values) for _ in range(3)]
            await send_odd_headers(broker.bootstrap_servers, topic, some, plain=1, name=name)

    asyncio.run(fill())
    return topic


def _run(broker: Broker, *words: str) -> str:
    environ = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    run = CliRunner().invoke(app, words, env=environ)
    assert run.exit_code in {0, 1}, run.output
    return run.stdout


@pytest.mark.promise("subscribe-header-no-utf-8")
def test_each_reader_reads_on_behind_it_and_reads_the_same(
    kafka: KafkaSettings, broker: Broker, name: str, odd_topic: str
) -> None:
    """Two lives of a subscription, `tail`, `verify`, and the jobs' reader."""
    expected = [
        (value, ((header, b"1"),))
        for value, header in zip(
            _values(odd_topic),
            (one for odd in _AS_READ for one in ("e", odd, odd)),
            strict=True,
        )
    ]
    span = {SourcePartition(odd_topic, 0): (0, len(expected))}
    rows = Reader(kafka=kafka).rows(span)
    assert [(one.value, tuple(one.headers)) for _, one in rows] == expected
    received: list[tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]] = []
    for _ in range(2):
        with Subscription(kafka, name, odd_topic, position="earliest") as subscription:
            while len(received) < len(expected) and (one := subscription.receive(10)) is not None:
                received.append((one.value, one.headers))
                subscription.acknowledge(one)
                if len(received) == 7:
                    break
    assert received == expected
    lines = _run(broker, "tail", odd_topic, "-n", "100", "--no-follow", "--json").splitlines()
    shown = [json.loads(line) for line in lines]
    assert [(one["value"].encode(), [tuple(pair) for pair in one["headers"]]) for one in shown] == [
        (value, [(header, "1")]) for value, ((header, _),) in expected
    ]
    text = _run(broker, "tail", odd_topic, "-n", "100", "--no-follow")
    assert len([line for line in text.splitlines() if "key" in line]) == len(expected)
    counted = json.loads(_run(broker, "verify", odd_topic, "--json"))
    assert counted["records"] == len(expected)
