"""The outcomes of events, and what their senders hold until they are there.

An outcome is always one of three values. They are values and not exceptions, since at a hundred
thousand events a second an outcome is data: `match` on it. To get an exception for each event that
is not surely in the log, await `Delivery.result_or_raise`. An event that was never sent, or that
the broker refused, is `NotPersisted`. An event whose answer was lost for good is
`PossiblyPersisted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from sequitur.errors import NotAllPersistedError, NotPersistedError, PossiblyPersistedError
from sequitur.kafka.record_batch import records_of, seal
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._home import check_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from sequitur.kafka.record_batch import Header, StoredRecord
    from sequitur.producer._unheard import Unheard
    from sequitur.producer.batching.batch import Batch


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """The event is in the log of all in-sync replicas, once.

    Attributes:
        partition: The partition that holds it.
        offset: Its offset there. None if the broker confirmed the event but has forgotten its
            offset: a broker remembers those of a producer's last five batches.
        topic: The topic that holds it.
        timestamp_ms: The timestamp of its record, milliseconds since 1970: the sender's, or the
            time when it was accepted or sent. With LogAppendTime, the broker's, or None if the
            broker has forgotten it.
    """

    partition: int
    offset: int | None
    topic: str
    timestamp_ms: int | None


class NotPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event is not in the log and never will be. Sending it again makes no duplicate.

    Attributes:
        reason: Why, in a sentence.
    """

    reason: str


class PossiblyPersisted(msgspec.Struct, frozen=True, gc=False):
    """The event was sent and no answer came: it may be in the log, once, now or later.

    Attributes:
        reason: Why the outcome is unknown, in a sentence.
    """

    reason: str


Outcome: TypeAlias = Persisted | NotPersisted | PossiblyPersisted
"""One of the three, final."""
OnDelivery: TypeAlias = Callable[[Outcome], object]
"""Called once with the outcome of an event, in the event loop."""


