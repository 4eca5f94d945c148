"""Kafka away for a while: the job waits, says so, and goes on; a tick's error ends the query."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.base import ports as _ports
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.errors import SinkUnansweredError, TopicError, UnansweredError
from sequitur.kafka.admin import KafkaTopics
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.small_batches import KafkaRanges
from sequitur.pipelines.ordering.source import KafkaSource
from sequitur.pipelines.ordering.step import Steps
from sequitur.pipelines.sink import sink
from sequitur.pipelines.sink.sink import TopicSink
from sequitur.producer import KafkaSettings
from tests.support.events import T0, Event, event, time_of
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeBroker
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def _waiting_s(address: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith("sequitur_reorder_waiting_seconds ")]
    return float(line.split()[1])


@pytest.mark.test_all
@pytest.mark.promise("order-kafka-away-minutes")
def test_kafka_that_is_away_is_waited_for(
    job: Job, make_broker: MakeBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a line in the log and a metric; then the same run goes on, and nothing is lost."""
    broker = make_broker()
    address = f"127.0.0.1:{_ports.choose_free()}"
    job.kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    job = job.with_settings(metrics=address, idle_timeout="1 s")

    topic = NewTopic(job.topic, num_partitions=1, replication_factor=1)
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_topics([topic])[job.topic].result(PATIENCE_S)
    job.produce([event(T0 + 10 * n, partition=0) for n in range(200)])
    with job.running() as life:
        wait_until(lambda: bool(job.steps))
        broker.kill()
        wait_until(lambda: life.done() or _waiting_s(address) > 1.5)
        assert life.running()
        broker.start()
        wait_until(lambda: life.done() or _waiting_s(address) == 0)
        job.produce([event(T0 + 10 * n, partition=0) for n in range(200, 400)])
        wait_until(lambda: life.done() or job.steps[-1][1].totals.released == 400)
    assert [time_of(record) - T0 for record in job.released()] == [10 * n for n in range(400)]
    said = capfd.readouterr().err
    assert "waiting for Kafka, " in said
    assert "Kafka answers again, after " in said


