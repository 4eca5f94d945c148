"""A job with a subscription that dies, or that something is done to from outside.

What is acked never comes again, nothing is lost, and who is refused stops nobody else.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
    NewTopic,
)

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import CursorOwner, CursorStore
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.errors import CheckpointError, SubscriptionError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_subscription import JobSubscription
from sequitur.pipelines.ordering.step import Steps
from tests.support.events import T0, Event, event, time_of
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.reorder.step_log import StagedStep, StepEntry
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.producer import KafkaSettings
    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, pytest.mark.test_all]

_S = 1_000


class DiedError(Exception):
    """What ends a life where a test wants it to end."""


@pytest.fixture
def subscribed(job: Job, kafka: KafkaSettings) -> Job:
    job.kafka = kafka
    return job.with_settings(delay="10 s", subscription=f"sub-{uuid4().hex[:8]}")


def _event(at: object, partition: int = 0) -> Event:
    """Return an event of so many seconds after the first."""
    return event(T0 + at * _S if isinstance(at, int) else at, partition=partition)


def _events(*times: object) -> list[Event]:
    return [_event(one) for one in times]


def _name(job: Job) -> str:
    assert job.settings.subscription is not None
    return job.settings.subscription


def _stored(job: Job) -> StoredSubscription:
    found = CursorStore(job.kafka).read(_name(job))
    assert found is not None
    return found


def _cursor(job: Job, partition: int = 0) -> Cursor:
    return _stored(job).cursors[SourcePartition(job.topic, partition)].cursor


def _lose_checkpoint(job: Job) -> None:
    shutil.rmtree(Path(job.settings.checkpoint))


def _times(job: Job) -> list[int]:
    return [(time_of(record) - T0) // _S for record in job.released()]


def _ack(job: Job, offsets: Iterable[int]) -> None:
    """Ack offsets of the first partition from outside, as an administrator does."""
    with CursorStore(job.kafka).take(_name(job)) as owner:
        assert owner.stored is not None
        one = owner.stored.cursors[SourcePartition(job.topic, 0)]
        for offset in offsets:
            one.cursor.ack(offset, end=one.cursor.read_position)
        owner.write(owner.stored.state, [one])


def _reset(job: Job) -> None:
    """Begin a new epoch, at the beginning of each partition."""
    with CursorStore(job.kafka).take(_name(job)) as owner:
        assert owner.stored is not None
        state = replace(owner.stored.state, epoch=owner.stored.state.epoch + 1, frontier_ms=-1)
        cursors = [Cursor(CursorIdentity(_name(job), *where)) for where in owner.stored.cursors]
        owner.write(state, map(PartitionCursor, cursors))


def _admin(job: Job) -> AdminClient:
    return AdminClient({"bootstrap.servers": job.kafka.bootstrap_servers})


def _recreate(job: Job, partitions: int) -> None:
    """Delete the input topic, and make another one of its name."""
    client, name = _admin(job), job.topic
    client.delete_topics([name])[name].result(PATIENCE_S)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1)

    def is_made() -> bool:
        with contextlib.suppress(KafkaException):
            client.create_topics([topic])[name].result(PATIENCE_S)
            return True
        return False

    wait_until(is_made)


def _dying(*_: Any, **__: Any) -> Never:
    raise DiedError


def _die_in(job: Job, where: type, name: str, **run: Any) -> None:
    """Run the job until it gets to a method, and end it there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, name, _dying)
        with pytest.raises(DiedError):
            job.run(**run)


