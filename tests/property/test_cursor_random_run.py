"""Millions of acks on a cursor and on a plain array of what is acked: the same, all the way.

`SEQUITUR_CURSOR_OPERATIONS` sets how many; `make test-cursor` runs fifty times as many.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import numpy as np
import pytest

from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.errors import AckBeyondEndError, MarkDeleteBackError
from tests.support.cursors import state_of

IDENTITY = CursorIdentity("billing", "orders", 3)
_OPERATIONS: Final = int(os.environ.get("SEQUITUR_CURSOR_OPERATIONS", "2000000"))
_SPAN: Final = 40_000
_ROUND: Final = 10_000
"""At most so many operations are between two comparisons of everything."""


class _Plain:
    """One flag for each offset, and the counts that follow from it."""

    def __init__(self, start: int) -> None:
        self.acked = np.zeros(_SPAN, np.bool_)
        self.acked[:start] = True
        self.committed = self.read = start
        self.consumed = self.absent = self.repeated = 0

    def ack(self, first: int, stop: int, *, absent: bool = False) -> int:
        added = stop - first - int(np.count_nonzero(self.acked[first:stop]))
        self.acked[first:stop] = True
        self.repeated += stop - first - added
        self.absent += added * absent
        self.consumed += added * (not absent)
        self.move()
        return added

    def move(self) -> None:
        while self.committed < _SPAN and self.acked[self.committed]:
            run = self.acked[self.committed : self.committed + 1_000]
            self.committed += len(run) if run.all() else int(np.argmin(run))
        self.read = max(self.read, self.committed)

    def state(self) -> dict[str, Any]:
        behind = self.acked.copy()
        behind[: self.committed] = False
        edges = np.flatnonzero(np.diff(behind, prepend=False, append=False)).tolist()
        return {
            "identity": IDENTITY,
            "mark_delete": self.committed - 1,
            "read_position": self.read,
            "ranges": list(zip(edges[0::2], edges[1::2], strict=True)),
            "counts": (self.consumed, self.absent, self.repeated, 0),
        }


def _compare(cursor: Cursor, plain: _Plain) -> Cursor:
    expected = plain.state()
    assert state_of(cursor) == expected
    left = _SPAN - int(np.count_nonzero(plain.acked))
    assert cursor.backlog(_SPAN) == left
    assert np.array_equal(cursor.acked_among(np.arange(_SPAN)), plain.acked)
    unacked = np.flatnonzero(~plain.acked)
    for count in {1, left // 2, left} & set(range(1, left + 1)):
        assert cursor.nth_unacked(count, end=_SPAN) == unacked[count - 1]
    assert cursor.nth_unacked(left + 1, end=_SPAN) is None
    restored = decode_cursor(encode_cursor(cursor), IDENTITY).cursor
    assert state_of(restored) == state_of(cursor.copy()) == expected
    return restored


def _singles(cursor: Cursor, plain: _Plain, offsets: np.ndarray) -> int:
    """Ack one after the other, each answer compared."""
    for offset in offsets.tolist():
        is_new = not plain.acked[offset]
        assert cursor.ack(offset, end=_SPAN) == is_new
        plain.acked[offset] = True
        plain.consumed += is_new
        plain.repeated += not is_new
        if offset == plain.committed:
            plain.move()
        assert cursor.committed_offset == plain.committed
    return len(offsets)


def _ranges(cursor: Cursor, plain: _Plain, rng: random.Random, longest: int) -> int:
    for _ in range(200):
        first = rng.randrange(_SPAN)
        stop = min(_SPAN, first + rng.randint(1, longest))
        absent = rng.random() < 0.2
        ack = cursor.ack_absent if absent else cursor.ack_range
        assert ack(first, stop, end=_SPAN) == plain.ack(first, stop, absent=absent)
    return 200


def _at_once(cursor: Cursor, plain: _Plain, offsets: np.ndarray) -> int:
    new = int(np.count_nonzero(~plain.acked[np.unique(offsets)]))
    assert cursor.ack_offsets(offsets, end=_SPAN) == new
    plain.acked[offsets] = True
    plain.consumed += new
    plain.repeated += len(offsets) - new
    plain.move()
    return len(offsets)


def _all_but(cursor: Cursor, plain: _Plain, held: np.ndarray, end: int) -> int:
    new = ~plain.acked[:end]
    new[held[held < end]] = False
    assert cursor.ack_all_but(held, end=end) == np.count_nonzero(new)
    plain.acked[:end] |= new
    plain.consumed += int(np.count_nonzero(new))
    plain.move()
    return 1


def _cumulative(cursor: Cursor, plain: _Plain, offset: int) -> int:
    if offset < plain.committed - 1:
        with pytest.raises(MarkDeleteBackError):
            cursor.ack_cumulative(offset, end=_SPAN)
    elif offset >= plain.committed:
        repeated = plain.repeated
        added = plain.ack(plain.committed, offset + 1)
        plain.repeated = repeated  # what was acked in between is no repeated ack
        assert cursor.ack_cumulative(offset, end=_SPAN) == added
    with pytest.raises(AckBeyondEndError):
        cursor.ack_cumulative(_SPAN, end=_SPAN)
    return 2


@pytest.mark.test_all
@pytest.mark.parametrize("seed", range(4))
def test_millions_of_acks(seed: int) -> None:
    """Of one, of ranges, of many, cumulative, all but some; refused ones change nothing."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    done = 0
    while done < _OPERATIONS // 4:
        start = rng.choice([0, 1, 4_000])
        cursor, plain = Cursor(IDENTITY, start=start), _Plain(start)
        longest = rng.choice([2, 20, 400])
        # Until a partition is all but done; then the next one.
        while plain.committed < _SPAN * 9 // 10 and done < _OPERATIONS // 4:
            window = min(_SPAN, plain.committed + rng.choice([3_000, _SPAN]))
            some = numbers.integers(max(plain.committed - 500, 0), window, rng.randrange(1, _ROUND))
            kind = rng.random()
            if kind < 0.6:
                done += _singles(cursor, plain, some)
            elif kind < 0.75:
                done += _ranges(cursor, plain, rng, longest)
            elif kind < 0.9:
                done += _at_once(cursor, plain, some)
            elif kind < 0.95:
                done += _all_but(cursor, plain, some, window)
            else:
                done += _cumulative(cursor, plain, rng.randrange(plain.committed + 2_000))
            cursor = _compare(cursor, plain)
