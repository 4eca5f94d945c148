"""A subscription that is consumed, with a lease that a test moves the clock of."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

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
from sequitur.errors import UnansweredError

_LEASE_S = 15.0
_LONG_S = 60.0


class _Owner:
    """One whose brokers are away until it is told otherwise."""

    subscription = "s"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lease = HeldLease(_LEASE_S, lambda: self.now_s)
        self.tried = threading.Event()
        self.answers = threading.Event()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, _state: object, _cursors: object) -> None:
        pass

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


@pytest.mark.promise("sub-owner-subscription-idle")
def test_an_owner_that_could_not_renew_hands_out_nothing() -> None:
    """Somebody else may have the subscription; once it has renewed, nobody has."""
    owner = _Owner()
    dispatch: Dispatch[Any] = Dispatch(
        OrderRule.TAKEN_BACK, limits=DispatchLimits(), backoff=NEGATIVE_ACK_BACKOFF
    )
    where = SourcePartition("t", 0)
    partitions = {where: ConsumedPartition.begin(CursorIdentity("s", *where), 0)}
    dispatch.add(where, range(2), [None, None], ["first", "second"])
    opened = SimpleNamespace(owner=owner, state=SubscriptionState(), partitions=partitions)
    consumption = Consumption(
        cast("Any", SimpleNamespace(surveyor=SimpleNamespace(admin=_Admin()))),
        cast("Any", opened),
        cast("Any", _Reader()),
        dispatch,
        refill=1,
        write_interval_s=_LONG_S,
    )
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
