"""A subscription that is consumed, with a lease that a test moves the clock of."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequitur.consumer.subscription.claims import HeldLease
from sequitur.consumer.subscription.consumption import Consumption
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.dispatch import (
    NEGATIVE_ACK_BACKOFF,
    DeadMessage,
    Dispatch,
    DispatchLimits,
    OrderRule,
)
from sequitur.consumer.subscription.partition_reader import Arrival
from sequitur.consumer.subscription.partitions import ConsumedPartition
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log
from sequitur.errors import AckBeyondEndError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from sequitur.consumer.subscription.partitions import PartitionCursor

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
        self.changed: list[list[int]] = []  # the partitions of each write

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(
        self, _state: object, cursors: list[PartitionCursor], *, removed: Collection[object] = ()
    ) -> None:
        assert not removed
        if not self.answers.is_set():
            self.now_s += _PATIENCE_S
            self.given_up += 1
            raise UnansweredError("they are away")
        self.lease.renewed(self.now_s)
        self.written += [one.cursor.committed_offset for one in cursors]
        self.changed.append([one.cursor.identity.partition for one in cursors])

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
    """One that finds what it is told to, once."""

    def __init__(self, *arrivals: Arrival) -> None:
        self._arrivals = [*arrivals]

    def add(self, _positions: object) -> None:
        pass

    def read(self, _count: int, timeout_s: float) -> list[Arrival]:
        found, self._arrivals = self._arrivals, []
        if not found:
            threading.Event().wait(timeout_s)
        return found

    def close(self) -> None:
        pass


_WHERE = SourcePartition("t", 0)


_OTHER = SourcePartition("t", 1)


class _Letters:
    """Letters that cannot be written until the topic takes them."""

    def __init__(self) -> None:
        self.tries = 0
        self.takes = threading.Event()

    def write(self, dead: list[DeadMessage[Any]]) -> list[tuple[SourcePartition, int]]:
        self.tries += bool(dead)
        return [(one.where, one.offset) for one in dead] if self.takes.is_set() else []

    def close(self) -> None:
        pass


def _consumption(
    owner: _Owner, *arrivals: Arrival, write_interval_s: float, letters: _Letters | None = None
) -> Consumption:
    """Two messages that are there to be received, and a partition without any."""
    dispatch: Dispatch[Any] = Dispatch(
        OrderRule.TAKEN_BACK,
        limits=DispatchLimits(redeliveries=0),
        backoff=NEGATIVE_ACK_BACKOFF,
    )
    part = ConsumedPartition.begin(CursorIdentity("s", *_WHERE), 0)
    part.know_end(2)
    dispatch.add(_WHERE, range(2), [None, None], ["first", "second"])
    empty = ConsumedPartition.begin(CursorIdentity("s", *_OTHER), 0)
    partitions = {_WHERE: part, _OTHER: empty}
    opened = SimpleNamespace(owner=owner, state=SubscriptionState(), partitions=partitions)
    topics = SimpleNamespace(high_watermarks=lambda wanted: dict.fromkeys(wanted, 0))
    return Consumption(
        cast("Any", SimpleNamespace(surveyor=SimpleNamespace(admin=_Admin()), topics=topics)),
        cast("Any", opened),
        cast("Any", _Reader(*arrivals)),
        dispatch,
        cast("Any", letters),
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


def test_acks_of_a_call_count_all_or_none() -> None:
    """Whoever is refused does not know which of them did."""
    consumption = _consumption(_Owner(), write_interval_s=_LONG_S)
    with pytest.raises(AckBeyondEndError):
        consumption.ack({_WHERE: [0], _OTHER: [7]})
    assert consumption.copies()[_WHERE].cursor.committed_offset == 0
    assert len(consumption.receive(2, 0)) == 2


def test_the_first_message_behind_those_that_expire_is_handed_out() -> None:
    consumption = _consumption(_Owner(), write_interval_s=_LONG_S)
    consumption.expire(_WHERE, 1, Log(start=0, end=2))
    assert [str(one[2]) for one in consumption.receive(2, 0)] == ["second"]


def test_a_dead_message_is_acked_once_its_letter_is_there() -> None:
    """Else whoever dies between the two loses it."""
    owner, letters = _Owner(), _Letters()
    owner.answers.set()
    consumption = _consumption(owner, write_interval_s=0.01, letters=letters)
    consumption.begin()
    try:
        consumption.receive(1, _LONG_S)
        consumption.negative_ack(_WHERE, 0, None)
        wait_until(lambda: letters.tries > 0)
        consumption.flush(_LONG_S)
        assert consumption.dead_letters == 0
        assert consumption.copies()[_WHERE].cursor.committed_offset == 0
        letters.takes.set()
        wait_until(lambda: consumption.dead_letters == 1)
        assert consumption.copies()[_WHERE].cursor.committed_offset == 1
    finally:
        consumption.close()


def test_a_flush_writes_the_partitions_that_have_changed() -> None:
    """A repeated ack is counted, so it is written; an ack that is refused is not."""
    owner = _Owner()
    owner.answers.set()
    consumption = _consumption(owner, write_interval_s=_LONG_S)
    consumption.begin()
    try:
        consumption.flush(_LONG_S)
        assert owner.changed == []
        for _ in range(2):
            consumption.ack({_WHERE: [1]})
            consumption.flush(_LONG_S)
        with pytest.raises(AckBeyondEndError):
            consumption.ack({_WHERE: [0], _OTHER: [7]})
        consumption.flush(_LONG_S)
        assert owner.changed == [[0], [0]]
        assert len(consumption.receive(1, _LONG_S)) == 1  # its delivery counts
        consumption.flush(_LONG_S)
        assert owner.changed[2:] == [[0]]
    finally:
        consumption.close()
    assert len(owner.changed) == 3


def test_close_tells_of_acks_that_are_not_stored() -> None:
    consumption = _consumption(_Owner(), write_interval_s=_LONG_S)
    consumption.begin()
    consumption.ack({_WHERE: [0]})
    with pytest.raises(UnansweredError, match="they are away"):
        consumption.close()


def test_close_does_not_tell_of_a_read_position_that_is_not_stored() -> None:
    """Nobody has acked anything, so nothing comes again for it."""
    owner = _Owner()
    consumption = _consumption(owner, Arrival(_OTHER, 0, 3, []), write_interval_s=_LONG_S)
    consumption.begin()
    wait_until(lambda: consumption.copies()[_OTHER].cursor.read_position == 3)
    consumption.close()
    assert owner.given_up == 1
