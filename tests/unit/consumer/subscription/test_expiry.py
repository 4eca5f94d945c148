"""Messages and subscriptions that pass away by time."""

from __future__ import annotations

import pytest

from sequitur.consumer.subscription.backlog import IdleWatch
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.expiry import (
    expired_before,
    is_pinned,
    is_unused,
    limits_ms,
    ttl_cutoff_ms,
)
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    DetectionThresholds,
    PoliciesInForce,
    TopicPolicies,
)
from sequitur.consumer.subscription.registry import (
    Registry,
    SubscriptionRecord,
    SubscriptionType,
)
from sequitur.consumer.subscription.survey import Survey
from tests.support.values import replace

_MINUTE_MS = 60_000
_RECORD = SubscriptionRecord(
    "test-subs", ("orders",), SubscriptionType.EXCLUSIVE, 0, group="", last_connected_ms=0
)


def _cursor() -> Cursor:
    cursor = Cursor(CursorIdentity("sub1", "orders", 0))
    cursor.ack_range(5, 8, end=20)
    return cursor


def test_no_time_to_live_expires_nothing() -> None:
    assert ttl_cutoff_ms(0, now_ms=90_000) is None
    assert ttl_cutoff_ms(60, now_ms=90_000) == 30_000


def test_what_is_older_is_acked_up_to_the_first_that_is_not() -> None:
    """An ack of it frees the backlog, holes among it too."""
    cursor = _cursor()
    stop = expired_before(cursor, 10, end=20, is_pinned=False)
    assert stop == 10
    assert cursor.ack_cumulative(stop - 1, end=20) == 7
    assert cursor.backlog(20) == 10
    assert expired_before(cursor, 10, end=20, is_pinned=False) is None
    assert expired_before(cursor, 99, end=20, is_pinned=False) == 20


def test_a_reset_pins_what_it_asked_for() -> None:
    """apache/pulsar#23030: else a time to live would skip the messages that are to come again."""
    assert expired_before(_cursor(), 10, end=20, is_pinned=True) is None
    reset = replace(_RECORD, reset_ms=5_000)
    assert is_pinned(reset, 4_999)
    assert not is_pinned(reset, 5_000)  # all from before the reset is acked
    assert is_pinned(reset, None)  # not known: it may be from before
    assert not is_pinned(_RECORD, 4_999)
    assert not is_pinned(_RECORD, None)


def _is_unused(
    record: SubscriptionRecord,
    minutes: int,
    *,
    now_ms: int,
    is_connected: bool = False,
    seen_ms: int | None = None,
    idle_s: float = 3_600,
) -> bool:
    policies = TopicPolicies(subscription_expiration_time_minutes=minutes)
    registry = Registry({record.name: record}, {None: policies})
    return is_unused(
        registry,
        record,
        is_connected=is_connected,
        now_ms=now_ms,
        idle_s=idle_s,
        seen_ms=seen_ms,
    )


def test_a_forgotten_subscription_expires_after_minutes() -> None:
    """Counted from its last consumer, or from its creation if it never had one."""
    assert not _is_unused(_RECORD, 60, now_ms=60 * _MINUTE_MS - 1)
    assert _is_unused(_RECORD, 60, now_ms=60 * _MINUTE_MS)
    used = replace(_RECORD, last_connected_ms=_MINUTE_MS)
    assert not _is_unused(used, 60, now_ms=60 * _MINUTE_MS)
    made = replace(_RECORD, created_ms=_MINUTE_MS)
    assert not _is_unused(made, 60, now_ms=60 * _MINUTE_MS)
    assert not _is_unused(_RECORD, 60, now_ms=60 * _MINUTE_MS, seen_ms=_MINUTE_MS)
    assert _is_unused(_RECORD, 60, now_ms=61 * _MINUTE_MS, seen_ms=_MINUTE_MS)


@pytest.mark.promise("sub-expiration-clocks-differ")
@pytest.mark.parametrize(("minutes", "idle_s"), [(1, 60), (59, 59 * 60), (10_000, 3_600)])
def test_a_subscription_expires_no_earlier_than_it_was_seen_without_an_owner(
    minutes: int, idle_s: float
) -> None:
    """The owner's clock, or that of who made the checks before, may be behind by years."""
    late_ms = 10**9 * _MINUTE_MS
    assert not _is_unused(_RECORD, minutes, now_ms=late_ms, seen_ms=7, idle_s=idle_s - 0.1)
    assert _is_unused(_RECORD, minutes, now_ms=late_ms, seen_ms=7, idle_s=idle_s)
    assert not _is_unused(_RECORD, minutes, now_ms=late_ms, seen_ms=late_ms, idle_s=10 * idle_s)


@pytest.mark.promise("sub-expiration-clocks-differ")
def test_how_long_there_was_no_owner_goes_by_the_watchers_clock() -> None:
    """From the first look on that finds none, until an owner was there, also between two looks."""
    now_s = 1_000.0
    watch = IdleWatch(lambda: now_s)
    survey = Survey(
        now_ms=0,
        registry=Registry({"s": replace(_RECORD, name="s")}, {}),
        connected=frozenset(),
        logs={},
        seen_ms={"s": 7},
    )
    held = replace(survey, connected=frozenset({"s"}))
    assert watch.look(held) == {}
    assert watch.look(survey) == {"s": 0}
    now_s += 50
    assert watch.look(survey) == {"s": 50}
    assert watch.look(replace(survey, seen_ms={"s": 6})) == {"s": 0}
    assert watch.look(replace(survey, untold={"s": "no answer"})) == {}
    assert watch.look(survey) == {"s": 0}


def test_a_connected_subscription_never_expires() -> None:
    """However long ago somebody noted that it was connected; and none does where it is off."""
    late_ms = 10_000 * _MINUTE_MS
    assert not _is_unused(_RECORD, 60, now_ms=late_ms, is_connected=True)
    assert not _is_unused(_RECORD, 0, now_ms=late_ms)
    own = replace(_RECORD, expiration_time_minutes=5)
    assert _is_unused(own, 0, now_ms=late_ms)


@pytest.mark.parametrize("is_detected", [True, False])
def test_the_times_that_messages_are_compared_with(*, is_detected: bool) -> None:
    """Each policy has its own; those of diagnosis are left out where nothing is diagnosed."""
    quota = BacklogQuota(limit_s=60, policy=BacklogPolicy.PRODUCER_EXCEPTION)
    thresholds = DetectionThresholds(0, 5, 0, 0, 0)
    policies = PoliciesInForce(message_ttl_s=100, backlog_quota=quota, thresholds=thresholds)
    times = limits_ms(policies, now_ms=900_000, retention_ms=10_001, is_detected=is_detected)
    assert times == {800_000, 840_000, 870_000} | ({895_001, 895_000} if is_detected else set())
    assert {type(one) for one in times} == {int}
