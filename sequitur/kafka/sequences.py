"""Sequence numbers of records, on the circle from 0 to 2^31 - 1."""

from __future__ import annotations

from typing import Final

MAX_SEQUENCE: Final = 2**31 - 1


def following(sequence: int, count: int) -> int:
    """Return the sequence `count` after `sequence`; 0 follows 2^31 - 1."""
    return (sequence + count) & MAX_SEQUENCE


def reaches(last: int, sequence: int) -> bool:
    """Return whether `sequence` is `last` or before it, by the shorter way round."""
    return (last - sequence) & MAX_SEQUENCE < MAX_SEQUENCE // 2
