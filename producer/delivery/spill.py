"""Spilling: batches whose bytes are only in the journal, so that more may wait than memory holds.

The journal holds the bytes of every batch that waits. While there is memory, they are there, too.

- When half of the senders' budget is taken, the newest of the batches that have waited for long
  lose their bytes, since they are sent last. While no batch ends, half a second is long.
- The bytes are read back when it is their turn. They go into a quarter of `buffer_size` that no
  sender can take. So what waits is sent also while senders fill the rest.
- Batches are read ahead of their turn. If no other memory is left, the batch whose turn it is takes
  the memory of those.
- A batch without its bytes counts as `REFERENCE_BYTES`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Backoff, Retry
from sequitur.errors import JournalBusyError
from sequitur.producer.batching.batch import InMemory
from sequitur.producer.journal.frames import WaitingKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.budget import BufferBudget
    from sequitur.producer.journal.journal import Journal

REFERENCE_BYTES: Final = 1024
"""Memory of a batch without its bytes: its name, its place in the journal, and its claims."""
_SEND_BYTES_PER_S: Final = 32 << 20
"""The least rate at which a full buffer is sent while nothing fails."""
_STILL_S: Final = 0.5
"""After so long without the end of a batch nothing is sent soon."""
_READERS: Final = 4
_WHILE_BUSY: Final = Retry(backoff=Backoff(initial_ms=100, maximum_ms=100, jitter=0))
_log = Logger(__name__)


class Spill:
    """Take bytes of batches out of memory, and read them back."""

    def __init__(
        self,
        journal: Journal,
        budget: BufferBudget,
        read_back_bytes: int,
        in_thread: Callable[[Callable[[Batch], bytes], Batch], Awaitable[bytes]],
        on_failure: Callable[[Exception], None],
        *,
        patience_s: float | None = None,
        still_s: float = _STILL_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience_s = budget.limit / _SEND_BYTES_PER_S if patience_s is None else patience_s
        self._still_s = min(still_s, self._patience_s)
        self._ended_at_s = self._loop.time()  # when the last batch ended
        self._timer: asyncio.TimerHandle | None = None
        self._journal = journal
        self._budget = budget
        self._read_back_limit = read_back_bytes
        self._in_thread = in_thread
        self._on_failure = on_failure
        self._resident: dict[Batch, None] = {}
        self._read_back_bytes = 0
        self._busy = False
        self._requested: dict[Batch, Callable[[], None]] = {}
        self._next: dict[Batch, None] = {}  # the requested batches whose turn it is
        self._ahead: dict[Batch, None] = {}  # batches that were read back, and not sent since
        self._loading: dict[Batch, asyncio.Task[None]] = {}

    def track(self, batches: Iterable[Batch]) -> None:
        """Take note of batches that the journal holds: their bytes may leave memory."""
        for batch in batches:
            is_encoded = batch.in_memory in (InMemory.BYTES, InMemory.READ_BACK)
            if is_encoded and batch.size > REFERENCE_BYTES:
                self._resident[batch] = None
        self._watch()

    def _watch(self) -> None:
        """Look again soon, while memory is short and there are bytes that could leave it."""
        if self._timer is None and self._resident and self._budget.is_short:
            look_s = min(self._patience_s / 4, self._still_s / 2)
            self._timer = self._loop.call_later(look_s, self._free_memory)

    def _free_memory(self) -> None:
        """Drop the bytes of batches that have waited for long, the newest first."""
        self._timer = None
        now_s = self._loop.time()
        is_still = now_s - self._ended_at_s >= self._still_s
        until_s = now_s - (self._still_s if is_still else self._patience_s)
        for batch in [each for each in self._resident if each.accepted_at_s <= until_s][::-1]:
            if not self._budget.is_short:
                break
            del self._resident[batch]
            if batch.is_kept and not batch.ended:
                self._drop_bytes(batch)
        self._watch()

    def _drop_bytes(self, batch: Batch) -> None:
        batch.unload()
        for claim in batch.claims:
            claim.compact()
        self._budget.give_back(batch.size - REFERENCE_BYTES)
        batch.size = REFERENCE_BYTES

    def request(self, batch: Batch, then: Callable[[], None], *, is_next: bool = False) -> None:
        """Read a batch back as soon as there is memory for it, and then call `then`."""
        if batch in self._loading:
            return
        self._requested.setdefault(batch, then)
        if is_next:
            self._next[batch] = None
        self._load_next()

    def on_sent(self, batch: Batch) -> None:
        """Keep the bytes of a batch that was sent until it is answered."""
        self._ahead.pop(batch, None)

    def on_retry(self, batch: Batch) -> None:
        """Give the memory of a batch that waits to be sent again to others that ask for it."""
        if batch.in_memory is not InMemory.READ_BACK:
            return
        if self._requested:
            self._unload(batch)
            self._load_next()
        else:
            self._ahead[batch] = None

    def forget(self, batch: Batch) -> None:
        self._ended_at_s = self._loop.time()
        self._resident.pop(batch, None)
        if batch.in_memory is InMemory.READ_BACK:
            self._uncount(batch)
            self._load_next()

    def read_now(self, batch: Batch) -> bool:
        """Read a batch back at once, in the loop's thread; return False if it cannot be read now.

        Only few batches need this: those whose events are needed one by one.
        """
        if batch.in_memory is InMemory.AWAY:
            try:
                data = self.read(batch)
            except JournalBusyError as error:
                self._note_busy(error)
                return False
            self._note_read()
            self.hold(batch, data)
        return True

    def hold(self, batch: Batch, data: bytes) -> None:
        """Give a batch its bytes back, if they are only in the journal."""
        if batch.in_memory is InMemory.AWAY:
            batch.load(data)
            self._read_back_bytes += batch.loaded
            self._ahead[batch] = None

    def read(self, batch: Batch) -> bytes:
        """Return a batch's bytes as the journal has them; may be called in any thread.

        It is found by its first event: its numbers may be about to change in the journal.
        """
        key = WaitingKey(batch.topic, batch.partition, batch.first_event)
        return self._journal.read(key)

    async def fetch(self, batch: Batch) -> bytes | None:
        """Return a batch's bytes, wherever they are, and leave them there."""
        attempts = _WHILE_BUSY.attempts()
        while batch.in_memory is InMemory.AWAY and not batch.ended:
            try:
                data = await self._in_thread(self.read, batch)
            except KeyError:
                if not batch.ended:
                    raise
            except JournalBusyError as error:
                self._note_busy(error)
                await attempts.pause(error)
            else:
                self._note_read()
                return None if batch.ended else data
        return None if batch.ended else batch.data

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._resident.clear()
        self._requested.clear()
        self._next.clear()
        for task in self._loading.values():
            task.cancel()

    def _load_next(self) -> None:
        # Batches that are being read are not counted yet: so only a few are read at a time.
        while self._requested and len(self._loading) < _READERS:
            # Batches that were read ahead must not keep the memory from the one whose turn it is.
            while self._next and self._ahead and self._read_back_bytes >= self._read_back_limit:
                self._unload(next(iter(self._ahead)))
            is_full = self._read_back_bytes >= self._read_back_limit
            if is_full and (self._read_back_bytes or self._loading):
                return
            batch = next(iter(self._next or self._requested))
            self._next.pop(batch, None)
            then = self._requested.pop(batch)
            if batch.in_memory is not InMemory.AWAY or batch.ended:
                then()
                continue
            task = self._loop.create_task(self._load(batch, then))
            self._loading[batch] = task
            report_failure(task, self._on_failure)

    async def _load(self, batch: Batch, then: Callable[[], None]) -> None:
        try:
            data = await self.fetch(batch)
        finally:
            self._loading.pop(batch, None)
        if data is not None:
            self.hold(batch, data)
        then()
        self._load_next()

    def _note_busy(self, error: JournalBusyError) -> None:
        if not self._busy:
            _log.warning("batches wait until they can be read back", reason=str(error))
        self._busy = True

    def _note_read(self) -> None:
        if self._busy:
            _log.info("batches are read back again")
        self._busy = False

    def _unload(self, batch: Batch) -> None:
        """Leave the batch's bytes to the journal again."""
        self._uncount(batch)
        batch.unload()

    def _uncount(self, batch: Batch) -> None:
        self._ahead.pop(batch, None)
        self._read_back_bytes -= batch.loaded
        batch.loaded = 0
        batch.in_memory = InMemory.BYTES
