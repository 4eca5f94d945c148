"""Rounds: batches get their numbers, their bytes, their place in the journal, and may then leave.

A round takes everything that was accepted so far (see `batching.accumulator`), so what a journal
holds is always a beginning of what was accepted, together with the source positions that cover just
that. It is appended to the journal as one, and one disk sync makes it last for all partitions.
While the disk is busy with one round the next is filled, compressed and appended, and a sync covers
all that were appended before it.

What else the journal has to be told goes along with the next round: which batches ended, and how
(marks), and which partitions go on under another identity (renewals). The latter holds the batches
of a partition back until it is on disk. An event that was given up is told of only then, too: else
a crash could send it after all.

What could not be sent soon (its partition has enough on its way, or nobody answers) is journaled
without numbers, and gets them when it can be: see `Waiting` and `Numbered`. Its bytes need not stay
in memory (see `delivery.spill`). Nothing overtakes it.

With durability `none` the same rounds are made, and nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.producer._log import Logger
from sequitur.producer.delivery.round import (
    NO_OFFSET,
    Mark,
    Round,
    frames_of_marks,
    numbered,
    renewal,
    stamp_of,
)
from sequitur.producer.delivery.spill import Spill
from sequitur.producer.journal.errors import JournalClosedError, JournalError, JournalFullError
from sequitur.producer.journal.frames import BatchFrame, Commit, Position
from sequitur.producer.kafka.record_batch import NO_STAMP, times_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.accumulator import Accumulator
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.send_queue import SendQueue, SendQueues
    from sequitur.producer.delivery.slots import Slot
    from sequitur.producer.journal.frames import Frame, Waiting
    from sequitur.producer.journal.journal import Journal
    from sequitur.producer.kafka.record_batch import Stamp

_T = TypeVar("_T")

_INLINE_BYTES: Final = 32 << 10
"""Below this a round is encoded and appended at once: a thread would take longer to answer."""
_MARKS_WAIT_S: Final = 0.05
_ROOM_WAIT_S: Final = 0.1
_FULL_WARNING_S: Final = 1.0
_GATHER_S: Final = 0.05
"""So long what is accepted may wait for the journal while no partition could send it."""
_AHEAD: Final = 3
"""So many windows of batches of a partition have numbers: what is sent, and what is sent next."""
_AHEAD_LARGE: Final = 16
"""So many if the next batch is large: to wait would not let it grow, and cost a sync."""
_LARGE_BYTES: Final = 64 << 10
_ENCODERS: Final = 3
_THREADS: Final = _ENCODERS + 2  # they encode, and one of them appends; one syncs, one reclaims

_log = Logger(__name__)


class Rounds:
    """Makes rounds of what the accumulator holds.

    Args:
        queues: Get what is cut.
        accumulator: Holds the events.
        settings: Compression and durability.
        journal: Makes rounds last; None with durability `none`. It is closed with this.
        identities: Know which cluster this is.
        on_sendable: Called with a queue that may have something to send.
        on_failure: Called once if the journal fails: nothing can be sent any more.
    """

    def __init__(
        self,
        *,
        queues: SendQueues,
        accumulator: Accumulator,
        settings: ProducerSettings,
        journal: Journal | None,
        identities: Identities,
        on_sendable: Callable[[SendQueue], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues = queues
        self._accumulator = accumulator
        self._compression = settings.compression
        self._window = settings.max_in_flight
        self._sync_first = settings.journaling == "journal"
        self._sync_interval_s = settings.journal_sync_interval.total_seconds()
        self._journal = journal
        self._identities = identities
        self._on_sendable = on_sendable
        self._on_failure = on_failure
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sequitur-journal")
        self._wake = asyncio.Event()
        self._appended: list[Round] = []
        self._to_sync = asyncio.Event()
        self._freed = asyncio.Event()
        self._positions: dict[str, bytes] = {}
        self._marks: list[Mark] = []
        self._given_up: dict[Batch, Callable[[], None]] = {}
        self._marks_timer: asyncio.TimerHandle | None = None
        self._marks_due = False
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = False
        self._renewed: dict[SendQueue, None] = {}
        self._backed_up: dict[SendQueue, None] = {}
        self._growing: dict[SendQueue, None] = {}
        self._called: dict[Batch, tuple[SendQueue, Slot[Batch]]] = {}
        self._parts: dict[Batch, bool] = {}  # and whether the parts have it as a whole
        self._durable_cut = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._reclaiming: asyncio.Task[None] | None = None
        self._full_reason = ""
        self._failure: Exception | None = None
        self._budget_limit = accumulator.budget.limit
        self.spill: Spill | None = None
        if journal is not None:
            accumulator.keeper = partial(self.kept, self.next_cut)
            self.spill = Spill(
                journal,
                accumulator.budget,
                settings.buffer_size // 4,
                self._in_thread,
                self._fail,
            )

    @property
    def full_reason(self) -> str | None:
        """Why no round gets into the journal; None while rounds do."""
        return self._full_reason or None

    @property
    def journals(self) -> bool:
        """Whether anything is written."""
        return self._journal is not None

    @property
    def next_cut(self) -> int:
        """The cut that what is accepted now will be in."""
        return self._accumulator.cuts.number + 1

    def wake(self) -> None:
        """Look whether a round is due."""
        self._wake.set()

    def note(self, position: Position) -> None:
        """Put a position into the round of what was accepted until now."""
        if self._journal is not None:
            self._positions[position.source] = position.value
            self._wake.set()

    async def kept(self, cut: int) -> None:
        """Wait until a cut is durable.

        Raises:
            JournalError: The journal failed.
        """
        if cut > self._durable_cut:
            if self._failure is not None:
                raise self._failure
            future = self._waiting.get(cut)
            if future is None:
                future = self._waiting[cut] = self._loop.create_future()
                self._wake.set()
            await asyncio.shield(future)

    def mark(
        self,
        batch: Batch,
        *,
        offset: int | None = None,
        reason: str | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Need the batch no more: it is in the log, or was given up for a reason.

        Args:
            batch: What ended.
            offset: Where it is.
            reason: Why it was given up.
            then: Called once the journal will not send it again, whatever happens.
        """
        if self.spill is not None:
            self.spill.forget(batch)
        if self._journal is None or not batch.in_journal:
            if then is not None:
                then()
            return
        self._marks.append(Mark(batch, NO_OFFSET if offset is None else offset, reason))
        self._freed.set()
        if then is not None:
            self._given_up[batch] = then
            self._flush_marks()
        elif self._marks_timer is None:
            self._marks_timer = self._loop.call_later(_MARKS_WAIT_S, self._flush_marks)

    def renewed(self, queue: SendQueue) -> None:
        """The queue goes on under another identity, or begins; hold it until the journal knows."""
        if self._journal is not None:
            for slot in queue.sequencer:
                slot.held = True
            # The order of the latest renewals is the order of their identities.
            self._renewed.pop(queue, None)
            self._renewed[queue] = None
            self._wake.set()

    def add_waiting(self, queue: SendQueue) -> None:
        """Take note of a queue with batches that wait for their numbers."""
        self._backed_up[queue] = None

    async def bytes_of(self, batch: Batch) -> bytes:
        """A batch's bytes, from the journal if they are nowhere else."""
        return batch.data if self.spill is None else await self.spill.fetch(batch)

    async def run(self) -> None:
        """Make rounds until cancelled, or the journal fails."""
        syncing = self._loop.create_task(self._sync_forever())
        syncing.add_done_callback(self._on_end)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._is_due() or self._cut_due():
                    for round_ in self._next():
                        await self._write(round_)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing goes out any more
            self._fail(error)
        finally:
            syncing.cancel()
            if self._reclaiming is not None:
                self._reclaiming.cancel()

    async def close(self) -> None:
        """Sync what there is, and let the journal go; to be called once `run` has ended."""
        for timer in (self._marks_timer, self._gathering):
            if timer is not None:
                timer.cancel()
        try:
            if self._journal is not None:
                with contextlib.suppress(JournalError):
                    self._journal.append(frames_of_marks(self._marks))
                await self._in_thread(self._journal.close)
        finally:
            if self.spill is not None:
                self.spill.stop()
            self.end_waits("the producer was closed")
            for then in self._given_up.values():
                then()
            self._given_up.clear()
            self._threads.shutdown(wait=False)

    def end_waits(self, why: str) -> None:
        """Nothing becomes durable any more: whoever waits for it hears so, now and later."""
        if self._failure is None:
            reason = f"; {self._full_reason}" if self._full_reason else ""
            self._failure = JournalClosedError(f"{why} before the journal had this{reason}")
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # who waited may be gone
        self._waiting.clear()

    def _is_due(self) -> bool:
        """Whether the journal has to be told of something beside events."""
        self._call()
        return bool(self._renewed or self._called) or self._marks_due

    def _flows(self, queue: SendQueue, batch: Batch) -> bool:
        """Whether a new batch of the queue could be sent soon."""
        return self._journal is None or (
            queue.first_waiting is None and self._takes_more(queue, batch)
        )

    def _takes_more(self, queue: SendQueue, batch: Batch) -> bool:
        """Whether this batch of the queue is to have numbers, behind those that have."""
        sequencer = queue.sequencer
        ahead = _AHEAD if batch.size < _LARGE_BYTES else _AHEAD_LARGE
        return (
            not queue.is_recovering
            and not queue.inherited
            and sequencer.takes_numbers
            and sequencer.pending < ahead * self._window
            # A queue in trouble gets no more on its way, until it has none left to get out of it.
            and (not queue.failures or sequencer.is_empty)
        )

    def _call(self) -> None:
        """Give numbers to what has waited long enough."""
        for queue in list(self._backed_up):
            while (batch := queue.first_waiting) is not None and batch.kept:
                if not self._takes_more(queue, batch):
                    break
                if not batch.dated:
                    batch.last_ms = int(time.time() * 1000)
                self._called[batch] = queue, queue.number_first()
            if queue.first_waiting is None:
                del self._backed_up[queue]
        for queue in list(self._growing):
            accumulated = queue.accumulated
            if accumulated.open is None or not accumulated.is_paused:
                del self._growing[queue]
            elif self._flows(queue, accumulated.open):
                del self._growing[queue]
                self._accumulator.cuts.refill(accumulated)

    def _cut_due(self) -> bool:
        cuts = self._accumulator.cuts
        awaited = bool(self._positions) or any(cut > cuts.number for cut in self._waiting)
        if not cuts.filled:
            return awaited
        if not (cuts.is_full or cuts.is_ripe):
            return False
        flushing = self._accumulator.outstanding.is_flushing
        if cuts.is_full or awaited or flushing or self._gathered:
            return True
        # While no partition could send its batch, larger batches are better than more.
        if any(self._queues.of(filled).sequencer.pending < self._window for filled in cuts.filled):
            return True
        if self._journal is not None and self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._end_gathering)
        return False

    def _end_gathering(self) -> None:
        """What is accepted has waited long enough for a partition that could send it."""
        self._gathered = True
        self._wake.set()

    def _next(self) -> list[Round]:
        """The next round; as several, where it is too long for one."""
        accumulator = self._accumulator
        if not self._cut_due():
            return [Round(accumulator.cuts.number)]
        of = self._queues.of
        cut, grown = accumulator.cut(lambda filled, batch: not self._flows(of(filled), batch))
        batches = [(of(filled), batch) for filled, batch in cut]
        growing = [(of(filled), batch) for filled, batch in grown]
        self._gathered = False
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._journal is not None:
            accumulator.keeper = partial(self.kept, self.next_cut)
        positions = [Position(*item) for item in self._positions.items()]
        self._positions.clear()
        pieces = [(batch, batch.piece(queue.accumulated.count)) for queue, batch in growing]
        self._growing.update(dict.fromkeys(queue for queue, _ in growing))
        limit = 0 if self._journal is None else self._journal.round_bytes
        size = sum(batch.size for _, batch in batches)
        size += sum(len(piece.data) for _, piece in pieces)
        if not limit or size <= limit:
            round_ = Round(accumulator.cuts.number, is_cut=True, positions=positions, pieces=pieces)
            for queue, batch in batches:
                self._put(round_, queue, batch)
            return [round_]
        return self._in_parts(batches, pieces, positions, limit)

    def _put(self, round_: Round, queue: SendQueue, batch: Batch, *, wait: bool = False) -> None:
        if not wait and self._flows(queue, batch):
            round_.fresh.append((queue, queue.number(batch)))
        else:
            queue.wait(batch)
            self._backed_up[queue] = None
            round_.waiting.append(batch)

    def _in_parts(
        self,
        batches: list[tuple[SendQueue, Batch]],
        pieces: list[tuple[Batch, Waiting]],
        positions: list[Position],
        limit: int,
    ) -> list[Round]:
        """A long round as several. With positions they count together or not at all."""
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
            self._put(rounds[-1], queue, batch, wait=together)
        last = Round(self._accumulator.cuts.number, is_cut=True, positions=positions)
        if together:
            last.ends_parts = True
            self._parts = dict.fromkeys((batch for _, batch in batches), True)
            self._parts |= dict.fromkeys((batch for batch, _ in pieces), False)
        return [*rounds, last]

    async def _write(self, round_: Round) -> None:
        """Encode a round, and append it once there is room; who waits for long is told why."""
        warning_s = self._loop.time() + _FULL_WARNING_S
        while not await self._try_to_write(round_):
            if self._loop.time() >= warning_s:
                warning_s = inf
                _log.warning("no room in the journal: senders wait", reason=self._full_reason)
            # What the journal is told of other batches makes room, and must not wait for it.
            self._freed.clear()
            self._call()
            await self._try_to_write(Round(0))
            if self._journal is not None and await self._in_thread(self._journal.sync):
                await self._in_thread(self._journal.reclaim)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _ROOM_WAIT_S)
        self._full_reason = ""
        if warning_s == inf:
            _log.info("there is room in the journal again")

    async def _try_to_write(self, round_: Round) -> bool:
        self._fill(round_)
        try:
            if round_.size > _INLINE_BYTES:
                await self._encode(round_)
                await self._in_thread(self._perform, round_)
            else:
                self._perform(round_)
        except JournalFullError as error:
            self._full_reason = str(error)
            self._empty(round_)
            return False
        finally:
            self._resize_budget()
        self._appended_now(round_)
        if not round_.must_last:
            return True
        if self._journal is None or not self._sync_first:
            self._release(round_)
        if self._journal is not None:
            self._appended.append(round_)
            self._to_sync.set()
        return True

    def _resize_budget(self) -> None:
        """Accept no more events than the journal's disk has space for, whoever else fills it."""
        if self._journal is not None:
            limit = min(self._budget_limit, self._journal.limit_bytes // 4)
            self._accumulator.budget.resize(limit)

    def _fill(self, round_: Round) -> None:
        """Put into a round what has to be in it now: numbers may change while there is no room."""
        slots = [(queue, slot) for queue, slot in round_.fresh if not slot.batch.given_up]
        if self._journal is not None:
            round_.waiting = [batch for batch in round_.waiting if not batch.given_up]
            round_.pieces = [piece for piece in round_.pieces if not piece[0].given_up]
            for batch in (*round_.waiting, *(batch for batch, _ in round_.pieces)):
                batch.waits = True
            if not round_.is_part:
                slots += self._fill_marks(round_)
        round_.batches = [(queue, slot, stamp_of(slot)) for queue, slot in slots]
        for _queue, slot, stamp in (*round_.batches, *round_.called):
            slot.batch.journaled = stamp if self._journal is not None else None

    def _fill_marks(self, round_: Round) -> list[tuple[SendQueue, Slot[Batch]]]:
        """What the journal is told of other batches; gives the halves of those that were halved."""
        # A part that is given up is so once it counts: else its end would bring it back.
        round_.marks = [mark for mark in self._marks if mark.batch not in self._parts]
        self._marks = [mark for mark in self._marks if mark.batch in self._parts]
        round_.renewed, self._renewed = list(self._renewed), {}
        self._marks_due = False
        if self._marks_timer is not None:
            self._marks_timer.cancel()
            self._marks_timer = None
        for queue in round_.renewed:
            round_.replaced += [(queue, batch) for batch in queue.take_halved()]
        round_.frames = frames_of_marks(
            [*round_.marks, *(Mark(batch, reason="halved") for _, batch in round_.replaced)]
        )
        halves: list[tuple[SendQueue, Slot[Batch]]] = []
        for queue in round_.renewed:
            round_.frames.append(renewal(queue, round_, self._identities.cluster_id))
            halves += [
                (queue, slot)
                for slot in queue.sequencer.slots
                if slot.batch.journaled is None and not slot.batch.waits
            ]
        called, self._called = self._called, {}
        round_.called = [
            (queue, slot, stamp_of(slot))
            for batch, (queue, slot) in called.items()
            if not batch.given_up
        ]
        round_.frames += numbered(round_.called)
        return halves

    def _empty(self, round_: Round) -> None:
        """Take back what `_fill` did."""
        self._marks[:0] = round_.marks
        self._renewed = dict.fromkeys([*round_.renewed, *self._renewed])
        self._called = {
            slot.batch: (queue, slot) for queue, slot, _ in round_.called
        } | self._called
        for _queue, slot, _stamp in (*round_.batches, *round_.called):
            slot.batch.journaled = None
        round_.called = []
        for batch in round_.waiting:
            batch.waits = batch.pieced > 0  # what the journal has of it stays there
        for (_queue, slot, _stamp), before in zip(round_.restamped, round_.before, strict=True):
            slot.batch.journaled = before
        round_.restamped, round_.before = [], []
        for queue, batch in round_.replaced:
            queue.return_halved(batch)
        round_.replaced = []

    async def _encode(self, round_: Round) -> None:
        """Encode the batches of a round, several at a time.

        A thread that has compressed a batch waits for the interpreter's lock, which the loop gives
        away at the end of its turn; meanwhile the others compress.
        """
        numbers = [(slot.batch, stamp) for _, slot, stamp in round_.batches]
        batches = numbers + [(batch, NO_STAMP) for batch in round_.waiting]
        parts = [batches[start::_ENCODERS] for start in range(_ENCODERS)]
        await asyncio.gather(*(self._in_thread(self._encode_all, part) for part in parts if part))

    def _encode_all(self, batches: list[tuple[Batch, Stamp]]) -> None:
        for batch, stamp in batches:
            batch.encode(self._compression, stamp)

    def _perform(self, round_: Round) -> None:
        """Encode and append; in any thread.

        Raises:
            JournalFullError: There is no room.
        """
        frames: list[Frame] = [*round_.frames, *(piece for _, piece in round_.pieces)]
        frames += [batch.waiting(self._compression) for batch in round_.waiting]
        for queue, slot, stamp in round_.batches:
            batch = slot.batch
            data = batch.encode(self._compression, stamp)
            batch.last_ms = times_of(data)[1]
            if self._journal is not None:
                frames.append(
                    BatchFrame(
                        queue.topic,
                        queue.partition,
                        stamp.producer_id,
                        stamp.epoch,
                        stamp.base_sequence,
                        batch.count,
                        batch.first_event,
                        batch.last_event,
                        None,
                        batch.last_ms,
                        data,
                    )
                )
        if round_.ends_parts:
            frames.append(Commit())
        if self._journal is not None:
            self._journal.append([*frames, *round_.positions], part=round_.is_part)

    def _appended_now(self, round_: Round) -> None:
        """The journal has the round: what is in it goes on its way once that lasts."""
        for _queue, slot, _stamp in round_.called:
            slot.batch.waits = False
        if round_.ends_parts:
            parts, self._parts = self._parts, {}
            self._marks_due |= any(mark.batch in parts for mark in self._marks)
            # One that grows gets no number yet: the journal would keep what is added as another.
            whole = [batch for batch, is_whole in parts.items() if is_whole]
            for batch in whole:
                batch.kept = True
            if self.spill is not None:
                self.spill.track(whole)
        elif not round_.is_part:
            for batch in round_.waiting:
                batch.kept = True

    async def _sync_forever(self) -> None:
        while True:
            await self._to_sync.wait()
            self._to_sync.clear()
            journal = self._journal
            assert journal is not None
            rounds, self._appended = self._appended, []
            if await self._in_thread(journal.sync) and self._reclaiming is None:
                self._reclaiming = self._loop.create_task(self._reclaim(journal))
                self._reclaiming.add_done_callback(self._on_end)
            if self._sync_first:
                for round_ in rounds:
                    self._release(round_)
            else:
                await asyncio.sleep(self._sync_interval_s)

    async def _reclaim(self, journal: Journal) -> None:
        try:
            await self._in_thread(journal.reclaim)
        finally:
            self._reclaiming = None
            self._freed.set()

    def _release(self, round_: Round) -> None:
        """A round is durable: its batches may leave, and those who wait for it hear of it."""
        for queue, slot, stamp in (*round_.batches, *round_.restamped, *round_.called):
            # If renumbered since, it waits for the round that says so.
            if self._journal is None or stamp == stamp_of(slot):
                slot.held = False
            self._on_sendable(queue)
        for queue in round_.renewed:
            self._on_sendable(queue)
        if self.spill is not None:
            self.spill.track(slot.batch for _, slot, _ in round_.batches)
            self.spill.track(batch for batch in round_.waiting if batch.kept)
        for mark in round_.marks:
            then = self._given_up.pop(mark.batch, None)
            if then is not None:
                then()
        self._durable_cut = max(self._durable_cut, round_.cut)
        for cut in [cut for cut in self._waiting if cut <= self._durable_cut]:
            future = self._waiting.pop(cut)
            if not future.done():
                future.set_result(None)

    def _flush_marks(self) -> None:
        self._marks_due = bool(self._marks)
        self._wake.set()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self.end_waits(str(error))
            self._on_failure(error)

    async def _in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await self._loop.run_in_executor(self._threads, function, *arguments)
