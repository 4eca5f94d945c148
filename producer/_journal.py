"""The journal: a producer's durable memory, as segment files in a directory.

What a caller must keep to, so that a restart sends nothing twice and loses nothing:

1. A batch is sent only after `sync` returned for the round that holds it.
2. A batch is appended only when its partition's window has room (at most 5 un-acked), and the ack
   marks of the batches before it are appended no later than in the same round. Then the broker
   still remembers every batch a restart may send again.
3. A refused batch takes its sequence with it: the mark and the `Renewal` (or the batch that takes
   over its sequence) go into one round.

`append` and the marks are for the event loop: they encode and write to the page cache. `sync` is
for an executor thread: it waits for the disk, begins a new segment when the current one is full
and removes those that are needed no more. Both may run at the same time.
"""

import contextlib
import dataclasses
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from producer._journal_codec import (
    PREAMBLE_LENGTH,
    Acks,
    Drop,
    Frame,
    Renewal,
    encode_preamble,
    encode_round,
    round_length,
    segment_seed,
)
from producer._journal_disk import Disk, DiskFile, RealDisk
from producer._journal_errors import JournalError, JournalFailedError, JournalFullError
from producer._journal_limits import MIN_SEGMENT_BYTES, JournalLimits
from producer._journal_scan import segment_name
from producer._journal_state import JournalState, Recovered, replay

