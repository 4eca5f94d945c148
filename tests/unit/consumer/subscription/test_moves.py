"""What is told of a reset, a skip or an expiry before it is done is what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.moves import MoveTotals, forward_move, reset_move, skip_stop
from sequitur.consumer.subscription.survey import Log
from sequitur.errors import PositionRangeError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

_HERE = SourcePartition("orders", 0)
_END = 40


def _cursor(*acked: int) -> Cursor:
    cursor = Cursor(CursorIdentity("sub1", *_HERE))
    cursor.ack_offsets(np.array(sorted(acked), np.int64), end=1 << 20)
    return cursor


@st.composite
def _standing(draw: DrawFn) -> tuple[Cursor, set[int], Log]:
    """A cursor, what it has acked, and a log whose beginning may be deleted."""
    acked = draw(st.sets(st.integers(0, _END - 1)))
    return _cursor(*acked), acked, Log(draw(st.integers(0, _END)), _END)


@given(_standing(), st.integers(0, _END))
def test_a_reset_replays_what_is_behind_the_target(
    standing: tuple[Cursor, set[int], Log], target: int
) -> None:
    """Counted beside a plain set of offsets; offsets that Kafka has not are not replayed."""
    cursor, acked, log = standing
    move = reset_move(cursor, _HERE, log, target)
    there = set(range(max(log.start, target), _END))
    assert move.target == max(log.start, target)
    assert move.messages == len(there)
    assert move.acked == len(there & acked)
    assert move.skipped == len(set(range(log.start, move.target)) - acked)
    assert move.gone == move.target - target
    assert move.end == _END


@given(_standing(), st.integers(0, _END + 5))
def test_a_cumulative_ack_does_what_was_told(
    standing: tuple[Cursor, set[int], Log], stop: int
) -> None:
    """Where the cursor stands then, what it has left, and what nobody processes."""
    cursor, acked, log = standing
    move = forward_move(cursor, _HERE, log, stop)
    skipped = set(range(log.start, min(stop, _END))) - acked
    assert move.skipped == len(skipped)
    assert move.messages == len(set(range(log.start, _END)) - acked - skipped)
    assert move.target >= min(stop, _END)
    if move.target > move.committed:
        cursor.ack_cumulative(move.target - 1, end=move.end)
    assert cursor.committed_offset == move.target


@given(_standing(), st.integers(1, _END + 5))
def test_so_many_messages_are_skipped(standing: tuple[Cursor, set[int], Log], count: int) -> None:
    """Acked ones between them are not counted, nor what is deleted; fewer are all of them."""
    cursor, acked, log = standing
    left = len(set(range(log.start, _END)) - acked)
    move = forward_move(cursor, _HERE, log, skip_stop(cursor, log, count))
    assert move.skipped == min(count, left)
    assert forward_move(cursor, _HERE, log, skip_stop(cursor, log, None)).messages == 0


def test_pulsars_skip() -> None:
    cursor = _cursor(0, 1, 2, 4, 5)
    log = Log(0, 10)
    move = forward_move(cursor, _HERE, log, skip_stop(cursor, log, 3))
    assert (move.where, move.committed, move.target) == (_HERE, 3, 8)
    assert (move.skipped, move.messages) == (3, 2)
    with pytest.raises(ValueError, match="0 messages"):
        skip_stop(cursor, log, 0)


def test_a_reset_beyond_the_end_is_refused() -> None:
    log = Log(0, 10)
    assert reset_move(_cursor(), _HERE, log, 10).messages == 0
    with pytest.raises(PositionRangeError, match=r"orders:0:11: the partition ends before 10"):
        reset_move(_cursor(), _HERE, log, 11)


def test_cursors_of_a_topic_that_was_made_anew_are_reset() -> None:
    cursor = _cursor(*range(30))
    move = reset_move(cursor, _HERE, Log(0, 10), 0)
    assert (move.messages, move.acked, move.skipped) == (10, 10, 0)
    assert forward_move(cursor, _HERE, Log(0, 10), 10).target == 30


def test_moves_are_added_up() -> None:
    cursor = _cursor(0, 1, 3)
    moves = [reset_move(cursor, _HERE, Log(1, 10), target) for target in (0, 5)]
    assert MoveTotals.of(moves) == MoveTotals(messages=14, acked=2, skipped=2, gone=1)
    assert moves[0].to_document() == {
        "topic": "orders",
        "partition": 0,
        "from": "0:2",
        "to": "0:1",
        "messages": 9,
        "acked": 2,
        "skipped": 0,
        "gone": 1,
    }
