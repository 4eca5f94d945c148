"""A step whose outputs are half out when the job dies."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.errors import OutputMismatchError, SinkError
from sequitur.pipelines.sink.block_writer import BlockWriter
from tests.support.events import T0, by_partition, event, time_of
from tests.support.output_reading import read_output
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.kafka.connections import GivesWay
    from tests.support.broker_job import BrokerJob


class _Failing(BlockWriter):
    """Fails at the last of four partitions, when the others have their rows."""

    __slots__ = ()

    def write(self, rows: Any, gives_way: GivesWay | None = None) -> dict[int, int]:
        own = list(rows)
        written = super().write([one for one in own if one[0] != 3], gives_way)
        if any(partition == 3 for partition, _ in own):
            wait_until(self._others_have_theirs)
            raise RuntimeError("this partition cannot be written")
        return written

    def _others_have_theirs(self) -> bool:
        return {record.partition for record in read_output(self.kafka, self.topic)} == {0, 1, 2}


@pytest.mark.promise("order-job-dies-output")
def test_step_that_is_half_written_is_completed(
    job: BrokerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job dies when some partitions have the step's rows: its next life writes the others."""
    events = [event(T0 + n, key=f"k{n}") for n in range(400)]
    job.produce(events)
    job.run()
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.BlockWriter", _Failing)
        with pytest.raises(SinkError, match="RuntimeError: this partition cannot be written"):
            job.run(drain=True)
    assert {record.partition for record in job.released()} == {0, 1, 2}
    report = job.run(drain=True)
    assert report.totals.released == report.totals.read == 400
    assert sorted(time_of(record) for record in job.released()) == [T0 + n for n in range(400)]


@pytest.mark.test_all
@pytest.mark.promise("order-late-quarantine-topic")
def test_side_topic_that_grows_within_a_step_is_followed_behind_it(
    job: BrokerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's rows go where they were to go when it was begun; those of the next, everywhere."""
    job.produce([event("bad", key=f"k{n}") for n in range(100)])
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.BlockWriter", _Failing)
        with pytest.raises(SinkError, match="RuntimeError: this partition cannot be written"):
            job.run()
    topic, admin = job.settings.quarantine, AdminClient(job.kafka.librdkafka())
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(PATIENCE_S)
    # By now the process may have died: partitions are counted at the start.
    assert sum(job.run().totals.quarantined.values()) == 100
    before = job.quarantined()
    assert sorted(record.key or b"" for record in before) == sorted(b"k%d" % n for n in range(100))
    assert {record.partition for record in before} == {0, 1, 2, 3}
    job.produce([event("bad", key=f"k{n}") for n in range(100)])
    job.run()
    assert len(job.quarantined()) == 200
    assert {record.partition for record in job.quarantined()} == {*range(6)}


@pytest.mark.test_all
@pytest.mark.promise("order-step-completed-days")
def test_repeat_of_a_step_has_a_time_of_its_own(
    job: BrokerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is completed days later gives timestamps that brokers take and keep then.

    What was out already stays as it is, and what the next step writes is not before it.
    """
    begun = time.time_ns() // 1_000_000
    days_ago = begun - 3 * 86_400_000
    times = [days_ago - 1_000 + n for n in range(400)]
    job.produce([event(time, key=f"k{n}") for n, time in enumerate(times)])
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.BlockWriter", _Failing)
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


@pytest.mark.test_all
@pytest.mark.promise("order-output-checkpoint-new")
def test_two_jobs_of_one_name_do_not_mix(job: BrokerJob, tmp_path: Path) -> None:
    """A job with a new checkpoint finds the rows of the old one, and is told to take a name."""
    job.produce([event(T0, partition=p) for p in range(4)])
    job.run(drain=True)
    anew = job.with_settings(checkpoint=str(tmp_path / "anew"))
    with pytest.raises(OutputMismatchError, match="and an output topic of its own"):
        anew.run(drain=True)
    named = anew.with_settings(app="anew", checkpoint=str(tmp_path / "named"))
    assert named.run(drain=True).totals.released == 4
    assert len(job.released()) == 8
