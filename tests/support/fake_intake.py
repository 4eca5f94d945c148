"""An intake that remembers, and a journal of it that can lose what was not durable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sequitur.errors import StoppingError
from sequitur.producer._outcome import Delivery, Outcome, Persisted, TicketResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from sequitur.producer._record import Record
    from sequitur.producer.sources._source import Pause

    Event = tuple[bytes | None, bytes | None]


class CrashedError(Exception):
    """The process is gone."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one call put into the journal: events and position together or neither."""

    records: Sequence[Record]
    position: bytes | None


@dataclass(slots=True)
class FakeJournal:
    """Outlives the intakes; `durable` rounds survive a crash, of the others a prefix may."""

    rounds: list[Round] = field(default_factory=list)
    durable: int = 0

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for one in self.rounds for record in one.records]

    @property
    def position(self) -> bytes | None:
        positions = [one.position for one in self.rounds if one.position is not None]
        return positions[-1] if positions else None

    def lose(self, kept_share: float) -> None:
        """A power cut: of the rounds that are not durable only the first stay."""
        undurable = len(self.rounds) - self.durable
        self.durable += round(undurable * kept_share)
        del self.rounds[self.durable :]


class FakeTicket:
    """Durable when somebody asks, unless the intake holds that back."""

    def __init__(self, intake: FakeIntake, place: int, count: int) -> None:
        self._intake = intake
        self._place = place
        self._count = count

    @property
    def journaled(self) -> Awaitable[object]:
        return self._intake.make_durable(self._place)

    def __await__(self) -> Generator[object, object, TicketResult]:
        yield from ()
        return TicketResult(self._count, self._count, 0, 0, ())


class FakeIntake:
    """Takes events into a `FakeJournal`, and can crash at any step.

    Args:
        journal: Where to put them.
        crash_at: The step at which the process is gone; each call of `accept` and `note_position`
            is two: before and after the round is in the journal.
    """

    def __init__(self, journal: FakeJournal | None = None, crash_at: int | None = None) -> None:
        self.stopping = asyncio.Event()
        self.journals = True
        self.copies_kept = 1_000_000
        self.journal = journal or FakeJournal()
        self.refused: list[tuple[bytes, str, str]] = []
        self.room = asyncio.Event()
        self.room.set()
        self.sync_allowed = asyncio.Event()
        self.sync_allowed.set()
        self.on_accept: Callable[[], object] = lambda: None
        self.on_step: Callable[[], object] = lambda: None
        self.outcomes: Callable[[Record, int], Outcome] = lambda _, place: Persisted(
            0, place, "t", 0
        )
        self.answers = True
        self.unanswered: list[Delivery] = []
        self._crash_at = crash_at
        self._steps = 0
        self._changed = asyncio.Event()

    @property
    def values(self) -> list[bytes]:
        return self.journal.values

    @property
    def events(self) -> list[Event]:
        """(key, value) of all events, in the order of acceptance."""
        return [(each.key, each.value) for one in self.journal.rounds for each in one.records]

    async def accept(self, records: Sequence[Record], position: bytes | None = None) -> FakeTicket:
        """Wait for room, then take events; in two steps."""
        self._step()
        self.on_accept()
        await self._wait_for_room()
        self.journal.rounds.append(Round(list(records), position))
        place = len(self.journal.rounds)
        self._tell()
        self._step()
        return FakeTicket(self, place, len(records))

    async def accept_each(self, records: Sequence[Record]) -> Sequence[Delivery]:
        """Take events; their outcomes are there at once, unless Kafka is to be away."""
        await self.accept(records)
        deliveries = []
        for place, record in enumerate(records):
            delivery = Delivery(loop=asyncio.get_running_loop())
            delivery.keeper = None
            deliveries.append(delivery)
            if self.answers:
                delivery.set_result(self.outcomes(record, place))
            else:
                self.unanswered.append(delivery)
        return deliveries

    async def note_position(self, position: bytes) -> None:
        self._step()
        self.journal.rounds.append(Round([], position))
        self.journal.durable = len(self.journal.rounds)
        self._step()

    def refuse(self, raw: bytes, where: str, reason: str) -> None:
        self.refused.append((raw, where, reason))
        self._tell()

    def keep_copy(self, raw: bytes, where: str, reason: str) -> bool:
        """Remember it, while there is room for copies."""
        if not self.copies_kept:
            return False
        self.copies_kept -= 1
        self.refuse(raw, where, reason)
        return True

    async def until(self, *, accepted: int = 0, refused: int = 0) -> None:
        """Wait until so many events were accepted or refused."""
        while len(self.values) < accepted or len(self.refused) < refused:
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def make_durable(self, place: int) -> None:
        self._step()
        await self.sync_allowed.wait()
        self.journal.durable = max(self.journal.durable, place)

    async def _wait_for_room(self) -> None:
        while not self.room.is_set():
            waits = [asyncio.ensure_future(each.wait()) for each in (self.room, self.stopping)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
            if self.stopping.is_set() and not self.room.is_set():
                raise StoppingError

    def _step(self) -> None:
        self._steps += 1
        self.on_step()
        if self._steps == self._crash_at:
            raise CrashedError


def scripted_pause(*actions: Callable[[], object], quiet: int = 0) -> Pause:
    """A `Pause` that does the next action each time a source waits.

    After the last it lets the source wait `quiet` times more, and stops it.
    """
    left: list[Callable[[], object]] = [*actions]
    waits_left = quiet

    async def pause(stopping: asyncio.Event, seconds: float) -> None:
        nonlocal waits_left
        assert seconds >= 0
        await asyncio.sleep(0)
        if left:
            left.pop(0)()
        elif waits_left:
            waits_left -= 1
        else:
            stopping.set()

    return pause
