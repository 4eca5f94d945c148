"""One round: what becomes durable together, and the frames that say so to the journal.

`delivery.rounds` makes rounds, one after the other; here is what the journal is told, and written.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Backoff, Retry
from sequitur.errors import JournalBusyError, JournalError, JournalFullError
from sequitur.kafka.record_batch import NO_STAMP, Stamp, times_of
from sequitur.producer.batching.batch import Dating, InJournal, InMemory
from sequitur.producer.journal.frames import (
    Ack,
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Number,
    Numbered,
    Renewal,
    Restamp,
    SourcePosition,
    Waiting,
    WaitingKey,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.batch import Batch, BufferBudget
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import Numbering
    from sequitur.producer.delivery.routes import SendQueue
    from sequitur.producer.delivery.sequencer import Slot
    from sequitur.producer.journal.journal import Journal

    SlotStamp: TypeAlias = tuple[SendQueue, Slot[Batch], Stamp]


NO_OFFSET: Final = -1


@dataclass(slots=True, eq=False)
class Mark:
    """How a batch ended: in the log at an offset, or given up for a reason."""

    batch: Batch
    offset: int = NO_OFFSET
    reason: str | None = None


@dataclass(slots=True)
class Round:
    """What becomes durable together."""

    cut: int  # the newest cut that is in this round or one before
    is_cut: bool = False  # whether a cut was made for it
    # the batches cut for it that have numbers, with their slots
    fresh: list[tuple[SendQueue, Slot[Batch]]] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    # what was added to batches that grow
    pieces: list[tuple[Batch, Waiting]] = field(default_factory=list)
    is_part: bool = False  # whether it counts only once a later round, that `ends_parts`, is there
    ends_parts: bool = False  # whether the parts before it count with it
    # batches that the journal holds without numbers, and gets the numbers of
    numbered: list[SlotStamp] = field(default_factory=list)
    # batches that it holds with numbers, and gets other timestamps of
    redated: list[SlotStamp] = field(default_factory=list)
    # source positions that cover its events
    positions: list[SourcePosition] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # what is appended before the batches
    # the batches with numbers that the journal does not hold yet
    batches: list[SlotStamp] = field(default_factory=list)
    # batches that it holds, and will hold under other numbers
    restamped: list[SlotStamp] = field(default_factory=list)
    before: list[Stamp] = field(default_factory=list)  # the numbers under which it holds those
    marks: list[Mark] = field(default_factory=list)  # how other batches ended
    renewed: list[SendQueue] = field(default_factory=list)  # the partitions whose renewal is in it
    # batches whose halves are among `batches`
    halved: list[tuple[SendQueue, Batch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes there are to encode."""
        batches = sum(slot.batch.size for _, slot, _ in self.batches)
        waiting = sum(batch.size for batch in self.waiting)
        return batches + waiting + sum(len(piece.data) for _, piece in self.pieces)

    @property
    def must_last(self) -> bool:
        """Whether it has to be synced: something waits for it to be durable."""
        return (
            self.is_cut
            or bool(self.fresh or self.waiting or self.numbered or self.redated or self.renewed)
            or any(mark.reason for mark in self.marks)
        )


def stamp_of(slot: Slot[Batch]) -> Stamp:
    """Return the numbers that a batch has now."""
    return Stamp(slot.identity.producer_id, slot.identity.epoch, slot.base_sequence)


def renewal(queue: SendQueue, round_: Round, cluster_id: str) -> Renewal:
    """Return the frame with the numbers under which a partition goes on; note it in the round."""
    restamps = []
    for slot in queue.sequencer:
        batch, stamp = slot.batch, stamp_of(slot)
        if batch.journaled is None:  # the round has it under its new numbers
            continue
        if batch.journaled != stamp:
            old = batch.journaled
            restamps.append(
                Restamp(
                    queue.topic,
                    queue.partition,
                    old.producer_id,
                    old.epoch,
                    old.base_sequence,
                    stamp.base_sequence,
                    slot.count,
                )
            )
        round_.restamped.append((queue, slot, stamp))
        round_.before.append(batch.journaled)
        batch.journaled = stamp
    return Renewal(
        queue.sequencer.identity,
        tuple(restamps),
        ((queue.topic, queue.partition),),
        cluster_id,
    )


