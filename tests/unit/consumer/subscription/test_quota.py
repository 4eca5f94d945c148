"""A backlog beside its quota: who holds it, what producers are told, what eviction skips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.backlog_quota import (
    PartitionBacklog,
    TopicBacklog,
    age_cutoff_ms,
    check_quota,
    cuts_by_size,
)
from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota
from tests.support.values import replace

_NOW_MS = 1_000_000


def _part(
    subscription: str = "sub1",
    partition: int = 0,
    *,
    first: int = 0,
    end: int = 100,
    size: int | None = None,
    age_s: float | None = None,
) -> PartitionBacklog:
    """A backlog of 10 bytes a message, unless said otherwise."""
    return PartitionBacklog(
        subscription,
        "orders",
        partition,
        first_unacked=first,
        end=end,
        messages=end - first,
        size_bytes=(end - first) * 10 if size is None else size,
        oldest_ms=None if age_s is None else _NOW_MS - int(age_s * 1000),
    )


def _backlog(*parts: PartitionBacklog) -> TopicBacklog:
    return TopicBacklog("orders", parts)


def test_the_slowest_cursor_of_each_partition_makes_the_size() -> None:
    """Storage is needed once, however many have not acked; msgBacklog is each one's own."""
    backlog = _backlog(
        _part("one", 0, first=40),
        _part("two", 0, first=70),
        _part("one", 1, first=90),
        _part("two", 1, first=50),
    )
    assert backlog.size_bytes == 600 + 500
    assert (backlog.messages("one"), backlog.messages("two")) == (70, 80)
    assert (backlog.messages("three"), backlog.age_s(_NOW_MS, "three")) == (0, 0.0)
    assert backlog.slowest == "two"


def test_nobody_is_slow_where_all_is_acked() -> None:
    backlog = _backlog(_part(first=100))
    assert (backlog.slowest, backlog.oldest, backlog.age_s(_NOW_MS)) == (None, None, 0.0)
    assert not backlog.is_estimate
    check = check_quota(backlog, BacklogQuota(1, 1), now_ms=_NOW_MS)
    assert not check.is_exceeded
    assert check.subscription is None


def test_a_size_is_exceeded_once_it_reaches_its_limit_and_an_age_beyond_it() -> None:
    backlog = _backlog(_part(age_s=60))
    for quota, too_large, too_old in (
        (BacklogQuota(1_001, 60), False, False),
        (BacklogQuota(1_000, 60), True, False),
        (BacklogQuota(1_001, 59), False, True),
        (BacklogQuota(), False, False),
    ):
        check = check_quota(backlog, quota, now_ms=_NOW_MS)
        assert (check.is_too_large, check.is_too_old) == (too_large, too_old)
        assert check.is_exceeded == (too_large or too_old)


def test_a_message_from_a_clock_that_is_ahead_has_no_age() -> None:
    """Nor is it exceeded by one that has just come."""
    backlog = _backlog(_part(age_s=-30))
    assert backlog.age_s(_NOW_MS) == 0
    check = check_quota(backlog, BacklogQuota(None, 1), now_ms=_NOW_MS)
    assert (check.topic, check.is_exceeded) == ("orders", False)


def test_an_age_is_held_by_whoever_has_the_oldest_message() -> None:
    backlog = _backlog(_part("large", 0, age_s=1), _part("old", 1, first=99, age_s=50))
    assert check_quota(backlog, BacklogQuota(None, 10), now_ms=_NOW_MS).subscription == "old"
    assert check_quota(backlog, BacklogQuota(10, 10), now_ms=_NOW_MS).subscription == "large"


@pytest.mark.parametrize("policy", BacklogPolicy)
def test_what_producers_are_told(policy: BacklogPolicy) -> None:
    """Beyond the quota what its policy says, with the figures; nothing where messages are evicted.

    Within it they may go on.
    """
    backlog = _backlog(_part(age_s=7))
    over = check_quota(backlog, BacklogQuota(1_000, None, policy), now_ms=_NOW_MS)
    told = over.state(now_ms=_NOW_MS, valid_for_ms=500)
    evicts = policy is BacklogPolicy.CONSUMER_BACKLOG_EVICTION
    assert (over.evicts, over.holds_producers) == (evicts, not evicts)
    assert told.policy == (None if evicts else policy.value)
    assert (told.subscription, told.backlog_bytes, told.limit_bytes) == ("sub1", 1_000, 1_000)
    assert (told.age_s, told.limit_s) == (7.0, None)
    assert (told.issued_ms, told.valid_for_ms) == (_NOW_MS, 500)
    within = check_quota(backlog, BacklogQuota(1_001, None, policy), now_ms=_NOW_MS)
    assert within.state(now_ms=_NOW_MS, valid_for_ms=500).policy is None
    assert (within.evicts, within.holds_producers) == (False, False)


def test_the_gauge_of_proximity_goes_from_half_to_full() -> None:
    """Of the limit that is nearest; nothing is to be seen below half of it, and without limits."""
    backlog = _backlog(_part(age_s=60))
    for quota, expected in (
        (BacklogQuota(2_001, None), 0.0),
        (BacklogQuota(2_000, None), 0.5),
        (BacklogQuota(2_000, 80), 0.75),
        (BacklogQuota(100, None), 1.0),
        (BacklogQuota(), 0.0),
    ):
        assert check_quota(backlog, quota, now_ms=_NOW_MS).proximity == expected


def test_an_estimate_is_said_to_be_one() -> None:
    """Only nothing is known exactly."""
    for part, expected in ((_part(), True), (_part(first=100), False)):
        check = check_quota(_backlog(part), BacklogQuota(1), now_ms=_NOW_MS)
        assert check.is_estimate is expected


