"""Which cursors of a job are written, by whom it writes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.stored_records import StoredSubscription
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log
from sequitur.errors import UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_subscription import JobSubscription

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIRST, _SECOND = SourcePartition("a", 0), SourcePartition("a", 1)


class _Owner:
    """Writes cursors once brokers answer."""

    partition, group = 3, "sequitur-s"

    def __init__(self) -> None:
        cursors = {
            where: PartitionCursor.begin(CursorIdentity("s", *where), 7)
            for where in (_FIRST, _SECOND)
        }
        self.stored = StoredSubscription(SubscriptionState(topics={"a": "old"}), cursors)
        self.answers = True
        self.writes: list[tuple[int, dict[int, int], set[SourcePartition]]] = []

    def write(
        self,
        state: SubscriptionState,
        cursors: Iterable[PartitionCursor],
        *,
        removed: Iterable[SourcePartition] = (),
    ) -> None:
        if not self.answers:
            raise UnansweredError("no broker answers")
        written = {one.cursor.identity.partition: one.cursor.committed_offset for one in cursors}
        self.writes.append((state.written_ms, written, set(removed)))


class _Checkpoint(SimpleNamespace):
    root, owner = "folder", 1

    def read_document(self, _name: str, _kind: object) -> None:
        """There is none yet."""

    def write_document(self, _name: str, _document: object) -> None:
        pass


@pytest.fixture
def owner() -> _Owner:
    return _Owner()


@pytest.fixture
def job(owner: _Owner) -> JobSubscription:
    """A job that has claimed its subscription."""
    services: Any = SimpleNamespace(high_watermarks=lambda _wanted: {}, tell=len)
    take: Any = lambda: owner  # noqa: E731 - one line
    job = JobSubscription("s", owner.stored, take, services, services, record=services)
    checkpoint: Any = _Checkpoint()
    job.claim(checkpoint, None, -1, {})
    owner.writes.clear()
    return job


def test_cursors_are_written_once_for_each_change(owner: _Owner, job: JobSubscription) -> None:
    """To write none of them still asks the brokers whether another job has taken over."""
    job.expire(_SECOND, 9, Log(start=0, end=20))
    job.expire(_FIRST, 7, Log(start=0, end=20))  # no message
    for _ in range(2):
        job.store()
    job.confirm()
    assert [written for _, written, _ in owner.writes] == [{1: 9}, {}, {}]


def test_what_a_failed_write_has_left_is_written_by_the_next(
    owner: _Owner, job: JobSubscription
) -> None:
    """Its state is not: that of the last write holds."""
    before_ms = job.state.written_ms
    owner.answers = False
    with pytest.raises(UnansweredError):
        job.begin({_FIRST: 4}, {_FIRST: 9}, {"a": "new"}, latest=False, now_ms=5)
    assert job.state.written_ms == before_ms
    job.expire(_FIRST, 6, Log(start=4, end=9))
    owner.answers = True
    for _ in range(2):
        job.store()
    assert owner.writes == [(before_ms, {0: 6}, {_FIRST, _SECOND}), (before_ms, {}, set())]


def test_a_job_that_begins_writes_each_cursor(owner: _Owner, job: JobSubscription) -> None:
    """Also one that has not changed: its offset may be missing in the group."""
    begins = job.begin({_FIRST: 4}, {_FIRST: 9}, {"a": "old"}, latest=False, now_ms=5)
    assert begins == {_FIRST: 7}
    assert owner.writes == [(5, {0: 7}, set())]
