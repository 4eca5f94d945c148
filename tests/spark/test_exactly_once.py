"""What Spark does to the tasks that write: it kills, repeats and doubles them."""

from __future__ import annotations

import os
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sequitur._topic_reader import read_topic
from sequitur.consumer import EVENT_TIME_HEADER, CommitTokenError, Delivery, OutputPartition
from sequitur.pipelines._errors import SinkError
from sequitur.pipelines.kafka.commit_tokens import CommitTokens
from sequitur.pipelines.launch import spark_submit_command, spark_submit_environment
from sequitur.pipelines.sink.partition_writer import PartitionWriter
from sequitur.producer import KafkaSettings
from tests.spark.conftest import Job, by_partition, event, time_of, wait_until
from tests.spark.standalone_cluster import java_options, standalone_cluster
from tests.support.document_folder import DocumentFolder
from tests.support.tokens import token_of

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
_ROWS = 5000
_SUBMIT_TIMEOUT_S = 600


@pytest.mark.slow
def test_speculative_copy_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Of a task that hangs Spark starts a copy on another host: the rows are there once."""
    topic = make_topic(partitions=1)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    tokens = CommitTokens(kafka, app=f"app-{topic}", documents=DocumentFolder())
    tokens.open({topic: 1}, newest=-1, done=-1)
    with standalone_cluster(tmp_path) as master:
        command = spark_submit_command(
            [kafka.bootstrap_servers, topic, f"app-{topic}", tokens.job, str(_ROWS)],
            job=Path(__file__).with_name("speculation_job.py"),
            master=master,
            options={
                "spark.driver.extraJavaOptions": java_options(),
                "spark.executor.extraJavaOptions": java_options(),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.memory": "512m",
                "spark.executor.memory": "512m",
                "spark.task.maxFailures": "1",
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.task.duration.threshold": "1s",  # a stage of one task
            },
        )
        done = subprocess.run(
            command,
            env=spark_submit_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=_SUBMIT_TIMEOUT_S,
            check=False,
        )
    assert f"written {_ROWS}\n" in done.stdout, done.stdout + done.stderr
    found = [int(record.value or b"") for record in read_topic(kafka, topic)]
    assert found == list(range(_ROWS))


class _Failing(PartitionWriter):
    """Fails at the last of four partitions, when the others have their rows."""

    __slots__ = ()

    def send(self, partition: int, batches: Any) -> tuple[int, int]:
        if partition == 3:
            self._wait_for_the_others()
            raise RuntimeError("this partition cannot be written")
        return super().send(partition, batches)

    def _wait_for_the_others(self) -> None:
        others = [OutputPartition(self.topic, partition) for partition in range(3)]
        wait_until(lambda: all(self._is_done(where) for where in others))

    def _is_done(self, where: OutputPartition) -> bool:
        token = token_of(self.kafka, self.app, where)
        return token is not None and token.step == self.step


def test_step_that_is_half_written_is_completed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job dies when some partitions have the step's rows: its next life writes the others."""
    events = [event(T0 + n, key=f"k{n}") for n in range(400)]
    job.produce(events)
    job.run()
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.PartitionWriter", _Failing)
        with pytest.raises(SinkError, match="RuntimeError: this partition cannot be written"):
            job.run(drain=True)
    assert {record.partition for record in job.released()} == {0, 1, 2}
    report = job.run(drain=True)
    assert report.totals.released == report.totals.read == 400
    assert sorted(time_of(record) for record in job.released()) == [T0 + n for n in range(400)]


def test_repeat_of_a_step_has_a_time_of_its_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is completed days later gives timestamps that brokers take and keep then.

    What was out already stays as it is, and what the next step writes is not before it.
    """
    begun = time.time_ns() // 1_000_000
    days_ago = begun - 3 * 86_400_000
    times = [days_ago - 1_000 + n for n in range(400)]
    job.produce([event(time, key=f"k{n}") for n, time in enumerate(times)])
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.PartitionWriter", _Failing)
        with pytest.raises(SinkError, match="cannot be written"):
            job.run(drain=True, now_ms=lambda: days_ago)
    job.run(drain=True)
    job.produce([event(begun + n, key=f"k{n}") for n in range(8)])
    job.run(drain=True, now_ms=lambda: begun - 300_000)  # a clock that has gone back
    records = by_partition(job.released())
    assert sum(map(len, records.values())) == 408
    for partition, own in records.items():
        assert [int(record.header(EVENT_TIME_HEADER) or record.timestamp_ms) for record in own] == [
            time_of(record) for record in own
        ]
        assert all(one.timestamp_ms <= other.timestamp_ms for one, other in pairwise(own))
        repeated = [record.timestamp_ms for record in own if time_of(record) < begun]
        if partition == 3:
            assert min(repeated) >= begun - 6 * 3_600_000
        else:
            assert max(repeated) <= days_ago


def test_delivery_can_be_changed_between_two_runs(job: Job) -> None:
    """At least once and back: what was written under one is not written again under the other."""
    weaker = job.with_settings(delivery=Delivery.AT_LEAST_ONCE)
    for life, run in enumerate((weaker, job, weaker, job)):
        job.produce([event(T0 + 100 * life + n, partition=n % 4) for n in range(100)])
        run.run(drain=True)
    assert sorted(time_of(record) for record in job.released()) == [T0 + n for n in range(400)]


def test_two_jobs_of_one_name_do_not_mix(job: Job, tmp_path: Path) -> None:
    """A job with a new checkpoint finds the tokens of the old one, and is told to take a name."""
    job.produce([event(T0, partition=p) for p in range(4)])
    job.run(drain=True)
    anew = job.with_settings(checkpoint=str(tmp_path / "anew"))
    with pytest.raises(CommitTokenError, match="needs an app of its own"):
        anew.run(drain=True)
    named = anew.with_settings(app="anew", checkpoint=str(tmp_path / "named"))
    assert named.run(drain=True).totals.released == 4
    assert len(job.released()) == 8
