"""The outcome of an event: always one of three values.

They are values and not exceptions, since at a hundred thousand events a second an outcome
is data: `match` on it. For an exception for each event that is not surely in the log, await
`Delivery.result_or_raise`. An event that was never sent, or that the broker refused, is
`NotPersisted`; an event whose answer was lost for good is `PossiblyPersisted`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from sequitur.errors import NotPersistedError, PossiblyPersistedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """The event is in the log of all in-sync replicas, once.

    Attributes:
        partition: The partition that holds it.
        offset: Its offset there; None when the broker confirmed the event but has forgotten where
            it is (it remembers the offsets of a producer's last five batches only).
        topic: The topic that holds it.
        timestamp_ms: The timestamp of its record, milliseconds since 1970: its sender's, or when it
            was accepted or sent; with LogAppendTime the broker's, and None if that has forgotten.
    """

    partition: int
    offset: int | None
    topic: str
    timestamp_ms: int | None


class NotPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event is not in the log and will never be; sending it again makes no duplicate.

    Attributes:
        reason: Why, in a sentence.
    """

    reason: str


class PossiblyPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event was sent and no answer came: it may be in the log, once, now or later.

    Attributes:
        reason: Why it is unknown, in a sentence.
    """

    reason: str


Outcome: TypeAlias = Persisted | NotPersisted | PossiblyPersisted


class Delivery(asyncio.Future[Outcome]):
    """An event on its way; await it for the outcome. Cancelling it does not recall the event."""

    # No `__init__`: the future's own, in C, is run for each event of `send`.
    __slots__ = ("keeper", "on_unheard", "timestamp_ms")

    keeper: Callable[[], Awaitable[object]] | None
    """Waits until the journal has the event; None without a journal."""
    timestamp_ms: int
    """The timestamp that it was accepted with; its batch may get another before it is sent."""
    on_unheard: Callable[[str], None]
    """Told of the reason if nobody looks at a bad outcome; set with it."""

    @property
    def journaled(self) -> Awaitable[object]:
        """Done once the event outlives this process: `send` and `kill -9`, and it is sent.

        That is when the journal has it, or, without one, when it has its outcome.

        Raises:
            JournalError: When awaited: the journal failed. The event may be kept or not.
        """
        if self.keeper is None or self.done():
            return asyncio.wait((self,))
        return self.keeper()

    async def result_or_raise(self) -> Persisted:
        """Wait for the outcome, and give it only if the event is in the log.

        Cancelling this wait leaves the delivery as it is.

        Raises:
            NotPersistedError: The event is not in the log, and never will be.
            PossiblyPersistedError: It is unknown whether it is.
        """
        outcome = await asyncio.shield(self)
        if isinstance(outcome, NotPersisted):
            raise NotPersistedError(outcome.reason)
        if isinstance(outcome, PossiblyPersisted):
            raise PossiblyPersistedError(outcome.reason)
        return outcome
