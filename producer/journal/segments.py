"""The segment files of a journal: writing and rotating them, and how large they may grow.

A segment that has its name has its head. Only the newest one is written to, and only it can have a
torn tail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from typing import TYPE_CHECKING, Final, Self

from sequitur.errors import JournalError, JournalFailedError, JournalFullError
from sequitur.producer.journal.frames import (
    PREAMBLE_LENGTH,
    Frame,
    encode_preamble,
    encode_round,
    segment_name,
    segment_seed,
)
from sequitur.producer.journal.live import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.producer.journal.disk import Disk, DiskFile
    from sequitur.producer.journal.state import JournalState

MIN_SEGMENT_BYTES: Final = 4 * 1024
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
# Frames note their place in 32 bits; far below that a segment takes too long to read.
MAX_SEGMENT_BYTES: Final = 1024 * 1024 * 1024
_SEGMENTS_PER_LIMIT: Final = 4
_SMALL_SEGMENTS: Final = 32
_RESERVE_SHARE: Final = 8
_ROUNDS_PER_LIMIT: Final = 8
_ROUND_BYTES: Final = 16 * 1024 * 1024
_FEW_SHARE: Final = 8
UNNAMED: Final = "next.new"
"""A segment that is being begun: nothing of it counts yet."""
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Too many files are open, here or in the whole system: some will be closed."""
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Segments:
    """The segment files, by their numbers; used with the journal's state lock held.

    After a failure of the disk nothing more is written.
    """

    def __init__(
        self, disk: Disk, state: JournalState, limits: JournalLimits, sizes: dict[int, int]
    ) -> None:
        self.file: DiskFile | None = None
        self.newest = 0
        self.synced = 0
        self.rounds = 0
        self._disk = disk
        self._state = state
        self._limits = limits
        self._sizes = sizes
        self._seed = 0
        self._head_length = 0
        self._no_space = False
        self._failure: str | None = None

    @property
    def count(self) -> int:
        return len(self._sizes)

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def newest_bytes(self) -> int:
        return self._sizes[self.newest]

    @property
    def oldest(self) -> int:
        return min(self._sizes)

    def older_than(self, segment: int) -> list[int]:
        """Return the numbers below `segment`, oldest first."""
        return sorted(number for number in self._sizes if number < segment)

    def note_synced(self, end: int) -> None:
        """Remember that the newest one is on disk up to `end`."""
        self.synced = max(self.synced, end)

    def removed(self, segment: int) -> None:
        del self._sizes[segment]
        self._no_space = False

    def use(self, segment: int, file: DiskFile) -> None:
        """Write to a segment from now on, which is synced to its end."""
        self.newest = segment
        self._seed = segment_seed(segment)
        self.file = file
        self.synced = self._sizes[segment]

    def close(self) -> None:
        """Close the newest one, for good. What counts of it was synced before."""
        file, self.file = self.file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def limits(self) -> JournalLimits:
        """Return what the files may take now: less than the settings on a disk with less room."""
        try:
            free = self._disk.free_bytes()
        except OSError as error:
            raise self.failed("ask how much room is left", error) from error
        return self._limits.on_disk(self.total_bytes, free)

    def room_bytes(self, *, reserve: bool | None) -> int:
        """Return how long a round may be; `reserve` as in `JournalLimits`, None for all."""
        limits, total = self.limits(), self.total_bytes
        if reserve is None:
            return limits.limit_bytes - total
        return limits.room_bytes(total, self.newest_bytes, reserve=reserve)

    def write_round(
        self, frames: Sequence[Frame], *, reserve: bool | None, part: bool = False
    ) -> list[Place]:
        """Append a round to the newest segment; return where each frame is."""
        assert self.file is not None
        start = end = self.newest_bytes
        buffers, lengths = encode_round(
            frames, seed=self._seed, offset=end, synced=self.synced, part=part
        )
        length = sum(lengths)
        if length > self.room_bytes(reserve=reserve):
            raise JournalFullError(self._why_full(length))
        try:
            self.file.append(buffers)
        except OSError as error:
            self._undo_append(end, error)
        self._sizes[self.newest] = end + length
        self.rounds += 1
        places = []
        for frame_length in lengths:
            places.append(Place(self.newest, start, frame_length))
            start += frame_length
        return places

    def _why_full(self, length: int) -> str:
        total, limit = self.total_bytes, self.limits().limit_bytes
        if limit < self._limits.limit_bytes:
            return (
                f"no space left on the disk of {self._disk.place}: the journal has {total} bytes "
                f"there and {limit - total} are free, too few for {length} more beside a reserve"
            )
        return (
            f"the journal in {self._disk.place} holds {total} of {limit} bytes: no room for "
            f"{length} more until Kafka acknowledges what is in it"
        )

    def _undo_append(self, end: int, error: OSError) -> None:
        """Take back a round that was written in part, or give up."""
        assert self.file is not None
        try:
            self.file.truncate(end)
        except OSError as worse:
            raise self.failed("cut a round written in part", worse) from worse
        if error.errno not in _NO_SPACE:
            raise self.failed("write", error) from error
        self._no_space = True
        raise JournalFullError(
            f"no space left on the disk of {self._disk.place}: {error.strerror}"
        ) from error

    def copy_due(self) -> bool:
        """Return whether to copy what is needed of the oldest segment, so that it can go."""
        oldest = self.oldest
        if oldest == self.newest or not self._state.live.bytes_in(oldest):
            return False
        limits = self.limits()
        few = limits.few(self._state.live.bytes_in(oldest))
        crowded = limits.crowded(self._state.live_bytes, self.total_bytes)
        return few or crowded or self._no_space

    def rotation_due(self, end: int) -> bool:
        """Return whether the newest segment is full, or would free room if it were an old one."""
        limits = self.limits()
        if end >= limits.segment_bytes:
            return True
        idle = end - self._state.live.bytes_in(self.newest) - self._head_length
        if self._no_space or self.room_bytes(reserve=False) <= 0:
            return idle > 2 * self._head_length
        crowded = limits.crowded(self._state.live_bytes, self.total_bytes)
        return crowded and idle > limits.segment_bytes // 2

    def rotate(self) -> bool:
        """Begin the next segment; False when there is no room for it now.

        The old one is synced to its end before the new one is there. So this is called with the
        journal's sync lock held, too.
        """
        assert self.file is not None
        if self.newest_bytes > self.synced:
            try:
                self.file.sync()
            except OSError as error:
                raise self.failed("sync", error) from error
        try:
            self.begin(self.newest + 1)
        except JournalFullError:
            return False
        return True

    def begin(self, segment: int) -> None:
        """Begin a segment: write its head under another name, sync it, then rename it."""
        total = self.total_bytes
        head = self._state.head(self._sizes.get(self.newest, 0))
        encoded = encode_round([head], seed=segment_seed(segment), offset=PREAMBLE_LENGTH, synced=0)
        buffers = [encode_preamble(segment), *encoded.buffers]
        length = sum(map(len, buffers))
        if total + length > self.limits().limit_bytes:
            raise JournalFullError(f"no room for a segment head of {length} bytes")
        file = None
        try:
            file = self._disk.open(UNNAMED)
            file.append(buffers)
            file.sync()
        except OSError as error:
            if file is not None:
                file.close()
                with contextlib.suppress(OSError):
                    self._disk.unlink(UNNAMED)
            if error.errno in _NO_SPACE | NO_FILES:
                raise JournalFullError(
                    f"no room for another segment in {self._disk.place}: {error.strerror}"
                ) from error
            raise self.failed("begin a segment", error) from error
        try:
            self._disk.rename(UNNAMED, segment_name(segment))
            self._disk.sync_directory()
        except OSError as error:
            raise self.failed("begin a segment", error) from error
        self._sizes[segment] = length
        self._head_length = length
        self.use(segment, file)

    def check_usable(self) -> None:
        """Refuse to go on after a failure, or after `close`."""
        if self.file is None:
            raise JournalError(f"the journal in {self._disk.place} is closed")
        if self._failure is not None:
            raise JournalFailedError(self._failure)

    def failed(self, action: str, error: OSError) -> JournalFailedError:
        """Remember the failure, which every later call raises, too."""
        self._failure = f"could not {action} in {self._disk.place}: {error}"
        return JournalFailedError(self._failure)


