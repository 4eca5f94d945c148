"""What is older than a limit, by offsets that brokers tell and few timestamps that are read."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.expiry import limits_ms, older_than
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    DetectionThresholds,
    PoliciesInForce,
)
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.subscription.expiry import Place

_HERE = SourcePartition("orders", 0)
_END = 30
_SLOW_MS = 1_000_000 - 3_600_000 + 1
_LOGS = st.dictionaries(st.integers(0, _END - 1), st.integers(0, 20))
"""Timestamp of each message by its offset; no other offset holds one."""


class _Log:
    """Answers as a leader does, and counts what is read."""

    def __init__(self, stamps: dict[int, int]) -> None:
        self.stamps = stamps
        self.reads: list[Place] = []

    def since(self, time_ms: int) -> int:
        return min((one for one, ms in self.stamps.items() if ms >= time_ms), default=_END)

    def first_from(self, offset: int) -> int | None:
        return min((one for one in self.stamps if one >= offset), default=None)

    def read(self, places: Collection[Place]) -> dict[Place, int]:
        self.reads += places
        found = {place: self.first_from(place[1]) for place in places}
        return {place: self.stamps[one] for place, one in found.items() if one is not None}

    def older(self, offsets: set[int], *times: int) -> dict[int, int]:
        since = {(_HERE, one): self.since(one) for one in times}
        found = older_than({_HERE: offsets}, since, self.read)
        return {offset: ms for (_, offset), ms in found.items()}


@pytest.mark.promise("sub-timestamps-topic-order")
@given(_LOGS, st.sets(st.integers(0, _END - 1)), st.sets(st.integers(0, 21), max_size=3))
def test_older_is_what_lies_before_the_first_that_is_not(
    stamps: dict[int, int], offsets: set[int], times: set[int]
) -> None:
    """In any order of timestamps and with any gaps; so each of them is older by itself, too."""
    log = _Log(stamps)
    expected = {}
    for offset in offsets:
        first = log.first_from(offset)
        if first is not None and (older := [one for one in times if first < log.since(one)]):
            expected[offset] = min(older)
            assert stamps[first] < min(older)
    assert log.older(offsets, *times) == expected


def test_of_several_times_the_least_counts() -> None:
    assert _Log({0: 1, 20: 5, 25: 9}).older({0}, 5, 9) == {0: 5}


def test_places_before_offsets_without_a_message_are_asked_for() -> None:
    """From 10 on the first message is no older than the time, as none from 6 to 24 is there."""
    assert _Log({5: 1, 25: 9}).older({2, 3, 10}, 9) == {2: 9, 3: 9}


@pytest.mark.promise("sub-timestamps-topic-order")
@given(st.lists(st.integers(0, 20), min_size=1, max_size=_END), st.integers(0, 21))
def test_in_the_order_of_time_it_is_all_that_is_older(stamps: list[int], time_ms: int) -> None:
    """And the timestamp of one message is read, however many places there are."""
    stamps.sort()
    log = _Log(dict(enumerate(stamps)))
    older = log.older(set(range(len(stamps))), time_ms)
    assert set(older) == set(range(bisect_left(stamps, time_ms)))
    assert len(log.reads) <= 1


def test_nothing_is_read_where_nothing_is_old() -> None:
    """As long as consumers keep up no record is fetched for an age."""
    log = _Log(dict.fromkeys(range(20), 7))
    assert log.older({0, 5, 20}, 6, 7) == {}
    assert log.reads == []


@pytest.mark.promise("sub-timestamps-topic-order")
def test_a_marker_is_no_old_message() -> None:
    """All is acked but the end of a transaction, and nothing has come for long: nobody waits."""
    log = _Log({0: 1, 1: 1})
    assert log.older({2}, 10) == {}
    assert log.older({1, 2}, 10) == {1: 10}


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (PoliciesInForce(), {_SLOW_MS, 950_000}),
        (PoliciesInForce(thresholds=DetectionThresholds(slow_age_s=0)), {950_000}),
        (PoliciesInForce(message_ttl_s=60), {_SLOW_MS, 940_000, 950_000}),
        (PoliciesInForce(BacklogQuota(None, 100)), {_SLOW_MS, 900_000, 950_000}),
        (
            PoliciesInForce(BacklogQuota(None, 100, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)),
            {_SLOW_MS, 900_000, 910_000, 950_000},
        ),
    ],
)
def test_what_is_asked_for_a_topic(policies: PoliciesInForce, expected: set[int]) -> None:
    """A threshold is reached in its last millisecond; half of a limit is where a gauge begins."""
    asked = limits_ms(policies, now_ms=1_000_000, retention_ms=100_000, is_detected=True)
    assert asked == expected
    own = limits_ms(policies, now_ms=1_000_000, retention_ms=None, is_detected=False)
    assert own == asked - {_SLOW_MS, 950_000} | (
        {950_000} if policies.backlog_quota.limit_s else set()
    )
