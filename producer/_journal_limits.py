"""How large a journal may grow, and who may use the last of it."""

import dataclasses
from typing import Final, Self

MIN_SEGMENT_BYTES: Final = 4 * 1024
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
# Frames note their place in 32 bits; far below that a segment takes too long to read.
MAX_SEGMENT_BYTES: Final = 1024 * 1024 * 1024
_SEGMENTS_PER_LIMIT: Final = 4
_RESERVE_SHARE: Final = 16
_SNAPSHOT_SHARE: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class JournalLimits:
    """The sizes of a journal.

    Segments are small because a disk may take long to free one (measured: 2 ms a MiB on ext4 with
    online discard), and syncs wait meanwhile.

    Attributes:
        segment_bytes: a segment that has grown to this is followed by a new one at the next sync.
        limit_bytes: all files together never grow beyond this; at least 4 segments.

    Raises:
        ValueError: the sizes are out of range or do not fit each other.
    """

    segment_bytes: int = _SEGMENT_BYTES
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
        """The sizes that go with a limit of at least 16 KiB."""
        segment_bytes = min(_SEGMENT_BYTES, limit_bytes // _SEGMENTS_PER_LIMIT)
        return cls(segment_bytes=segment_bytes, limit_bytes=limit_bytes)

    @property
    def round_bytes(self) -> int:
        """The largest round that fits once everything else is acked."""
        return self.limit_bytes // 2

    def takes_over(self, live: int, total: int) -> bool:
        """Whether a new segment repeats what is live, so that all older ones can go.

        Otherwise one slow partition would keep the segments of all the others. Usually little
        enough is live to be written within milliseconds. With half of the limit in use more is
        worth it: it costs at most a quarter of what it gives back.
        """
        return live <= self.segment_bytes // _SNAPSHOT_SHARE or self.crowded(live, total)

    def crowded(self, live: int, total: int) -> bool:
        """Whether a new segment is worth it before the current one is full."""
        return (
            total > self.limit_bytes // 2
            and live <= self.limit_bytes // _SNAPSHOT_SHARE
            and live + total <= self.limit_bytes
        )

    def room_bytes(self, total: int, in_segment: int, *, reserve: bool) -> int:
        """How long a round may be.

        Marks and renewals may go on when batches and events may not, into half of a reserve. The
        other half is for the head of the next segment: without it a full journal could never
        give room back.
        """
        share = self.limit_bytes // _RESERVE_SHARE
        kept = share // 2 if reserve else share
        return min(self.limit_bytes - kept - total, MAX_SEGMENT_BYTES - in_segment)
