"""The outcome of an event: always one of three values.

They are values and not exceptions, since at a hundred thousand events a second an outcome
is data: `match` on it. For an exception for each event that is not surely in the log, await
`Delivery.result_or_raise`. An event that was never sent, or that the broker refused, is
`NotPersisted`; an event whose answer was lost for good is `PossiblyPersisted`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from sequitur.base.log import Logger
from sequitur.errors import NotAllPersistedError, NotPersistedError, PossiblyPersistedError
from sequitur.kafka.record_batch import records_of, seal
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._home import check_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, MutableSequence

    from sequitur.kafka.record_batch import Header, StoredRecord
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


# Bad outcomes that nobody asked for: counted, and told once a minute by topic and reason.
#
# An outcome is a value, and code that was written for a client that raises may never look at it.
# What is gone without a look is told here. It costs good outcomes nothing: only a delivery that
# failed while nobody waited for it becomes one that tells when it goes.

_EVERY_S: Final = 60.0
_MAX_REASONS: Final = 100
_OTHER: Final = "other reasons"

_log = Logger(__name__)


class Unheard:
    """Count bad outcomes that nobody asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float = _EVERY_S) -> None:
        self.count = 0
        self._loop = loop
        self._every_s = every_s
        self._untold: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, delivery: Delivery, topic: str) -> None:
        """Count a delivery that has just failed, if it goes without a look."""
        delivery.on_unheard = lambda reason: self.note(topic, reason)
        delivery.__class__ = _FailedDelivery

    def note(self, topic: str, reason: str, events: int = 1) -> None:
        """Count events of a topic that failed for a reason."""
        key = (topic, reason)
        if key not in self._untold and len(self._untold) >= _MAX_REASONS:
            key = (topic, _OTHER)
        self._untold[key] += events
        self.count += events
        if self._timer is None and not self._loop.is_closed():
            self._timer = self._loop.call_later(self._every_s, self.tell)

    def tell(self) -> None:
        """Tell what was counted since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (topic, reason), events in self._untold.items():
            _log.warning(
                "events are not, or not surely, in the log, and nobody asked for their outcome",
                topic=topic,
                reason=reason,
                events=events,
            )
        self._untold.clear()


class _FailedDelivery(Delivery):
    """A delivery that failed while nobody waited for it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Outcome]:
        self._hear()
        return Delivery.__await__(self)

    def result(self) -> Outcome:
        """Return the outcome."""
        self._hear()
        return Delivery.result(self)

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        """Call `fn` soon."""
        self._hear()
        Delivery.add_done_callback(self, fn, context=context)

    def _hear(self) -> None:
        self.__class__ = Delivery  # type: ignore[assignment]  # it has no more slots than that

    def __del__(self) -> None:
        outcome = cast("NotPersisted | PossiblyPersisted", super().result())
        self.on_unheard(outcome.reason)


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
        deliveries, self.entries = self.entries, []  # who looks at none lets them go
        for delivery in deliveries:
            if not delivery.done():
                is_awaited = bool(delivery._callbacks)  # noqa: SLF001 - the future's own
                delivery.set_result(outcome)
                if unheard is not None and not is_awaited:
                    unheard.watch(delivery, topic)

    def compact(self) -> None:
        """Take less memory: futures are their owners'."""

    def cut(self, place: int) -> tuple[DeliveryClaim, DeliveryClaim]:
        """Return the claim as two, for a batch that is split before `place`."""
        return DeliveryClaim(self.entries[:place]), DeliveryClaim(self.entries[place:])


ENDS_THE_PROGRAM: Final = (KeyboardInterrupt, SystemExit)
"""What goes up out of a callback; any other exception of it, also a `CancelledError`, is its own.

A `CancelledError` that went up would end the task that called it, as if the task were cancelled.
"""

OnDelivery: TypeAlias = Callable[[Outcome], object]
"""Called once with the outcome of an event, in the event loop."""


class Called(msgspec.Struct, gc=False):  # one an event: the collector need not look at them
    """What is called with an event's outcome, and the timestamp the event was accepted with."""

    on_delivery: OnDelivery
    timestamp_ms: int


