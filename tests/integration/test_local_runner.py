"""The local runner on a real broker: the rows are the reference's, through `kill -9`, in turns."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from sequitur.consumer.topology import ProcessSettings
from sequitur.errors import DataLossError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition, murmur2
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.pipelines.topology.topology_file import load_topology
from sequitur.producer import KafkaSettings
from tests.support.events import (
    T0,
    Event,
    assert_ordered,
    by_partition,
    contents,
    event,
    shuffled,
    time_of,
)
from tests.support.local_jobs import LocalJob
from tests.support.output_reading import read_output
from tests.support.reorder_reference import Record, Reference
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
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


@pytest.fixture
def job(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> LocalJob:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return LocalJob(kafka, make_topic(partitions=_PARTITIONS), tmp_path)


def _reference_of(job: LocalJob, events: Sequence[Event]) -> dict[int, list[bytes]]:
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
def test_rows_are_the_references(job: LocalJob, small_rows: int) -> None:
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
def test_job_that_is_killed_at_any_moment_goes_on(job: LocalJob) -> None:
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


def _has_released(job: LocalJob, life: subprocess.Popen[bytes], most: int) -> bool:
    return len(job.released()) >= most or life.poll() is not None


@pytest.mark.kill
@pytest.mark.promise("order-local-runner-needs", "process-process-dies-event")
def test_bolts_run_in_processes_that_end_with_the_job(job: LocalJob) -> None:
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
def test_job_ends_by_a_signal_behind_its_step(job: LocalJob, number: signal.Signals) -> None:
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


_HANG: Final = "open({path!r}, 'x').close(); import ctypes; ctypes.PyDLL(None).pause()"
"""What a bolt does that lets no Python code run in its process until it is killed."""


def _hanging(job: LocalJob, events: Sequence[Event]) -> tuple[Path, Path]:
    """Send events of which one makes the bolt hang; the topology, and what is there then."""
    bolts, hangs = job.folder / f"bolts_of_{job.topic.replace('-', '_')}.py", job.folder / "hangs"
    bolts.write_text(
        _WHERE.replace("os.kill(os.getpid(), signal.SIGKILL)", _HANG.format(path=str(hangs)))
    )
    job.given["stop_timeout"] = "100 ms"
    job.send(events)
    return bolts, hangs


def _check_nothing_is_lost(job: LocalJob, bolts: Path, events: Sequence[Event]) -> None:
    """Run the job with bolts that do not hang, and compare."""
    bolts.write_text(_WHERE.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass"))
    job.process = ProcessStage(load_topology(bolts), ProcessSettings())
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.held) == (len(events), 0)
    assert sorted(one.key for one in job.released()) == sorted(one.key or b"" for one in events)


@pytest.mark.test_all
@pytest.mark.promise("order-ctrl-sigterm-job")
def test_job_whose_bolt_hangs_ends_some_time_after_a_signal(job: LocalJob) -> None:
    """Its processes are killed; the next start finishes the step."""
    later = [
        event(T0 + 10_000, key=f"later {number}", partition=number) for number in range(_PARTITIONS)
    ]
    events = [event(T0, key="hangs", partition=0, kills=True), *later]
    bolts, hangs = _hanging(job, events)
    log = job.folder / "log"
    life = job.start(log, "process", str(bolts))
    try:
        wait_until(lambda: hangs.exists() or life.poll() is not None)
        processes = psutil.Process(life.pid).children(recursive=True)
        assert len(processes) > 1, "a server, and a fork of it"
        life.send_signal(signal.SIGTERM)
        assert life.wait(_TIMEOUT_S) == 0, log.read_text()
    finally:
        if life.poll() is None:
            life.kill()
            life.wait(_TIMEOUT_S)
    assert "tasks are ended: the job was to stop 100 ms ago" in log.read_text()
    wait_until(lambda: not any(one.is_running() for one in processes))
    assert not job.released()
    _check_nothing_is_lost(job, bolts, events)


@pytest.mark.test_all
@pytest.mark.promise("order-ctrl-sigterm-job")
def test_drain_that_hangs_ends_some_time_after_a_stop(
    job: LocalJob, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its tasks are such that still run after a stop; the next start finishes its step."""
    events = [event(T0 + number, key=f"k{number}", partition=number) for number in range(2)]
    events.append(event(T0 + 1, key="hangs", partition=2, kills=True))
    bolts, hangs = _hanging(job, events)
    job.process = ProcessStage(load_topology(bolts), ProcessSettings())
    stop = threading.Event()

    def stop_it() -> None:
        wait_until(hangs.exists)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    report = job.run(stop=stop, drain=True)
    stopping.join()
    assert "tasks are ended: the job was to stop 100 ms ago" in capfd.readouterr().err
    assert (report.totals.read, report.totals.held) == (3, 3), "it drained before the stop"
    assert not job.released()
    del sys.modules[bolts.stem]
    _check_nothing_is_lost(job, bolts, events)


@pytest.mark.promise("order-partitions-added-job")
def test_partitions_that_are_added_are_read_in_their_place(job: LocalJob) -> None:
    """Rows that other partitions get a second later do not make theirs late."""
    with job.running() as life:
        job.send([event(T0 + 10_000, partition=number) for number in range(_PARTITIONS)])
        wait_until(lambda: not life.is_alive() or _read(job) == _PARTITIONS)
        admin = AdminClient(job.kafka.librdkafka())
        more = NewPartitions(job.topic, _PARTITIONS + 1)
        admin.create_partitions([more])[job.topic].result(_TIMEOUT_S)
        added = SourcePartition(job.topic, _PARTITIONS)
        wait_until(lambda: not life.is_alive() or added in job.steps[-1][0].clock.partitions)
        joined = next(entry for entry, _ in job.steps if added in entry.clock.partitions)
        assert joined.clock.partitions[added].max_event_time_ms is None
        job.send([event(T0 + 60_000, partition=number) for number in range(_PARTITIONS)])
        wait_until(lambda: not life.is_alive() or _read(job) == 2 * _PARTITIONS)
        job.send([event(T0 + 20_000, partition=_PARTITIONS)])
        wait_until(lambda: not life.is_alive() or _read(job) == 2 * _PARTITIONS + 1)
    totals = job.run(drain=True).totals
    assert (totals.released, totals.late) == (2 * _PARTITIONS + 1, 0)
    assert_ordered(job.released())


def _read(job: LocalJob) -> int:
    return job.steps[-1][1].totals.read if job.steps else 0


@pytest.mark.promise("order-rows-deleted-read")
def test_rows_that_are_deleted_before_they_are_read_are_counted(job: LocalJob) -> None:
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