class Delivery(asyncio.Future[Outcome]):
    """An event on its way. Await it for the outcome. Cancelling it does not recall the event."""

    # No `__init__`: the future's own, in C, is run for each event of `send`.
    __slots__ = ("keeper", "on_unheard", "timestamp_ms")

    keeper: Callable[[], Awaitable[object]] | None
    """Waits until the journal has the event; None without a journal."""
    timestamp_ms: int
    """The timestamp that it was accepted with; its batch may get another before it is sent."""
    on_unheard: Callable[[str], None]
    """Internal hook: called with the reason when a failed delivery is discarded unread."""

    @property
    def journaled(self) -> Awaitable[object]:
        """Done once the event outlives this process: after a `kill -9` the next start sends it.

        That is when the journal has it, or, without one, when it has its outcome.

        Raises:
            JournalError: When awaited: the journal failed. The event may be kept or not.
            WrongThreadError: When awaited in another event loop than the producer's.
        """
        return self._journaled()

    async def _journaled(self) -> None:
        check_loop(self.get_loop())
        if self.keeper is None or self.done():
            await asyncio.wait((self,))
        else:
            await self.keeper()

    async def result_or_raise(self) -> Persisted:
        """Wait for the outcome. Return it if the event is in the log, otherwise raise.

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


MAX_LISTED_FAILURES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Failure:
    """An event of a ticket that was not, or only possibly, persisted.

    Attributes:
        index: Its place in the iterable or table, from 0.
        outcome: Its outcome.
    """

    index: int
    outcome: NotPersisted | PossiblyPersisted


@dataclass(frozen=True, slots=True)
class TicketResult:
    """The outcomes of the events of one `send_many`.

    Attributes:
        accepted: How many events were accepted: the sum of the next three.
        persisted: In the log.
        not_persisted: Not in the log, now or ever.
        possibly_persisted: It is unknown whether they are in the log.
        failures: The first 1,000 events that were not surely persisted, by index.
    """

    accepted: int
    persisted: int
    not_persisted: int
    possibly_persisted: int
    failures: tuple[Failure, ...]


class Ticket:
    """The events of one `send_many` on their way. Await it for the `TicketResult`.

    ::

        ticket = await producer.send_many("orders", [Record(b"lamp", key=b"1"), Record(b"desk")])
        result = await ticket.result_or_raise()

    If your call may be cancelled, pass your own `Ticket` to `send_many`. You can still await it
    afterwards.
    """

    __slots__ = (
        "_closed",
        "_done",
        "_failures",
        "_heard",
        "_kept",
        "_unheard",
        "accepted",
        "not_persisted",
        "persisted",
        "possibly_persisted",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.persisted = 0
        self.not_persisted = 0
        self.possibly_persisted = 0
        self._failures: list[Failure] = []
        self._heard = False
        self._unheard: list[tuple[Unheard, str, str, int]] = []
        self._closed = False
        self._done: asyncio.Future[None] | None = None
        self._kept: Callable[[], Awaitable[object]] | None = None

    @property
    def journaled(self) -> Awaitable[object]:
        """Done once the events and their position outlive this process.

        That is when they are in the journal, or, without one, when each has its outcome.

        Raises:
            JournalError: When awaited: the journal failed. The events may be kept or not.
            WrongThreadError: When awaited in another event loop than the producer's.
        """
        return self._journaled()

    async def _journaled(self) -> None:
        if self._done is not None:
            check_loop(self._done.get_loop())
        await (self.wait_completed() if self._kept is None else self._kept())

    async def wait_completed(self) -> None:
        """Wait until each event has its outcome."""
        if self._done is not None:  # else it was never used
            await asyncio.shield(self._done)

    def __await__(self) -> Generator[object, None, TicketResult]:
        """Wait until each event has its outcome; may be awaited again, and by several tasks."""
        self._heard = True
        yield from self.wait_completed().__await__()
        return self.result()

    async def result_or_raise(self) -> TicketResult:
        """Wait for all outcomes. Return the result if all events are in the log, else raise.

        Raises:
            NotAllPersistedError: Some are not, or not surely.
        """
        result = await self
        if result.persisted < result.accepted:
            raise NotAllPersistedError(result)
        return result

    @property
    def completed(self) -> int:
        """How many of the events have their outcome."""
        return self.persisted + self.not_persisted + self.possibly_persisted

    def result(self) -> TicketResult:
        """Return the counts at this moment."""
        self._heard = True
        return TicketResult(
            accepted=self.accepted,
            persisted=self.persisted,
            not_persisted=self.not_persisted,
            possibly_persisted=self.possibly_persisted,
            failures=tuple(sorted(self._failures, key=lambda failure: failure.index)),
        )

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take events from now on.

        Raises:
            ValueError: It has been used: a ticket is for one call.
        """
        if self._done is not None:
            raise ValueError(
                "a ticket counts the events of one send_many, and this one has been used"
            )
        self._done = loop.create_future()

    def close(self, kept: Callable[[], Awaitable[object]] | None = None) -> None:
        """Accept no more events under this ticket.

        Args:
            kept: Waits until those that were are in the journal, if there is one.
        """
        self._kept = kept
        self._closed = True
        self._finish_if_completed()

    def complete(
        self, indices: Sequence[int], outcome: NotPersisted | PossiblyPersisted | None
    ) -> None:
        """Count events as persisted (None), or by another outcome."""
        if outcome is None:
            self.persisted += len(indices)
        else:
            if isinstance(outcome, NotPersisted):
                self.not_persisted += len(indices)
            else:
                self.possibly_persisted += len(indices)
            room = MAX_LISTED_FAILURES - len(self._failures)
            self._failures += [Failure(index, outcome) for index in indices[:room]]
        self._finish_if_completed()

    def watch(
        self,
        events: int,
        outcome: NotPersisted | PossiblyPersisted,
        topic: str,
        unheard: Unheard | None,
    ) -> None:
        """Count failed events, if the ticket is discarded unread."""
        if unheard is not None and not self._heard:
            self._unheard.append((unheard, topic, outcome.reason, events))

    def __del__(self) -> None:
        """Tell of bad outcomes that nobody looked at."""
        if not self._heard:
            for unheard, topic, reason, events in self._unheard:
                unheard.note(topic, reason, events)

    def _finish_if_completed(self) -> None:
        assert self._done is not None
        if self._closed and self.completed == self.accepted and not self._done.done():
            self._done.set_result(None)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One event that is not, or not surely, in the log, and that is not sent again.

    Attributes:
        topic: Its topic.
        partition: Its partition. None if it was refused before it had one.
        event_id: Its event id. None if it was refused before it had one.
        key: Its key.
        value: Its whole payload. None is a tombstone.
        headers: Its headers, without the event id.
        timestamp_ms: The timestamp of its record, milliseconds since 1970. None if it was refused
            before it had one.
        outcome: Why it is not sent again. The journal forgets the event after this call: if it
            cannot, the next start sends it all the same.
    """

    topic: str
    partition: int | None
    event_id: str | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int | None
    outcome: NotPersisted | PossiblyPersisted


OnGivenUp: TypeAlias = Callable[[Sequence[GivenUp]], None]
"""Called with events of one batch, before they get their outcome and the journal forgets them."""
OnSendFailure: TypeAlias = Callable[[Sequence[GivenUp]], object]
"""Called with failed events of `send_nowait` that have no `on_delivery` and are not sent again."""


def events_of(batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> list[GivenUp]:
    """Return the events of a batch that was given up."""
    data = batch.data
    if batch.builder is not None:
        data = seal(batch.builder, "none")
    return [
        GivenUp(
            topic=batch.topic,
            partition=batch.partition,
            event_id=_event_id(record),
            key=record.key,
            value=record.value,
            headers=record.headers[:-1],  # the last one is the event id
            timestamp_ms=record.timestamp_ms,
            outcome=outcome,
        )
        for record in records_of(data)
    ]


def _event_id(record: StoredRecord) -> str:
    name, value = record.headers[-1]
    assert name == EVENT_ID_HEADER
    return (value or b"").decode()
