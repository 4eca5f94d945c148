"""Rounds: batches get their numbers, their bytes, their place in the journal, and may then leave.

A round takes everything that was accepted so far (see `_accumulator`), so what a journal holds is
always a beginning of what was accepted, together with the source positions that cover just that. It
is appended to the journal as one, and one disk sync makes it last for all partitions. While the
disk is busy with one round the next is filled, compressed and appended, and a sync covers all that
were appended before it.

What else the journal has to be told goes along with the next round: which batches ended, and how
(marks), and which partitions go on under another identity (renewals). The latter holds the batches
of a partition back until it is on disk. An event that was given up is told of only then, too: else
a crash could send it after all.

With durability `none` the same rounds are made, and nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from producer._journal_codec import Batch as JournalBatch
from producer._journal_codec import Position
from producer._journal_errors import JournalError, JournalFullError
from producer._log import Logger
from producer._round import NO_OFFSET, Mark, Round, frames_of_marks, renewal, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer._accumulator import Accumulator
    from producer._journal import Journal
    from producer._lane import Batch, Lane
    from producer._round import Numbered
    from producer._settings import ProducerSettings

_T = TypeVar("_T")

_INLINE_BYTES: Final = 32 << 10
"""Below this a round is encoded and appended at once: a thread would take longer to answer."""
_MARKS_WAIT_S: Final = 0.05
_ROOM_WAIT_S: Final = 0.1
_FULL_WARNING_S: Final = 1.0
_ENCODERS: Final = 3
_THREADS: Final = _ENCODERS + 2  # they encode, and one of them appends; one syncs, one reclaims

_log = Logger(__name__)


class Rounds:
    """Makes rounds of what the accumulator holds.

    Args:
        accumulator: Holds the events.
        settings: Compression and durability.
        journal: Makes rounds last; None with durability `none`. It is closed with this.
        poke: Called with a lane that may have something to send.
        on_failure: Called once if the journal fails: nothing can be sent any more.
    """

    def __init__(
        self,
        *,
        accumulator: Accumulator,
        settings: ProducerSettings,
        journal: Journal | None,
        poke: Callable[[Lane], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._accumulator = accumulator
        self._compression = settings.compression
        self._window = settings.max_in_flight
        self._sync_first = settings.journaling == "journal"
        self._sync_interval_s = settings.journal_sync_interval.total_seconds()
        self._journal = journal
        self._poke = poke
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
        self._renewed: dict[Lane, None] = {}
        self._durable_cut = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._reclaiming: asyncio.Task[None] | None = None
        self._full_reason = ""
        self._failure: Exception | None = None

    @property
    def journals(self) -> bool:
        """Whether anything is written."""
        return self._journal is not None

    @property
    def next_cut(self) -> int:
        """The cut that what is accepted now will be in."""
        return self._accumulator.cuts + 1

    def poke(self) -> None:
        """There may be a reason for a round."""
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
        if self._journal is None or batch.journaled is None:
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

    def renewed(self, lane: Lane) -> None:
        """The lane goes on under another identity, or begins; hold it until the journal knows."""
        if self._journal is not None:
            for slot in lane.sequencer:
                slot.held = True
            # The order of the latest renewals is the order of their identities.
            self._renewed.pop(lane, None)
            self._renewed[lane] = None
            self._wake.set()

    async def run(self) -> None:
        """Make rounds until cancelled, or the journal fails."""
        syncing = self._loop.create_task(self._sync_forever())
        syncing.add_done_callback(self._on_end)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._is_due() or self._cut_due():
                    await self._write(self._next())
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing goes out any more
            self._fail(error)
        finally:
            syncing.cancel()
            if self._reclaiming is not None:
                self._reclaiming.cancel()

    async def close(self) -> None:
        """Sync what there is, and let the journal go; to be called once `run` has ended."""
        if self._marks_timer is not None:
            self._marks_timer.cancel()
        try:
            if self._journal is not None:
                with contextlib.suppress(JournalError):
                    self._journal.append(frames_of_marks(self._marks))
                await self._in_thread(self._journal.close)
        finally:
            for then in self._given_up.values():
                then()
            self._given_up.clear()
            self._threads.shutdown(wait=False)

    def _is_due(self) -> bool:
        """Whether the journal has to be told of something beside events."""
        return bool(self._renewed) or self._marks_due

    def _cut_due(self) -> bool:
        accumulator = self._accumulator
        awaited = bool(self._positions) or any(cut > accumulator.cuts for cut in self._waiting)
        if not accumulator.filled:
            return awaited
        if not (accumulator.full or accumulator.ripe):
            return False
        if accumulator.full or awaited or accumulator.flushing:
            return True
        # While no partition could send its batch, larger batches are better than more.
        return any(lane.sequencer.pending < self._window for lane in accumulator.filled)

    def _next(self) -> Round:
        accumulator = self._accumulator
        if not self._cut_due():
            return Round(accumulator.cuts)
        fresh = [
            (lane, lane.sequencer.admit(batch, batch.count, held=True))
            for lane, batch in accumulator.cut()
        ]
        positions = [Position(*item) for item in self._positions.items()]
        self._positions.clear()
        return Round(accumulator.cuts, is_cut=True, fresh=fresh, positions=positions)

    async def _write(self, round_: Round) -> None:
        """Encode a round, and append it once there is room; who waits for long is told why."""
        warning_s = self._loop.time() + _FULL_WARNING_S
        while not await self._try_to_write(round_):
            if self._loop.time() >= warning_s:
                warning_s = inf
                _log.warning("no room in the journal: senders wait", reason=self._full_reason)
            # What the journal is told of other batches makes room, and must not wait for it.
            self._freed.clear()
            await self._try_to_write(Round(0))
            if self._journal is not None and await self._in_thread(self._journal.sync):
                await self._in_thread(self._journal.reclaim)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _ROOM_WAIT_S)
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
        if not round_.must_last:
            return True
        if self._journal is None or not self._sync_first:
            self._release(round_)
        if self._journal is not None:
            self._appended.append(round_)
            self._to_sync.set()
        return True

    def _fill(self, round_: Round) -> None:
        """Put into a round what has to be in it now: numbers may change while there is no room."""
        numbered = [(lane, slot) for lane, slot in round_.fresh if not slot.batch.given_up]
        if self._journal is not None:
            round_.marks, self._marks = self._marks, []
            round_.renewed, self._renewed = list(self._renewed), {}
            self._marks_due = False
            if self._marks_timer is not None:
                self._marks_timer.cancel()
                self._marks_timer = None
            for lane in round_.renewed:
                round_.replaced += [(lane, batch) for batch in lane.replaced]
                lane.replaced.clear()
            round_.frames = frames_of_marks(
                [*round_.marks, *(Mark(batch, reason="halved") for _, batch in round_.replaced)]
            )
            for lane in round_.renewed:
                round_.frames.append(renewal(lane, round_))
                numbered += [
                    (lane, slot) for slot in lane.sequencer.slots if slot.batch.journaled is None
                ]
        round_.batches = [(lane, slot, stamp_of(lane, slot)) for lane, slot in numbered]
        for _lane, slot, stamp in round_.batches:
            slot.batch.journaled = stamp if self._journal is not None else None

    def _empty(self, round_: Round) -> None:
        """Take back what `_fill` did."""
        self._marks[:0] = round_.marks
        self._renewed = dict.fromkeys([*round_.renewed, *self._renewed])
        for _lane, slot, _stamp in round_.batches:
            slot.batch.journaled = None
        for (_lane, slot, _stamp), before in zip(round_.restamped, round_.before, strict=True):
            slot.batch.journaled = before
        round_.restamped, round_.before = [], []
        for lane, batch in round_.replaced:
            lane.replaced.append(batch)
        round_.replaced = []

    async def _encode(self, round_: Round) -> None:
        """Encode the batches of a round, several at a time.

        A thread that has compressed a batch waits for the interpreter's lock, which the loop gives
        away at the end of its turn; meanwhile the others compress.
        """
        parts = [round_.batches[start::_ENCODERS] for start in range(_ENCODERS)]
        await asyncio.gather(*(self._in_thread(self._encode_all, part) for part in parts if part))

    def _encode_all(self, batches: list[Numbered]) -> None:
        for _lane, slot, stamp in batches:
            slot.batch.encode(self._compression, stamp)

    def _perform(self, round_: Round) -> None:
        """Encode and append; in any thread.

        Raises:
            JournalFullError: There is no room.
        """
        frames = round_.frames
        for lane, slot, stamp in round_.batches:
            batch = slot.batch
            data = batch.encode(self._compression, stamp)
            if self._journal is not None:
                frames.append(
                    JournalBatch(
                        lane.topic,
                        lane.partition,
                        stamp.producer_id,
                        stamp.epoch,
                        stamp.base_sequence,
                        batch.count,
                        batch.first_event,
                        batch.last_event,
                        None,
                        data,
                    )
                )
        if self._journal is not None:
            self._journal.append([*frames, *round_.positions])

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
        for lane, slot, stamp in (*round_.batches, *round_.restamped):
            # If renumbered since, it waits for the round that says so.
            if self._journal is None or stamp == stamp_of(lane, slot):
                slot.held = False
            self._poke(lane)
        for lane in round_.renewed:
            self._poke(lane)
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
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # who waited may be gone
            self._waiting.clear()
            self._on_failure(error)

    async def _in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await self._loop.run_in_executor(self._threads, function, *arguments)