def batch_frame(batch: Batch, stamp: Stamp, data: bytes) -> BatchFrame:
    """Return the frame of a batch with numbers."""
    return BatchFrame(
        batch.topic,
        batch.partition,
        stamp.producer_id,
        stamp.epoch,
        stamp.base_sequence,
        batch.count,
        batch.first_event,
        batch.last_event,
        None,
        batch.last_ms,
        batch.dating is Dating.SENDERS,
        data,
    )


def frames_of_numbers(numbered: list[SlotStamp]) -> list[Frame]:
    """Return the frame with the numbers of batches that waited for them, if there are any."""
    numbers = tuple(
        Number(
            queue.topic,
            queue.partition,
            slot.batch.first_event,
            slot.batch.last_event,
            slot.count,
            stamp.producer_id,
            stamp.epoch,
            stamp.base_sequence,
            slot.batch.last_ms,
        )
        for queue, slot, stamp in numbered
    )
    return [Numbered(numbers)] if numbers else []


def frames_of_marks(marks: list[Mark]) -> list[Frame]:
    """Return the frames that say how batches ended."""
    acks: list[Ack] = []
    dropped: dict[str, list[tuple[str, int, int]]] = {}
    for mark in marks:
        batch, stamp = mark.batch, mark.batch.journaled
        if stamp is not None:
            acks.append(
                Ack(
                    batch.topic,
                    batch.partition,
                    stamp.producer_id,
                    stamp.epoch,
                    stamp.base_sequence,
                    mark.offset,
                    mark.reason,
                )
            )
        elif batch.is_kept:
            name = (batch.topic, batch.partition, batch.first_event)
            dropped.setdefault(mark.reason or "", []).append(name)
    drops = [Drop(tuple(names), reason) for reason, names in dropped.items()]
    return [Acks(tuple(acks)), *drops] if acks else [*drops]


_MARKS_WAIT_S: Final = 0.05


