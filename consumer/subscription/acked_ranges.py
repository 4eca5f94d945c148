"""Ranges of offsets in order, in blocks of 64-bit integers.

A block is two arrays, of the first offsets and of the stops of up to `BLOCK_RANGES` ranges. A
search looks through the blocks' first offsets, then through one block; an insertion moves the
rest of that block, at most 16 KiB. So a range costs 16 bytes and what the arrays keep in reserve,
whatever offsets lie between, and an insertion O(log n).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Offsets = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_RANGES: Final = 1024
"""A block with more is divided in two."""
_SMALL_BLOCK: Final = BLOCK_RANGES // 8
"""A smaller block joins a neighbour, so that blocks of few ranges do not add up."""
_EACH_ALONE: Final = 32
"""`add_many` adds ranges one by one if it holds at least so many times as many."""


class AckedRanges:
    """Ranges ``[first, stop)`` that neither overlap nor touch, in ascending order.

    The arrays of all blocks change only here; `low` of a block is its first array's first value.
    """

    __slots__ = ("_firsts", "_length", "_lows", "_offsets", "_stops")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._firsts: list[array[int]] = []
        self._stops: list[array[int]] = []
        self._length = 0
        self._offsets = 0

    @classmethod
    def from_arrays(cls, firsts: Offsets, stops: Offsets) -> AckedRanges:
        """Take over ranges that are in order and do not overlap or touch."""
        ranges = cls()
        ranges._replace(0, 0, firsts, stops)
        return ranges

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for firsts, stops in zip(self._firsts, self._stops, strict=True):
            yield from zip(firsts, stops, strict=True)

    def __contains__(self, offset: int) -> bool:
        block = bisect_right(self._lows, offset) - 1
        if block < 0:
            return False
        at = bisect_right(self._firsts[block], offset) - 1
        return offset < self._stops[block][at]

    @property
    def offsets(self) -> int:
        """The number of offsets in all ranges together."""
        return self._offsets

    @property
    def lowest_first(self) -> int | None:
        return self._lows[0] if self._lows else None

    @property
    def highest_stop(self) -> int | None:
        return self._stops[-1][-1] if self._stops else None

    def add(self, first: int, stop: int) -> int:
        """Add `first` to before `stop`; return how many of these offsets are new."""
        if not self._lows:
            self._insert(0, 0, first, stop)
            return stop - first
        block = max(bisect_right(self._lows, first) - 1, 0)
        firsts, stops = self._firsts[block], self._stops[block]
        # The new range meets or touches a slice of ranges: at most one that begins before `first`,
        # and all that begin up to `stop`. If none begins there, one search is enough.
        behind = bisect_right(firsts, first)
        start = behind - 1 if behind and stops[behind - 1] >= first else behind
        end = behind
        if behind < len(firsts) and firsts[behind] <= stop:
            end = bisect_right(firsts, stop, behind)
        if end == len(firsts) and block + 1 < len(self._lows) and self._lows[block + 1] <= stop:
            return self._add_over_blocks(block, start, first, stop)
        if start == end:
            self._insert(block, start, first, stop)
            return stop - first
        joined_first, joined_stop = min(first, firsts[start]), max(stop, stops[end - 1])
        there = _total(firsts, stops, start, end)
        firsts[start], stops[start] = joined_first, joined_stop
        if start == 0:
            self._lows[block] = joined_first
        added = joined_stop - joined_first - there
        self._offsets += added
        if end - start > 1:
            del firsts[start + 1 : end], stops[start + 1 : end]
            self._length -= end - start - 1
            self._join_small(block)
        return added

    def add_many(self, firsts: Offsets, stops: Offsets) -> int:
        """Add ranges in any order that may overlap; return how many offsets were not there.

        Few are added one by one; many are merged with the ranges of the blocks that they meet, in
        one pass.
        """
        if len(firsts) * _EACH_ALONE <= self._length:
            pairs = zip(firsts.tolist(), stops.tolist(), strict=True)
            return sum(self.add(first, stop) for first, stop in pairs)
        before = self._offsets
        begin = max(bisect_right(self._lows, int(firsts.min())) - 1, 0)
        end = bisect_right(self._lows, int(stops.max()))
        held_firsts, held_stops = self._arrays(begin, end)
        merged = merge(np.concatenate([held_firsts, firsts]), np.concatenate([held_stops, stops]))
        self._replace(begin, end, *merged)
        return self._offsets - before

    def pop_first(self, reached: int) -> int:
        """Remove the first range if it begins by `reached`. Return its stop, else `reached`."""
        if not self._lows or self._lows[0] > reached:
            return reached
        first, stop = self._firsts[0].pop(0), self._stops[0].pop(0)
        self._length -= 1
        self._offsets -= stop - first
        if self._firsts[0]:
            self._lows[0] = self._firsts[0][0]
        self._join_small(0)
        return stop

    def from_offset(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that reach beyond `offset`, whole."""
        block = max(bisect_right(self._lows, offset) - 1, 0)
        for firsts, stops in zip(self._firsts[block:], self._stops[block:], strict=True):
            start = bisect_right(stops, offset)
            yield from zip(firsts[start:], stops[start:], strict=True)

    def contains(self, offsets: Offsets) -> np.ndarray[Any, np.dtype[np.bool_]]:
        if not len(offsets) or not self._lows:
            return np.zeros(len(offsets), dtype=np.bool_)
        begin = max(bisect_right(self._lows, int(offsets.min())) - 1, 0)
        end = max(bisect_right(self._lows, int(offsets.max())), begin + 1)
        firsts, stops = self._arrays(begin, end)
        at = np.searchsorted(firsts, offsets, side="right") - 1
        return (at >= 0) & (offsets < stops[at])

    def arrays(self) -> tuple[Offsets, Offsets]:
        """Return copies of the first offsets and of the stops."""
        return self._arrays(0, len(self._lows))

    def _arrays(self, begin: int, end: int) -> tuple[Offsets, Offsets]:
        return _concatenated(self._firsts[begin:end]), _concatenated(self._stops[begin:end])

    def _insert(self, block: int, at: int, first: int, stop: int) -> None:
        """Put a range that touches no other into a block."""
        self._length += 1
        self._offsets += stop - first
        if not self._lows:
            self._lows.append(first)
            self._firsts.append(array("q", [first]))
            self._stops.append(array("q", [stop]))
            return
        firsts, stops = self._firsts[block], self._stops[block]
        firsts.insert(at, first)
        stops.insert(at, stop)
        if at == 0:
            self._lows[block] = first
        self._split_large(block)

    def _add_over_blocks(self, block: int, start: int, first: int, stop: int) -> int:
        """Add a range that touches ranges of `block`, from `start` on, and of later blocks."""
        last = bisect_right(self._lows, stop) - 1
        end = bisect_right(self._firsts[last], stop)
        joined_stop = max(stop, self._stops[last][end - 1])
        joined_first = first
        if start < len(self._firsts[block]):
            joined_first = min(first, self._firsts[block][start])
        there = removed = 0
        for place in range(block, last + 1):
            begin = start if place == block else 0
            stops_before = end if place == last else len(self._firsts[place])
            there += _total(self._firsts[place], self._stops[place], begin, stops_before)
            removed += stops_before - begin
        firsts = self._firsts[block][:start]
        stops = self._stops[block][:start]
        firsts.append(joined_first)
        stops.append(joined_stop)
        firsts.extend(self._firsts[last][end:])
        stops.extend(self._stops[last][end:])
        self._lows[block : last + 1] = [firsts[0]]
        self._firsts[block : last + 1] = [firsts]
        self._stops[block : last + 1] = [stops]
        added = joined_stop - joined_first - there
        self._offsets += added
        self._length += 1 - removed
        self._split_large(block)
        self._join_small(block)
        return added

    def _split_large(self, block: int) -> None:
        firsts, stops = self._firsts[block], self._stops[block]
        if len(firsts) > BLOCK_RANGES:
            middle = len(firsts) // 2
            self._lows.insert(block + 1, firsts[middle])
            self._firsts[block : block + 1] = [firsts[:middle], firsts[middle:]]
            self._stops[block : block + 1] = [stops[:middle], stops[middle:]]

    def _join_small(self, block: int) -> None:
        if len(self._firsts[block]) >= _SMALL_BLOCK:
            return
        if not self._firsts[block]:
            del self._lows[block], self._firsts[block], self._stops[block]
            return
        for left in (block, block - 1):
            if not 0 <= left < len(self._lows) - 1:
                continue
            if len(self._firsts[left]) + len(self._firsts[left + 1]) <= BLOCK_RANGES // 2:
                self._firsts[left] += self._firsts.pop(left + 1)
                self._stops[left] += self._stops.pop(left + 1)
                del self._lows[left + 1]
                return

    def _replace(self, begin: int, end: int, firsts: Offsets, stops: Offsets) -> None:
        """Put ranges in the place of the blocks from `begin` to before `end`."""
        old_firsts, old_stops = self._arrays(begin, end)
        # Blocks are half full, as after a division, so the next insertions divide none.
        cuts = range(0, len(firsts), BLOCK_RANGES // 2)
        self._lows[begin:end] = firsts[:: BLOCK_RANGES // 2].tolist()
        self._firsts[begin:end] = [_block(firsts, cut) for cut in cuts]
        self._stops[begin:end] = [_block(stops, cut) for cut in cuts]
        self._length += len(firsts) - len(old_firsts)
        self._offsets += int((stops - firsts).sum()) - int((old_stops - old_firsts).sum())
        if cuts:
            self._join_small(begin + len(cuts) - 1)


def merge(firsts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
    """Return the union of the ranges, as ranges in order that do not touch."""
    order = np.argsort(firsts, kind="stable")
    firsts = firsts[order]
    reached = np.maximum.accumulate(stops[order])
    begins = np.concatenate([[True], firsts[1:] > reached[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return firsts[begins], reached[ends]


def _concatenated(blocks: list[array[int]]) -> Offsets:
    if not blocks:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.frombuffer(block, dtype=np.int64) for block in blocks])


def _block(values: Offsets, cut: int) -> array[int]:
    return array("q", values[cut : cut + BLOCK_RANGES // 2].astype(np.int64).tobytes())


def _total(firsts: array[int], stops: array[int], start: int, end: int) -> int:
    if end - start == 1:
        return stops[start] - firsts[start]
    return sum(stops[start:end]) - sum(firsts[start:end])
