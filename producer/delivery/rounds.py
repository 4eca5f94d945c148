"""Rounds: batches get their numbers, their bytes and their place in the journal, and may be sent.

A round takes everything that was accepted so far (see `batching.accumulator`). So what a journal
holds is always a beginning of what was accepted, together with the source positions that cover just
that. A round is appended to the journal as one, and one disk sync makes it durable for all
partitions (`delivery.round_writer`).

The next round also tells the journal how batches ended (marks), and which partitions go on under
another identity (renewals); see `JournalUpdates`. A renewal holds the batches of its partition back
until it is durable. An event that was given up has its outcome only when its mark is durable: else
a crash could send it after all.

A batch cannot be sent soon if its partition has enough in flight, or if no broker answers. Then it
is journaled without numbers, and gets them when it can be sent (`Numbering`). Its bytes need not
stay in memory (`delivery.spill`). Nothing overtakes it.

With durability `none` the same rounds are made, and nothing is written.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from sequitur.base.process import report_failure
from sequitur.errors import JournalClosedError, JournalError
from sequitur.producer.batching.batch import Dating, InJournal
from sequitur.producer.delivery.journaling import NO_OFFSET, JournalUpdates, Mark, Round, stamp_of
from sequitur.producer.delivery.round_writer import RoundWriter
from sequitur.producer.delivery.spill import Spill
from sequitur.producer.journal.frames import SourcePosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.base.process import StampClock
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.accumulator import Accumulator, BatchCutter
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.journaling import SlotStamp
    from sequitur.producer.delivery.send_queues import SendQueue, SendQueues
    from sequitur.producer.delivery.sequencer import Slot
    from sequitur.producer.journal.frames import Waiting
    from sequitur.producer.journal.journal import Journal

_AHEAD: Final = 3
"""How many windows of batches of a partition have numbers: those in flight, and the next."""
_AHEAD_LARGE: Final = 16
"""The same if the next batch is large: waiting would not make it larger, and would cost a sync."""
_LARGE_BYTES: Final = 64 << 10
_GATHER_S: Final = 0.05
"""How long many accepted events may wait for the journal while no partition could send them."""
_FEW_EVENTS: Final = 64
"""So few events do not wait for more: they are cut once the linger is over."""


class RoundMaker:
    """Make rounds of what the accumulator holds."""

    def __init__(
        self,
        *,
        queues: SendQueues,
        accumulator: Accumulator,
        settings: ProducerSettings,
        journal: Journal | None,
        identities: Identities,
        clock: StampClock,
        due: asyncio.Event,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues = queues
        self._accumulator = accumulator
        self._journal = journal
        self._on_failure = on_failure
        self._due = due
        self._positions: dict[str, bytes] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = False
        self._durable = DurableCuts(self.wake)
        self._updates = JournalUpdates(identities, self.wake)
        self._numbering = Numbering(
            accumulator.cutter, settings.max_in_flight, clock, journals=self.journals
        )
        self._writer = RoundWriter(
            journal=journal,
            settings=settings,
            budget=accumulator.budget,
            updates=self._updates,
            numbering=self._numbering,
            on_appended=self._on_appended,
            on_durable=self._on_durable,
            on_failure=self._fail,
        )
        self.spill: Spill | None = None
        if journal is not None:
            accumulator.keeper = partial(self.kept, self.next_cut)
            self.spill = Spill(
                journal,
                accumulator.budget,
                settings.buffer_size // 4,
                self._writer.in_thread,
                self._fail,
            )

    @property
    def full_reason(self) -> str | None:
        """Why no round gets into the journal; None while rounds do."""
        return self._writer.full_reason or None

    @property
    def journals(self) -> bool:
        return self._journal is not None

    @property
    def has_all(self) -> bool:
        """Whether the journal surely has all that was accepted."""
        accumulator = self._accumulator
        return not accumulator.uncut_events and self._durable.has(accumulator.cutter.number)

    @property
    def next_cut(self) -> int:
        """The cut that takes the events that are accepted now."""
        return self._accumulator.cutter.number + 1

    def wake(self) -> None:
        self._due.set()

    def note(self, position: SourcePosition) -> None:
        """Put a position into the round that takes the events accepted until now."""
        if self._journal is not None:
            self._positions[position.source] = position.value
            self._due.set()

    async def kept(self, cut: int) -> None:
        await self._durable.wait(cut)

    def mark(
        self,
        batch: Batch,
        *,
        offset: int | None = None,
        reason: str | None = None,
        then: Callable[[bool], None] | None = None,
    ) -> None:
        """Tell the journal that a batch is in the log, or was given up for a reason.

        `then` is told whether no start can bring the batch back.
        """
        if self.spill is not None:
            self.spill.forget(batch)
        if self._journal is None or not batch.is_kept:
            if then is not None:
                then(batch.whole is None)
            return
        self._writer.note_freed()
        self._updates.mark(Mark(batch, NO_OFFSET if offset is None else offset, reason), then)

    def renewed(self, queue: SendQueue) -> None:
        """Hold a partition, new or under another identity, until the journal knows of it."""
        if self._journal is not None:
            self._updates.renewed(queue)

    def add_waiting(self, queue: SendQueue) -> None:
        """Number the batches of a queue that wait, once they can be sent."""
        self._numbering.add_waiting(queue)

    def redate(self, queue: SendQueue, slot: Slot[Batch], now_ms: int) -> None:
        """Give a batch with numbers another timestamp; it may be sent once the journal has it."""
        self._numbering.redate(queue, slot, now_ms)
        self.wake()

    async def bytes_of(self, batch: Batch) -> bytes | None:
        """Return a batch's bytes, from the journal if they are nowhere else; None once it ended."""
        return batch.data if self.spill is None else await self.spill.fetch(batch)

    async def run(self) -> None:
        """Make rounds until cancelled, or the journal fails."""
        syncing = self._loop.create_task(self._writer.sync_forever())
        report_failure(syncing, self._fail)
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                while self._update_due() or self._cut_due():
                    for round_ in self._next():
                        await self._writer.write(round_)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is sent any more
            self._fail(error)
        finally:
            syncing.cancel()
            self._writer.stop()

    async def close(self) -> None:
        """Sync what there is, and close the journal; to be called once `run` has ended."""
        if self._gathering is not None:
            self._gathering.cancel()
        try:
            if await self._writer.close(self._updates.stop()):
                self._updates.end(is_durable=True)
        finally:
            if self.spill is not None:
                self.spill.stop()
            self.end_waits("the producer was closed")
            self._writer.shut_down()

    def end_waits(self, why: str) -> None:
        """End all waits for a cut or a mark, now and later: nothing becomes durable any more."""
        reason = f"; {self.full_reason}" if self.full_reason else ""
        self._durable.fail(JournalClosedError(f"{why} before the journal had this{reason}"))
        self._updates.end(is_durable=False)

    def _update_due(self) -> bool:
        """Return whether the journal has to be told of marks, renewals, numbers or timestamps."""
        self._numbering.number_waiting()
        return self._numbering.has_numbered or self._updates.is_due

    def _cut_due(self) -> bool:
        cutter = self._accumulator.cutter
        awaited = bool(self._positions) or self._durable.is_awaited_after(cutter.number)
        if not cutter.filled:
            return awaited
        if not (cutter.is_full or cutter.is_ripe):
            return False
        flushing = self._accumulator.outstanding.is_flushing
        if cutter.is_full or awaited or flushing or self._gathered:
            return True
        # While no partition could send its batch, larger batches are better than more.
        if self._accumulator.uncut_events <= _FEW_EVENTS:
            return True
        if any(self._numbering.has_window(self._queues.of(filled)) for filled in cutter.filled):
            return True
        if self._journal is not None and self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._end_gathering)
        return False

    def _end_gathering(self) -> None:
        """Cut although no partition could send its batch: events have waited long enough."""
        self._gathered = True
        self._due.set()

    def _next(self) -> list[Round]:
        """Return the next round; in parts, if it is too long for one."""
        accumulator, of = self._accumulator, self._queues.of
        if not self._cut_due():
            return [Round(accumulator.cutter.number)]
        cut, left_open = accumulator.cut(
            lambda filled, batch: not self._numbering.is_sent_soon(of(filled), batch)
        )
        self._gathered = False
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._journal is not None:
            accumulator.keeper = partial(self.kept, self.next_cut)
        positions = [SourcePosition(*item) for item in self._positions.items()]
        self._positions.clear()
        batches = [(of(filled), batch) for filled, batch in cut]
        pieces = [(batch, batch.piece(filled.count)) for filled, batch in left_open]
        for filled, _ in left_open:
            self._numbering.add_growing(of(filled))
        limit = 0 if self._journal is None else self._journal.round_bytes
        size = sum(batch.size for _, batch in batches)
        size += sum(len(piece.data) for _, piece in pieces)
        if not limit or size <= limit:
            round_ = Round(
                accumulator.cutter.number, is_cut=True, positions=positions, pieces=pieces
            )
            for queue, batch in batches:
                self._numbering.place(round_, queue, batch, wait=False)
            return [round_]
        return self._in_parts(batches, pieces, positions, limit)

    def _in_parts(
        self,
        batches: list[tuple[SendQueue, Batch]],
        pieces: list[tuple[Batch, Waiting]],
        positions: list[SourcePosition],
        limit: int,
    ) -> list[Round]:
        """Return a long round as several. If there are positions, all parts count or none."""
        together = bool(positions)
        rounds = [Round(0, is_part=together)]
        size = 0
        for piece in pieces:
            size += len(piece[1].data)
            rounds[-1].pieces.append(piece)
            if size > limit:
                rounds.append(Round(0, is_part=together))
                size = 0
        for queue, batch in batches:
            if size and size + batch.size > limit:
                rounds.append(Round(0, is_part=together))
                size = 0
            size += batch.size
            self._numbering.place(rounds[-1], queue, batch, wait=together)
        last = Round(self._accumulator.cutter.number, is_cut=True, positions=positions)
        if together:
            last.ends_parts = True
            parts = dict.fromkeys((batch for _, batch in batches), True)
            parts |= dict.fromkeys((batch for batch, _ in pieces), False)
            self._updates.begin_parts(parts)
        return [*rounds, last]

    def _on_appended(self, round_: Round) -> None:
        """Take note that the journal has a round: its batches are kept, once it is durable."""
        if round_.ends_parts:
            whole = self._updates.end_parts()
            for batch in whole:
                batch.in_journal = InJournal.WAITING
            if self.spill is not None:
                self.spill.track(whole)
        elif not round_.is_part:
            for batch in round_.waiting:
                batch.in_journal = InJournal.WAITING

    def _on_durable(self, round_: Round) -> None:
        """Let the batches of a round be sent, and wake the callers that wait for it."""
        told = (*round_.batches, *round_.restamped, *round_.numbered, *round_.redated)
        for queue, slot, stamp in told:
            # A batch that was renumbered since waits for the round with its new numbers.
            if self._journal is None or stamp == stamp_of(slot):
                slot.held = False
            self._queues.wake(queue)
        for queue in round_.renewed:
            self._queues.wake(queue)
        if self.spill is not None:
            self.spill.track(slot.batch for _, slot, _ in round_.batches)
            self.spill.track(
                batch
                for batch in round_.waiting
                if batch.in_journal in (InJournal.WAITING, InJournal.NUMBERED)
            )
        self._updates.on_durable(round_)
        self._durable.reach(round_.cut)

    def _fail(self, error: Exception) -> None:
        if self._durable.failure is None:
            told = (
                error
                if isinstance(error, JournalError)
                else JournalClosedError(
                    f"the producer failed ({error!r}) before the journal had this"
                )
            )
            self._durable.fail(told)
            self._on_failure(error)


