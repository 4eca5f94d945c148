"""The local runner on a real broker: the rows are the reference's, through `kill -9`, in turns."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from sequitur.consumer import ReorderSettings
from sequitur.errors import DataLossError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition, murmur2
from sequitur.local import reorder
from sequitur.producer import KafkaSettings
from tests.support.events import T0, Event, by_partition, contents, event, send, shuffled, time_of
from tests.support.output_reading import read_output
from tests.support.reorder_reference import Record, Reference
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

_PARTITIONS: Final = 4
_EVENTS: Final = 2_000
_KILLED_AT: Final = (1, 400, 900)
"""Released rows at which a life is killed."""
_TIMEOUT_S: Final = 2 * PATIENCE_S
_WHERE: Final = """
import json, os, signal
from sequitur import TopologyBuilder, bolt

@bolt(fields=("key", "value"))
def where(event):
    if json.loads(event.value).get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    yield event.key, str(os.getpid())

builder = TopologyBuilder("where")
builder.set_spout("events")
builder.set_bolt("where", where).local_grouping("events")
builder.set_output("out").local_grouping("where")
topology = builder.build()
"""


class _Job:
    """A job on a topic of its own; each life is `reorder`, or a program of its own."""

    def __init__(self, kafka: KafkaSettings, topic: str, folder: Path, **settings: Any) -> None:
        self.kafka = kafka
        self.topic = topic
        self.folder = folder
        self.given = {
            "input_topics": [topic],
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
            "checkpoint": str(folder / "checkpoint"),
            **settings,
        }

    @property
    def settings(self) -> ReorderSettings:
        return ReorderSettings.model_validate(self.given)

    def send(self, events: Sequence[Event]) -> None:
        send(self.kafka, self.topic, events)

    def run(self, **how: Any) -> Any:
        return reorder(self.kafka, self.settings, stop=threading.Event(), available_now=True, **how)

    def start(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """A life that reads whatever comes, in a process group of its own."""
        config = self.folder / "job.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.given.items()]
        kafka = f"[kafka]\nbootstrap_servers = {json.dumps(self.kafka.bootstrap_servers)}\n"
        config.write_text(kafka + "[reorder]\n" + "\n".join([*lines, 'runner = "local"\n']))
        with log.open("ab") as said:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "sequitur", *(command or ("reorder",))),
                    *("--config", str(config)),
                ],
                cwd=ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def released(self) -> list[Any]:
        topic = self.settings.output_topic
        is_there = KafkaTopics(self.kafka).partitions(topic) is not None
        return read_output(self.kafka, topic) if is_there else []


@pytest.fixture
def job(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> _Job:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return _Job(kafka, make_topic(partitions=_PARTITIONS), tmp_path)


def _reference_of(job: _Job, events: Sequence[Event]) -> dict[int, list[bytes]]:
    """Return the values that each output partition has to hold, in order."""
    places = [(job.topic, number) for number in range(_PARTITIONS)]
    offsets = [0] * _PARTITIONS
    records = []
    for sent in events:
        number = sent.partition
        key = None if sent.key is None else sent.key.decode()
        records.append(Record(*places[number], offsets[number], key, sent.value or b""))
        offsets[number] += 1
    reference = Reference(1_000, 60_000, 600_000, rescue=True, is_bounded=True)
    reference.step(records, places, now_ms=T0)
    reference.drain()
    found: dict[int, list[bytes]] = {}
    for record in reference.released:
        assert record.key is not None
        partition = (murmur2(record.key.encode()) & 0x7FFFFFFF) % _PARTITIONS
        found.setdefault(partition, []).append(record.value)
    return found


def _placed(events: Sequence[Event]) -> list[Event]:
    """Return the events with a partition of the input each, which keys do not decide."""
    return [
        Event(value=one.value, key=one.key, partition=number % _PARTITIONS)
        for number, one in enumerate(events)
    ]


@pytest.mark.promise("order-local-runner-needs")
@pytest.mark.parametrize("small_rows", [0, 50_000], ids=["tasks", "driver"])
def test_rows_are_the_references(job: _Job, small_rows: int) -> None:
    """Whoever reads them, in one batch or in many."""
    job.given |= {"small_batch_rows": small_rows, "max_offsets_per_trigger": 300}
    events = _placed(shuffled(_EVENTS, seed=1))
    job.send(events)
    report = job.run(drain=True)
    assert report.totals.released == _EVENTS
    assert report.steps > 2
    found = {
        number: [one.value for one in records]
        for number, records in by_partition(job.released()).items()
    }
    assert found == _reference_of(job, events)


@pytest.mark.kill
@pytest.mark.promise("order-driver-killed-kill", "order-runner-changes-between")
def test_job_that_is_killed_at_any_moment_goes_on(job: _Job) -> None:
    """Nothing is lost, nothing is doubled, and no key goes back."""
    events = _placed(shuffled(_EVENTS, seed=2))
    log = job.folder / "log"
    sent = 0
    for most in _KILLED_AT:
        job.send(events[sent : (sent := sent + _EVENTS // 4)])
        life = job.start(log)
        try:
            wait_until(functools.partial(_has_released, job, life, most))
            assert life.poll() is None, log.read_text()
        finally:
            os.killpg(life.pid, signal.SIGKILL)
            life.wait(_TIMEOUT_S)
    job.send(events[sent:])
    report = job.run(drain=True)
    released = job.released()
    assert contents(released) == contents(events)
    assert report.totals.released == _EVENTS
    times: dict[bytes, list[int]] = {}
    for one in released:
        times.setdefault(one.key, []).append(time_of(one))
    assert all(found == sorted(found) for found in times.values())


def _has_released(job: _Job, life: subprocess.Popen[bytes], most: int) -> bool:
    return len(job.released()) >= most or life.poll() is not None


@pytest.mark.kill
@pytest.mark.promise("order-local-runner-needs", "process-process-dies-event")
def test_bolts_run_in_processes_that_end_with_the_job(job: _Job) -> None:
    """Whatever ends it; and an event that kills one is a dead letter."""
    bolts = job.folder / "where_bolts_run.py"
    bolts.write_text(_WHERE)
    events = _placed(shuffled(400, seed=4))
    kills = Event(value=b'{"at": %d, "kills": true}' % time_of(events[7]), key=b"k", partition=0)
    job.send([*events, kills])
    log = job.folder / "log"
    life = job.start(log, "process", str(bolts))
    try:
        wait_until(lambda: len(job.released()) >= 10 or life.poll() is not None)
        pids = {int(one.value) for one in job.released()}
        assert life.poll() is None, log.read_text()
        assert life.pid not in pids
        assert any(map(psutil.pid_exists, pids))
    finally:
        life.kill()
        life.wait(_TIMEOUT_S)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))
    words = ("process", str(bolts), "--available-now", "--drain")
    assert job.start(log, *words).wait(_TIMEOUT_S) == 0, log.read_text()
    assert len(job.released()) == len(events)
    (dead,) = read_output(job.kafka, f"{job.settings.output_topic}.dead-letter")
    assert dead.value == kills.value


@pytest.mark.promise("order-ctrl-sigterm-job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_job_ends_by_a_signal_behind_its_step(job: _Job, number: signal.Signals) -> None:
    job.send(_placed(shuffled(200, seed=3)))
    log = job.folder / "log"
    life = job.start(log)
    try:
        wait_until(lambda: job.released() or life.poll() is not None)
        assert not psutil.Process(life.pid).children(), "a process is there without a task for it"
        life.send_signal(number)
        assert life.wait(_TIMEOUT_S) == 0, log.read_text()
    finally:
        if life.poll() is None:
            os.killpg(life.pid, signal.SIGKILL)
            life.wait(_TIMEOUT_S)
    report = [line for line in log.read_text().splitlines() if line.startswith("{")][-1]
    assert json.loads(report)["read"] == 200
    spark = job.folder / "checkpoint" / "spark"
    planned, committed = (
        {one.name for one in (spark / folder).iterdir()} for folder in ("offsets", "commits")
    )
    assert planned == committed


@pytest.fixture
def running(job: _Job) -> Iterator[threading.Thread]:
    """The job on whatever comes, until the test ends."""
    stop = threading.Event()
    life = threading.Thread(target=reorder, args=(job.kafka, job.settings), kwargs={"stop": stop})
    life.start()
    yield life
    stop.set()
    life.join(_TIMEOUT_S)


@pytest.mark.promise("order-partitions-added-job")
def test_partitions_that_are_added_are_read(job: _Job, running: threading.Thread) -> None:
    more = _PARTITIONS + 1
    job.send([event(T0 + 10_000, partition=number) for number in range(_PARTITIONS)])
    wait_until(lambda: job.released() or not running.is_alive() or _is_read(job, _PARTITIONS))
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_partitions([NewPartitions(job.topic, more)])[job.topic].result(_TIMEOUT_S)
    wait_until(lambda: KafkaTopics(job.kafka).partitions(job.topic) == more)
    job.send([event(T0 + 60_000, partition=number) for number in range(more)])
    wait_until(lambda: len(job.released()) == _PARTITIONS)
    assert running.is_alive()


def _is_read(job: _Job, partitions: int) -> bool:
    folder = job.folder / "checkpoint" / "done"
    return folder.exists() and any(
        json.loads(one.read_text())["totals"]["read"] >= partitions for one in folder.iterdir()
    )


@pytest.mark.promise("order-rows-deleted-read")
def test_rows_that_are_deleted_before_they_are_read_are_counted(job: _Job) -> None:
    job.send([event(T0 + number, partition=0) for number in range(10)])
    job.run()
    job.send([event(T0 + 5_000 + number, partition=0) for number in range(10)])
    KafkaTopics(job.kafka).delete_before({SourcePartition(job.topic, 0): 14})
    with pytest.raises(DataLossError, match="offsets 10 to 13: gone"):
        job.run()
    job.given["on_data_loss"] = "continue"
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.missing) == (16, 4)
    assert len(job.released()) == 16
