"""Scans of segments: all sound frames of a segment, and what is wrong with the rest.

Three things can be wrong with a segment, and they must not be confused:

- A **torn tail**: the process or the machine died while a round was being written. The round was
  not synced, so nothing of it was sent; it is cut off. Only the newest segment can have one.
- **Damage**: bytes that had been on disk changed. Cutting there would drop good frames behind them,
  so reading stops with the place, what is lost and what follows.
- **Another format**: refused by name, its contents are not checked.

After a power cut a disk may hold a later page of an unsynced write and not an earlier one. So good
frames behind a bad one are no proof of damage by themselves. They are proof in two cases. One of
them says that the bad bytes had been synced. Or the bad bytes have no sector of zeros, which is
what a page never written reads as.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from sequitur.errors import JournalCorruptError, JournalVersionError
from sequitur.producer.journal.frames import (
    FORMAT_VERSION,
    PREAMBLE_LENGTH,
    PlacedFrame,
    decode_frame,
    decode_preamble,
    find_frame,
    segment_name,
    segment_seed,
    stated_frame,
    without_bytes,
)

_SECTOR_BYTES: Final = 512


def scan_segment(data: bytes, segment: int, *, newest: bool) -> Scan:
    """Read all frames of a segment."""
    preamble = decode_preamble(data)
    version = preamble[0] if preamble else None
    if version is not None and version != FORMAT_VERSION:
        raise JournalVersionError(segment_name(segment), version, FORMAT_VERSION)
    frames, gaps = _walk(data, segment)
    if preamble is None or preamble[1] != segment:
        gaps.insert(0, _Gap(0, min(PREAMBLE_LENGTH, len(data)), 0))
    torn = _torn_tail(data, segment, frames, gaps) if newest else None
    if torn is not None:
        kept = tuple(placed for placed in frames if placed.at < torn.offset)
        return Scan(segment, len(data), version, kept, (), torn)
    damages = [_damage(data, gap, frames, gaps) for gap in gaps]
    unfinished = _unfinished_round(frames)
    if not gaps and (unfinished is not None or not frames):
        start = len(data) if unfinished is None else unfinished
        damages.append(Damage(start, len(data) - start, "the end of a round is missing", 0, None))
    return Scan(segment, len(data), version, tuple(frames), tuple(damages), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """What a segment holds."""

    segment: int
    length: int  # bytes in the file
    version: int | None  # format version, None when the preamble is unreadable
    # good frames in file order, without those of a torn tail, and without the bytes of batches
    frames: tuple[PlacedFrame, ...]
    damages: tuple[Damage, ...]
    torn: TornTail | None


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be read though they had been written for good."""

    offset: int  # where they begin in the file
    length: int  # how many; 0 when frames are missing without a trace
    lost: str  # what they were, as far as it can be told
    frames_after: int  # how many good frames follow up to the next damage or the end
    resumes_at: int | None  # where these begin, None when there are none

    @property
    def follows(self) -> str:
        if self.resumes_at is None:
            return "no good frame follows in this segment"
        return f"{self.frames_after} good frame(s) follow from offset {self.resumes_at}"

    def error(self, name: str) -> JournalCorruptError:
        """Return the error that refuses to read on."""
        return JournalCorruptError(name, self.offset, self.lost, self.follows)


@dataclasses.dataclass(frozen=True, slots=True)
class TornTail:
    """An unfinished round at the end of the newest segment."""

    segment: int
    offset: int  # where the round begins: the file is cut here
    length: int
    frames: int  # good frames among them, of rounds that were never known to be on disk


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
    start: int
    end: int
    displaced: int


def _walk(data: bytes, segment: int) -> tuple[list[PlacedFrame], list[_Gap]]:
    """Return all good frames, and the stretches between them that hold none."""
    seed = segment_seed(segment)
    frames: list[PlacedFrame] = []
    gaps: list[_Gap] = []
    at = PREAMBLE_LENGTH
    displaced = 0
    while at < len(data):
        placed = decode_frame(data, at, seed)
        if placed is None or placed.offset + displaced != at:
            placed = find_frame(data, at, seed, at - displaced)
            if placed is None:
                gaps.append(_Gap(at, len(data), 0))
                break
            shift = placed.at - placed.offset
            gaps.append(_Gap(at, placed.at, shift - displaced))
            displaced = shift
        # The bytes of batches stay in the file: all together may be larger than memory.
        frames.append(placed._replace(frame=without_bytes(placed.frame)))
        at = placed.end
    return frames, gaps


def _torn_tail(
    data: bytes, segment: int, frames: list[PlacedFrame], gaps: list[_Gap]
) -> TornTail | None:
    """Return the unfinished round that may be cut off; None when all is well or it is damage."""
    unfinished = _unfinished_round(frames)
    bad = gaps[0].start if gaps else unfinished
    if bad is None:
        return None
    ends = [placed.end for placed in frames if placed.last_in_round and placed.end <= bad]
    if not ends:  # the first round was synced before the file got its name
        return None
    start = ends[-1]
    after = [placed for placed in frames if placed.at >= bad]  # at it: a whole round is gone
    if gaps and after:
        was_synced = any(placed.synced > start for placed in after)
        if was_synced or not _has_zero_sector(data, bad, gaps[0].end):
            return None
    dropped = sum(placed.at >= start for placed in frames)
    return TornTail(segment, start, len(data) - start, dropped)


def _unfinished_round(frames: list[PlacedFrame]) -> int | None:
    """Return where the last round begins if its end is missing."""
    if not frames or frames[-1].last_in_round:
        return None
    index = len(frames) - 1
    while index and not frames[index - 1].last_in_round:
        index -= 1
    return frames[index].at


def _has_zero_sector(data: bytes, start: int, end: int) -> bool:
    """Return whether a sector between `start` and `end` was never written."""
    while start < end:
        sector_end = start - start % _SECTOR_BYTES + _SECTOR_BYTES
        if sector_end <= end and not data[start:sector_end].strip(b"\0"):
            return True
        start = sector_end
    return False


def _damage(data: bytes, gap: _Gap, frames: list[PlacedFrame], gaps: list[_Gap]) -> Damage:
    following = min((other.start for other in gaps if other.start > gap.start), default=len(data))
    after = [placed for placed in frames if gap.end <= placed.at < following]
    if gap.start == 0:
        lost = f"the preamble ({gap.end} bytes)"
    else:
        lost = f"{gap.end - gap.start} bytes unreadable ({stated_frame(data, gap.start)})"
        if gap.displaced:
            moved = f"{abs(gap.displaced)} bytes {'inserted' if gap.displaced > 0 else 'missing'}"
            lost = f"{lost}, {moved}"
    resumes_at = after[0].at if after else None
    return Damage(gap.start, gap.end - gap.start, lost, len(after), resumes_at)
