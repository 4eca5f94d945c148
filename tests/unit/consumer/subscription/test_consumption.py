"""A subscription that is consumed, with a lease that a test moves the clock of."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequitur.consumer import CursorIdentity, SourcePartition
from sequitur.consumer.subscription.consumption import Consumption
from sequitur.consumer.subscription.cursor import ConsumedPartition
from sequitur.consumer.subscription.dispatch import (
    NEGATIVE_ACK_BACKOFF,
    Dispatch,
    DispatchLimits,
    OrderRule,
)
from sequitur.consumer.subscription.stored_records import HeldLease, SubscriptionState
from sequitur.consumer.subscription.survey import Log
from sequitur.errors import UnansweredError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from sequitur.consumer.subscription.cursor import PartitionCursor

_LEASE_S = 15.0
_LONG_S = 60.0
_PATIENCE_S = 30.0
"""So long a write waits for brokers."""


class _Owner:
    """One whose brokers are away until it is told otherwise."""

    subscription = "s"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lease = HeldLease(_LEASE_S, lambda: self.now_s)
        self.tried = threading.Event()
        self.answers = threading.Event()
        self.given_up = 0  # how often a write has waited for as long as it waits, in vain
        self.written: list[int] = []

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, _state: object, cursors: list[PartitionCursor]) -> None:
        if not self.answers.is_set():
            self.now_s += _PATIENCE_S
            self.given_up += 1
            raise UnansweredError("they are away")
        self.lease.renewed(self.now_s)
        self.written += [one.cursor.committed_offset for one in cursors]

    def renew(self) -> None:
        if self.lease.due_in_s > 0:
            return
        self.tried.set()
        if not self.answers.wait(0.01):
            raise UnansweredError("they are away")
        self.lease.renewed(self.now_s)


class _Admin:
    """A client that nobody asks."""

    def let_go(self, _idle_s: float) -> None:
        pass


class _Reader:
    """One that finds nothing."""

    def add(self, _positions: object) -> None:
        pass

    def read(self, _count: int, timeout_s: float) -> list[object]:
        threading.Event().wait(timeout_s)
        return []

    def close(self) -> None:
        pass


_WHERE = SourcePartition("t", 0)


def _consumption(owner: _Owner, *, write_interval_s: float) -> Consumption:
    """Two messages that are there to be received."""
    dispatch: Dispatch[Any] = Dispatch(
        OrderRule.TAKEN_BACK, limits=DispatchLimits(), backoff=NEGATIVE_ACK_BACKOFF
    )
    part = ConsumedPartition.begin(CursorIdentity("s", *_WHERE), 0)
    part.know_end(2)
    dispatch.add(_WHERE, range(2), [None, None], ["first", "second"])
    opened = SimpleNamespace(owner=owner, state=SubscriptionState(), partitions={_WHERE: part})
    return Consumption(
        cast("Any", SimpleNamespace(surveyor=SimpleNamespace(admin=_Admin()))),
        cast("Any", opened),
        cast("Any", _Reader()),
        dispatch,
        refill=1,
        write_interval_s=write_interval_s,
    )


@pytest.mark.promise("sub-open-long-outage")
def test_brokers_that_are_away_for_longer_than_a_write_waits_cost_no_ack() -> None:
    """Each flush says that they are away; what is acked meanwhile is written once they are back."""
    owner = _Owner()
    consumption = _consumption(owner, write_interval_s=0.01)
    consumption.begin()
    try:
        consumption.receive(1, _LONG_S)
        consumption.ack({_WHERE: [0]})
        wait_until(lambda: owner.given_up * _PATIENCE_S > 70)
        with pytest.raises(UnansweredError, match="they are away"):
            consumption.flush(_LONG_S)
        assert consumption.receive(1, 0.05) == []
        assert owner.written == []
        owner.answers.set()
        wait_until(lambda: owner.written[:1] == [1])
        (handed,) = consumption.receive(1, _LONG_S)
        assert str(handed[2]) == "second"
        consumption.ack({_WHERE: [1]})
        consumption.flush(_LONG_S)
    finally:
        consumption.close()
    assert (owner.written[0], owner.written[-1]) == (1, 2)


@pytest.mark.promise("sub-deleted-then-passed-over")
def test_what_was_deleted_unread_is_lost_when_it_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told of, as where reading meets it."""
    owner = _Owner()
    owner.answers.set()
    consumption = _consumption(owner, write_interval_s=_LONG_S)
    consumption.begin()
    try:
        consumption.expire(_WHERE, 5, Log(start=4, end=6))
        counts = consumption.copies()[_WHERE].cursor.counts
    finally:
        consumption.close()
    assert (counts.lost, counts.consumed) == (4, 1)
    assert "at most 4 messages were deleted before they were acked" in caplog.text


@pytest.mark.promise("sub-owner-subscription-idle")
def test_an_owner_that_could_not_renew_hands_out_nothing() -> None:
    """Somebody else may have the subscription; once it has renewed, nobody has."""
    owner = _Owner()
    consumption = _consumption(owner, write_interval_s=_LONG_S)
    consumption.begin()
    try:
        (handed,) = consumption.receive(1, _LONG_S)
        assert str(handed[2]) == "first"
        owner.now_s = _LEASE_S
        assert owner.tried.wait(_LONG_S)
        assert consumption.receive(1, 0.05) == []
        owner.answers.set()
        (handed,) = consumption.receive(1, _LONG_S)
        assert str(handed[2]) == "second"
    finally:
        consumption.close()