@pytest.mark.test_all
@pytest.mark.promise("order-kafka-away-minutes")
@pytest.mark.parametrize("restarts", [1, 0])
def test_query_is_started_anew_as_often_as_it_may(
    job: Job, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """When patience is over in a tick; beyond that the job ends by name, and no query runs."""
    job = job.with_settings(restarts=restarts, idle_timeout="500 ms")
    tick, ticks = ReorderEngine.tick, []

    def fail_once(engine: ReorderEngine) -> bool:
        ticks.append(engine)
        if len(ticks) == 1:
            raise UnansweredError("no answer")
        return tick(engine)

    monkeypatch.setattr(ReorderEngine, "tick", fail_once)
    job.produce([event(T0 + 10 * n, partition=0) for n in range(200)])
    if not restarts:
        with pytest.raises(UnansweredError, match="no answer"), job.running() as life:
            wait_until(life.done)
        assert job.spark.streams.active == []
        return
    with job.running():
        wait_until(lambda: bool(job.steps) and job.steps[-1][1].totals.released == 200)
    assert len(job.released()) == 200


@pytest.mark.test_all
@pytest.mark.promise("order-kafka-away-minutes")
def test_step_whose_writing_failed_is_finished_by_a_new_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a new life of the job: the step is completed, and nothing of it is there twice."""
    write, writes = TopicSink.write, []

    def fail_once(sink: TopicSink, *args: object) -> list[int]:
        written = write(sink, *args)  # type: ignore[arg-type]
        writes.append(written)
        if len(writes) == 1:
            raise SinkUnansweredError("no answer")
        return written

    monkeypatch.setattr(TopicSink, "write", fail_once)
    job.produce([event(T0 + 10 * n, partition=p) for n in range(200) for p in range(4)])
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released) == (800, 800)
    assert len(job.released()) == 800


@pytest.mark.test_all
@pytest.mark.promise("order-tick-fails")
def test_batch_that_waits_for_a_tick_is_not_logged_behind_its_error(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the step of the tick would count as done, and its rows would be in no topic."""
    plans = Path(job.settings.checkpoint, "spark", "offsets")
    ticking: list[StepKind] = []
    hit: list[int] = []
    run_quiet, write = Steps.run_quiet, TopicSink.write

    def quiet(steps: Steps, kind: StepKind, *given: Any) -> bool:
        ticking.append(kind)
        try:
            return run_quiet(steps, kind, *given)
        finally:
            ticking.clear()

    def fail(topic_sink: TopicSink, outgoing: Any, step: int, *times: Any) -> list[int]:
        if ticking != [StepKind.TICK]:
            return write(topic_sink, outgoing, step, *times)
        job.produce([event(T0 + 60_000, partition=0)])
        wait_until((plans / "1").exists)
        # Its thread waits for the lock from here on; where it comes later, nothing differs.
        time.sleep(0.5)
        hit.append(step)
        raise TopicError("no broker answers")

    job.produce([event(T0, partition=0)])
    job = job.with_settings(idle_timeout="1 s", delay="1 s")
    with monkeypatch.context() as patched:
        patched.setattr(Steps, "run_quiet", quiet)
        patched.setattr(TopicSink, "write", fail)
        with pytest.raises(TopicError, match="no broker answers"):
            job.run(available_now=False)
    assert hit == [1]
    report = job.run(drain=True)
    assert (report.totals.read, len(job.released())) == (2, 2)


@pytest.mark.promise("order-tick-fails")
def test_other_error_of_a_tick_ends_the_query(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and no query is left running behind the job's back."""

    def fail(_: ReorderEngine) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(ReorderEngine, "tick", fail)
    job.produce([event(T0)])
    with pytest.raises(ZeroDivisionError), job.running() as life:
        wait_until(life.done)
    assert job.spark.streams.active == []


@pytest.mark.test_all
@pytest.mark.promise("order-partition-far-behind")
def test_held_bytes_are_bounded(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """A partition a day behind is named and overruled; what it gives is late, and counted."""
    job = job.with_settings(max_held_bytes=1, rescue=False, max_offsets_per_trigger=40)
    job.produce([event(T0 - 86_400_000 + n, partition=0) for n in range(50)])
    job.produce([event(T0 + 10 * n, partition=p) for n in range(100) for p in (1, 2, 3)])
    report = job.run(drain=True)
    assert report.totals.read == 350
    assert report.totals.released + report.totals.late == 350
    assert report.totals.late > 0
    held = [done.totals.held for _, done in job.steps]
    assert max(held) == 0
    said = capfd.readouterr().err
    assert f"held for partitions {job.topic}/0" in said


@pytest.mark.test_all
@pytest.mark.promise("order-brokers-away-partition")
def test_an_outage_is_no_silence_of_partitions(job: Job, make_broker: MakeBroker) -> None:
    """It lasts longer than `idle_timeout`, and behind it one producer is back before the other.

    What the other had kept is no later than what the first had.
    """
    broker = make_broker()
    address = f"127.0.0.1:{_ports.choose_free()}"
    job.kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    job = job.with_settings(metrics=address, idle_timeout="8 s")
    topic = NewTopic(job.topic, num_partitions=2, replication_factor=1)
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_topics([topic])[job.topic].result(PATIENCE_S)
    begun_ms = time.time_ns() // 1_000_000

    def rows(partition: int, first_ms: int, last_ms: int) -> list[Event]:
        return [event(at, partition=partition) for at in range(first_ms, last_ms, 100)]

    def read() -> int:
        return job.steps[-1][1].totals.read if job.steps else 0

    job.produce([*rows(0, begun_ms - 1_000, begun_ms), *rows(1, begun_ms - 1_000, begun_ms)])
    with job.running() as life:
        wait_until(lambda: read() == 20)
        broker.kill()
        wait_until(lambda: life.done() or _waiting_s(address) > 12)
        assert life.running()
        broker.start()
        ended_ms = time.time_ns() // 1_000_000
        kept = rows(0, begun_ms, ended_ms)
        job.produce(kept)
        wait_until(lambda: life.done() or read() == 20 + len(kept))
        job.produce(rows(1, begun_ms, ended_ms))
        wait_until(lambda: life.done() or read() == 20 + 2 * len(kept))
    assert job.report is not None
    assert job.report.totals.late == 0
    assert len(kept) > 80


@pytest.mark.test_all
@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize("where", ["a look", "the driver", "tasks", "a send", "a send by tasks"])
def test_a_broker_that_hangs_keeps_no_job_from_ending(
    job: Job, make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It has taken the request, and does not answer. The next life goes on from there."""
    broker = make_broker()
    job.kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    job = job.with_settings(idle_timeout="1 s", small_batch_rows=0 if where == "tasks" else 50_000)
    topic = NewTopic(job.topic, num_partitions=1, replication_factor=1)
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_topics([topic])[job.topic].result(PATIENCE_S)
    job.produce([event(T0 + 10 * n, partition=0) for n in range(200)])
    hangs, is_due, is_sent = threading.Event(), threading.Event(), threading.Event()

    def hanging(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if is_due.is_set() and not hangs.is_set():
                is_sent.wait()
                broker.pause()
                hangs.set()
            return real(*arguments, **options)

        return call

    kind, name = {
        "a look": (KafkaTopics, "high_watermarks"),
        "the driver": (KafkaRanges, "read"),
        "tasks": (KafkaSource, "_by_tasks"),
        "a send": (TopicSink, "_here"),
        "a send by tasks": (TopicSink, "_by_tasks"),
    }[where]
    if where == "a send by tasks":
        monkeypatch.setattr(sink, "_are_small", lambda _outgoing: False)
    monkeypatch.setattr(kind, name, hanging(getattr(kind, name)))
    try:
        with job.running():
            wait_until(lambda: bool(job.steps))
            is_due.set()
            job.produce([event(T0 + 10 * n, partition=0) for n in range(200, 400)])
            is_sent.set()
            wait_until(hangs.is_set)
            begun_s = time.monotonic()
        took_s = time.monotonic() - begun_s
    finally:
        broker.resume()
    monkeypatch.undo()
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [10 * n for n in range(400)]
    assert took_s < _ENDS_WITHIN_S


_ENDS_WITHIN_S: Final = 15.0
"""On a machine with other things to do; else within 5 s."""