class CallClaim:
    """Events of one batch, one after the other, each with what is called with its outcome.

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
        del topic, unheard  # who calls hears
        self._call_soon(lambda _place, _accepted_ms: outcome)

    def compact(self) -> None:
        """Take less memory: what is called is its owner's."""

    def cut(self, place: int) -> tuple[CallClaim, CallClaim]:
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

    def cut(self, place: int) -> tuple[TicketClaim, TicketClaim]:
        """Return the claim as two, for a batch that is split before `place`."""
        return (
            TicketClaim(self.ticket, self.entries[:place]),
            TicketClaim(self.ticket, self.entries[place:]),
        )


Claim = DeliveryClaim | CallClaim | TicketClaim

DELIVERIES: Final = object()
"""The owner of events that were sent one by one, each with a delivery of its own."""
CALLS: Final = object()
"""The owner of events that were sent one by one, each with an `on_delivery` of its own."""


def claim_of(owner: object) -> Claim:
    """Begin a claim of an owner: a ticket, `DELIVERIES` or `CALLS`."""
    if isinstance(owner, Ticket):
        return TicketClaim(owner)
    return DeliveryClaim() if owner is DELIVERIES else CallClaim([])


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
        outcome: Why it is not sent again.
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


class Unawaited(Ticket):
    """The events of `send_nowait` without `on_delivery`; `untold` of them are lost unseen so far.

    What ends badly is counted, and told every second, unless there is somebody to be given it.
    """

    __slots__ = ("_on_failure", "_told", "untold")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_failure: OnSendFailure | None = None
    ) -> None:
        super().__init__()
        self.open(loop)
        self.untold = 0
        self._on_failure = on_failure
        self._told = Unheard(loop, every_s=1.0)

    def watch(
        self,
        events: int,
        outcome: NotPersisted | PossiblyPersisted,
        topic: str,
        unheard: Unheard | None,
    ) -> None:
        """See `Ticket`: whoever settles a batch says by `failed` that nobody else was told."""

    def wants(self, batch: Batch) -> bool:
        """Whether somebody is given the events of a batch if it ends badly."""
        return self._on_failure is not None and bool(self._of(batch))

    def failed(
        self,
        batch: Batch,
        outcome: NotPersisted | PossiblyPersisted,
        read: Callable[[Batch], bool],
    ) -> None:
        """Tell of the events of a batch that ended badly; `read` gets its bytes if it can."""
        mine = self._of(batch)
        if not mine:
            return
        if self._on_failure is None or not read(batch):
            self._count(batch.topic, outcome.reason, len(mine))
        else:
            events = events_of(batch, outcome)
            self.give([events[place] for place in mine])

    def left(self, batch: Batch, outcome: PossiblyPersisted) -> None:
        """Log the events of a batch that the journal sends again: whoever had them would, too."""
        if mine := self._of(batch):
            self._told.note(batch.topic, outcome.reason, len(mine))

    def give(self, events: Sequence[GivenUp]) -> None:
        """Tell of events that ended badly."""
        if self._on_failure is not None:
            try:
                self._on_failure(events)
            except ENDS_THE_PROGRAM:
                raise
            except BaseException as error:  # noqa: BLE001 - they are counted instead
                _log.error("on_failure raised", exc_info=error)
            else:
                return
        for event in events:
            self._count(event.topic, event.outcome.reason, 1)

    def raise_if_untold(self) -> None:
        """Tell what was not told yet, and raise if any event ended badly without a hearer.

        Raises:
            NotAllPersistedError: One has.
        """
        self._told.tell()
        if self.untold:
            raise NotAllPersistedError(self.result())

    def _of(self, batch: Batch) -> list[int]:
        """Return the places of these events in a batch."""
        mine: list[int] = []
        first = 0
        for claim in batch.claims:
            if isinstance(claim, TicketClaim) and claim.ticket is self:
                mine += range(first, first + len(claim.entries))
            first += len(claim.entries)
        return mine

    def _count(self, topic: str, reason: str, events: int) -> None:
        self.untold += events
        self._told.note(topic, reason, events)


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
