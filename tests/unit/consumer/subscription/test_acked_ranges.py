"""Ranges in blocks: blocks divide, join and vanish, and what they hold stays what was added."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sequitur.consumer.subscription.acked_ranges import BLOCK_RANGES, AckedRanges, merge
from tests.support.cursors import block_lengths

_BLOCKS = 8
_COUNT = _BLOCKS * BLOCK_RANGES


def _every_tenth(count: int = _COUNT, *, at_once: bool = False) -> AckedRanges:
    ranges = AckedRanges()
    firsts = np.arange(0, 10 * count, 10)
    if at_once:
        ranges.add_many(firsts, firsts + 5)
    else:
        for first in firsts.tolist():
            ranges.add(first, first + 5)
    return ranges


@pytest.mark.parametrize("at_once", [False, True])
def test_a_full_block_divides(*, at_once: bool) -> None:
    """No block has more than its limit, and all ranges are there."""
    ranges = _every_tenth(at_once=at_once)
    assert len(ranges) == sum(block_lengths(ranges)) == _COUNT
    assert max(block_lengths(ranges)) <= BLOCK_RANGES
    assert list(ranges) == [(first, first + 5) for first in range(0, 10 * _COUNT, 10)]


@pytest.mark.parametrize("back", [False, True])
def test_blocks_that_become_small_join(*, back: bool) -> None:
    """Gaps are filled one by one until few ranges are left: few blocks hold them."""
    ranges = _every_tenth()
    filled = [first for first in range(0, 10 * _COUNT, 10) if first % 1000]
    for first in reversed(filled) if back else filled:
        assert ranges.add(first - 5, first) == 5
    assert list(ranges) == [
        (first, first + 995) for first in range(0, 10 * _COUNT - 1000, 1000)
    ] + [(10 * _COUNT - 10 * _COUNT % 1000, 10 * _COUNT - 5)]
    assert len(block_lengths(ranges)) == 1


def test_blocks_of_few_ranges_do_not_add_up() -> None:
    """All but two ranges of each block are joined to one: two neighbours are never both small.

    What comes later still finds its block.
    """
    ranges = _every_tenth()
    for first in range(0, 10 * _COUNT, 5 * BLOCK_RANGES):
        ranges.add(first, first + 5 * BLOCK_RANGES - 20)
    lengths = block_lengths(ranges)
    assert all(one + other > BLOCK_RANGES // 2 for one, other in pairwise(lengths))
    assert list(ranges) == [
        (first + begin, first + stop)
        for first in range(0, 10 * _COUNT, 5 * BLOCK_RANGES)
        for begin, stop in (
            (0, 5 * BLOCK_RANGES - 15),
            (5 * BLOCK_RANGES - 10, 5 * BLOCK_RANGES - 5),
        )
    ]


def test_one_range_takes_the_place_of_all() -> None:
    """Over all blocks, from before the first to behind the last."""
    ranges = _every_tenth()
    assert ranges.add(0, 10 * _COUNT) == 5 * _COUNT
    assert (list(ranges), block_lengths(ranges)) == ([(0, 10 * _COUNT)], [1])


def test_a_range_over_blocks_keeps_what_is_beside_it() -> None:
    """It begins in one block and stops in another, between ranges of theirs."""
    ranges = _every_tenth()
    assert ranges.add(1007, 50_007) == 24_500
    assert (1000, 1005) in list(ranges)
    assert (1007, 50_007) in list(ranges)
    assert (50_010, 50_015) in list(ranges)
    assert len(ranges) == _COUNT - 4900 + 1
    assert ranges.offsets == 5 * _COUNT + 24_500


def test_the_first_range_is_removed_when_it_is_reached() -> None:
    """Until none is left; a position before it removes nothing."""
    ranges = _every_tenth(1500)
    stops = []
    for first in range(0, 15_000, 10):
        assert ranges.pop_first(first - 1) == first - 1
        stops.append(ranges.pop_first(first))
    assert stops == list(range(5, 15_000, 10))
    assert (len(ranges), ranges.offsets, block_lengths(ranges)) == (0, 0, [])
    assert ranges.pop_first(99) == 99
    assert (ranges.lowest_first, ranges.highest_stop) == (None, None)


def test_an_empty_one_has_nothing() -> None:
    ranges = AckedRanges()
    assert 5 not in ranges
    assert ranges.contains(np.array([5])).tolist() == [False]
    assert list(ranges.from_offset(0)) == []
    assert [len(column) for column in ranges.arrays()] == [0, 0]


def test_questions_reach_over_blocks() -> None:
    """Which offsets are there, and in which ranges."""
    ranges = _every_tenth()
    asked = np.array([9, 10 * _COUNT - 6, 40_004, 40_005, 0, 10 * _COUNT])
    assert ranges.contains(asked).tolist() == [False, True, True, False, True, False]
    assert [offset in ranges for offset in asked.tolist()] == ranges.contains(asked).tolist()
    assert next(iter(ranges.from_offset(40_003))) == (40_000, 40_005)
    assert next(iter(ranges.from_offset(40_005))) == (40_010, 40_015)


def test_many_ranges_are_merged() -> None:
    """In any order, those that overlap or touch become one."""
    firsts, stops = merge(np.array([8, 1, 3, 20, 9]), np.array([10, 3, 5, 21, 15]))
    assert list(zip(firsts.tolist(), stops.tolist(), strict=True)) == [(1, 5), (8, 15), (20, 21)]


def test_many_large_offsets_are_kept_to_the_last_bit() -> None:
    """Floating-point numbers would round them."""
    ranges = AckedRanges()
    firsts = np.array([(1 << 62) + 1, (1 << 62) + 5])
    assert ranges.add_many(firsts, firsts + 2) == 4
    assert list(ranges) == [((1 << 62) + at, (1 << 62) + at + 2) for at in (1, 5)]


def test_a_range_joins_blocks_that_were_added_in_two_ways() -> None:
    """One by one, and many at once."""
    ranges = _every_tenth(2000)
    firsts = np.arange(7, 1007, 10)
    assert ranges.add_many(firsts, firsts + 1) == 100
    assert ranges.add(1000, 19_995) == 18_995 - 5 * 1900
    assert list(ranges)[-2:] == [(997, 998), (1000, 19_995)]


def test_many_ranges_touch_the_block_behind_them() -> None:
    """The last of them stops where the next block begins: both become one range."""
    ranges = _every_tenth(2000)
    begin, _ = list(ranges)[block_lengths(ranges)[0]]
    firsts = np.array([*range(7, 1007, 10), begin - 1])
    assert ranges.add_many(firsts, firsts + 1) == 101
    assert (begin - 1, begin + 5) in list(ranges)
    assert len(ranges) == 2000 + 100


def test_one_range_touches_the_block_behind_it_alone() -> None:
    """Nothing of the block before it is touched, and all of that stays."""
    ranges = _every_tenth(2000)
    begin, _ = list(ranges)[block_lengths(ranges)[0]]
    before = [one for one in ranges if one[0] < begin]
    assert ranges.add(begin - 1, begin + 7) == 3
    assert list(ranges)[: len(before) + 1] == [*before, (begin - 1, begin + 7)]
    assert (len(ranges), ranges.offsets) == (2000, 5 * 2000 + 3)
    assert max(block_lengths(ranges)) <= BLOCK_RANGES


def test_batches_that_come_back_to_front_share_a_block() -> None:
    """Each is less than a block, and lies before the others."""
    ranges = AckedRanges()
    for begin in (4000, 2000, 0):
        firsts = np.arange(begin, begin + 1000, 10)
        assert ranges.add_many(firsts, firsts + 5) == 500
    assert block_lengths(ranges) == [300]
