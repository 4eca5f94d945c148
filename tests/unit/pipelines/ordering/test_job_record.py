"""The topics that the registry names for a job's subscription, and what passes over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import Registry
from sequitur.consumer.subscription.stored_records import StoredSubscription
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log
from sequitur.errors import UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_subscription import JobRecord, JobSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.subscription.registry import Changes


class _Store:
    """A registry that may not answer."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.answers = True
        self.changes = 0

    def change(self, make: Callable[[Registry], Changes], *, subscription: str) -> None:
        if not self.answers:
            raise UnansweredError("no broker answers")
        self.changes += 1
        records = {one.key: one.encode() for one in self.registry.subscriptions.values()}
        records |= {key: value for key, value in make(self.registry).items() if value is not None}
        self.registry = Registry.of(records)
        assert [*self.registry.subscriptions] == [subscription]

    def topics(self) -> tuple[str, ...]:
        return self.registry.require("s").topics


def _plan(*topics: str) -> dict[SourcePartition, int]:
    return {SourcePartition(topic, 0): 5 for topic in topics}


@pytest.mark.promise("sub-job-pattern-comes")
def test_a_topic_is_registered_before_the_first_batch_of_it_is_read() -> None:
    """The batch waits where the registry does not answer; topics of before stay."""
    store = _Store()
    registry: Any = store
    record = JobRecord(
        "s", registry, new_group="sequitur-s", evicted_topic="copies", max_held_bytes=7
    )
    unused: Any = None
    job = JobSubscription("s", None, unused, unused, unused, record=record)
    job.register(["a"])
    assert store.topics() == ("a",)
    job.acked({}, _plan("a"))
    assert (store.topics(), store.changes) == (("a",), 1)
    store.answers = False
    for _ in range(2):
        with pytest.raises(UnansweredError):
            job.acked({}, _plan("a", "b"))
    store.answers = True
    job.acked({}, _plan("b"))
    assert store.topics() == ("a", "b")
    found = store.registry.require("s")
    assert (found.evicted_topic, found.max_held_bytes) == ("copies", 7)
    assert job.topics == {"a", "b"}


def test_a_job_that_starts_again_keeps_the_topics_that_were_registered() -> None:
    """Also those that its pattern matches no more: what is acked there is theirs."""
    store = _Store()
    registry: Any = store
    for topics in (["a", "b"], ["b", "c"]):
        record = JobRecord(
            "s", registry, new_group="sequitur-s", evicted_topic=None, max_held_bytes=7
        )
        record.cover(topics, partition=3, group="sequitur-s")
    assert store.topics() == ("a", "b", "c")
    assert store.registry.require("s").partition == 3


@pytest.mark.promise("sub-deleted-then-passed-over")
def test_what_was_deleted_unread_is_lost_when_a_job_passes_over_it() -> None:
    """What the job has read it holds itself: that is consumed, as what is there still."""
    where = SourcePartition("a", 0)
    held = PartitionCursor.begin(CursorIdentity("s", *where), 0)
    held.cursor.seek(2, end=20)
    stored = StoredSubscription(SubscriptionState(checkpoint="c"), {where: held})
    unused: Any = None
    job = JobSubscription("s", stored, unused, unused, unused, record=unused)
    job.expire(where, 10, Log(start=7, end=20))
    cursor = job.copies()[where].cursor
    assert (cursor.counts.lost, cursor.counts.consumed) == (5, 5)
    assert cursor.committed_offset == 10
