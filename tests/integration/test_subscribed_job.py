"""A job with a subscription: what left it is acked, and without its checkpoint it goes on there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota, TopicPolicies
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.errors import (
    SubscriptionError,
    SubscriptionFencedError,
    TopologyTaskError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_subscription import JobSubscription
from sequitur.producer import IdempotentProducer, Persisted, ProducerSettings
from tests.spark import transactional_bolts
from tests.support.events import T0, Event, event, time_of
from tests.support.output_reading import read_output
from tests.support.subscribed_topics import SubscribedTopics
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S, until, wait_until

if TYPE_CHECKING:
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.producer import Delivery, KafkaSettings
    from sequitur.producer.quota import QuotaStatistics
    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob

_S = 1_000


@pytest.fixture
def subscribed(job: BrokerJob, kafka: KafkaSettings) -> BrokerJob:
    job.kafka = kafka
    return job.with_settings(delay="10 s", subscription=f"sub-{uuid4().hex[:8]}")


def _event(at: object) -> Event:
    """Return an event of so many seconds after the first."""
    return event(T0 + at * _S if isinstance(at, int) else at, partition=0)


def _stored(job: BrokerJob) -> StoredSubscription:
    assert job.settings.subscription is not None
    found = CursorStore(job.kafka).read(job.settings.subscription)
    assert found is not None
    return found


def _cursor(job: BrokerJob, partition: int = 0) -> Cursor:
    return _stored(job).cursors[SourcePartition(job.topic, partition)].cursor


def _lose_checkpoint(job: BrokerJob) -> None:
    shutil.rmtree(Path(job.settings.checkpoint))


def _times(job: BrokerJob) -> list[int]:
    return [(time_of(record) - T0) // _S for record in job.released()]


@pytest.mark.promise("sub-job-subscription-work")
def test_what_left_the_job_is_acked_and_what_is_held_is_not(subscribed: BrokerJob) -> None:
    """Released, late and quarantined rows are acked; held ones are holes, and Kafka shows them."""
    job = subscribed
    sent = [0, 30, 1, 25, 29, "never", 40, 35]
    job.produce(_event(one) for one in sent)
    report = job.run()
    assert (report.totals.released, report.totals.held) == (5, 2)
    cursor = _cursor(job)
    assert list(cursor.unacked_ranges(0, 8)) == [(6, 8)]
    assert cursor.stats(8).to_document()["msgBacklog"] == 2
    group = group_of_new(job.kafka, job.settings.subscription or "")
    consumer = Consumer({**job.kafka.librdkafka(), "group.id": group})
    (committed,) = consumer.committed([TopicPartition(job.topic, 0)], timeout=PATIENCE_S)
    consumer.close()
    assert committed.offset == cursor.committed_offset == 6
    job.run(drain=True)
    assert _cursor(job).committed_offset == 8


@pytest.mark.promise("sub-checkpoint-deleted")
def test_job_without_its_checkpoint_goes_on_at_the_cursor(subscribed: BrokerJob) -> None:
    """Nothing acked is processed again, held rows come, and what is behind the frontier is late."""
    job = subscribed
    job.produce(_event(one) for one in (0, 30, 1, 40, 20, 50))
    job.run()
    assert _times(job) == [0, 1, 20, 30, 40]
    assert list(_cursor(job).unacked_ranges(0, 6)) == [(5, 6)]
    _lose_checkpoint(job)
    job.produce(_event(one) for one in (5, 45, 70))
    report = job.run(drain=True)
    assert _times(job) == [0, 1, 20, 30, 40, 45, 50, 70]
    assert (report.totals.late, report.totals.skipped) == (1, 0)
    assert _cursor(job).committed_offset == 9
    assert _stored(job).state.repeated == 0


@pytest.mark.test_all
@pytest.mark.promise("sub-jobs-subscription-older")
def test_newer_life_of_a_subscription_stops_the_older(subscribed: BrokerJob) -> None:
    """A job whose subscription another one takes ends by name, and writes no cursor behind that."""
    job = subscribed
    job.produce(_event(one) for one in (0, 30))
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        life = pool.submit(job.run, available_now=False, stop=stop)
        try:
            wait_until(lambda: len(job.steps) > 1)
            assert job.settings.subscription is not None
            with CursorStore(job.kafka).take(job.settings.subscription) as other:
                assert other.stored is not None
                other.write(replace(other.stored.state, step=99), [])
                wait_until(life.done)
        finally:
            stop.set()
        with pytest.raises(SubscriptionFencedError, match="was taken over"):
            life.result()
    assert _stored(job).state.step == 99


@pytest.mark.promise("sub-checkpoint-put-back")
def test_another_checkpoint_is_refused(subscribed: BrokerJob, tmp_path: Path) -> None:
    """A checkpoint with a log, that the cursors were not written by, is not gone on with."""
    job = subscribed
    job.produce([_event(0)])
    job.run()
    kept = tmp_path / "kept"
    shutil.copytree(job.settings.checkpoint, kept)
    _lose_checkpoint(job)
    job.produce([_event(20)])
    job.run()
    old = job.with_settings(checkpoint=str(kept))
    with pytest.raises(SubscriptionError, match="another checkpoint"):
        old.run()
    job.run(drain=True)
    assert _times(job) == [0, 20]


@pytest.mark.promise("sub-messages-older-time")
def test_rows_that_expired_are_skipped_wherever_they_are(subscribed: BrokerJob) -> None:
    """A time to live acks rows that are held and rows that were not read yet; they are counted."""
    # Until there are rows in all partitions nothing is released, however long the checks take.
    job = subscribed.with_settings(idle_timeout="1 h")
    now_ms = time.time_ns() // 1_000_000
    old, new = now_ms - 3_600_000, now_ms
    job.produce(replace(_event(one), timestamp_ms=old) for one in (0, 30, 25))
    job.run()
    assert _times(job) == [0]
    registry = RegistryStore(job.kafka)
    registry.change(lambda found: found.with_policies(job.topic, TopicPolicies(message_ttl_s=600)))
    job.produce(replace(_event(one), timestamp_ms=old) for one in (31, 32))
    job.produce(replace(_event(one), timestamp_ms=new) for one in (33, 60))
    with job.running():
        wait_until(lambda: _cursor(job).committed_offset >= 5)
        job.produce(replace(_event(90), partition=one, timestamp_ms=new) for one in range(4))
        wait_until(lambda: sorted(_times(job))[:3] == [0, 33, 60])
    report = job.run(drain=True)
    assert sorted(_times(job)) == [0, 33, 60, 90, 90, 90, 90]
    totals = report.totals
    assert (totals.read, totals.released, totals.skipped, totals.held) == (11, 7, 4, 0)


@pytest.mark.test_all
@pytest.mark.promise("sub-messages-older-time", "sub-quota-evicts-messages")
def test_rows_that_a_quota_evicts_are_copied_and_told_wherever_they_are(
    subscribed: BrokerJob, make_topic: MakeTopic, capfd: pytest.CaptureFixture[str]
) -> None:
    """Held rows and such as were not read yet; they are counted, and the job says which."""
    copies = make_topic(partitions=1)
    job = subscribed.with_settings(idle_timeout="1 h", evicted_topic=copies)
    now_ms = time.time_ns() // 1_000_000
    job.produce(replace(_event(one), timestamp_ms=now_ms - 3_600_000) for one in (0, 30, 25))
    job.run()
    quota = BacklogQuota(None, 600, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    policies = TopicPolicies(backlog_quota=quota)
    RegistryStore(job.kafka).change(lambda found: found.with_policies(job.topic, policies))
    job.produce(replace(_event(one), timestamp_ms=now_ms - 3_600_000) for one in (31, 32))
    job.produce(replace(_event(one), timestamp_ms=now_ms) for one in (33, 60))
    with job.running():
        wait_until(lambda: _cursor(job).committed_offset >= 5)
        job.produce(replace(_event(90), partition=one, timestamp_ms=now_ms) for one in range(4))
        wait_until(lambda: sorted(_times(job))[:3] == [0, 33, 60])
    report = job.run(drain=True)
    assert sorted(_times(job)) == [0, 33, 60, 90, 90, 90, 90]
    totals = report.totals
    assert (totals.read, totals.released, totals.skipped, totals.held) == (11, 7, 4, 0)
    assert [(time_of(one) - T0) // _S for one in read_output(job.kafka, copies)] == [30, 25, 31, 32]
    told = f"evicted: {job.topic}, partition 0: 4 messages from 1 to before 5 are acked"
    assert told in capfd.readouterr().err


@pytest.mark.promise("sub-subscription-reset")
def test_reset_begins_everything_anew(subscribed: BrokerJob) -> None:
    """Behind a reset the job has a folder of its own, and gives the rows again from the target."""
    job = subscribed
    job.produce(_event(one) for one in (0, 30, 25, 50))
    job.run()
    assert _times(job) == [0, 25, 30]
    assert job.settings.subscription is not None
    moves = CursorMoves(Surveyor(job.kafka))
    moves.carry_out(moves.plan_reset(job.settings.subscription, Edge.EARLIEST), fence=True)
    report = job.run(drain=True)
    assert _times(job) == [0, 25, 30, 0, 25, 30, 50]
    assert (report.totals.read, report.totals.late) == (4, 0)
    assert [one.name for one in Path(job.settings.checkpoint, "epochs").iterdir()] == ["000001"]


_LIMIT = 50_000
_HOUR_MS = 3_600_000


def _limited(job: BrokerJob) -> SubscribedTopics:
    """Let the job register, and hold producers to its topic from a backlog of so many bytes on."""
    topics = SubscribedTopics(job.kafka)
    job.run()
    quota = BacklogQuota(_LIMIT, None, BacklogPolicy.PRODUCER_REQUEST_HOLD)
    topics.policies(job.topic, TopicPolicies(backlog_quota=quota))
    return topics


def _fill(job: BrokerJob, times_ms: range) -> None:
    """Send events of 1 kB, to all partitions in turn."""
    job.produce(event(T0 + t, partition=n % 4, pad="." * 1_000) for n, t in enumerate(times_ms))


def _quota(producer: IdempotentProducer) -> QuotaStatistics:
    quota = producer.statistics().quota
    assert quota is not None
    return quota


async def _held(producer: IdempotentProducer, topic: str) -> asyncio.Task[Delivery]:
    """Send until the producer knows that the quota holds it: the last send waits."""
    while True:
        sending = asyncio.create_task(producer.send(topic, b"{}"))
        await until(lambda: sending.done() or _quota(producer).held)  # noqa: B023 - awaited here
        if not sending.done():
            return sending


async def _send_held(job: BrokerJob, topics: SubscribedTopics) -> None:
    """Have the quota hold a producer's send, which the job lets go on while it runs."""
    settings = ProducerSettings(backlog_quota=True)
    async with IdempotentProducer(job.kafka, settings) as producer:
        sending = await _held(producer, job.topic)
        with job.running():
            assert isinstance(await (await sending), Persisted)
            survey = await asyncio.to_thread(topics.surveyor.survey, [job.topic])
            assert survey.backlog(job.topic).size_bytes < _LIMIT