@dataclasses.dataclass(frozen=True, slots=True)
class JournalLimits:
    """The sizes of a journal.

    Segments are small because a disk may take long to free one (measured: 2 ms a MiB on ext4 with
    online discard), and syncs wait meanwhile.
    """

    # a segment that has grown to this is followed by a new one at the next sync
    segment_bytes: int = _SEGMENT_BYTES
    # all files together never grow beyond this; at least 4 segments
    limit_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        if not MIN_SEGMENT_BYTES <= self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}, expected {MIN_SEGMENT_BYTES} to "
                f"{MAX_SEGMENT_BYTES}"
            )
        if self.limit_bytes < _SEGMENTS_PER_LIMIT * self.segment_bytes:
            raise ValueError(
                f"limit_bytes is {self.limit_bytes}, expected at least {_SEGMENTS_PER_LIMIT} "
                f"times segment_bytes ({self.segment_bytes})"
            )

    @classmethod
    def within(cls, limit_bytes: int) -> Self:
        """Return the sizes that go with a limit of at least 16 KiB."""
        segment_bytes = max(min(_SEGMENT_BYTES, limit_bytes // _SMALL_SEGMENTS), MIN_SEGMENT_BYTES)
        return cls(segment_bytes=segment_bytes, limit_bytes=limit_bytes)

    def on_disk(self, total: int, free: int) -> Self:
        """Return the sizes while the files take `total` bytes and the disk has `free` more.

        A disk that is smaller than the limit, or is filled by others, is a smaller limit.
        """
        limit = min(self.limit_bytes, max(total + free, _SEGMENTS_PER_LIMIT * MIN_SEGMENT_BYTES))
        if limit == self.limit_bytes:
            return self
        segment = min(self.segment_bytes, max(limit // _SMALL_SEGMENTS, MIN_SEGMENT_BYTES))
        return dataclasses.replace(self, segment_bytes=segment, limit_bytes=limit)

    def few(self, live: int) -> bool:
        """Return whether so little of a segment is needed that it is copied without another reason.

        Otherwise one slow partition would keep the segments of all the others.
        """
        return live <= self.segment_bytes // _FEW_SHARE

    @property
    def round_bytes(self) -> int:
        """The largest round to be appended at once: longer ones are appended in parts."""
        return min(self.limit_bytes // _ROUNDS_PER_LIMIT, _ROUND_BYTES)

    def crowded(self, live: int, total: int) -> bool:
        """Return whether copying what is needed of old segments frees more than it takes."""
        return total > self.limit_bytes // 2 and live * 4 <= total * 3

    def room_bytes(self, total: int, in_segment: int, *, reserve: bool) -> int:
        """Return how long a round may be.

        Marks, numbers and renewals may go on when batches and events may not, into half of a
        reserve. The other half is for the heads of segments, and for what is copied out of old
        ones: without it a full journal could never free room.
        """
        share = self.limit_bytes // _RESERVE_SHARE
        kept = share // 2 if reserve else share
        return min(self.limit_bytes - kept - total, MAX_SEGMENT_BYTES - in_segment)