class Numbering:
    """Say which batches get their sequence numbers now, and which wait for them.

    A batch that cannot be sent soon is journaled without numbers (`Waiting`). It gets them once it
    can be sent, and the journal is told (`Numbered`).
    """

    def __init__(
        self, cutter: BatchCutter, window: int, clock: StampClock, *, journals: bool
    ) -> None:
        self._cutter = cutter
        self._clock = clock
        self._window = window
        self._journals = journals
        self._waiting: dict[SendQueue, None] = {}
        self._growing: dict[SendQueue, None] = {}
        self._numbered: dict[Batch, tuple[SendQueue, Slot[Batch]]] = {}
        self._redated: dict[Batch, tuple[SendQueue, Slot[Batch]]] = {}

    @property
    def has_numbered(self) -> bool:
        """Whether batches got numbers or timestamps that the journal does not know of."""
        return bool(self._numbered or self._redated)

    def redate(self, queue: SendQueue, slot: Slot[Batch], now_ms: int) -> None:
        """Give a batch with numbers another timestamp; it is held until the journal has it."""
        slot.batch.redate(now_ms)
        if self._journals:
            slot.held = True
            self._redated[slot.batch] = queue, slot

    def add_waiting(self, queue: SendQueue) -> None:
        """Number the batches of a queue that wait, once they can be sent."""
        self._waiting[queue] = None

    def add_growing(self, queue: SendQueue) -> None:
        """Cut the open batch of a queue, once it can be sent or an event was added to it."""
        self._growing[queue] = None

    def has_window(self, queue: SendQueue) -> bool:
        """Return whether fewer batches of a queue have numbers than may be in flight."""
        return queue.sequencer.pending < self._window

    def is_sent_soon(self, queue: SendQueue, batch: Batch) -> bool:
        """Return whether a batch that is cut now could be sent soon.

        The size of an open batch is 0 until it is sealed, so it counts as small here: a large batch
        that is still open waits as soon as a small one does, and may grow meanwhile.
        """
        if not self._journals:
            return True
        return queue.first_waiting is None and self._takes_more(queue, batch)

    def place(self, round_: Round, queue: SendQueue, batch: Batch, *, wait: bool) -> None:
        """Put a batch that was cut into a round: with numbers if it can be sent soon."""
        if not wait and self.is_sent_soon(queue, batch):
            round_.fresh.append((queue, queue.number(batch)))
        else:
            queue.wait(batch)
            self._waiting[queue] = None
            round_.waiting.append(batch)

    def number_waiting(self) -> None:
        """Give numbers to the waiting batches that can be sent now."""
        for queue in list(self._waiting):
            while (batch := queue.first_waiting) is not None:
                if batch.in_journal is not InJournal.WAITING or not self._takes_more(queue, batch):
                    break
                if batch.dating is not Dating.SENDERS:
                    batch.last_ms = self._clock.now_ms()
                self._numbered[batch] = queue, queue.number_first()
            if queue.first_waiting is None:
                del self._waiting[queue]
        for queue in list(self._growing):
            accumulated = queue.accumulated
            if accumulated.open is None or not accumulated.is_paused:
                del self._growing[queue]
            elif self.is_sent_soon(queue, accumulated.open):
                del self._growing[queue]
                self._cutter.refill(accumulated)

    def take_numbered(self) -> list[SlotStamp]:
        """Take out the batches that got numbers, for the round that tells the journal."""
        numbered, self._numbered = self._numbered, {}
        return _stamps(numbered)

    def take_redated(self) -> list[SlotStamp]:
        """Take out the batches that got other timestamps, for the round that tells the journal."""
        redated, self._redated = self._redated, {}
        return _stamps(redated)

    def return_numbered(self, numbered: list[SlotStamp]) -> None:
        """Take back what `take_numbered` gave: the journal had no space."""
        self._numbered = {slot.batch: (queue, slot) for queue, slot, _ in numbered} | self._numbered

    def return_redated(self, redated: list[SlotStamp]) -> None:
        """Take back what `take_redated` gave: the journal had no space."""
        self._redated = {slot.batch: (queue, slot) for queue, slot, _ in redated} | self._redated

    def _takes_more(self, queue: SendQueue, batch: Batch) -> bool:
        """Return whether a batch of a queue may get numbers now."""
        sequencer = queue.sequencer
        ahead = _AHEAD if batch.size < _LARGE_BYTES else _AHEAD_LARGE
        return (
            not queue.is_recovering
            and not queue.inherited
            and sequencer.takes_numbers
            and sequencer.pending < ahead * self._window
            # After a failure a partition gets no more in flight, until nothing of it is.
            and (not queue.failures or sequencer.is_empty)
        )


