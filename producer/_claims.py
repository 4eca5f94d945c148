"""Claims: which events of a batch belong to which delivery, ticket or callback.

A batch has a claim for each run of events of one owner. When the batch ends, each of its claims
sets the outcomes of its events.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.producer._outcome import (
    Delivery,
    NotPersisted,
    OnDelivery,
    Outcome,
    Persisted,
    PossiblyPersisted,
    Ticket,
)

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

    from sequitur.producer._unheard import Unheard

ENDS_THE_PROGRAM: Final = (KeyboardInterrupt, SystemExit)
"""A callback's exceptions that go up. The others are caught, even `CancelledError`.

A `CancelledError` that went up would end the task that called, as if that task were cancelled.
"""
DELIVERIES: Final = object()
"""The owner of events that were sent one by one, each with a delivery of its own."""
CALLS: Final = object()
"""The owner of events that were sent one by one, each with an `on_delivery` of its own."""


def claim_of(owner: object) -> Claim:
    """Begin a claim of an owner: a ticket, `DELIVERIES` or `CALLS`."""
    if isinstance(owner, Ticket):
        return TicketClaim(owner)
    return DeliveryClaim() if owner is DELIVERIES else CallClaim([])


class DeliveryClaim:
    """Events of one batch, one after the other, that were sent one by one."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Delivery] | None = None) -> None:
        self.entries: list[Delivery] = [] if entries is None else entries

    def persisted(self, at: LogPlace, first: int) -> None:
        """Set the outcome of events that are in the log, from the `first` of a batch on."""
        for place, delivery in enumerate(self.entries, first):
            if not delivery.done():  # its owner may have cancelled it
                delivery.set_result(at.of(place, delivery.timestamp_ms))

    def failed(
        self, outcome: NotPersisted | PossiblyPersisted, topic: str, unheard: Unheard | None
    ) -> None:
        """Set the outcome of events that are not, or only possibly, in the log."""
        deliveries, self.entries = (
            self.entries,
            [],
        )  # nobody looks at the claim now, and callers may drop theirs
        for delivery in deliveries:
            if not delivery.done():
                is_awaited = bool(delivery._callbacks)  # noqa: SLF001 - the future's own
                delivery.set_result(outcome)
                if unheard is not None and not is_awaited:
                    unheard.watch(delivery, topic)

    def compact(self) -> None:
        """Nothing to compact: callers hold the futures."""

    def split(self, place: int) -> tuple[DeliveryClaim, DeliveryClaim]:
        """Return the claim as two, for a batch that is split before `place`."""
        return DeliveryClaim(self.entries[:place]), DeliveryClaim(self.entries[place:])


class CallClaim:
    """Events of one batch, one after the other, each with its callback.

    The calls of a batch are made together, in the loop's next turn.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: list[Called]) -> None:
        self.entries = entries

    def persisted(self, at: LogPlace, first: int) -> None:
        """Set the outcome of events that are in the log, from the `first` of a batch on."""
        self._call_soon(lambda place, accepted_ms: at.of(first + place, accepted_ms))

    def failed(
        self, outcome: NotPersisted | PossiblyPersisted, topic: str, unheard: Unheard | None
    ) -> None:
        """Set the outcome of events that are not, or only possibly, in the log."""
        del topic, unheard  # the callback is told
        self._call_soon(lambda _place, _accepted_ms: outcome)

    def compact(self) -> None:
        """Nothing to compact: callers hold the callbacks."""

    def split(self, place: int) -> tuple[CallClaim, CallClaim]:
        """Return the claim as two, for a batch that is split before `place`."""
        return CallClaim(self.entries[:place]), CallClaim(self.entries[place:])

    def _call_soon(self, outcome_of: Callable[[int, int], Outcome]) -> None:
        loop = asyncio.get_running_loop()
        left = enumerate(self.entries)

        def call() -> None:
            for place, called in left:
                try:
                    called.on_delivery(outcome_of(place, called.timestamp_ms))
                except ENDS_THE_PROGRAM:
                    loop.call_soon(call)  # should the loop go on
                    raise
                except BaseException as error:  # noqa: BLE001 - it keeps no outcome from others
                    what = {"message": "on_delivery raised", "exception": error}
                    loop.call_exception_handler(what)

        loop.call_soon(call)


class Called(msgspec.Struct, gc=False):  # one for each event: the collector need not look at them
    """The callback of an event, and the timestamp that the event was accepted with."""

    on_delivery: OnDelivery
    timestamp_ms: int


class TicketClaim:
    """Events of one batch, one after the other, that belong to one ticket."""

    __slots__ = ("entries", "ticket")

    def __init__(self, ticket: Ticket, entries: MutableSequence[int] | None = None) -> None:
        self.ticket = ticket
        self.entries: MutableSequence[int] = [] if entries is None else entries

    def persisted(self, at: LogPlace, first: int) -> None:
        """Set the outcome of events that are in the log, from the `first` of a batch on."""
        del at, first  # a ticket counts
        self.ticket.complete(self.entries, None)

    def failed(
        self, outcome: NotPersisted | PossiblyPersisted, topic: str, unheard: Unheard | None
    ) -> None:
        """Set the outcome of events that are not, or only possibly, in the log."""
        self.ticket.complete(self.entries, outcome)
        self.ticket.watch(len(self.entries), outcome, topic, unheard)

    def compact(self) -> None:
        """Take less memory, for a long wait."""
        self.entries = array("Q", self.entries)

    def split(self, place: int) -> tuple[TicketClaim, TicketClaim]:
        """Return the claim as two, for a batch that is split before `place`."""
        return (
            TicketClaim(self.ticket, self.entries[:place]),
            TicketClaim(self.ticket, self.entries[place:]),
        )


Claim = DeliveryClaim | CallClaim | TicketClaim


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a batch is in the log."""

    topic: str
    partition: int
    offset: int | None  # the offset of its first record; None if it is not known
    shift_ms: int = 0  # how much later its records are dated than when they were accepted
    append_ms: int = -1  # the timestamp that the broker gave all of them; -1 if it gave none
    keeps_times: bool = True  # whether the broker gives none, as far as is known

    def of(self, place: int, accepted_ms: int) -> Persisted:
        """Return the outcome of the event at a place in the batch."""
        offset = None if self.offset is None else self.offset + place
        timestamp_ms = self.append_ms if self.append_ms != -1 else accepted_ms + self.shift_ms
        return Persisted(
            self.partition, offset, self.topic, timestamp_ms if self.keeps_times else None
        )
