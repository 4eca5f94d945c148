"""A round of checks, on a survey that was taken before: what it acks for those who have gone."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.expiry import ttl_cutoff_ms
from sequitur.consumer.subscription.partitions import PartitionCursor as Held
from sequitur.consumer.subscription.policies import TopicPolicies
from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord, SubscriptionType
from sequitur.consumer.subscription.stored_records import StoredSubscription
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log, Survey
from sequitur.errors import TopicError
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NOW_MS = 1_000_000
_TTL_S = 60
_PARTS = [SourcePartition("t", number) for number in range(3)]


class _Owner:
    subscription = "s"

    def __init__(self, stored: StoredSubscription | None) -> None:
        self.stored = stored
        self.states: list[SubscriptionState] = []
        self.written: dict[SourcePartition, Held] = {}
        self.error: Exception | None = None

    def write(
        self,
        state: SubscriptionState,
        cursors: Iterable[Held],
        *,
        removed: Iterable[SourcePartition] = (),
    ) -> None:
        assert not set(removed)
        if self.error is not None:
            raise self.error
        self.states.append(state)
        for one in cursors:
            identity = one.cursor.identity
            self.written[SourcePartition(identity.topic, identity.partition)] = one


class _Cluster:
    """Three partitions from 3 to before 20. What is before 10 has expired, but for the third."""

    def __init__(self, stored: StoredSubscription | None) -> None:
        record = SubscriptionRecord(
            "s", ("t",), SubscriptionType.SHARED, 0, group="sequitur-s", last_connected_ms=_NOW_MS
        )
        registry = Registry({"s": record}, {"t": TopicPolicies(message_ttl_s=_TTL_S)})
        cutoff_ms = ttl_cutoff_ms(_TTL_S, now_ms=_NOW_MS) or 0
        alive_from = zip(_PARTS, (10, 10, 3), strict=True)
        self.owner = _Owner(stored)
        self._survey = Survey(
            now_ms=_NOW_MS,
            registry=registry,
            connected=frozenset(),
            logs=dict.fromkeys(_PARTS, Log(3, 20)),
            held={} if stored is None else {"s": stored.cursors},
            since={(where, cutoff_ms): offset for where, offset in alive_from},
        )

    @contextlib.contextmanager
    def take(self, *_: object, **__: object) -> Iterator[_Owner]:
        yield self.owner

    def run(self) -> Any:
        surveyor: Any = SimpleNamespace(
            judged=lambda **_: self._survey,
            with_limits=lambda survey: survey,
            cursors=self,
            watch=None,
            registry=SimpleNamespace(told_topics=set),
            topics=SimpleNamespace(known_retentions=lambda _topics: {}),
        )
        return Checks(surveyor).run()


def _stored(state: SubscriptionState) -> StoredSubscription:
    """The first partition was read to 8, and 5 is acked there. Nothing is known of the others."""
    cursor = Cursor(CursorIdentity("s", "t", 0))
    cursor.seek(8, end=20)
    cursor.ack(5, end=20)
    return StoredSubscription(state, {_PARTS[0]: Held(cursor, CountedSizes(0, (8,), (800,)))})


@pytest.mark.parametrize(
    ("checkpoint", "lost"), [pytest.param("", 3, id="none"), pytest.param("c", 0, id="of a job")]
)
def test_what_has_expired_is_acked_where_nobody_has_the_subscription(
    checkpoint: str, lost: int
) -> None:
    """What was deleted is lost, but for what a job has read: that the job holds itself."""
    state = SubscriptionState(checkpoint=checkpoint, frontier_ms=7)
    cluster = _Cluster(_stored(state))
    found = cluster.run()
    written = cluster.owner.written
    assert {where: one.cursor.committed_offset for where, one in written.items()} == {
        _PARTS[0]: 10,
        _PARTS[1]: 10,
    }
    counts = [one.cursor.counts for one in written.values()]
    assert [(one.consumed, one.lost, one.repeated) for one in counts] == [
        (10 - lost, lost, 0),
        (7, 0, 0),
    ]
    assert written[_PARTS[0]].sizes == CountedSizes(0, (8,), (800,))
    assert cluster.owner.states == [replace(state, written_ms=_NOW_MS)]
    assert [(one.partition, one.messages, one.why) for one in found.acked] == [
        (0, 6, FindingKind.EXPIRED_MESSAGES),
        (1, 7, FindingKind.EXPIRED_MESSAGES),
    ]


def test_a_subscription_without_stored_cursors_begins_where_the_log_does() -> None:
    cluster = _Cluster(None)
    cluster.run()
    assert {one.cursor.committed_offset for one in cluster.owner.written.values()} == {10}
    assert cluster.owner.states == [SubscriptionState(written_ms=_NOW_MS)]


def test_acks_that_the_brokers_refuse_are_told_of() -> None:
    """Other subscriptions' checks go on."""
    cluster = _Cluster(_stored(SubscriptionState()))
    cluster.owner.error = TopicError("too large")
    found = cluster.run()
    assert found.acked == ()
    assert [one.sentence for one in found.findings if one.kind is FindingKind.FAILED] == [
        "too large"
    ]
