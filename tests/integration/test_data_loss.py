"""Rows of the input that are gone before the job has read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from sequitur.consumer.reorder.step_log import StepKind
from sequitur.errors import DataLossError
from sequitur.pipelines.ordering.runs import SortedRuns
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.events import T0, event, time_of
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob


def _admin(job: BrokerJob) -> AdminClient:
    return AdminClient(job.kafka.librdkafka())


def _delete_records(job: BrokerJob, partition: int, before: int) -> None:
    admin, place = _admin(job), TopicPartition(job.topic, partition, before)
    admin.delete_records([place])[place].result(PATIENCE_S)


@pytest.mark.promise("order-rows-deleted-read")
@pytest.mark.parametrize(
    "way", [BY_DRIVER, pytest.param(BY_TASKS, marks=pytest.mark.test_all)], ids=["driver", "tasks"]
)
def test_retention_past_unread_rows_is_refused_or_counted(
    job: BrokerJob, capfd: pytest.CaptureFixture[str], way: dict[str, int]
) -> None:
    """Refused by partition and offsets, each time; counted as missing, if the job is told to."""
    job = job.with_settings(**way)
    job.produce([event(T0 + n, partition=0) for n in range(10)])
    job.run()
    job.produce([event(T0 + 100 + n, partition=0) for n in range(10)])
    job.produce([event(T0 + 100, partition=1)])
    _delete_records(job, 0, 14)
    for _ in range(2):
        lost = rf"partition 0 of '{job.topic}', offsets 10 to 13: gone before .* on_data_loss = \"c"
        with pytest.raises(DataLossError, match=lost):
            job.run()
    going_on = job.with_settings(on_data_loss="continue")
    report = going_on.run(drain=True)
    assert (report.totals.read, report.totals.missing, report.totals.held) == (17, 4, 0)
    assert report.as_json()["missing"] == 4
    assert going_on.kinds() == [StepKind.RESET, StepKind.BATCH, StepKind.DRAIN]
    entry = going_on.steps[0][0]
    assert {(where.topic, where.partition): span for where, span in entry.lost.items()} == {
        (job.topic, 0): (10, 14)
    }
    found = sorted(time_of(record) - T0 for record in job.released())
    assert found == [*range(10), 100, *range(104, 110)]
    said = capfd.readouterr().err
    assert "offsets 10 to 13: gone before the job had read it, counted as 4 rows missing" in said
    logged = Path(job.settings.checkpoint, "frontier")
    documents = [json.loads(path.read_text()) for path in logged.glob("0*")]
    assert {"topic": job.topic, "partition": 0, "first": 10, "end": 14} in [
        one for document in documents for one in document["lost"]
    ]


@pytest.mark.test_all
@pytest.mark.promise("order-partition-new-last")
@pytest.mark.parametrize("reset_input", [False, True])
def test_new_partition_whose_first_rows_are_gone_is_refused_or_counted(
    job: BrokerJob, *, reset_input: bool
) -> None:
    job.produce([event(T0 + n, partition=n % 4) for n in range(20)])
    job.run()
    admin = _admin(job)
    admin.create_partitions([NewPartitions(job.topic, 5)])[job.topic].result(PATIENCE_S)
    wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).topics[job.topic].partitions) == 5)
    job.produce([event(T0 + 5000 + n, partition=4) for n in range(10)])
    _delete_records(job, 4, 6)
    lost = rf"partition 4 of '{job.topic}', offsets 0 to 5: gone before .* on_data_loss = \"c"
    with pytest.raises(DataLossError, match=lost):
        job.run(reset_input=reset_input)
    going_on = job.with_settings(on_data_loss="continue")
    report = going_on.run(drain=True, reset_input=reset_input)
    assert (report.totals.read, report.totals.missing, report.totals.held) == (24, 6, 0)
    found = sorted(time_of(record) - T0 for record in job.released())
    assert found == [*range(20), *range(5006, 5010)]


@pytest.mark.promise("order-job-dies-first")
def test_first_batch_whose_rows_are_gone_is_begun_anew_by_a_reset(
    job: BrokerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned when the job died, and nothing was logged: whoever is told may begin anew."""

    def dying(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    job.produce([event(T0 + n, partition=0) for n in range(10)])
    with monkeypatch.context() as patched:
        patched.setattr(SortedRuns, "write_run", dying)
        with pytest.raises(RuntimeError, match="killed"):
            job.run()
    _delete_records(job, 0, 5)
    going_on = job.with_settings(on_data_loss="continue")
    with pytest.raises(DataLossError, match=r"offsets 0 to 4: gone, at most 5 .* --reset-input"):
        going_on.run()
    report = going_on.run(drain=True, reset_input=True)
    assert (report.totals.read, report.totals.released) == (5, 5)


@pytest.mark.test_all
@pytest.mark.promise("order-rows-deleted-read")
def test_topic_of_a_pattern_that_is_deleted_is_refused_or_counted(
    job: BrokerJob, make_topic: MakeTopic
) -> None:
    """The others are read on; what was not read of it is missing, and it no longer holds them."""
    stem = job.topic
    other = make_topic(partitions=1)
    pattern = f"{stem}|{other}"
    job = job.with_settings(input_topics=[], input_pattern=pattern, output_topic=f"{stem}.ordered")
    job.produce([event(T0 + n, partition=0) for n in range(5)], topic=stem)
    job.produce([event(T0 + n) for n in range(5)], topic=other)
    job.run()
    admin = _admin(job)
    admin.delete_topics([other])[other].result(PATIENCE_S)
    job.produce([event(T0 + 5000, partition=p) for p in range(4)], topic=stem)
    with pytest.raises(DataLossError, match=f"partition 0 of '{other}', read to its end"):
        job.run()
    report = job.with_settings(on_data_loss="continue").run()
    assert (report.totals.read, report.totals.missing) == (14, 0)
    assert report.frontier_ms == T0 + 4000
    assert report.totals.held == 4
