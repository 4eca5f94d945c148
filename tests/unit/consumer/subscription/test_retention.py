"""What may be deleted: the article's cases, and Pulsar's rule on any log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.policies import Retention
from sequitur.consumer.subscription.retention import (
    Holder,
    PartitionLog,
    held_back,
    plan_partition,
)

_MB = 1 << 20


def _log(
    start: int = 0, end: int = 10, *, size: int | None = None, young_from: int | None = None
) -> PartitionLog:
    """A log of 1 MB a message, unless said otherwise; nothing in it is old."""
    size_bytes = (end - start) * _MB if size is None else size
    return PartitionLog(
        "orders", 0, start, end, size_bytes, start if young_from is None else young_from
    )


def test_only_what_all_have_acked_is_deletable() -> None:
    """Figure 2: acked are 0 to 3, and 0 to 6; 0 to 3 may go, and the first subscription holds 4."""
    plan = plan_partition(_log(), {"Subscription-1": 4, "Subscription-2": 7}, Retention())
    assert (plan.before, plan.after, plan.records, plan.size_bytes) == (0, 4, 4, 4 * _MB)
    assert (plan.held_by, plan.holder) == (Holder.SUBSCRIPTION, "Subscription-1")
    assert plan.deletes


@pytest.mark.parametrize(
    ("retention", "young_from"),
    [(Retention(-1, 6), 0), (Retention(60, -1), 4), (Retention(60, 6), 0), (Retention(60, 100), 4)],
)
def test_retention_keeps_4_to_6_and_drops_0_to_3(retention: Retention, young_from: int) -> None:
    """Figure 5: 0 to 6 are acked by all; the limit by size or by time is reached before 4."""
    plan = plan_partition(_log(young_from=young_from), {"sub1": 7}, retention)
    assert (plan.after, plan.acked, plan.held_by) == (4, 7, Holder.RETENTION)


def test_infinite_retention_keeps_everything() -> None:
    """By one limit or by both: what no limit exceeds is not deleted."""
    assert not plan_partition(_log(young_from=10), {"sub1": 10}, Retention(-1, -1)).deletes


def test_without_retention_all_that_is_acked_goes() -> None:
    """0 and 0 is off, the default; nothing is left to hold."""
    plan = plan_partition(_log(), {"sub1": 10}, Retention())
    assert (plan.after, plan.held_by, plan.records) == (10, None, 10)


def test_one_of_a_thousand_subscriptions_holds_everything() -> None:
    """999 have caught up; the article's slow subscription is named."""
    acked = {f"prod-subs-{number}": 1_000 for number in range(999)} | {"test-subs": 0}
    plan = plan_partition(_log(end=1_000), acked, Retention())
    assert not plan.deletes
    assert plan.holder == "test-subs"
    del acked["test-subs"]
    assert plan_partition(_log(end=1_000), acked, Retention()).after == 1_000


def test_a_topic_without_subscription_keeps_everything() -> None:
    """Other than in Pulsar: its readers may be in no registry."""
    plan = plan_partition(_log(), {}, Retention())
    assert (plan.deletes, plan.held_by) == (False, Holder.NO_SUBSCRIPTION)


def test_a_group_that_has_not_committed_it_holds_it() -> None:
    """The plan is cut there, and says who; a group that is further on changes nothing."""
    plan = plan_partition(_log(), {"sub1": 8}, Retention())
    assert held_back(plan, 8, Holder.GROUP, "mirror") is plan
    less = held_back(plan, 2, Holder.GROUP, "mirror")
    assert (less.after, less.records, less.size_bytes) == (2, 2, 2 * _MB)
    assert (less.held_by, less.holder, less.acked) == (Holder.GROUP, "mirror", 8)
    assert not held_back(plan, 0, Holder.TOPIC, None).deletes
    later = plan_partition(_log(start=5), {"sub1": 8}, Retention())
    assert held_back(later, 3, Holder.TOPIC, None).after == 5