@pytest.mark.promise("sub-topic-quota-holds")
@pytest.mark.parametrize("policy", BacklogPolicy)
def test_what_a_job_holds_for_its_frontier_holds_no_producer(policy: BacklogPolicy) -> None:
    """Neither by its size nor by its age: the job needs more events to let it out.

    It is storage all the same, so eviction counts it; and so does whoever else has not acked it.
    """
    held = replace(_part("job", age_s=600), held_to=70, held_bytes=700)
    quota, evicts = (
        BacklogQuota(500, 300, policy),
        policy is BacklogPolicy.CONSUMER_BACKLOG_EVICTION,
    )
    check = check_quota(_backlog(held), quota, now_ms=_NOW_MS)
    assert (check.is_too_large, check.is_too_old) == (evicts, evicts)
    assert (check.size_bytes, check.held_bytes) == ((1_000, 0) if evicts else (300, 700))
    behind = replace(held, behind_held_ms=_NOW_MS - 301_000)
    check = check_quota(_backlog(behind), quota, now_ms=_NOW_MS)
    assert (check.is_too_large, check.is_too_old) == (evicts, True)
    other = _part("other", first=40)
    check = check_quota(_backlog(held, other), quota, now_ms=_NOW_MS)
    assert check.is_too_large
    assert check.subscription == ("job" if evicts else "other")
    told = check.state(now_ms=_NOW_MS, valid_for_ms=1)
    assert told.backlog_bytes == (1_000 if evicts else 600)


def test_the_slowest_subscription_is_so_over_all_partitions() -> None:
    """Of equal ones it is the first by name, in whatever order they are found."""
    one = (_part("one", 0, first=40), _part("one", 1, first=90))
    two = (_part("two", 0, first=100), _part("two", 1, first=50))
    assert _backlog(*one, *two).slowest == "one"
    assert _backlog(_part("two"), _part("one")).slowest == "one"


def test_a_quota_by_size_or_by_age_is_one() -> None:
    """Only topics that have one are written about to producers."""
    for quota, expected in (
        (BacklogQuota(1), True),
        (BacklogQuota(None, 1), True),
        (BacklogQuota(), False),
    ):
        assert check_quota(_backlog(), quota, now_ms=_NOW_MS).has_limit is expected


_FIRSTS = st.dictionaries(st.integers(0, 5), st.integers(0, 1_000), min_size=1)


@given(
    firsts=st.lists(_FIRSTS, min_size=1, max_size=4),
    sizes=st.lists(st.integers(0, 100_000), min_size=6, max_size=6),
    limit=st.integers(1, 1 << 20),
)
def test_eviction_leaves_less_than_nine_tenths(
    firsts: list[dict[int, int]], sizes: list[int], limit: int
) -> None:
    """Whatever backlogs there are; and no cursor moves further than it must, by one message."""
    end = 1_000

    def part(name: int, partition: int, first: int) -> PartitionBacklog:
        size = sizes[partition] * (end - first) // end
        return _part(f"sub{name}", partition, first=first, end=end, size=size)

    backlog = _backlog(
        *(part(name, *one) for name, held in enumerate(firsts) for one in held.items())
    )
    cuts = cuts_by_size(backlog, limit)
    assert bool(cuts) == (backlog.size_bytes >= limit * 0.9 and backlog.size_bytes > 0)
    left = _backlog(
        *(
            part(int(one.subscription[3:]), one.partition, max(one.first_unacked, cut))
            for one in backlog.parts
            for cut in [cuts.get(one.partition, 0)]
        )
    )
    assert left.size_bytes < limit * 0.9
    longest = backlog.longest
    for partition, cut in cuts.items():
        span = end - longest[partition].first_unacked
        assert longest[partition].first_unacked < cut <= end
        assert (end - cut + 1) / span > (limit * 0.9 - 1) / backlog.size_bytes


@pytest.mark.parametrize(
    ("size", "limit", "cut"), [(8, 9, None), (9, 9, 12), (8, 10, None), (9, 10, 12), (10, 10, 20)]
)
def test_eviction_goes_just_below_nine_tenths(size: int, limit: int, cut: int | None) -> None:
    """Of 9 bytes that is 8.1, of 10 bytes 9: no message is skipped that may stay."""
    cuts = cuts_by_size(_backlog(_part(first=0, end=100, size=size)), limit)
    assert cuts == ({} if cut is None else {0: cut})
    assert all(type(offset) is int for offset in cuts.values())


def test_messages_that_free_no_storage_are_not_evicted() -> None:
    """A partition without bytes, or without backlog, loses nothing for the others."""
    backlog = _backlog(
        _part(partition=0, size=0), _part(partition=1), _part(partition=2, first=100)
    )
    assert cuts_by_size(backlog, 1_000) == {1: 11}


def test_an_age_is_cut_at_nine_tenths_of_its_limit() -> None:
    """So that the next message does not exceed it at once."""
    assert age_cutoff_ms(100, now_ms=_NOW_MS) == _NOW_MS - 90_000


def test_a_part_that_cannot_be_is_refused() -> None:
    """More messages than offsets, or fewer messages or bytes than none."""
    for messages in (6, -1):
        with pytest.raises(ValueError, match="messages"):
            PartitionBacklog("sub1", "orders", 0, 5, 10, messages, 0)
    with pytest.raises(ValueError, match="bytes"):
        PartitionBacklog("sub1", "orders", 0, 5, 10, 5, -1)
