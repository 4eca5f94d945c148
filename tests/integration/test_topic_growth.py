"""An output topic that gains partitions between two lives of the job."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from sequitur.consumer.step_log import PartitionCounts, StepKind
from sequitur.consumer.topology import TopologyBuilder
from sequitur.errors import TopologyFileError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.store.ownership import step_name
from tests.spark import bolts
from tests.support.events import T0, by_partition, event, time_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.broker_job import BrokerJob
    from tests.support.events import Event

_HAD: Final = 4
_HAS: Final = 6


def _grow(job: BrokerJob, topic: str | None = None) -> None:
    topic = topic or job.settings.output_topic
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_partitions([NewPartitions(topic, _HAS)])[topic].result(PATIENCE_S)


def _events(first: int, last: int) -> list[Event]:
    times = list(range(first, last, 10))
    places = sorted(range(len(times)), key=lambda n: n + random.Random(n).randrange(20))
    return [event(T0 + times[n], key=f"k{times[n] // 10 % 11}", n=times[n]) for n in places]


def _place(key: bytes | None, partitions: int) -> int:
    return KeyPartitioner(partitions).partition(key or b"")


def _end_behind_staging(checkpoint: str, step: int) -> None:
    """As a life leaves it that dies once a step is staged."""
    for folder in ("frontier", "done"):
        Path(checkpoint, folder, step_name(step)).unlink()


@pytest.mark.promise("order-output-topic-gains")
def test_rows_up_to_the_cut_go_by_the_older_number(job: BrokerJob) -> None:
    """What is held goes out where it would have gone, what comes later by the new number.

    Rows that come later with an event time up to the cut go by the older one, and are late if rows
    of their key behind the cut are out, which are in another partition.
    """
    job.produce(_events(0, 3000))
    job = job.with_settings(max_offsets_per_trigger=150)
    assert job.run().totals.held > 0
    _grow(job)
    assert job.run().totals.released < 300
    assert job.kinds().count(StepKind.GROWTH) == 1
    entry, _ = job.steps[-1]
    assert (entry.kind, entry.reach_ms) == (StepKind.GROWTH, T0 + 2990)
    _end_behind_staging(job.settings.checkpoint, entry.step)
    new = _events(2400, 6000)
    job.produce(new)
    job.run()
    assert job.kinds().count(StepKind.GROWTH) == 2  # the same step, once more
    cut_ms = T0 + 2990
    grown = PartitionCounts((_HAD, _HAS), (cut_ms,))
    assert {one.partition_counts for one, _ in job.steps[-3:]} == {grown}
    assert job.report is not None
    assert job.report.frontier_ms > cut_ms  # also without a drain the run does not end at the cut
    behind = [event(T0 + 2980, key=f"k{n}", n=n) for n in range(11)]
    job.produce([*behind, event(T0 + 2990, key="nobody's", n=-1)])
    report = job.run(drain=True)
    assert (report.totals.held, report.totals.read) == (0, 300 + 360 + 12)
    assert (report.totals.late, report.totals.released) == (11, 300 + 360 + 1)
    assert not any(one.previous_frontier_ms < cut_ms < one.frontier_ms for one, _ in job.steps)
    found = job.released()
    assert len(found) == report.totals.released
    of_keys: defaultdict[bytes | None, dict[bool, set[int]]] = defaultdict(dict)
    for record in found:
        is_older = time_of(record) <= cut_ms
        assert record.partition == _place(record.key, _HAD if is_older else _HAS)
        of_keys[record.key].setdefault(is_older, set()).add(record.partition)
    assert any(one.get(True) != one.get(False) for one in of_keys.values())
    for records in by_partition(found).values():
        times = [time_of(record) for record in records if record.key != b"nobody's"]
        assert times == sorted(times)
    late = job.late()
    assert sorted(record.key or b"" for record in late) == sorted(b"k%d" % n for n in range(11))


@pytest.mark.test_all
@pytest.mark.promise("order-output-topic-gains")
def test_topic_that_grows_twice_and_late_topic_that_grows_too(job: BrokerJob) -> None:
    """Rows go by three numbers; late ones to all partitions that their topic has."""
    job = job.with_settings(rescue=False)
    job.produce(_events(0, 2000))
    job.run()
    _grow(job)
    job.produce(_events(2000, 4000))
    job.run()
    admin = AdminClient(job.kafka.librdkafka())
    for topic in (job.settings.output_topic, job.settings.late):
        admin.create_partitions([NewPartitions(topic, 9)])[topic].result(PATIENCE_S)
    job.produce([*_events(4000, 6000), *_events(0, 110)])
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.late, report.totals.held) == (600, 11, 0)
    for record in job.released():
        since = (time_of(record) > T0 + 1990) + (time_of(record) > T0 + 3990)
        assert record.partition == _place(record.key, (_HAD, _HAS, 9)[since])
    late = job.late()
    assert len(late) == 11
    assert all(record.partition == _place(record.key, 9) for record in late)


@pytest.mark.test_all
@pytest.mark.promise("process-job-output-topic")
def test_topology_that_keeps_state_is_drained_by_the_older_number(job: BrokerJob) -> None:
    """Refused at each start, but for the one that releases what is held."""
    job = job.running_topology(bolts.word_count())
    words = ("one", "two", "three", "four", "five", "six", "seven")
    job.produce([event(T0 + n, key=f"k{n}", text=" ".join(words)) for n in range(20)])
    assert job.run().totals.held == 20
    _grow(job)
    with pytest.raises(TopologyFileError, match=r"'count'.*--available-now --drain"):
        job.run()
    assert job.run(drain=True).totals.held == 0
    found = job.released()
    assert len(found) == 20 * len(words)
    assert {record.partition for record in found} <= set(range(_HAD))
    with pytest.raises(TopologyFileError, match="had 4 partitions and has 6 now"):
        job.run()


@pytest.mark.test_all
@pytest.mark.promise("process-job-output-topic")
def test_topology_without_state_goes_on(job: BrokerJob) -> None:
    """With the tasks that it had; its outputs go to all partitions, each key's in order."""
    builder = TopologyBuilder("passing")
    builder.set_spout("events")
    builder.set_bolt("enrich", bolts.enrich).local_grouping("events")
    builder.set_output("out", key="key", value="value").local_grouping("enrich")
    job = job.running_topology(builder.build())
    job.produce([event(T0 + n, key=f"k{n % 11}") for n in range(50)])
    job.run()
    _grow(job)
    job.produce([event(T0 + n, key=f"k{n % 11}") for n in range(3000, 3050)])
    assert job.run(drain=True).totals.held == 0
    assert StepKind.GROWTH not in job.kinds()
    found = job.released()
    assert sorted(map(time_of, found)) == [T0 + n for n in (*range(50), *range(3000, 3050))]
    assert max(record.partition for record in found) >= _HAD
    for records in by_partition(found).values():
        times = [time_of(record) for record in records]
        assert times == sorted(times)