_SUFFIX: Final = ".journal"
_UNNAMED: Final = "next.new"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclasses.dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal holds and has done since it was opened.

    Attributes:
        segments: segment files.
        disk_bytes: their size.
        live_bytes: un-acked batches and spooled events among them.
        unacked_batches: batches without an ack mark.
        spooled_events: accepted events in no batch.
        rounds: rounds appended.
        syncs: syncs done.
    """

    segments: int
    disk_bytes: int
    live_bytes: int
    unacked_batches: int
    spooled_events: int
    rounds: int
    syncs: int


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
        limits: JournalLimits,
        sizes: dict[int, int],
    ) -> None:
        self.recovered = recovered
        self._disk = disk
        self._state = state
        self._limits = limits
        self._state_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._reclaim_lock = threading.Lock()
        self._sizes = sizes
        self._segment = 0
        self._seed = 0
        self._file: DiskFile | None = None
        self._synced = 0
        self._needed = 0
        self._owed: list[Frame] = []
        self._failure: str | None = None
        self._rounds = 0
        self._syncs = 0

    @classmethod
    def open(cls, directory: Path, *, producer: str, limits: JournalLimits | None = None) -> Self:
        """Takes over the journal in `directory`, or begins one; `recovered` says what it held.

        Raises:
            JournalLockedError: another process holds it.
            JournalCorruptError: it is damaged; `sequitur journal verify` tells all.
            JournalNameError: it belongs to another producer.
            JournalVersionError: it is of a newer format.
            JournalFullError: there is no space left to begin one.
            JournalFailedError: the directory cannot be read or written.
        """
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
        if _UNNAMED in disk.names():  # a segment that was being begun: nothing is in it yet
            disk.unlink(_UNNAMED)
        segments = segment_numbers(disk.names())
        newest = segments[-1] if segments else 0
        state, torn, lengths = replay(
            ((number, disk.read(segment_name(number))) for number in segments),
            newest=newest,
            producer=producer,
        )
        recovered = state.recovered(torn, fresh=not segments)
        sizes = dict(zip(segments, lengths, strict=True))
        journal = cls(disk, state, recovered, limits, sizes)
        if not segments:
            journal._begin_segment(1)
            return journal
        file = disk.open(segment_name(newest))
        if torn is not None:
            file.truncate(torn.offset)
        # What a killed process left in the page cache is about to be acted on: make it last.
        file.sync()
        journal._use(newest, file)
        # A new segment, so that no place in any segment is ever written twice: a frame found in
        # a place can then only be the one that was written there.
        if journal._rotate():
            file.close()
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has_room(self, data_bytes: int) -> bool:
        """Whether a round with `data_bytes` of batches or events would fit now."""
        with self._state_lock:
            room = self._room_bytes(reserve=False)
        return data_bytes + data_bytes // 8 + MIN_SEGMENT_BYTES <= room

    def append(self, frames: Sequence[Frame]) -> None:
        """Writes `frames` as one round, which a restart sees as a whole or not at all.

        Not durable before `sync`. Rounds of nothing but marks and drops never fail for want of
        room: what does not fit is kept in memory and goes out with the next round.

        Raises:
            JournalFullError: no room; nothing was written.
            JournalFailedError: the disk failed, now or before.
            ValueError: a frame contradicts what the journal holds; nothing was written.
        """
        if not frames:
            return
        with self._state_lock:
            self._check_usable()
            self._state.check(frames)
            if all(isinstance(frame, Acks | Drop) for frame in frames):
                self._append_marks(frames)
            else:
                reserve = any(isinstance(frame, Renewal) for frame in frames)
                self._write_round([*self._owed, *frames], reserve=reserve)
                self._owed.clear()
            for frame in frames:
                self._state.apply(frame, self._segment)

    def sync(self) -> bool:
        """Returns once every round appended before the call survives a power cut.

        Also begins a new segment when the current one is full.

        Returns:
            Whether there are segments for `reclaim` to remove.

        Raises:
            JournalFailedError: the disk failed, now or before. What was not synced may be lost,
                and nothing more can be promised until the journal is opened anew.
        """
        with self._sync_lock:
            with self._state_lock:
                self._check_usable()
                file, end = self._file, self._sizes[self._segment]
                # Marks and batches behind `end` may be lost in a crash, so what they free is
                # decided by what is in front of it.
                needed = self._state.oldest_live_segment()
                due = end > self._synced
            assert file is not None
            if due:
                self._sync_file(file)
            with self._state_lock:
                self._synced = max(self._synced, end)
                self._syncs += due
                if self._rotation_due(end) and self._rotate():
                    needed = self._state.oldest_live_segment()
                    file.close()
                self._needed = self._segment if needed is None else needed
                return min(self._sizes) < self._needed

    def reclaim(self) -> None:
        """Removes the segments that the last `sync` found to be needed no more, oldest first.

        A call of its own because removing a large file takes long, and no event waits for it: run
        it in another thread, beside the next syncs. One directory sync for each: two removals that
        reach the disk in the other order would look like a segment lost from the middle.

        Raises:
            JournalFailedError: the disk failed, now or before.
        """
        with self._reclaim_lock:
            with self._state_lock:
                self._check_usable()
                removable = sorted(segment for segment in self._sizes if segment < self._needed)
            for segment in removable:
                try:
                    self._disk.unlink(segment_name(segment))
                    self._disk.sync_directory()
                except OSError as error:
                    with self._state_lock:
                        raise self._failed("remove a segment", error) from error
                with self._state_lock:
                    del self._sizes[segment]

    def statistics(self) -> JournalStatistics:
        """What the journal holds and has done."""
        with self._state_lock:
            return JournalStatistics(
                segments=len(self._sizes),
                disk_bytes=sum(self._sizes.values()),
                live_bytes=self._state.live_bytes,
                unacked_batches=self._state.unacked_count,
                spooled_events=self._state.spooled_count,
                rounds=self._rounds,
                syncs=self._syncs,
            )

    def close(self) -> None:
        """Syncs what there is, if the disk still does, and lets the directory go."""
        with contextlib.suppress(JournalError):
            if self._file is not None and self.sync():
                self.reclaim()
        with self._reclaim_lock, self._sync_lock, self._state_lock:
            if self._file is not None:
                self._file.close()
                self._file = None
                self._disk.unlock()

    def _append_marks(self, frames: Sequence[Frame]) -> None:
        """Marks free room, so they are taken in also where they cannot be written now.

        Losing one only means that its batch is sent once more; it is sent before any batch that
        could push it out of the broker's memory, because the next round takes it along.
        """
        self._owed.extend(frames)
        with contextlib.suppress(JournalFullError):
            self._write_round(self._owed, reserve=True)
            self._owed.clear()

    def _write_round(self, frames: Sequence[Frame], *, reserve: bool) -> None:
        assert self._file is not None
        end = self._sizes[self._segment]
        buffers = encode_round(frames, seed=self._seed, offset=end, synced=self._synced)
        length = round_length(buffers)
        if length > self._limits.round_bytes:
            raise JournalError(
                f"a round of {length} bytes is too long: "
                f"at most half of limit_bytes ({self._limits.limit_bytes})"
            )
        if length > self._room_bytes(reserve=reserve):
            raise JournalFullError(
                f"the journal in {self._disk.place} holds {sum(self._sizes.values())} of "
                f"{self._limits.limit_bytes} bytes: no room for {length} more until Kafka "
                f"acknowledges what is in it"
            )
        try:
            self._file.append(buffers)
        except OSError as error:
            self._undo_append(end, error)
        self._sizes[self._segment] = end + length
        self._rounds += 1

    def _room_bytes(self, *, reserve: bool) -> int:
        total = sum(self._sizes.values())
        return self._limits.room_bytes(total, self._sizes[self._segment], reserve=reserve)

    def _undo_append(self, end: int, error: OSError) -> None:
        """Takes back a round that was written in part, or gives up."""
        assert self._file is not None
        try:
            self._file.truncate(end)
        except OSError as worse:
            raise self._failed("cut a round written in part", worse) from worse
        if error.errno not in _NO_SPACE:
            raise self._failed("write", error) from error
        raise JournalFullError(
            f"no space left on the disk of {self._disk.place}: {error.strerror}"
        ) from error

    def _sync_file(self, file: DiskFile) -> None:
        try:
            file.sync()
        except OSError as error:
            with self._state_lock:
                raise self._failed("sync", error) from error

    def _rotation_due(self, end: int) -> bool:
        live, total = self._state.live_bytes, sum(self._sizes.values())
        older = len(self._sizes) > 1
        return end >= self._limits.segment_bytes or (older and self._limits.crowded(live, total))

    def _rotate(self) -> bool:
        """Begins the next segment; False when there is no room for it now.

        Under both locks, so that the old segment is synced to its end before the new one is
        there: only the newest segment can ever have a torn tail.
        """
        assert self._file is not None
        if self._sizes[self._segment] > self._synced:
            try:
                self._file.sync()
            except OSError as error:
                raise self._failed("sync", error) from error
        try:
            self._begin_segment(self._segment + 1)
        except JournalFullError:
            return False
        return True

    def _begin_segment(self, segment: int) -> None:
        """Writes a segment's head under another name, syncs it, then names it.

        So a segment that has its name has its head, whatever happens in between.
        """
        total = sum(self._sizes.values())
        complete = self._limits.takes_over(self._state.live_bytes, total)
        frames = self._state.snapshot(self._sizes.get(self._segment, 0), complete=complete)
        seed = segment_seed(segment)
        buffers = [
            encode_preamble(segment),
            *encode_round(frames, seed=seed, offset=PREAMBLE_LENGTH, synced=0),
        ]
        length = round_length(buffers)
        if total + length > self._limits.limit_bytes:
            raise JournalFullError(f"no room for a segment head of {length} bytes")
        file = self._disk.open(_UNNAMED)
        try:
            file.append(buffers)
            file.sync()
        except OSError as error:
            file.close()
            with contextlib.suppress(OSError):
                self._disk.unlink(_UNNAMED)
            if error.errno in _NO_SPACE:
                raise JournalFullError(
                    f"no space left on the disk of {self._disk.place}: {error.strerror}"
                ) from error
            raise self._failed("begin a segment", error) from error
        try:
            self._disk.rename(_UNNAMED, segment_name(segment))
            self._disk.sync_directory()
        except OSError as error:
            raise self._failed("begin a segment", error) from error
        self._sizes[segment] = length
        self._use(segment, file)
        if complete:
            self._state.moved(segment)

    def _use(self, segment: int, file: DiskFile) -> None:
        """Makes a segment that is synced to its end the one that is written to."""
        self._segment = segment
        self._seed = segment_seed(segment)
        self._file = file
        self._synced = self._sizes[segment]

    def _check_usable(self) -> None:
        if self._file is None:
            raise JournalError(f"the journal in {self._disk.place} is closed")
        if self._failure is not None:
            raise JournalFailedError(self._failure)

    def _failed(self, action: str, error: OSError) -> JournalFailedError:
        """Remembers the failure: every later call raises it too."""
        self._failure = f"could not {action} in {self._disk.place}: {error}"
        return JournalFailedError(self._failure)


def segment_numbers(names: Sequence[str]) -> list[int]:
    """The segments among file names, oldest first."""
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())
