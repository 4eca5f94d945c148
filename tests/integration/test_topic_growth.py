"""An output topic that gains partitions between two lives of the job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
    NewTopic,
)

from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.store.owned_folder import step_name
from tests.support.events import T0, by_partition, event, time_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.broker_job import BrokerJob
    from tests.support.events import Event, Written

_HAD: Final = 4
_HAS: Final = 6


def _events(first: int, last: int) -> list[Event]:
    return [event(T0 + n, key=f"k{n // 10 % 11}", n=n) for n in range(first, last, 10)]


def _check(found: Sequence[Written], partitions: int) -> None:
    """Each key is in its partition by a number, and each partition is in order."""
    for record in found:
        assert record.partition == KeyPartitioner(partitions).partition(record.key or b"")
    for records in by_partition(found).values():
        times = [time_of(record) for record in records]
        assert times == sorted(times)


def _grow(job: BrokerJob) -> None:
    admin, topic = AdminClient(job.kafka.librdkafka()), job.settings.output_topic
    admin.create_partitions([NewPartitions(topic, _HAS)])[topic].result(PATIENCE_S)


@pytest.mark.promise("order-output-topic-gains")
def test_keys_stay_where_they_are(job: BrokerJob) -> None:
    """Of rows that are held, and of a step that a life has left unfinished, too."""
    job.produce(_events(0, 3000))
    assert job.run().totals.held > 0
    entry, _ = job.steps[-1]
    Path(job.settings.checkpoint, "done", step_name(entry.step)).unlink()
    _grow(job)
    job.produce(_events(3000, 6000))
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.late, report.totals.held) == (600, 0, 0)
    found = job.released()
    assert sorted(map(time_of, found)) == [T0 + n for n in range(0, 6000, 10)]
    _check(found, _HAD)


@pytest.mark.test_all
@pytest.mark.promise("order-output-topic-gains")
def test_another_output_topic_uses_more_partitions(job: BrokerJob, tmp_path: Path) -> None:
    """As the page says: the job goes on at its subscription's cursor, and no row comes twice."""
    job = job.with_settings(subscription=f"sub-{uuid4().hex[:8]}")
    job.produce(_events(0, 3000))
    assert job.run(drain=True).totals.held == 0
    other = f"{job.settings.output_topic}-wider"
    admin = AdminClient(job.kafka.librdkafka())
    admin.create_topics([NewTopic(other, _HAS, 1)])[other].result(PATIENCE_S)
    wider = job.with_settings(checkpoint=str(tmp_path / "wider"), output_topic=other)
    wider.produce(_events(3000, 6000))
    assert wider.run(drain=True).totals.held == 0
    found = wider.released()
    assert sorted(map(time_of, found)) == [T0 + n for n in range(3000, 6000, 10)]
    _check(found, _HAS)
    assert max(record.partition for record in found) >= _HAD