@pytest.mark.test_all
@pytest.mark.promise("sub-topic-quota-holds")
def test_acks_of_the_job_let_a_held_producer_go_on(subscribed: BrokerJob) -> None:
    """Its own checks tell so, while it runs."""
    job = subscribed.with_settings(delay="0 s")
    topics = _limited(job)
    _fill(job, range(60))
    with contextlib.closing(Checks(topics.surveyor, valid_for_ms=_HOUR_MS)) as checks:
        assert checks.run(now_ms=topics.now_ms).quotas[0].is_exceeded
    asyncio.run(_send_held(job, topics))


def _count(folder: Path) -> tuple[int, int]:
    """Return the count of all events that a database has, and the transaction that wrote it."""
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as database:
        ((value, txid),) = database.execute("SELECT value, txid FROM global_count")
    return value, txid


@pytest.mark.promise("sub-transactional-topology")
@pytest.mark.parametrize("is_opaque", [False, pytest.param(True, marks=pytest.mark.test_all)])
def test_transactions_go_on_behind_a_lost_checkpoint(
    subscribed: BrokerJob, tmp_path: Path, is_opaque: bool
) -> None:
    """Transaction ids go on where the cursor was, and databases know the job still."""
    topology = transactional_bolts.global_count(tmp_path, is_opaque=is_opaque)
    job = subscribed.running_topology(topology)
    job.produce(_event(one) for one in (0, 30, 40, 35))
    job.run()
    before = _count(tmp_path)
    assert before[0] == 2
    _lose_checkpoint(job)
    job.produce([_event(70)])
    job.run(drain=True)
    after = _count(tmp_path)
    assert after[0] == 5
    assert after[1] > before[1]


