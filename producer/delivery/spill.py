"""Batches whose bytes are in the journal alone, so that what waits may be larger than memory.

The journal holds the bytes of every batch that waits. While there is memory they stay there, too.
When half of the senders' room is taken, the newest batches of those that have waited for long lose
theirs (they are sent last), and the bytes are read back when it is their turn: into a quarter
of `buffer_size` that no sender can take, so that what waits drains also under senders that give
more at once. Batches are read ahead of their turn; the one whose turn it is takes the memory of
those if there is no other.

What is left of a batch in memory is counted as `REFERENCE_BYTES`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.producer._log import Logger
from sequitur.producer.journal.errors import JournalBusyError
from sequitur.producer.journal.frames import BatchKey, WaitingKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sequitur.producer.batching.buffer_budget import Room
    from sequitur.producer.batching.partition_queue import Batch
    from sequitur.producer.journal.journal import Journal
    from sequitur.producer.journal.live import Key

REFERENCE_BYTES: Final = 1024
"""A batch without its bytes: its name and place, here and in the journal, and who waits for it."""
_FLOW_BYTES_PER_S: Final = 32 << 20
"""What a full buffer would be sent at, while all is well, at the least."""
_RENAMED_S: Final = 0.01
_BUSY_S: Final = 0.1
_READERS: Final = 4

_log = Logger(__name__)


class Spill:
    """Takes bytes out of memory, and reads them back.

    Args:
        journal: Holds them.
        room: What senders fill.
        budget_bytes: How much may be in memory of what was read back; one batch always may.
        in_thread: Calls a function beside the loop.
        on_failure: Called when the journal cannot be read.
        patience_s: Bytes stay in memory so long at least; by default for as long as a full room
            takes to be sent at 32 MiB/s, since what is sent sooner is not worth reading back.
    """

    def __init__(
        self,
        journal: Journal,
        room: Room,
        budget_bytes: int,
        in_thread: Callable[[Callable[[Batch], bytes], Batch], Awaitable[bytes]],
        on_failure: Callable[[Exception], None],
        *,
        patience_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience_s = room.limit / _FLOW_BYTES_PER_S if patience_s is None else patience_s
        self._timer: asyncio.TimerHandle | None = None
        self._journal = journal
        self._room = room
        self._budget = budget_bytes
        self._in_thread = in_thread
        self._on_failure = on_failure
        self._resident: dict[Batch, None] = {}
        self._loaded_bytes = 0
        self._busy = False
        self._wanted: dict[Batch, Callable[[], None]] = {}
        self._next: dict[Batch, None] = {}  # of those that are wanted, those whose turn it is
        self._ahead: dict[Batch, None] = {}  # read back, and not sent since
        self._loading: dict[Batch, asyncio.Task[None]] = {}

    def keep(self, batches: Iterable[Batch]) -> None:
        """The journal holds batches: their bytes may go, and do if senders have little room."""
        for batch in batches:
            if not batch.stored and batch.builder is None and batch.size > REFERENCE_BYTES:
                self._resident[batch] = None
        self._watch()

    def _watch(self) -> None:
        """Look again soon, while senders have little room and there are bytes that could go."""
        if self._timer is None and self._resident and self._is_short():
            self._timer = self._loop.call_later(self._patience_s / 4, self._make_room)

    def _is_short(self) -> bool:
        return self._room.used * 2 > self._room.limit

    def _make_room(self) -> None:
        """Let the bytes go of what has waited long, the newest first."""
        self._timer = None
        until_s = self._loop.time() - self._patience_s
        for batch in [each for each in self._resident if each.accepted_at_s <= until_s][::-1]:
            if not self._is_short():
                break
            del self._resident[batch]
            if batch.in_journal and not batch.given_up:
                self._take_out(batch)
        self._watch()

    def _take_out(self, batch: Batch) -> None:
        batch.unload()
        for claim in batch.claims:
            claim.compact()
        self._room.give_back(batch.size - REFERENCE_BYTES)
        batch.size = REFERENCE_BYTES

    def want(self, batch: Batch, then: Callable[[], None], *, is_next: bool = False) -> None:
        """Read a batch back as soon as there is memory for it, and then call `then`.

        Args:
            batch: The batch.
            then: Told once the batch has its bytes.
            is_next: Whether it is this batch's turn: nothing of its partition can go before it.
        """
        if batch in self._loading:
            return
        self._wanted.setdefault(batch, then)
        if is_next:
            self._next[batch] = None
        self._load_next()

    def sent(self, batch: Batch) -> None:
        """The batch is on its way: its bytes stay until there is an answer."""
        self._ahead.pop(batch, None)

    def cool(self, batch: Batch) -> None:
        """The batch is to wait longer: if others want its memory, they have it."""
        if not batch.loaded:
            return
        if self._wanted:
            self._give_up(batch)
            self._load_next()
        else:
            self._ahead[batch] = None

    def forget(self, batch: Batch) -> None:
        """The batch is needed no more."""
        self._resident.pop(batch, None)
        if batch.loaded:
            self._uncount(batch)
            self._load_next()

    def read_now(self, batch: Batch) -> None:
        """Read a batch back at once, for the few whose events are told of one by one."""
        if batch.stored:
            self._take_in(batch, self.read(batch))

    def read(self, batch: Batch) -> bytes:
        """A batch's bytes, as the journal has them; in any thread.

        Raises:
            KeyError: The journal is about to know it under another name.
            JournalBusyError: Not now.
            JournalError: It cannot be read.
        """
        return self._journal.read(_key_of(batch))

    async def fetch(self, batch: Batch) -> bytes:
        """A batch's bytes, wherever they are; it keeps none that it did not have."""
        while batch.stored:
            try:
                data = await self._in_thread(self.read, batch)
            except KeyError:
                await asyncio.sleep(_RENAMED_S)
            except JournalBusyError as error:
                if not self._busy:
                    _log.warning("batches wait until they can be read back", reason=str(error))
                self._busy = True
                await asyncio.sleep(_BUSY_S)
            else:
                if self._busy:
                    _log.info("batches are read back again")
                self._busy = False
                return data
        return batch.data

    def stop(self) -> None:
        """Read nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._resident.clear()
        self._wanted.clear()
        self._next.clear()
        for task in self._loading.values():
            task.cancel()

    def _load_next(self) -> None:
        # What is being read is not counted yet: a few at a time.
        while self._wanted and len(self._loading) < _READERS:
            # Else what was read ahead could wait for a batch that it leaves no memory.
            while self._next and self._ahead and self._loaded_bytes >= self._budget:
                self._give_up(next(iter(self._ahead)))
            if self._loaded_bytes >= self._budget and (self._loaded_bytes or self._loading):
                return
            batch = next(iter(self._next or self._wanted))
            self._next.pop(batch, None)
            then = self._wanted.pop(batch)
            if not batch.stored or batch.given_up:
                then()
                continue
            task = asyncio.get_running_loop().create_task(self._load(batch, then))
            self._loading[batch] = task

    async def _load(self, batch: Batch, then: Callable[[], None]) -> None:
        try:
            data = await self.fetch(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing goes out any more
            self._on_failure(error)
            return
        finally:
            self._loading.pop(batch, None)
        if batch.stored and not batch.given_up:
            self._take_in(batch, data)
        then()
        self._load_next()

    def _take_in(self, batch: Batch, data: bytes) -> None:
        batch.load(data)
        self._loaded_bytes += batch.loaded
        self._ahead[batch] = None

    def _give_up(self, batch: Batch) -> None:
        """The journal alone has the batch's bytes again."""
        self._uncount(batch)
        batch.unload()

    def _uncount(self, batch: Batch) -> None:
        self._ahead.pop(batch, None)
        self._loaded_bytes -= batch.loaded
        batch.loaded = 0


def _key_of(batch: Batch) -> Key:
    stamp = batch.journaled
    if stamp is None:
        return WaitingKey(batch.topic, batch.partition, batch.first_event)
    return BatchKey(
        batch.topic, batch.partition, stamp.producer_id, stamp.epoch, stamp.base_sequence
    )
