"""An output topic that has gained partitions: the checkpoint keeps the number it began with."""

from __future__ import annotations

import json
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import BasicBolt, TopologyBuilder
from sequitur.errors import CheckpointError, TopicError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.ordering.logged_steps import LoggedSteps
from sequitur.pipelines.ordering.opening import partitions_begun, partitions_used
from sequitur.pipelines.sink.sink import OutputTopic
from tests.spark import bolts
from tests.support.events import T0, by_partition, event, time_of

if TYPE_CHECKING:
    from sequitur.consumer.topology import Topology
    from tests.support.list_job import ListJob

_HAD = 4
_HAS = 6


def _log(**fields: Any) -> LoggedSteps:
    log = object.__new__(LoggedSteps)
    log.entry, log.staged, log.done = None, (), SimpleNamespace(sent=None)  # type: ignore[assignment]
    for name, value in fields.items():
        setattr(log, name, value)
    return log


def test_log_knows_more_than_the_folder() -> None:
    """The first step decides; what topologies have sent to more partitions stays there."""
    topic = OutputTopic("out", 5)
    entry: Any = SimpleNamespace(output_partitions=None)
    assert partitions_begun(_log(), 2, topic) == 5
    assert partitions_begun(_log(entry=entry), 2, topic) == 2
    entry.output_partitions = 4
    assert partitions_begun(_log(entry=entry), 2, topic) == 4
    done = SimpleNamespace(sent={"topics": {"out": ["id", [0] * 5], "other": ["id", [0] * 9]}})
    assert partitions_used("cp", _log(), 4, topic) == 4
    assert partitions_used("cp", _log(done=done), 4, topic) == 5
    with pytest.raises(CheckpointError, match=r"had 4 partitions and has 3 now"):
        partitions_used("cp", _log(), 4, OutputTopic("out", 3))


def _check_keys_stay(job: ListJob, before: dict[bytes | None, int]) -> None:
    """Each key is in the partition it was in, in order, and those that were gained are empty."""
    found = job.released()
    assert {record.partition for record in found} <= set(range(_HAD))
    for record in found:
        assert record.partition == KeyPartitioner(_HAD).partition(record.key or b"")
        assert before.setdefault(record.key, record.partition) == record.partition
    for records in by_partition(found).values():
        of_keys: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for record in records:
            of_keys[record.key].append(time_of(record))
        assert all(times == sorted(times) for times in of_keys.values())


@pytest.mark.promise("order-output-topic-gains")
def test_keys_stay_where_they_are_and_no_row_is_late_for_it(job: ListJob) -> None:
    """Also of rows that are held, and of a late topic that grows: late rows use all of that."""
    job = job.with_settings(late_policy="topic", rescue=False)
    job.produce(event(T0 + n * 10, key=f"k{n % 11}", n=n) for n in range(100))
    assert job.run().totals.held > 0
    assert job.tester.report().totals.late == 0
    before = {record.key: record.partition for record in job.released()}
    job.grow(job.settings.output_topic, _HAS)
    job.produce(event(T0 + n * 10, key=f"k{n % 11}", n=n) for n in range(100, 200))
    report = job.run(drain=True)
    totals = report.totals
    assert (totals.read, totals.released, totals.late, totals.held) == (200, 200, 0, 0)
    _check_keys_stay(job, before)
    assert [one for one in job.told if "2 stay empty" in one and "another output topic" in one]
    found = inspect_checkpoint(str(job.folder))
    assert (found.empty_partitions, found.as_json()["empty_partitions"]) == (2, 2)
    late = job.settings.late
    job.grow(late, _HAS)
    job.produce(event(T0, key=f"k{n}", n=n) for n in range(30))
    assert job.run(drain=True).totals.late == 30
    assert all(
        record.partition == KeyPartitioner(_HAS).partition(record.key or b"")
        for record in job.late()
    )
    assert len({record.partition for record in job.late()}) > 1


def _passing() -> Topology:
    builder = TopologyBuilder("passing")
    builder.set_spout("events")
    builder.set_bolt("enrich", bolts.enrich).local_grouping("events")
    builder.set_output("out", key="key", value="value").local_grouping("enrich")
    return builder.build()


class _Counting(BasicBolt):
    """Counts the events of each key."""

    fields = ("key", "value")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def process(self, tuple: Any, collector: Any, /) -> None:  # noqa: A002 - the field's word
        key = tuple.key
        count = self._counts[key] = self._counts.get(key, 0) + 1
        collector.emit((key, json.dumps({**json.loads(tuple.value), "count": count}).encode()))

    def snapshot(self) -> dict[bytes, int]:
        return self._counts

    def restore(self, state: dict[bytes, int]) -> None:
        self._counts = state


def _counting() -> Topology:
    builder = TopologyBuilder("counting")
    builder.set_spout("events")
    builder.set_bolt("count", _Counting()).local_grouping("events")
    builder.set_output("out", key="key", value="value").local_grouping("count")
    return builder.build()


@pytest.mark.promise("process-job-output-topic")
@pytest.mark.parametrize("topology", [_passing(), _counting()], ids=["stateless", "with state"])
def test_topology_goes_on_with_its_tasks_and_partitions(job: ListJob, topology: Topology) -> None:
    """State is by task, so the tasks stay; no start is refused."""
    job = job.with_settings(output_partitions=_HAD).running_topology(topology)
    job.produce(event(T0 + n, key=f"k{n % 11}") for n in range(50))
    job.run()
    before = {record.key: record.partition for record in job.released()}
    job.grow(job.settings.output_topic, _HAS)
    job.produce(event(T0 + n, key=f"k{n % 11}") for n in range(3000, 3050))
    assert job.run(drain=True).totals.held == 0
    found = job.released()
    assert sorted(map(time_of, found)) == [T0 + n for n in (*range(50), *range(3000, 3050))]
    _check_keys_stay(job, before)
    counts: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for record in found:
        counts[record.key].append(json.loads(record.value or b"").get("count"))
    if topology.name == "counting":
        assert all(one == [*range(1, len(one) + 1)] for one in counts.values())


def test_setting_that_names_another_number_is_refused(job: ListJob) -> None:
    """The number that the topic has now is none that the job can use."""
    job = job.with_settings(output_partitions=_HAD)
    job.produce([event(T0, key="k")])
    job.run()
    job.grow(job.settings.output_topic, _HAS)
    with pytest.raises(TopicError, match="has 4 partitions, not 6"):
        job.with_settings(output_partitions=_HAS).run()
    job.with_settings(output_partitions=None).run()