@pytest.mark.test_all
@pytest.mark.promise("sub-transactional-topology")
@pytest.mark.parametrize("is_opaque", [False, True])
def test_transaction_that_was_committed_and_not_acked_counts_once(
    subscribed: BrokerJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opaque: bool
) -> None:
    """Events of a transaction behind the last cursor come again, and are counted once all the same.

    The job dies between the commit in the database and the cursor, and its checkpoint is gone. With
    states that are not opaque it is refused by name.
    """
    topology = transactional_bolts.global_count(tmp_path, is_opaque=is_opaque)
    job = subscribed.running_topology(topology)
    job.produce(_event(one) for one in (0, 30))
    job.run()
    assert _count(tmp_path)[0] == 1

    acked, step = JobSubscription.step_is_done, _stored(job).state.step

    def die(self: JobSubscription, checkpoint: Any, entry: StepEntry, **more: Any) -> None:
        if entry.step > step:
            raise RuntimeError("dead")
        acked(self, checkpoint, entry, **more)

    with monkeypatch.context() as patched:
        patched.setattr(JobSubscription, "step_is_done", die)
        job.produce(_event(one) for one in (60, 50))
        with pytest.raises(RuntimeError, match="dead"):
            job.run()
    assert _count(tmp_path)[0] == 3
    _lose_checkpoint(job)
    if not is_opaque:
        with pytest.raises(TopologyTaskError, match="with another batch"):
            job.run(drain=True)
        return
    job.run(drain=True)
    assert _count(tmp_path)[0] == 4
