"""How large a journal may grow, and what may use the reserve."""

import dataclasses
from typing import Final, Self

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
        """The largest round to be appended at once: longer ones are given in parts."""
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
