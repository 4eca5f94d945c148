"""The reorder job on Spark puts out what the reference does, row for row, whenever it dies.

Beside it the job on lists, which decides each step alike.

Random histories, few of them: each step is a life of the job. The job on lists meets many more in
tests/property/test_reorder_tester.py. `SEQUITUR_REFERENCE_EXAMPLES=50` meets more here, too, and
in HDFS as well.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sequitur.consumer import ReorderSettings
from sequitur.consumer.event_time import REASON_HEADER
from sequitur.kafka.partition import murmur2
from sequitur.pipelines.ordering.job import SparkRunner
from sequitur.pipelines.ordering.run import run_reorder
from sequitur.testing import ReorderTester
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.deaths import DOCUMENTS, DiedError, deadly
from tests.support.events import Event
from tests.support.job_on_lists import decided, decided_in, done_in
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS, histories
from tests.support.reorder_reference import Record, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.consumer.step_log import StepDone, StepEntry
    from sequitur.testing import ReorderedRecord
    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job
    from tests.support.broker_job import StorageFolder
    from tests.support.reorder_histories import History, HistoryStep

pytestmark = pytest.mark.spark

_USUAL: Final = 3
_EXAMPLES = int(os.environ.get("SEQUITUR_REFERENCE_EXAMPLES", str(_USUAL)))
_STORAGES: Final = [
    "local",
    *(
        pytest.param(one, marks=pytest.mark.test_all)
        for one in ("s3", "hdfs")[: 1 + (_EXAMPLES > _USUAL)]
    ),
]
_PARTITIONS: Final = 4  # one more than the histories use: it is never seen
_PLACE: Final = "place"


class _Lives:
    """The job on a topic of its own, beside the reference.

    Args:
        job: Gives the session and the broker.
        topic: The input topic.
        checkpoint: The job's folder.
        history: The settings.
    """

    def __init__(self, job: Job, topic: str, checkpoint: str, history: History) -> None:
        self.job = job.with_settings(
            input_topics=[topic],
            output_topic=f"{topic}.ordered",
            checkpoint=checkpoint,
            delay=timedelta(milliseconds=history.delay_ms),
            idle_timeout=timedelta(milliseconds=history.idle_timeout_ms),
            max_future_skew=timedelta(milliseconds=MAX_FUTURE_SKEW_MS),
            max_offsets_per_trigger=None,  # one batch takes all there is
        )
        self.reference = Reference(
            delay_ms=history.delay_ms,
            idle_timeout_ms=history.idle_timeout_ms,
            max_future_skew_ms=MAX_FUTURE_SKEW_MS,
            rescue=getattr(ReorderSettings.model_fields.get("rescue"), "default", False),
            is_bounded=True,
        )
        self._places = [(topic, number) for number in range(_PARTITIONS)]
        self._offsets = [0] * _PARTITIONS
        self._deaths = 0
        self._ways = itertools.cycle([BY_TASKS, BY_DRIVER])  # a repeat goes another way
        self._now_ms = history.start_ms
        self.steps: list[tuple[StepEntry, StepDone]] = []
        self._rows: list[dict[str, Any]] = []
        self.on_lists = ReorderTester(
            self.job.settings,
            partitions=_PARTITIONS,
            now_ms=history.start_ms,
            available_now=True,
        )

    def live(self, step: HistoryStep) -> None:
        """One step: a life, or two when the first one dies in it."""
        self._now_ms += step.passed_ms
        records = self._send(step)
        if step.dies:
            # Nothing is written where nothing is due: then this death does not come.
            with contextlib.suppress(DiedError), deadly(DOCUMENTS[self._deaths % len(DOCUMENTS)]):
                self._deaths += 1
                self._run()
        self._run()
        self.on_lists.now_ms = self._now_ms
        self.on_lists.restart()
        self.on_lists.run(self._rows)
        self.reference.step(records, self._places, now_ms=self._now_ms)

    def drain(self) -> None:
        self._run(drain=True)
        self.on_lists.drain()
        self.reference.drain()

    def _run(self, *, drain: bool = False) -> None:
        run_reorder(
            SparkRunner(self.job.spark),
            self.job.kafka,
            self.job.settings.model_copy(update=next(self._ways)),
            stop=threading.Event(),
            available_now=True,
            drain=drain,
            on_done=lambda *step: self.steps.append(step),
            now_ms=lambda: self._now_ms,
        )

    def _send(self, step: HistoryStep) -> list[Record]:
        records: list[Record] = []
        events: list[Event] = []
        for sent in step.sent:
            topic, number = self._places[sent.partition]
            offset = self._offsets[number]
            self._offsets[number] += 1
            value = sent.value.encode()
            records.append(Record(topic, number, offset, sent.key, value))
            events.append(
                Event(
                    value=value,
                    key=None if sent.key is None else sent.key.encode(),
                    headers=[(_PLACE, f"{number}:{offset}")],
                    partition=number,
                )
            )
        self.job.produce(events)
        self._rows = [
            {"key": one.key, "value": one.value, "headers": one.headers, "partition": one.partition}
            for one in events
        ]
        return records


@pytest.mark.promise("order-random-disorder-silence")
@pytest.mark.parametrize("storage", _STORAGES, indirect=True)
@settings(
    max_examples=_EXAMPLES,
    derandomize=True,  # each run of the tests takes as long as the one before
    phases=[Phase.generate],  # making it smaller takes a session of Spark's time
    suppress_health_check=list(HealthCheck),
)
@given(history=histories(min_steps=3, max_steps=4, min_sent=1, max_sent=12))
def test_the_job_puts_out_what_the_reference_does(
    job: Job,
    make_topic: MakeTopic,
    storage: StorageFolder,
    history: History,
) -> None:
    """Each output partition holds the reference's rows in its order; so do the side topics."""
    checkpoint = f"{storage.uri}-{uuid4().hex}"
    lives = _Lives(job, make_topic(partitions=_PARTITIONS), checkpoint, history)
    for step in history.steps:
        lives.live(step)
        assert _by_partition(lives.job.released()) == _expected(lives.reference.released)
    lives.drain()
    job, reference = lives.job, lives.reference
    assert _by_partition(job.released()) == _expected(reference.released)
    assert sorted(map(_place, job.late())) == sorted(map(_place_of, reference.late))
    assert sorted((_place(r), _reason(r)) for r in job.quarantined()) == sorted(
        (_place_of(record), reason) for record, reason in reference.quarantined
    )
    with lives.on_lists as tester:  # the same rows, and every step decided alike
        assert _by_partition(job.released()) == _by_partition(tester.released)
        assert sorted(map(_place, job.late())) == sorted(map(_place, tester.late))
        assert sorted((_place(r), _reason(r)) for r in job.quarantined()) == sorted(
            (_place(r), _reason(r)) for r in tester.quarantined
        )
        assert [decided(entry.to_document()) for entry, _ in lives.steps] == decided_in(
            tester.folder
        )
        assert [asdict(done.totals) for _, done in lives.steps] == done_in(tester.folder)


def _by_partition(records: Iterable[TopicRecord | ReorderedRecord]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(_place(record))
    return found


def _expected(records: Iterable[Record]) -> dict[int, list[str]]:
    expected: dict[int, list[str]] = {}
    for record in records:
        partition = record.partition
        if record.key is not None:
            partition = (murmur2(record.key.encode()) & 0x7FFFFFFF) % _PARTITIONS
        expected.setdefault(partition, []).append(_place_of(record))
    return expected


def _place(record: TopicRecord | ReorderedRecord) -> str:
    return (record.header(_PLACE) or b"").decode()


def _place_of(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def _reason(record: TopicRecord | ReorderedRecord) -> str:
    return (record.header(REASON_HEADER) or b"").decode()