def test_a_plan_is_of_its_partition() -> None:
    """Deletion asks Kafka by these names; offsets of a log that begins later are counted there."""
    log = PartitionLog("bills", 3, start=100, end=110, size_bytes=10 * _MB, young_from=100)
    plan = plan_partition(log, {"sub1": 110}, Retention(-1, 3))
    assert (plan.topic, plan.partition) == ("bills", 3)
    assert (plan.before, plan.after, plan.records, plan.size_bytes) == (100, 107, 7, 7 * _MB)
    less = held_back(plan, 102, Holder.GROUP, "mirror")
    assert (less.topic, less.partition) == ("bills", 3)
    assert (less.before, less.after, less.records, less.size_bytes) == (100, 102, 2, 2 * _MB)


def test_a_plan_that_deletes_nothing_can_be_held_back() -> None:
    """By a group that is behind the log: nothing goes, and nothing is divided by 0."""
    plan = plan_partition(_log(start=5), {"sub1": 5}, Retention())
    less = held_back(plan, 3, Holder.GROUP, "mirror")
    assert (less.after, less.records, less.size_bytes, less.deletes) == (5, 0, 0, False)


def test_a_plan_says_what_is_acked() -> None:
    """Without a subscription nothing is; what a cursor has beyond the log does not count."""
    assert plan_partition(_log(start=5), {}, Retention()).acked == 5
    assert plan_partition(_log(), {"sub1": 99}, Retention()).acked == 10


@pytest.mark.parametrize(
    ("size_bytes", "expected"), [(0, 13), (1, 12), (33, 12), (34, 11), (99, 10), (100, 10)]
)
def test_a_message_that_is_needed_in_part_stays(size_bytes: int, expected: int) -> None:
    """Of three messages of 33 bytes and a third; an offset is a whole number."""
    log = PartitionLog("orders", 0, start=10, end=13, size_bytes=100, young_from=10)
    found = log.offset_with_bytes_behind(size_bytes)
    assert (found, type(found)) == (expected, int)
    assert (log.bytes_before(11), log.bytes_before(12), log.bytes_before(99)) == (33, 66, 100)


def test_a_log_whose_size_is_not_known_is_retained_whole() -> None:
    """What brokers do not say counts as 0 bytes, of which no retention by size is exceeded."""
    log = _log(size=0)
    assert not plan_partition(log, {"sub1": 10}, Retention(-1, 1)).deletes
    assert log.offset_with_bytes_behind(0) == 10


@given(
    start=st.integers(0, 50),
    span=st.integers(0, 60),
    acked=st.lists(st.integers(0, 120), min_size=1, max_size=4),
    ages=st.integers(0, 60),
    message_bytes=st.integers(1, 3 * _MB),
    minutes=st.integers(1, 10) | st.just(-1),
    size_mb=st.integers(1, 40) | st.just(-1),
    is_off=st.booleans(),
)
def test_pulsars_loop_over_single_messages(
    *,
    start: int,
    span: int,
    acked: list[int],
    ages: int,
    message_bytes: int,
    minutes: int,
    size_mb: int,
    is_off: bool,
) -> None:
    """The same as to go from the oldest on while it is acked, and expired or over the size."""
    retention = Retention() if is_off else Retention(minutes, size_mb)
    end, young_from = start + span, start + min(ages, span)
    log = _log(start, end, size=span * message_bytes, young_from=young_from)
    total, offset = span * message_bytes, start
    while offset < min(*acked, end):
        is_expired = retention.time_s is not None and (offset < young_from or retention.time_s == 0)
        left = total - message_bytes
        is_over = retention.size_bytes is not None and left >= retention.size_bytes
        if not (is_expired or is_over):
            break
        total, offset = left, offset + 1
    plan = plan_partition(log, {f"sub{at}": one for at, one in enumerate(acked)}, retention)
    assert plan.after == offset
    assert plan.size_bytes == (offset - start) * message_bytes
