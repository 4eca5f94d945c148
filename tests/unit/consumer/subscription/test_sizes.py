"""Bytes of a partition, counted in pieces: what is left behind an offset, and how it is stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.counted_sizes import MOST_PIECES, CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.errors import CursorDamagedError
from tests.support.examples import examples

IDENTITY = CursorIdentity("billing", "orders", 3)
_PIECES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10_000)), max_size=300)


def _read(pieces: list[tuple[int, int]], begin: int = 0) -> CountedSizes:
    sizes = CountedSizes(begin)
    for count, size in pieces:
        sizes = sizes.read(sizes.stop + count, size)
    return sizes


def test_bytes_are_shared_out_by_number_within_a_piece() -> None:
    """Of 1,000 bytes up to offset 10 the last four offsets have 400."""
    sizes = _read([(10, 1_000), (5, 50)])
    assert [sizes.size_from(offset) for offset in (0, 6, 10, 12, 15, 20)] == [
        1050,
        450,
        50,
        30,
        0,
        0,
    ]


def test_what_was_read_before_is_counted_once() -> None:
    """A step that is made again reads the same offsets."""
    sizes = _read([(10, 1_000)])
    assert sizes.read(10, 1_000) is sizes
    assert sizes.read(4, 400) is sizes


def test_counting_goes_on_behind_an_offset_that_was_not_read() -> None:
    """Everything before 30 is acked, also what was never counted; the next piece begins there."""
    sizes = _read([(10, 1_000)]).behind(30)
    assert sizes == CountedSizes(30)
    assert sizes.read(40, 100).size_from(35) == 50


def test_an_offset_before_the_beginning_changes_nothing() -> None:
    """A cursor that did not move drops no piece."""
    sizes = _read([(10, 1_000)], begin=5)
    assert sizes.behind(5) is sizes
    assert sizes.behind(2) is sizes


def test_a_piece_that_ends_at_the_offset_is_dropped() -> None:
    """What is left of it would be a piece without offsets, which no cursor is read with."""
    left = _read([(10, 1_000), (5, 50)]).behind(10)
    assert left == CountedSizes(10, (15,), (50,))
    assert CountedSizes.decode(left.encode()) == left


def test_neighbours_are_put_together_once_there_are_too_many() -> None:
    """Each two of the older ones; the newest piece stays by itself."""
    full = _read([(1, at) for at in range(MOST_PIECES)])
    assert full.stops == tuple(range(1, MOST_PIECES + 1))
    assert full.read(MOST_PIECES + 3, 1_000) == CountedSizes(
        0,
        (*range(2, MOST_PIECES + 1, 2), MOST_PIECES + 3),
        (*(at + at + 1 for at in range(0, MOST_PIECES, 2)), 1_000),
    )


@settings(max_examples=examples(1.0))
@given(pieces=_PIECES, begin=st.integers(0, 1 << 62))
def test_no_byte_is_lost_when_pieces_are_put_together(
    pieces: list[tuple[int, int]], begin: int
) -> None:
    """However many there are: the sum stays, the ends stay, and few pieces are kept."""
    sizes = _read(pieces, begin)
    assert sizes.size_from(begin) == sum(size for _, size in pieces)
    assert sizes.stop == begin + sum(count for count, _ in pieces)
    assert len(sizes.stops) <= MOST_PIECES


@settings(max_examples=examples(1.0))
@given(pieces=_PIECES, data=st.data())
def test_less_is_left_behind_a_later_offset(
    pieces: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Dropping in two goes leaves, but for rounding, what dropping in one goes leaves."""
    sizes = _read(pieces)
    one, two = sorted(data.draw(st.tuples(*[st.integers(0, sizes.stop + 5)] * 2)))
    assert 0 <= sizes.size_from(two) <= sizes.size_from(one)
    assert abs(sizes.behind(one).size_from(two) - sizes.size_from(two)) <= 1
    assert sizes.behind(two).begin == two


@settings(max_examples=examples(1.0))
@given(pieces=_PIECES, begin=st.integers(0, 1 << 62))
def test_what_was_written_is_read(pieces: list[tuple[int, int]], begin: int) -> None:
    sizes = _read(pieces, begin)
    assert CountedSizes.decode(sizes.encode()) == sizes
    assert CountedSizes.decode(b"") == CountedSizes()


@settings(max_examples=examples(1.0))
@given(pieces=_PIECES, data=st.data())
def test_sizes_beside_a_cursor_are_read_as_they_were_or_not_at_all(
    pieces: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The cursor's checksum is over them, too: no cut and no changed byte gives other sizes."""
    stored = encode_cursor(Cursor(IDENTITY), carried=_read(pieces).encode())
    place = data.draw(st.integers(0, len(stored) - 1))
    changed = bytearray(stored)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (stored[:place], bytes(changed)):
        with pytest.raises(CursorDamagedError):
            decode_cursor(damaged, IDENTITY)


@pytest.mark.parametrize(
    "found",
    [
        [0, [5, 5], [1, 1]],
        [9, [5], [1]],
        [0, [5, 9], [1]],
        [0, [5], [-1]],
        [-1, [5], [1]],
        [0, [5]],
        [0, [5], [1], 0],
        [0, ["5"], [1]],
        {"begin": 0},
    ],
)
def test_what_makes_no_sense_is_refused(found: object) -> None:
    """Stops that do not ascend, sizes that are missing or negative, and other documents."""
    with pytest.raises(CursorDamagedError, match=r"cursor (cannot be read: .|make no sense$)"):
        CountedSizes.decode(msgspec.msgpack.encode(found))


def test_unread_messages_are_as_large_as_the_mean_of_the_read_ones() -> None:
    """They follow those that were read; of nothing that was read there is no mean."""
    passed = _read([(10, 1_000)], begin=5).passed(22)
    assert (passed.stop, passed.size_from(15)) == (22, 700)
    uneven = _read([(3, 100)]).passed(5)
    assert uneven.sizes == (100, 66)
    assert type(uneven.sizes[-1]) is int
    assert CountedSizes(5).passed(8) == CountedSizes(5, (8,), (0,))


def test_what_was_not_counted_weighs_as_much_as_what_was() -> None:
    """An offset weighs 1 where nothing was counted."""
    sizes = _read([(10, 1_000), (10, 200)], begin=10)
    assert sizes.weight(12, 20) == 800
    assert sizes.weight(15, 25) == 600
    assert sizes.weight(4, 15) == 6 * 60 + 500
    assert sizes.weight(25, 40) == 100 + 10 * 60
    assert (sizes.weight(15, 15), sizes.weight(15, 12)) == (0, 0)
    nothing = CountedSizes(10)
    assert [nothing.weight(12, stop) for stop in (20, 12, 10)] == [8, 0, 0]
