"""The journal: a producer's durable memory, as segment files in a directory.

Rules for the caller, so that a restart sends nothing twice and loses nothing:

1. A batch is sent only after `sync` returned for the round that holds it.
2. A batch that cannot be sent soon is appended without numbers (`Waiting`), and gets them by
   `Numbered` when it can. The ack marks of the batches before it are appended no later than in the
   same round. So few batches of a partition have numbers, and the broker remembers them.
3. A refused batch takes its sequence with it: the mark and the `Renewal` (or the batch that takes
   over its sequence) go into one round.

`append` and the marks are for the event loop: they encode and write to the page cache. `sync` is
for an executor thread: it waits for the disk, begins a new segment when the current one is full
and says what `reclaim` can remove. Both may run at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Final, Self

from sequitur.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFailedError,
    JournalFullError,
    JournalNameError,
)
from sequitur.producer.journal.disk import Disk, DiskFile, RealDisk
from sequitur.producer.journal.frames import (
    Acks,
    Commit,
    Drop,
    Frame,
    Head,
    Numbered,
    Renewal,
    SourcePosition,
    WaitingKey,
    decode_frame,
    segment_name,
    segment_numbers,
    segment_seed,
)
from sequitur.producer.journal.live import Key, Live, Place, whole
from sequitur.producer.journal.scan import TornTail, scan_segment
from sequitur.producer.journal.segments import NO_FILES, UNNAMED, JournalLimits, Segments
from sequitur.producer.journal.state import JournalState, Recovered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

_COPY_BYTES: Final = 1 << 20


class Journal:
    """An open journal. Made by `open`; used as a context manager or closed by `close`.

    `_state_lock` guards every field and the write position; it is held for microseconds by
    `append`, and for a few milliseconds while a segment is begun. `_sync_lock` and `_reclaim_lock`
    make syncs and removals take turns, and are taken before it.
    """

    def __init__(
        self,
        disk: Disk,
        state: JournalState,
        recovered: Recovered,
        segments: Segments,
    ) -> None:
        self.recovered = recovered
        self._disk = disk
        self._state = state
        self._state_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._reclaim_lock = threading.Lock()
        self._segments = segments
        self._needed = 0
        self._owed: list[Frame] = []
        self._syncs = 0

    @classmethod
    def open(cls, directory: Path, *, producer: str, limits: JournalLimits | None = None) -> Self:
        """Take over the journal in `directory`, or begins one; `recovered` says what it held."""
        return cls.open_on(RealDisk(directory), producer=producer, limits=limits)

    @classmethod
    def open_on(cls, disk: Disk, *, producer: str, limits: JournalLimits | None = None) -> Self:
        """`open` on any disk."""
        try:
            disk.lock()
            try:
                return cls._open_locked(disk, producer, limits or JournalLimits())
            except BaseException:
                disk.unlock()
                raise
        except OSError as error:
            raise JournalFailedError(
                f"could not open the journal in {disk.place}: {error}"
            ) from error

    @classmethod
    def _open_locked(cls, disk: Disk, producer: str, limits: JournalLimits) -> Self:
        if UNNAMED in disk.names():  # a segment that was being begun: nothing is in it yet
            disk.unlink(UNNAMED)
        numbers = segment_numbers(disk.names())
        newest = numbers[-1] if numbers else 0
        state, torn, lengths = replay(
            ((number, disk.read(segment_name(number))) for number in numbers),
            newest=newest,
            producer=producer,
        )
        recovered = state.recovered(torn, fresh=not numbers)
        sizes = dict(zip(numbers, lengths, strict=True))
        segments = Segments(disk, state, limits, sizes)
        journal = cls(disk, state, recovered, segments)
        if state.is_parted:  # its end is missing: its events were never reported as accepted
            state.apply(Commit(whole=False), Place(newest, 0, 0))
            journal._owed.append(Commit(whole=False))
        if not numbers:
            segments.begin(1)
            return journal
        file = disk.open(segment_name(newest))
        if torn is not None:
            file.truncate(torn.offset)
        # What a killed process left in the page cache will be used: make it durable.
        file.sync()
        segments.use(newest, file)
        # A new segment, so that no place in any segment is ever written twice: a frame found in
        # a place can then only be the one that was written there.
        if segments.rotate():
            file.close()
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def round_bytes(self) -> int:
        """How much one round may hold; give more in parts."""
        with self._state_lock:
            return self._segments.limits().round_bytes

    @property
    def limit_bytes(self) -> int:
        """What the files may take now: the limit, or less on a disk with less room."""
        with self._state_lock:
            return self._segments.limits().limit_bytes

    def append(self, frames: Sequence[Frame], *, part: bool = False) -> bool:
        """Write `frames` as one round, which a restart sees as a whole or not at all.

        Not durable before `sync`. Rounds of nothing but marks and drops never fail for want of
        room: what does not fit is kept in memory and goes out with the next round. Return whether
        the frames are written.
        """
        if not frames:
            return True
        with self._state_lock:
            self._segments.check_usable()
            if part:
                if self._owed:  # end an unfinished round before another begins
                    self._segments.write_round(self._owed, reserve=True)
                    self._owed.clear()
                places = self._segments.write_round(frames, reserve=False, part=True)
            else:
                self._state.check(frames)
                if all(isinstance(frame, Acks | Drop) for frame in frames):
                    places = self._append_marks(frames)
                else:
                    owed = len(self._owed)
                    together = [*self._owed, *frames]
                    places = self._segments.write_round(together, reserve=_gives_room(frames))
                    del places[:owed]
                    self._owed.clear()
            for frame, place in zip(frames, places, strict=True):
                self._state.apply(frame, place, part=part)
            return not self._owed

    def read(self, key: Key) -> bytes:
        """Return the exact bytes of a batch, under the numbers that the journal has for it now."""
        live = self._find(key)
        while True:
            try:
                data = whole(live.batch, [self._frame_at(place) for place in live.places]).data
            except (OSError, JournalCorruptError) as error:
                before, live = live, self._find(key)
                if live != before:  # it was copied, and its segment is gone
                    continue
                if not isinstance(error, OSError):
                    raise
                passes = error.errno in NO_FILES
                kind = JournalBusyError if passes else JournalFailedError
                raise kind(f"could not read in {self._disk.place}: {error}") from error
            return data

    def sync(self) -> bool:
        """Return once every round appended before the call survives a power cut.

        Begin a new segment, too, when the current one is full.
        """
        with self._sync_lock:
            with self._state_lock:
                self._segments.check_usable()
                file, end = self._segments.file, self._segments.newest_bytes
                # Marks and batches behind `end` may be lost in a crash, so what they free is
                # decided by what is in front of it.
                needed = self._state.oldest_live_segment()
                due = end > self._segments.synced
            assert file is not None
            if due:
                self._sync_file(file)
            with self._state_lock:
                self._segments.note_synced(end)
                self._syncs += due
                if self._segments.rotation_due(end) and self._segments.rotate():
                    needed = self._state.oldest_live_segment()
                    file.close()
                newest = self._segments.newest
                self._needed = newest if needed is None else min(needed, newest)
                return self._segments.oldest < self._needed or self._segments.copy_due()

    def reclaim(self) -> None:
        """Remove the segments that the last `sync` found to be needed no more, oldest first.

        First copy what little is needed of the oldest ones into the newest, a piece at a time, and
        sync it.

        A call of its own because removing a large file takes long, and no event waits for it: run
        it in another thread, beside the next syncs. One directory sync for each: two removals that
        reach the disk in the other order would look like a segment lost from the middle.
        """
        with self._reclaim_lock:
            self._remove_unneeded()
            while self._copy_a_piece():
                self.sync()
                self._remove_unneeded()

    def _remove_unneeded(self) -> None:
        with self._state_lock:
            self._segments.check_usable()
            removable = self._segments.older_than(self._needed)
        for segment in removable:
            try:
                self._disk.unlink(segment_name(segment))
                self._disk.sync_directory()
            except OSError as error:
                with self._state_lock:
                    raise self._segments.failed("remove a segment", error) from error
            with self._state_lock:
                self._segments.removed(segment)

    def _copy_a_piece(self) -> bool:
        """Copy a piece of what is needed of the oldest segment; False if nothing was."""
        with self._state_lock:
            self._segments.check_usable()
            if not self._segments.copy_due():
                return False
            live = self._state.live.in_segment(self._segments.oldest, _COPY_BYTES)
        try:
            frames = [
                (batch, whole(batch, [self._frame_at(place) for place in places]))
                for batch, places in live
            ]
        except OSError as error:
            if error.errno in NO_FILES:
                return False  # the next call tries again
            with self._state_lock:
                raise self._segments.failed("read", error) from error
        with self._state_lock:
            # What was acked, numbered or added to meanwhile is left for the next time.
            current = [
                frame
                for (batch, frame), before in zip(frames, live, strict=True)
                if self._state.live.find(batch.key) == before
            ]
            try:
                places = self._segments.write_round(current, reserve=None) if current else []
            except JournalFullError:
                return False
            for frame, place in zip(current, places, strict=True):
                self._state.apply(frame, place)
            return True

    def _find(self, key: Key) -> Live:
        with self._state_lock:
            batches = self._state.live
            if isinstance(key, WaitingKey):
                live = batches.find_by_first_event(key)
            else:
                live = batches.find(key)
        if live is None:
            raise KeyError(key)
        return live

    def _frame_at(self, place: Place) -> Frame:
        name = segment_name(place.segment)
        data = self._disk.read_part(name, place.offset, place.length)
        placed = decode_frame(data, 0, segment_seed(place.segment))
        if placed is None or placed.offset != place.offset:
            raise JournalCorruptError(
                name, place.offset, f"a frame of {place.length} bytes", "it was sound before"
            )
        return placed.frame

    def bytes_of(self, topics: Collection[str]) -> int:
        """Return how many bytes the batches of topics take that are still needed."""
        with self._state_lock:
            return sum(self._state.live.bytes_of(topic) for topic in topics)

    def statistics(self) -> JournalStatistics:
        with self._state_lock:
            return JournalStatistics(
                segments=self._segments.count,
                disk_bytes=self._segments.total_bytes,
                live_bytes=self._state.live_bytes,
                unacked_batches=self._state.unacked_count,
                waiting_batches=self._state.live.waiting_count,
                rounds=self._segments.rounds,
                syncs=self._syncs,
            )

    def close(self) -> None:
        """Sync what was written, if the disk still works, and unlock the directory."""
        try:
            with contextlib.suppress(JournalError):
                if self._segments.file is not None and self.sync():
                    self.reclaim()
        finally:
            with self._reclaim_lock, self._sync_lock, self._state_lock:
                if self._segments.file is not None:
                    self._segments.close()
                    self._disk.unlock()

    def _append_marks(self, frames: Sequence[Frame]) -> list[Place]:
        """Append marks, which free room: keep them in memory if they cannot be written now.

        Losing one only means that its batch is sent once more; it is sent before any batch that
        could displace it from the broker's memory, because the next round writes it, too.
        """
        self._owed.extend(frames)
        with contextlib.suppress(JournalFullError):
            self._segments.write_round(self._owed, reserve=True)
            self._owed.clear()
        return [Place(self._segments.newest, 0, 0)] * len(frames)  # marks need no place

    def _sync_file(self, file: DiskFile) -> None:
        try:
            file.sync()
        except OSError as error:
            with self._state_lock:
                raise self._segments.failed("sync", error) from error


@dataclasses.dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal holds and has done since it was opened."""

    segments: int
    disk_bytes: int
    live_bytes: int  # what is still needed of them
    unacked_batches: int  # batches that have numbers, and no ack mark
    waiting_batches: int
    rounds: int
    syncs: int


