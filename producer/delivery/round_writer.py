"""Writing rounds: they are encoded, appended to the journal, synced, and then durable.

While the disk is busy with the sync of one round, the next is encoded and appended. One sync covers
all rounds that were appended before it. With durability `none` nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.errors import JournalError, JournalFullError
from sequitur.kafka.record_batch import NO_STAMP, Stamp, times_of
from sequitur.producer.batching.batch import InJournal
from sequitur.producer.delivery.journaling import Round, batch_frame, stamp_of
from sequitur.producer.journal.frames import Commit, Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.budget import BufferBudget
    from sequitur.producer.delivery.journaling import JournalUpdates
    from sequitur.producer.delivery.rounds import Numbering
    from sequitur.producer.journal.journal import Journal

_T = TypeVar("_T")
_INLINE_BYTES: Final = 32 << 10
"""Below this a round is encoded and appended at once: a thread would take longer to answer."""
_SPACE_WAIT_S: Final = 0.1
_FULL_WARNING_S: Final = 1.0
_ENCODERS: Final = 3
_THREADS: Final = _ENCODERS + 2  # they encode, and one of them appends; one syncs, one reclaims
_log = Logger(__name__)


class RoundWriter:
    """Write rounds, one after the other; `shut_down` ends its threads."""

    def __init__(
        self,
        *,
        journal: Journal | None,
        settings: ProducerSettings,
        budget: BufferBudget,
        updates: JournalUpdates,
        numbering: Numbering,
        on_appended: Callable[[Round], None],
        on_durable: Callable[[Round], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._compression = settings.compression
        self._sync_first = settings.journaling == "journal"
        self._sync_interval_s = settings.journal_sync_interval.total_seconds()
        self._budget = budget
        self._budget_limit = budget.limit
        self._updates = updates
        self._numbering = numbering
        self._on_appended = on_appended
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sequitur-journal")
        # A thread may append although who waited for it was cancelled: before the last frames, or
        # not at all.
        self._appending = Lock()
        self._appended: list[Round] = []
        self._to_sync = asyncio.Event()
        self._freed = asyncio.Event()
        self._reclaiming: asyncio.Task[None] | None = None
        self._full_reason = ""

    @property
    def full_reason(self) -> str:
        """Why no round gets into the journal; empty while rounds do."""
        return self._full_reason

    def note_freed(self) -> None:
        """Try again to append: the journal may need less now."""
        self._freed.set()

    async def in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in one of the journal's threads."""
        return await self._loop.run_in_executor(self._threads, function, *arguments)

    async def write(self, round_: Round) -> None:
        """Encode a round, and append it once the journal has space; log why it takes long."""
        warning_s = self._loop.time() + _FULL_WARNING_S
        while not await self._try_to_write(round_):
            if self._loop.time() >= warning_s:
                warning_s = inf
                _log.warning("no room in the journal: senders wait", reason=self._full_reason)
            # Marks of other batches free space, so they must not wait for it.
            self._freed.clear()
            self._numbering.number_waiting()
            await self._try_to_write(Round(0))
            if self._journal is not None and await self.in_thread(self._journal.sync):
                await self.in_thread(self._journal.reclaim)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SPACE_WAIT_S):
                    await self._freed.wait()
        self._full_reason = ""
        if warning_s == inf:
            _log.info("there is room in the journal again")

    async def sync_forever(self) -> None:
        """Sync what was appended until cancelled, or the journal fails."""
        while True:
            await self._to_sync.wait()
            self._to_sync.clear()
            journal = self._journal
            assert journal is not None
            rounds, self._appended = self._appended, []
            if await self.in_thread(journal.sync) and self._reclaiming is None:
                self._reclaiming = self._loop.create_task(self._reclaim(journal))
                report_failure(self._reclaiming, self._on_failure)
            if self._sync_first:
                for round_ in rounds:
                    self._on_durable(round_)
            else:
                await asyncio.sleep(self._sync_interval_s)

    def stop(self) -> None:
        if self._reclaiming is not None:
            self._reclaiming.cancel()

    async def close(self, frames: list[Frame]) -> bool:
        """Append the last frames, sync what there is, and close the journal.

        Return whether the frames are durable. Cancelling this call does not leave the journal open.
        """
        if self._journal is None:
            return True
        closing = self._loop.run_in_executor(self._threads, self._end, self._journal, frames)
        return await asyncio.shield(closing)

    def shut_down(self) -> None:
        self._threads.shutdown(wait=False)

    async def _try_to_write(self, round_: Round) -> bool:
        self._fill(round_)
        try:
            if round_.size > _INLINE_BYTES:
                await self._encode(round_)
                round_.is_written = await self.in_thread(self._encode_and_append, round_)
            else:
                round_.is_written = self._encode_and_append(round_)
        except JournalFullError as error:
            self._full_reason = str(error)
            self._take_back(round_)
            return False
        finally:
            self._resize_budget()
        self._on_appended(round_)
        if not round_.must_last:
            return True
        if self._journal is None or not self._sync_first:
            self._on_durable(round_)
        if self._journal is not None:
            self._appended.append(round_)
            self._to_sync.set()
        return True

    def _resize_budget(self) -> None:
        """Accept no more events than the disk has space for: other programs fill it, too."""
        if self._journal is not None:
            self._budget.resize(min(self._budget_limit, self._journal.limit_bytes // 4))

    def _fill(self, round_: Round) -> None:
        """Put the batches, marks and numbers of now into a round: they change while it waits."""
        slots = [(queue, slot) for queue, slot in round_.fresh if not slot.batch.ended]
        if self._journal is not None:
            round_.waiting = [batch for batch in round_.waiting if not batch.ended]
            round_.pieces = [piece for piece in round_.pieces if not piece[0].ended]
            for batch in round_.waiting:
                batch.in_journal = InJournal.WRITTEN
            for batch, _ in round_.pieces:
                batch.in_journal = InJournal.PIECES
            if not round_.is_part:
                slots += self._updates.fill(
                    round_, self._numbering.take_numbered(), self._numbering.take_redated()
                )
        round_.batches = [(queue, slot, stamp_of(slot)) for queue, slot in slots]
        if self._journal is not None:
            for _queue, slot, stamp in (*round_.batches, *round_.numbered):
                slot.batch.write_numbers(stamp)

    def _take_back(self, round_: Round) -> None:
        """Undo `_fill`: the journal has no space."""
        self._numbering.return_numbered(round_.numbered)
        self._numbering.return_redated(round_.redated)
        round_.redated = []
        for _queue, slot, _stamp in round_.numbered:
            slot.batch.take_back(waiting=True)
        round_.numbered = []
        for batch in (*(slot.batch for _, slot, _ in round_.batches), *round_.waiting):
            batch.take_back(waiting=False)
        self._updates.take_back(round_)

    async def _encode(self, round_: Round) -> None:
        """Encode the batches of a round, several at a time.

        A thread that has compressed a batch waits for the interpreter's lock, which the loop
        releases at the end of its turn; meanwhile the others compress.
        """
        numbers = [(slot.batch, stamp) for _, slot, stamp in round_.batches]
        batches = numbers + [(batch, NO_STAMP) for batch in round_.waiting]
        shares = [batches[start::_ENCODERS] for start in range(_ENCODERS)]
        await asyncio.gather(*(self.in_thread(self._encode_all, each) for each in shares if each))

    def _encode_all(self, batches: list[tuple[Batch, Stamp]]) -> None:
        for batch, stamp in batches:
            batch.encode(self._compression, stamp)

    def _encode_and_append(self, round_: Round) -> bool:
        """Encode all batches that are not encoded yet, and append; may run in any thread.

        Return whether the journal has all of the round.
        """
        frames: list[Frame] = [*round_.frames, *(piece for _, piece in round_.pieces)]
        frames += [batch.waiting(self._compression) for batch in round_.waiting]
        for _queue, slot, stamp in round_.batches:
            batch = slot.batch
            data = batch.encode(self._compression, stamp)
            batch.last_ms = times_of(data)[1]
            if self._journal is not None:
                frames.append(batch_frame(batch, stamp, data))
        if round_.ends_parts:
            frames.append(Commit())
        if self._journal is None:
            return True
        with self._appending:
            return self._journal.append([*frames, *round_.positions], part=round_.is_part)

    def _end(self, journal: Journal, frames: list[Frame]) -> bool:
        """Append the last frames, and close the journal. Return whether they are durable."""
        with self._appending:
            try:
                is_written = journal.append(frames)
                journal.sync()
            except JournalError:
                return False
            finally:
                journal.close()
            return is_written

    async def _reclaim(self, journal: Journal) -> None:
        try:
            await self.in_thread(journal.reclaim)
        finally:
            self._reclaiming = None
            self._freed.set()
