"""The journal: a producer's durable memory, as segment files in a directory.

What a caller must keep to, so that a restart sends nothing twice and loses nothing:

1. A batch is sent only after `sync` returned for the round that holds it.
2. A batch that cannot be sent soon is appended without numbers (`Waiting`), and gets them by
   `Numbered` when it can. The ack marks of the batches before it are appended no later than in the
   same round. So few batches of a partition have numbers, and the broker remembers them.
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

from sequitur.producer.journal.codec import (
    PREAMBLE_LENGTH,
    decode_frame,
    encode_preamble,
    encode_round,
    segment_seed,
)
from sequitur.producer.journal.disk import Disk, DiskFile, RealDisk
from sequitur.producer.journal.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFailedError,
    JournalFullError,
)
from sequitur.producer.journal.frames import Acks, Commit, Drop, Frame, Numbered, Position, Renewal
from sequitur.producer.journal.limits import JournalLimits
from sequitur.producer.journal.replay import replay
from sequitur.producer.journal.scan import segment_name
from sequitur.producer.journal.state import JournalState, Key, Live, Place, Recovered, whole

_SUFFIX: Final = ".journal"
_UNNAMED: Final = "next.new"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Too many files are open, here or in the whole system: some will be closed."""
_COPY_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal holds and has done since it was opened.

    Attributes:
        segments: segment files.
        disk_bytes: their size.
        live_bytes: what is still needed of them.
        unacked_batches: batches that have numbers, and no ack mark.
        waiting_batches: batches that have no numbers yet.
        rounds: rounds appended.
        syncs: syncs done.
    """

    segments: int
    disk_bytes: int
    live_bytes: int
    unacked_batches: int
    waiting_batches: int
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
        self._head_length = 0
        self._no_space = False
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
            JournalVersionError: it is of another format.
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
        if state.is_parted:  # its end never came: nobody was told that it was accepted
            state.apply(Commit(whole=False), Place(newest, 0, 0))
            journal._owed.append(Commit(whole=False))
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

    @property
    def round_bytes(self) -> int:
        """How much one round may hold; give more in parts."""
        with self._state_lock:
            return self._limits_now().round_bytes

    @property
    def limit_bytes(self) -> int:
        """What the files may take now: the limit, or less on a disk with less room."""
        with self._state_lock:
            return self._limits_now().limit_bytes

    def append(self, frames: Sequence[Frame], *, part: bool = False) -> None:
        """Writes `frames` as one round, which a restart sees as a whole or not at all.

        Not durable before `sync`. Rounds of nothing but marks and drops never fail for want of
        room: what does not fit is kept in memory and goes out with the next round.

        Args:
            frames: what to write.
            part: they are a part of a longer round, which counts once a `Commit` follows in a
                round that is none.

        Raises:
            JournalFullError: no room; nothing was written.
            JournalFailedError: the disk failed, now or before.
            ValueError: a frame contradicts what the journal holds; nothing was written.
        """
        if not frames:
            return
        with self._state_lock:
            self._check_usable()
            if part:
                if self._owed:  # one that was not ended is, before another begins
                    self._write_round(self._owed, reserve=True)
                    self._owed.clear()
                places = self._write_round(frames, reserve=False, part=True)
            else:
                self._state.check(frames)
                if all(isinstance(frame, Acks | Drop) for frame in frames):
                    places = self._append_marks(frames)
                else:
                    owed = len(self._owed)
                    places = self._write_round([*self._owed, *frames], reserve=_gives_room(frames))[
                        owed:
                    ]
                    self._owed.clear()
            for frame, place in zip(frames, places, strict=True):
                self._state.apply(frame, place, part=part)

    def read(self, key: Key) -> bytes:
        """The exact bytes of a batch under the name that the journal has for it now.

        Raises:
            KeyError: the journal does not hold it, or under another name.
            JournalBusyError: too many files are open; try later.
            JournalCorruptError: what was written cannot be read back.
            JournalFailedError: the disk failed.
        """
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
                passes = error.errno in _NO_FILES
                kind = JournalBusyError if passes else JournalFailedError
                raise kind(f"could not read in {self._disk.place}: {error}") from error
            return data

    def sync(self) -> bool:
        """Returns once every round appended before the call survives a power cut.

        Also begins a new segment when the current one is full.

        Returns:
            Whether there is something to do for `reclaim`.

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
                self._needed = self._segment if needed is None else min(needed, self._segment)
                return min(self._sizes) < self._needed or self._copy_due()

    def reclaim(self) -> None:
        """Removes the segments that the last `sync` found to be needed no more, oldest first.

        Before that it copies what little is needed of the oldest ones into the newest, a piece at
        a time, and syncs it.

        A call of its own because removing a large file takes long, and no event waits for it: run
        it in another thread, beside the next syncs. One directory sync for each: two removals that
        reach the disk in the other order would look like a segment lost from the middle.

        Raises:
            JournalFailedError: the disk failed, now or before.
        """
        with self._reclaim_lock:
            self._remove_unneeded()
            while self._copy_a_piece():
                self.sync()
                self._remove_unneeded()

    def _remove_unneeded(self) -> None:
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
                self._no_space = False

    def _copy_due(self) -> bool:
        """Whether to copy what is needed of the oldest segment, so that it can go."""
        oldest = min(self._sizes)
        if oldest == self._segment or not self._state.live_bytes_in(oldest):
            return False
        limits = self._limits_now()
        few = limits.few(self._state.live_bytes_in(oldest))
        crowded = limits.crowded(self._state.live_bytes, sum(self._sizes.values()))
        return few or crowded or self._no_space

    def _copy_a_piece(self) -> bool:
        """Copies a piece of what is needed of the oldest segment; False if nothing was."""
        with self._state_lock:
            self._check_usable()
            if not self._copy_due():
                return False
            live = self._state.live_in(min(self._sizes), _COPY_BYTES)
        try:
            frames = [
                (batch, whole(batch, [self._frame_at(place) for place in places]))
                for batch, places in live
            ]
        except OSError as error:
            if error.errno in _NO_FILES:
                return False  # the next call tries again
            with self._state_lock:
                raise self._failed("read", error) from error
        with self._state_lock:
            # What was acked, numbered or added to meanwhile is left for the next time.
            current = [
                frame
                for (batch, frame), before in zip(frames, live, strict=True)
                if self._state.find(batch.key) == before
            ]
            try:
                places = self._write_round(current, reserve=None) if current else []
            except JournalFullError:
                return False
            for frame, place in zip(current, places, strict=True):
                self._state.apply(frame, place)
            return True

    def _find(self, key: Key) -> Live:
        with self._state_lock:
            live = self._state.find(key)
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

    def statistics(self) -> JournalStatistics:
        """What the journal holds and has done."""
        with self._state_lock:
            return JournalStatistics(
                segments=len(self._sizes),
                disk_bytes=sum(self._sizes.values()),
                live_bytes=self._state.live_bytes,
                unacked_batches=self._state.unacked_count,
                waiting_batches=self._state.waiting_count,
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

    def _append_marks(self, frames: Sequence[Frame]) -> list[Place]:
        """Marks free room, so they are taken in also where they cannot be written now.

        Losing one only means that its batch is sent once more; it is sent before any batch that
        could push it out of the broker's memory, because the next round takes it along.
        """
        self._owed.extend(frames)
        with contextlib.suppress(JournalFullError):
            self._write_round(self._owed, reserve=True)
            self._owed.clear()
        return [Place(self._segment, 0, 0)] * len(frames)  # marks are of no place

    def _write_round(
        self, frames: Sequence[Frame], *, reserve: bool | None, part: bool = False
    ) -> list[Place]:
        """Appends, and says where; `reserve` as in `room_bytes`, None to the last byte."""
        assert self._file is not None
        start = end = self._sizes[self._segment]
        buffers, lengths = encode_round(
            frames, seed=self._seed, offset=end, synced=self._synced, part=part
        )
        length = sum(lengths)
        if length > self._room_bytes(reserve=reserve):
            raise JournalFullError(self._why_full(length))
        try:
            self._file.append(buffers)
        except OSError as error:
            self._undo_append(end, error)
        self._sizes[self._segment] = end + length
        self._rounds += 1
        places = []
        for frame_length in lengths:
            places.append(Place(self._segment, start, frame_length))
            start += frame_length
        return places

    def _why_full(self, length: int) -> str:
        total, limit = sum(self._sizes.values()), self._limits_now().limit_bytes
        if limit < self._limits.limit_bytes:
            return (
                f"no space left on the disk of {self._disk.place}: the journal has {total} bytes "
                f"there and {limit - total} are free, too few for {length} more beside a reserve"
            )
        return (
            f"the journal in {self._disk.place} holds {total} of {limit} bytes: no room for "
            f"{length} more until Kafka acknowledges what is in it"
        )

    def _limits_now(self) -> JournalLimits:
        return self._limits.on_disk(sum(self._sizes.values()), self._disk.free_bytes())

    def _room_bytes(self, *, reserve: bool | None) -> int:
        limits, total = self._limits_now(), sum(self._sizes.values())
        if reserve is None:
            return limits.limit_bytes - total
        return limits.room_bytes(total, self._sizes[self._segment], reserve=reserve)

    def _undo_append(self, end: int, error: OSError) -> None:
        """Takes back a round that was written in part, or gives up."""
        assert self._file is not None
        try:
            self._file.truncate(end)
        except OSError as worse:
            raise self._failed("cut a round written in part", worse) from worse
        if error.errno not in _NO_SPACE:
            raise self._failed("write", error) from error
        self._no_space = True
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
        """Whether the current segment is full, or would give room back if it were an old one."""
        limits = self._limits_now()
        if end >= limits.segment_bytes:
            return True
        idle = end - self._state.live_bytes_in(self._segment) - self._head_length
        if self._no_space or self._room_bytes(reserve=False) <= 0:
            return idle > 2 * self._head_length
        crowded = limits.crowded(self._state.live_bytes, sum(self._sizes.values()))
        return crowded and idle > limits.segment_bytes // 2

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
        head = self._state.head(self._sizes.get(self._segment, 0))
        encoded = encode_round([head], seed=segment_seed(segment), offset=PREAMBLE_LENGTH, synced=0)
        buffers = [encode_preamble(segment), *encoded.buffers]
        length = sum(map(len, buffers))
        if total + length > self._limits_now().limit_bytes:
            raise JournalFullError(f"no room for a segment head of {length} bytes")
        file = None
        try:
            file = self._disk.open(_UNNAMED)
            file.append(buffers)
            file.sync()
        except OSError as error:
            if file is not None:
                file.close()
                with contextlib.suppress(OSError):
                    self._disk.unlink(_UNNAMED)
            if error.errno in _NO_SPACE | _NO_FILES:
                raise JournalFullError(
                    f"no room for another segment in {self._disk.place}: {error.strerror}"
                ) from error
            raise self._failed("begin a segment", error) from error
        try:
            self._disk.rename(_UNNAMED, segment_name(segment))
            self._disk.sync_directory()
        except OSError as error:
            raise self._failed("begin a segment", error) from error
        self._sizes[segment] = length
        self._head_length = length
        self._use(segment, file)

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


def _gives_room(frames: Sequence[Frame]) -> bool:
    """Whether a round is small, and lets batches go out or go away."""
    giving = (Acks, Drop, Numbered, Renewal, Commit)
    return all(isinstance(frame, (*giving, Position)) for frame in frames) and any(
        isinstance(frame, giving) for frame in frames
    )


def segment_numbers(names: Sequence[str]) -> list[int]:
    """The segments among file names, oldest first."""
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())
