"""A job on the local runner goes on while one of three brokers hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.kafka.settings import KafkaSettings
from sequitur.kafka.shared_admin import SharedAdmin
from sequitur.pipelines.ordering.small_batches import KafkaRanges
from tests.support.events import Event, send
from tests.support.local_jobs import LocalJob
from tests.support.three_brokers import ThreeBrokers
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.one_process, pytest.mark.test_all]

_T0: Final = 1_700_000_000_000
_TOPIC: Final = "in"
_STAYS: Final = 1
_HANGS: Final = 3


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[ThreeBrokers]:
    started = ThreeBrokers(tmp_path / "brokers")
    yield started
    started.close()


def _event(at_ms: int, partition: int) -> Event:
    return Event(value=b'{"at": %d}' % (_T0 + at_ms), key=b"%d" % partition, partition=partition)


@pytest.mark.promise("order-broker-hangs")
def test_rows_of_other_leaders_come_out(
    brokers: ThreeBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader stops with rows that it has told of; theirs is the latest event time of all.

    The job does not ask by librdkafka's client then: it may wait for the broker that hangs.
    """
    kafka = KafkaSettings(bootstrap_servers=brokers.bootstrap_servers)
    brokers.make_topic_on(_TOPIC, [_STAYS, _HANGS])
    for out in ("ordered", "ordered.late", "ordered.quarantine"):
        brokers.make_topic_on(out, [_STAYS])
    job = LocalJob(
        kafka,
        _TOPIC,
        tmp_path,
        output_topic="ordered",
        delay="0 s",
        patience="5 min",
        idle_timeout="1 h",
    )
    read = KafkaRanges.read
    is_due, hangs, goes_on = threading.Event(), threading.Event(), threading.Event()

    def reading(ranges: KafkaRanges, spans: Any, *rest: Any) -> Any:
        more = [where.partition for where, (first, stop) in spans.items() if first < stop]
        if is_due.is_set() and 1 in more and not hangs.is_set():
            brokers.pause(_HANGS)
            hangs.set()
        return read(ranges, spans, *rest)

    monkeypatch.setattr(KafkaRanges, "read", reading)
    ask = SharedAdmin.__getattr__

    def asking(admin: SharedAdmin, name: str) -> Any:
        assert not hangs.is_set() or goes_on.is_set(), name
        return ask(admin, name)

    monkeypatch.setattr(SharedAdmin, "__getattr__", asking)

    def total(name: str) -> int:
        return getattr(job.steps[-1][1].totals, name) if job.steps else 0

    def reach(name: str, rows: int) -> None:
        wait_until(lambda: total(name) == rows or not life.is_alive())

    job.send([_event(1_000_000, 1), _event(0, 0)])
    try:
        with job.running() as life:
            reach("released", 1)
            is_due.set()
            job.send([_event(1_000_001, 1)])
            wait_until(lambda: hangs.is_set() or not life.is_alive())
            for at in range(1, 6):
                send(kafka, _TOPIC, [_event(at, 0)])
                reach("released", 1 + at)
            brokers.resume(_HANGS)
            goes_on.set()
            reach("read", 8)
    finally:
        brokers.resume(_HANGS)
    assert (total("released"), total("late")) == (6, 0)