def replay(
    segments: Iterable[tuple[int, bytes]], *, newest: int, producer: str
) -> tuple[JournalState, TornTail | None, Sequence[int]]:
    """Return the state that segments hold, oldest first."""
    state = JournalState(producer)
    torn: TornTail | None = None
    lengths: list[int] = []
    expected: int | None = None
    for number, data in segments:
        name = segment_name(number)
        if expected is not None and number != expected:
            raise JournalCorruptError(
                segment_name(expected), 0, "the whole file is missing", f"{name} follows"
            )
        scan = scan_segment(data, number, newest=number == newest)
        if scan.damages:
            raise scan.damages[0].error(name)
        torn = scan.torn
        head = scan.frames[0].frame
        if not isinstance(head, Head):
            raise JournalCorruptError(name, 0, "the head frame is missing", "other frames follow")
        if head.producer != producer:
            raise JournalNameError(head.producer, producer)
        if lengths and head.previous_length != lengths[-1]:
            raise JournalCorruptError(
                segment_name(number - 1),
                lengths[-1],
                f"the file had {head.previous_length} bytes when {name} was begun",
                f"{name} follows",
            )
        for placed in scan.frames:
            place = Place(number, placed.at, placed.length)
            state.apply(placed.frame, place, part=placed.part)
        lengths.append(scan.length if torn is None else torn.offset)
        expected = number + 1
        del data, scan  # before the next is read
    return state, torn, lengths


def _gives_room(frames: Sequence[Frame]) -> bool:
    """Return whether a round is small, and lets batches be sent or forgotten."""
    giving = (Acks, Drop, Numbered, Renewal, Commit)
    return all(isinstance(frame, (*giving, SourcePosition)) for frame in frames) and any(
        isinstance(frame, giving) for frame in frames
    )