def test_rows_that_come_again_are_acked_in_the_step_that_lets_them_out(subscribed: Job) -> None:
    """Also where the job that lost its checkpoint had read further than this one has by then."""
    job = subscribed.with_settings(delay="0 s", idle_timeout="1 h")
    job.produce(_event(20, partition) for partition in (1, 2, 3))
    job.produce(_events(0, 50, *[1] * 10))
    job.run()
    assert list(_cursor(job).unacked_ranges(0, 12)) == [(1, 2)]
    _lose_checkpoint(job)
    job.produce(_event(100, partition) for partition in (1, 2, 3))
    job = job.with_settings(max_offsets_per_trigger=8)
    where, seen = SourcePartition(job.topic, 0), []

    class Looking(list[Any]):
        def append(self, step: Any, /) -> None:
            entry, done = step
            if done.totals.released:
                unacked = list(_cursor(job).unacked_ranges(0, 12))
                seen.append((entry.clock.partitions[where].position, unacked))

    job.steps = Looking()
    job.run()
    assert seen[0][0] < 12
    assert [unacked for _, unacked in seen] == [[]] * len(seen)
    assert _cursor(job).counts.consumed == 12


def test_row_acked_while_the_job_was_down_is_skipped_by_a_step_that_was_staged(
    subscribed: Job,
) -> None:
    """A step that a dead life had read and not decided knows what was acked meanwhile."""
    job = subscribed
    job.produce(_events(0, 30, 1))
    job.run()
    job.produce(_events(60))
    _die_in(job, Steps, "decide")
    _ack(job, [1])
    report = job.run(drain=True)
    assert (_times(job), report.totals.skipped) == ([0, 1, 60], 1)


@pytest.mark.parametrize("duplicates", ["keep", "header:id"])
def test_held_rows_acked_from_outside_are_counted_beside_duplicates(
    subscribed: Job, duplicates: str
) -> None:
    """What was read is released, aside, a duplicate, or skipped; and all of it is acked."""
    job = subscribed.with_settings(duplicates=duplicates)

    def sent(*pairs: tuple[object, int]) -> list[Event]:
        return [replace(_event(at), headers=[("id", str(number))]) for at, number in pairs]

    job.produce(sent((0, 0), (30, 1), (1, 2), (31, 3), (30, 1), (32, 4), ("never", 5), (31, 3)))
    job.run()
    _ack(job, [1, 5])
    job.produce(sent((30, 1), (32, 4), (3, 9), (33, 10)))
    totals = job.run(drain=True).totals
    assert (totals.read, totals.held, totals.skipped) == (12, 0, 2)
    assert (totals.late, sum(totals.quarantined.values())) == (0, 1)
    # Of 30 and of 32 the acked one is the first.
    keeps = duplicates == "keep"
    assert _times(job) == ([0, 1, 3, 30, 30, 31, 31, 32, 33] if keeps else [0, 1, 3, 31, 33])
    assert _cursor(job).committed_offset == 12