class JournalUpdates:
    """Collect marks and renewals for the next round.

    A mark says how a batch ended; it may wait a little, for others. A renewal says under which
    identity and numbers a partition goes on; its batches are held until it is durable.
    """

    def __init__(self, identities: Identities, on_due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._identities = identities
        self._on_due = on_due
        self._marks: list[Mark] = []
        self._after: dict[Batch, tuple[Mark, Callable[[bool], None]]] = {}
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._marks_due = False
        self._renewed: dict[SendQueue, None] = {}
        # The batches of parts whose last is not in the journal yet, and whether the parts have all
        # of a batch.
        self._parts: dict[Batch, bool] = {}

    @property
    def is_due(self) -> bool:
        """Whether to make a round for it."""
        return bool(self._renewed) or self._marks_due

    def mark(self, mark: Mark, then: Callable[[bool], None] | None) -> None:
        """Tell the journal how a batch ended, and then `then` whether it surely knows."""
        self._marks.append(mark)
        if then is not None and self._has_ended:
            then(False)
        elif then is not None:
            self._after[mark.batch] = mark, then
            self._flush_marks()
        elif self._timer is None:
            self._timer = self._loop.call_later(_MARKS_WAIT_S, self._flush_marks)

    def renewed(self, queue: SendQueue) -> None:
        """Tell the journal of a partition's identity, and hold its batches until it is durable."""
        for slot in queue.sequencer:
            slot.held = True
        # The order of the latest renewals is the order of their identities.
        self._renewed.pop(queue, None)
        self._renewed[queue] = None
        self._on_due()

    def begin_parts(self, parts: dict[Batch, bool]) -> None:
        """Take note of the batches of a round in parts, and whether the parts have all of each."""
        self._parts = parts

    def end_parts(self) -> list[Batch]:
        """Take note that the last part is in the journal; return the batches that it has whole."""
        parts, self._parts = self._parts, {}
        self._marks_due |= any(mark.batch in parts for mark in self._marks)
        # One that grows gets no number yet: the journal would keep what is added as another.
        return [batch for batch, is_whole in parts.items() if is_whole]

    def fill(
        self, round_: Round, numbered: list[SlotStamp], redated: list[SlotStamp]
    ) -> list[tuple[SendQueue, Slot[Batch]]]:
        """Put all marks and renewals into a round, and what batches got since they were written."""
        # A batch of a part can be given up only after the last part: that would bring it back.
        round_.marks = [mark for mark in self._marks if mark.batch not in self._parts]
        self._marks = [mark for mark in self._marks if mark.batch in self._parts]
        round_.renewed, self._renewed = list(self._renewed), {}
        self._marks_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in round_.renewed:
            round_.halved += [(queue, batch) for batch in queue.take_halved()]
        round_.frames = frames_of_marks(
            [*round_.marks, *(Mark(batch, reason="halved") for _, batch in round_.halved)]
        )
        # Under the numbers that the journal knows: before a renewal gives them others.
        round_.redated = redated
        known = [(q, s, s.batch.journaled) for q, s, _ in redated if s.batch.journaled is not None]
        round_.frames += frames_of_numbers(known)
        halves: list[tuple[SendQueue, Slot[Batch]]] = []
        for queue in round_.renewed:
            round_.frames.append(renewal(queue, round_, self._identities.cluster_id))
            halves += [(queue, slot) for slot in queue.sequencer.slots if not slot.batch.is_kept]
        round_.numbered = numbered
        round_.frames += frames_of_numbers(numbered)
        return halves

    def take_back(self, round_: Round) -> None:
        """Take back the marks and renewals of a round: the journal had no space."""
        self._marks[:0] = round_.marks
        self._renewed = dict.fromkeys([*round_.renewed, *self._renewed])
        for (_queue, slot, _stamp), before in zip(round_.restamped, round_.before, strict=True):
            slot.batch.journaled = before
        round_.restamped, round_.before = [], []
        for queue, batch in round_.halved:
            queue.return_halved(batch)
        round_.halved = []

    def on_durable(self, round_: Round) -> None:
        """Call what was to be called once the marks of a round are durable."""
        for mark in round_.marks:
            after = self._after.pop(mark.batch, None)
            if after is not None:
                after[1](True)

    def stop(self) -> list[Frame]:
        """Cancel the timer, and return the frames of the marks that may not be written.

        Those of a round that was cancelled are among them: the journal ignores what it knows.
        """
        if self._timer is not None:
            self._timer.cancel()
        return frames_of_marks(self._unsure())

    def end(self, *, is_durable: bool) -> None:
        """Call all that waits for its mark: no more marks become durable."""
        self._has_ended = True
        self._marks = self._unsure()  # `stop` may still write them
        after, self._after = self._after, {}
        for _mark, then in after.values():
            then(is_durable)

    def _unsure(self) -> list[Mark]:
        """Return the marks that may not be written."""
        waited_for = [mark for mark, _ in self._after.values()]
        return list(dict.fromkeys([*waited_for, *self._marks]))

    def _flush_marks(self) -> None:
        self._marks_due = bool(self._marks)
        self._on_due()


# Writing rounds: encoded, appended to the journal, synced, and then durable.
#
# While the disk is busy with the sync of one round the next is encoded and appended, and one sync
# covers all that were appended before it. With durability `none` nothing is written.

_T = TypeVar("_T")

_INLINE_BYTES: Final = 32 << 10
"""Below this a round is encoded and appended at once: a thread would take longer to answer."""
_SPACE_WAIT_S: Final = 0.1
_FULL_WARNING_S: Final = 1.0
_ENCODERS: Final = 3
_THREADS: Final = _ENCODERS + 2  # they encode, and one of them appends; one syncs, one reclaims

_log = Logger(__name__)


class RoundWriter:
    """Write rounds, one after the other."""

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
        """Try again to append: what the journal has may be needed no more."""
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
            # What the journal is told of other batches frees space, and must not wait for it.
            self._freed.clear()
            self._numbering.number_waiting()
            await self._try_to_write(Round(0))
            if self._journal is not None and await self.in_thread(self._journal.sync):
                await self.in_thread(self._journal.reclaim)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _SPACE_WAIT_S)
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
        """Reclaim nothing any more."""
        if self._reclaiming is not None:
            self._reclaiming.cancel()

    async def close(self, frames: list[Frame]) -> bool:
        """Append the last frames, sync what there is, and close the journal.

        Return whether the frames are durable.
        """
        if self._journal is None:
            return True
        try:
            self._journal.append(frames)
            await self.in_thread(self._journal.sync)
        except JournalError:
            return False
        finally:
            await self.in_thread(self._journal.close)
        return True

    def shut_down(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)

    async def _try_to_write(self, round_: Round) -> bool:
        self._fill(round_)
        try:
            if round_.size > _INLINE_BYTES:
                await self._encode(round_)
                await self.in_thread(self._encode_and_append, round_)
            else:
                self._encode_and_append(round_)
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
        """Accept no more events than the journal's disk has space for, which others fill, too."""
        if self._journal is not None:
            self._budget.resize(min(self._budget_limit, self._journal.limit_bytes // 4))

    def _fill(self, round_: Round) -> None:
        """Put into a round what has to be in it now: numbers may change while it waits."""
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
        parts = [batches[start::_ENCODERS] for start in range(_ENCODERS)]
        await asyncio.gather(*(self.in_thread(self._encode_all, part) for part in parts if part))

    def _encode_all(self, batches: list[tuple[Batch, Stamp]]) -> None:
        for batch, stamp in batches:
            batch.encode(self._compression, stamp)

    def _encode_and_append(self, round_: Round) -> None:
        """Encode what is not encoded yet, and append; may be called in any thread."""
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
        if self._journal is not None:
            self._journal.append([*frames, *round_.positions], part=round_.is_part)

    async def _reclaim(self, journal: Journal) -> None:
        try:
            await self.in_thread(journal.reclaim)
        finally:
            self._reclaiming = None
            self._freed.set()


# Batches whose bytes are only in the journal, so that what waits may be larger than memory.
#
# The journal holds the bytes of every batch that waits; while there is memory, they are there, too.
# When half of the senders' budget is taken, the newest of the batches that have waited for long
# lose their bytes (they are sent last); while no batch ends, half a second is long. The bytes are
# read back when it is their turn, into a quarter of `buffer_size` that no sender can take: so what
# waits is sent also while senders fill the rest. Batches are read ahead of their turn. The batch
# whose turn it is takes the memory of those if no other is left.
#
# A batch without its bytes counts as `REFERENCE_BYTES`.


REFERENCE_BYTES: Final = 1024
"""Memory of a batch without its bytes: its name, its place in the journal, and its claims."""
_SEND_BYTES_PER_S: Final = 32 << 20
"""The least rate at which a full buffer is sent while nothing fails."""
_STILL_S: Final = 0.5
"""After so long without the end of a batch nothing is sent soon."""
_READERS: Final = 4
_WHILE_BUSY: Final = Retry(backoff=Backoff(initial_ms=100, maximum_ms=100, jitter=0))


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
        self._next: dict[Batch, None] = {}  # those of the requested ones whose turn it is
        self._ahead: dict[Batch, None] = {}  # read back, and not sent since
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
        """Let others have the memory of a batch that waits to be sent again, if they ask for it."""
        if batch.in_memory is not InMemory.READ_BACK:
            return
        if self._requested:
            self._unload(batch)
            self._load_next()
        else:
            self._ahead[batch] = None

    def forget(self, batch: Batch) -> None:
        """Forget a batch that is no longer needed."""
        self._ended_at_s = self._loop.time()
        self._resident.pop(batch, None)
        if batch.in_memory is InMemory.READ_BACK:
            self._uncount(batch)
            self._load_next()

    def read_now(self, batch: Batch) -> bool:
        """Read a batch back at once, for the few whose events are needed one by one."""
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
        """Give a batch its bytes back, if it has them no more."""
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

        async def read() -> bytes | None:
            if batch.in_memory is not InMemory.AWAY or batch.ended:
                return None if batch.ended else batch.data
            try:
                data = await self._in_thread(self.read, batch)
            except KeyError:
                if not batch.ended:
                    raise
                return None
            self._note_read()
            return None if batch.ended else data

        return await _WHILE_BUSY.run_async(read, self._note_busy)

    def stop(self) -> None:
        """Read nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._resident.clear()
        self._requested.clear()
        self._next.clear()
        for task in self._loading.values():
            task.cancel()

    def _load_next(self) -> None:
        # What is being read is not counted yet: a few at a time.
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

    def _note_busy(self, error: Exception) -> str | None:
        if not isinstance(error, JournalBusyError):
            return None
        if not self._busy:
            _log.warning("batches wait until they can be read back", reason=str(error))
        self._busy = True
        return str(error)

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
