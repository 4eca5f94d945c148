"""What became of an event: one of three values, never silence.

They are values and not exceptions, since at a hundred thousand events a second the fate of an event
is data: `match` on it. An event that the broker was never sent, or that it refused, is
`NotPersisted`; one whose answer was lost and could not be had again is `PossiblyPersisted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    import asyncio


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """The event is in the log of all in-sync replicas, once.

    Attributes:
        partition: The partition that holds it.
        offset: Its offset there; None when the broker confirmed the event but has forgotten where
            it is (it remembers the offsets of a producer's last five batches only).
    """

    partition: int
    offset: int | None


class NotPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event is not in the log and will never be; sending it again cannot double it.

    Attributes:
        reason: Why, in a sentence.
    """

    reason: str


class PossiblyPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event was sent and no answer could be had: it may be in the log, once, or become so.

    Attributes:
        reason: Why nobody knows, in a sentence.
    """

    reason: str


Outcome: TypeAlias = Persisted | NotPersisted | PossiblyPersisted

Delivery: TypeAlias = "asyncio.Future[Outcome]"
"""An event on its way; await it for the outcome. Cancelling it does not recall the event."""