def test_copy_from_before_a_done_mark_is_refused(subscribed: Job, tmp_path: Path) -> None:
    """A folder in which the step is staged, that the cursors have, would let its rows out twice."""
    job, real = subscribed, Steps.decide

    def dying(self: Steps, staged: StagedStep, before: StepEntry | None = None) -> StepEntry:
        if staged.step:
            raise DiedError
        return real(self, staged, before)

    job.produce(_events(0, 30, 1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Steps, "decide", dying)
        with pytest.raises(DiedError):
            job.run()
    copy = shutil.copytree(job.settings.checkpoint, tmp_path / "copy")
    job.run()
    _lose_checkpoint(job)
    shutil.copytree(copy, job.settings.checkpoint)
    with pytest.raises(SubscriptionError, match="put back from a copy"):
        job.run()
    assert _times(job) == [0, 1]


def test_recreated_topic_is_read_whole_though_the_checkpoint_is_lost(subscribed: Job) -> None:
    """The cursor of the topic before it is not taken for its own, whenever the job died."""
    job = subscribed
    job.produce(_events(0, 30, 1))
    job.run(drain=True)
    _recreate(job, partitions=4)
    job.produce(_events(100, 101, 102, 103, 104))
    _die_in(job, Steps, "stage", reset_input=True)
    _lose_checkpoint(job)
    job.run(drain=True)
    assert _times(job) == [0, 1, 30, 100, 101, 102, 103, 104]


def test_partition_that_a_recreated_topic_gets_later_is_read_whole(subscribed: Job) -> None:
    job = subscribed
    job.produce(_event(at, partition=3) for at in (0, 30, 1))
    job.run(drain=True)
    _recreate(job, partitions=2)
    _lose_checkpoint(job)
    job.run()
    client = _admin(job)  # its requests end with it
    client.create_partitions([NewPartitions(job.topic, 4)])[job.topic].result(PATIENCE_S)
    job.produce(_event(200, partition=3) for _ in range(2))
    _lose_checkpoint(job)
    job.run(drain=True)
    assert _times(job) == [0, 1, 30, 200, 200]


def test_rows_that_come_again_are_counted_once(subscribed: Job) -> None:
    """Though a life without a checkpoint dies before its first step, and another one follows."""
    job, real = subscribed, JobSubscription.step_is_done
    job.produce(_events(0, 30, 1, 60))

    def dying(self: JobSubscription, checkpoint: Any, entry: StepEntry, *rest: Any, **more: Any):  # type: ignore[no-untyped-def] # noqa: ANN202
        if entry.step:
            raise DiedError
        return real(self, checkpoint, entry, *rest, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JobSubscription, "step_is_done", dying)
        with pytest.raises(DiedError):
            job.run()
    assert _times(job) == [0, 1, 30]
    _lose_checkpoint(job)
    _die_in(job, Steps, "first_of")
    assert _stored(job).state.repeated == 3
    job.run(drain=True)
    assert _times(job) == [0, 1, 30, 0, 1, 30, 60]
    assert _stored(job).state.repeated == 3


def test_cursors_that_were_not_written_are_written_by_the_next_step(
    subscribed: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is restarted since the brokers were away leaves no cursor behind its state."""
    job, real = subscribed.with_settings(restarts=3), CursorOwner.write
    failed: list[Any] = []

    def failing(self: CursorOwner, state: Any, cursors: Iterable[Any], **more: Any) -> None:
        wanted = list(cursors)
        if state.step == 1 and wanted and not failed:
            failed.append(state)
            raise UnansweredError("no broker answers")
        real(self, state, wanted, **more)

    monkeypatch.setattr(CursorOwner, "write", failing)
    job.produce(_events(0, 30, 1))
    job.run()
    assert len(failed) == 1
    assert list(_cursor(job).unacked_ranges(0, 3)) == [(1, 2)]


def test_checkpoint_of_a_later_epoch_is_refused(subscribed: Job) -> None:
    """Without the subscription, or with one that has forgotten its reset, old state would go on."""
    job = subscribed
    job.produce(_events(0, 30, 1))
    job.run(drain=True)
    _reset(job)
    job.run(drain=True)
    assert _times(job) == [0, 1, 30] * 2
    with pytest.raises(CheckpointError, match="was reset"):
        job.with_settings(subscription=None).run()
    with CursorStore(job.kafka).take(_name(job)) as owner:
        owner.remove()
    with pytest.raises(CheckpointError, match="of epoch 1"):
        job.run()
    assert _times(job) == [0, 1, 30] * 2


def _second_on_the_same(job: Job, _: Path) -> Job:
    return job.with_settings()


def _second_on_another(job: Job, folder: Path) -> Job:
    plain = job.with_settings(
        checkpoint=str(folder), subscription=None, output_topic=f"{job.topic}-2"
    )
    plain.run()
    return plain.with_settings(subscription=job.settings.subscription)


@pytest.mark.parametrize("make", [_second_on_the_same, _second_on_another])
def test_job_that_is_refused_leaves_the_running_one_its_subscription(
    subscribed: Job, tmp_path: Path, make: Callable[[Job, Path], Job]
) -> None:
    """A job is started twice, or with a checkpoint that is not its: the first one goes on."""
    job = subscribed.with_settings(idle_timeout="1 s")  # of the partitions without events
    job.produce(_events(0, 30, 1))
    second = make(job, tmp_path / "other")
    with job.running() as life:
        wait_until(lambda: len(job.steps) >= 2)
        with pytest.raises((CheckpointError, SubscriptionError)):
            second.run()
        job.produce(_events(60))
        wait_until(lambda: len(job.released()) == 3 or life.done())
        assert not life.done()