def _stamps(batches: dict[Batch, tuple[SendQueue, Slot[Batch]]]) -> list[SlotStamp]:
    return [
        (queue, slot, stamp_of(slot)) for batch, (queue, slot) in batches.items() if not batch.ended
    ]


class DurableCuts:
    """Let callers wait until a cut is durable."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        self._on_wait = on_wait
        self._reached = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """Why no more cuts become durable; None while they do."""
        return self._failure

    def has(self, cut: int) -> bool:
        return cut <= self._reached

    def is_awaited_after(self, cut: int) -> bool:
        """Return whether somebody waits for a cut after this one."""
        return any(awaited > cut for awaited in self._waiting)

    async def wait(self, cut: int) -> None:
        if cut > self._reached:
            if self._failure is not None:
                raise self._failure
            future = self._waiting.get(cut)
            if future is None:
                future = self._waiting[cut] = asyncio.get_running_loop().create_future()
                self._on_wait()
            await asyncio.shield(future)

    def reach(self, cut: int) -> None:
        """Take note that all cuts up to this one are durable."""
        self._reached = max(self._reached, cut)
        for awaited in [awaited for awaited in self._waiting if awaited <= self._reached]:
            future = self._waiting.pop(awaited)
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Fail all waits, now and later: nothing becomes durable any more."""
        if self._failure is None:
            self._failure = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # the caller that waited may be gone
        self._waiting.clear()
