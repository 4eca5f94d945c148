"""Kafka away for a while: the job waits, says so, and goes on; a tick's error ends the query."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur import embedded as _ports
from sequitur.errors import SinkUnansweredError, UnansweredError
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.sink.sink import TopicSink
from sequitur.producer import KafkaSettings
from tests.spark.conftest import Job, wait_until
from tests.support.events import T0, event, time_of

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


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

    def waiting_s() -> float:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [one for one in lines if one.startswith("sequitur_reorder_waiting_seconds ")]
        return float(line.split()[1])

    topic = NewTopic(job.topic, num_partitions=1, replication_factor=1)
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_topics([topic])[job.topic].result(30)
    job.produce([event(T0 + 10 * n, partition=0) for n in range(200)])
    with job.running() as life:
        wait_until(lambda: bool(job.steps))
        broker.kill()
        wait_until(lambda: life.done() or waiting_s() > 1.5)
        assert life.running()
        broker.start()
        wait_until(lambda: life.done() or waiting_s() == 0)
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
    assert f"for the sake of partitions {job.topic}/0" in said
