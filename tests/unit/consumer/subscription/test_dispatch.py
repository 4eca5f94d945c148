"""What is handed out, case by case; `test_dispatch_machine.py` meets all others."""

from __future__ import annotations

import pytest

from sequitur.base.retry import Backoff
from sequitur.consumer.subscription.dispatch import (
    NEGATIVE_ACK_BACKOFF,
    DeadMessage,
    Dispatch,
    DispatchCounts,
    DispatchLimits,
    FailureCause,
    OrderRule,
)
from sequitur.consumer.subscription.redeliveries import NO_REDELIVERIES, Redeliveries
from sequitur.kafka.partition import SourcePartition

ONE, TWO = SourcePartition("orders", 0), SourcePartition("orders", 1)
_BACKOFF = Backoff(initial_ms=100, maximum_ms=1_000, jitter=0)


def _dispatch(order: OrderRule, *keys: bytes | None, **limits: int) -> Dispatch[int]:
    """Return one that holds a message of each key, with the offset as the message."""
    dispatch: Dispatch[int] = Dispatch(order, limits=DispatchLimits(**limits), backoff=_BACKOFF)
    for offset, key in enumerate(keys):
        _add(dispatch, offset, key)
    return dispatch


def _add(dispatch: Dispatch[int], offset: int, key: bytes | None) -> None:
    dispatch.add(ONE, range(offset, offset + 1), [key], [offset])


def _taken(dispatch: Dispatch[int], now_ms: float = 0) -> list[tuple[int, int]]:
    """Take all there is: message and redelivery count of each."""
    return [(message, count) for _, _, message, count in dispatch.take(now_ms, 100)]


def test_one_of_a_key_is_out_at_a_time() -> None:
    """Key_Shared: the second of a key comes once the first is acked; no key waits for another."""
    dispatch = _dispatch(OrderRule.ONE_OUT, b"a", b"a", b"b", None, None)
    assert _taken(dispatch) == [(0, 0), (2, 0), (3, 0), (4, 0)]
    dispatch.ack(ONE, [0])
    assert _taken(dispatch) == [(1, 0)]


def test_failed_message_holds_its_key_back() -> None:
    """Key_Shared: while a message waits for its next attempt, no later one of its key comes."""
    dispatch = _dispatch(OrderRule.ONE_OUT, b"a", b"a")
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 0, 0)
    assert _taken(dispatch, 99) == []
    assert dispatch.next_change_ms() == 100
    assert _taken(dispatch, 100) == [(0, 1)]
    dispatch.negative_ack(ONE, 0, 100)
    assert _taken(dispatch, 299) == []  # the second wait is twice as long
    assert _taken(dispatch, 300) == [(0, 2)]


def test_what_was_out_behind_a_failed_message_is_taken_back() -> None:
    """Exclusive: those of its key come again behind it; those before it and other keys do not."""
    dispatch = _dispatch(OrderRule.TAKEN_BACK, b"a", b"a", b"a", b"b", b"a")
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 1, 0)
    assert (dispatch.unacked, dispatch.queued, dispatch.counts.taken_back) == (2, 3, 2)
    dispatch.ack(ONE, [4])
    assert _taken(dispatch, 99) == []
    assert _taken(dispatch, 100) == [(1, 1), (2, 1)]


def test_keys_do_not_matter_where_there_is_no_order() -> None:
    """Shared: later messages of a key come while an earlier one waits."""
    dispatch = _dispatch(OrderRule.NONE, b"a", b"a")
    assert dispatch.take(0) == [(ONE, 0, 0, 0)]
    dispatch.negative_ack(ONE, 0, 0)
    assert _taken(dispatch) == [(1, 0)]


def test_same_key_of_another_partition_is_another_key() -> None:
    dispatch = _dispatch(OrderRule.ONE_OUT, b"a")
    dispatch.add(TWO, range(1), [b"a"], [7])
    assert _taken(dispatch) == [(0, 0), (7, 0)]


def test_limits_of_what_is_out_and_read() -> None:
    """At the limit nothing is handed out, and it says so; room is what the queue still takes."""
    dispatch = _dispatch(OrderRule.NONE, None, None, None, receiver_queue=4, unacked=2)
    assert (dispatch.room, dispatch.is_blocked) == (1, False)
    assert len(_taken(dispatch)) == 2
    assert (dispatch.room, dispatch.is_blocked) == (3, True)
    dispatch.ack(ONE, [1])
    assert not dispatch.is_blocked
    assert _taken(dispatch) == [(2, 0)]


def test_message_without_an_ack_fails_in_time() -> None:
    """An ack timeout is a failure with the same backoff; one that is acked does not time out."""
    dispatch = _dispatch(OrderRule.NONE, None, None, ack_timeout_ms=50)
    _taken(dispatch)
    dispatch.ack(ONE, [1])
    assert dispatch.next_change_ms() == 50
    assert _taken(dispatch, 49) == []
    assert (dispatch.counts.timed_out, dispatch.unacked) == (0, 1)
    assert _taken(dispatch, 50) == []
    assert (dispatch.counts.timed_out, dispatch.unacked) == (1, 0)
    assert not dispatch.negative_ack(ONE, 0, 60)
    assert _taken(dispatch, 150) == [(0, 1)]


def test_due_message_comes_while_another_one_has_time_left() -> None:
    dispatch = _dispatch(OrderRule.NONE, None, None, ack_timeout_ms=150)
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 0, 0)
    assert _taken(dispatch, 100) == [(0, 1)]
    assert dispatch.counts.timed_out == 0


def test_counts_add_up_over_several_calls() -> None:
    """Two messages fail by a negative ack, and then for good by an ack timeout."""
    dispatch = _dispatch(OrderRule.NONE, None, None, ack_timeout_ms=50, redeliveries=1)
    assert _taken(dispatch) == [(0, 0), (1, 0)]
    assert all(dispatch.negative_ack(ONE, offset, 10) for offset in range(2))
    assert _taken(dispatch, 110) == [(0, 1), (1, 1)]
    assert _taken(dispatch, 160) == []
    assert dispatch.counts == DispatchCounts(
        handed_out=4, redelivered=2, negative_acks=2, timed_out=2, taken_back=0, dead=2
    )
    assert dispatch.dead() == [
        DeadMessage(ONE, offset, offset, 2, FailureCause.ACK_TIMEOUT) for offset in range(2)
    ]


def test_only_what_is_handed_out_or_fails_touches_its_partition() -> None:
    """What is acked before it was out counts as never delivered."""
    dispatch = _dispatch(OrderRule.NONE, None, None)
    dispatch.ack(ONE, range(2))
    assert _taken(dispatch) == []
    assert (dispatch.touched, dispatch.redeliveries(ONE)) == (set(), NO_REDELIVERIES)
    _add(dispatch, 2, None)
    assert _taken(dispatch) == [(2, 0)]
    assert dispatch.touched == {ONE}
    dispatch.touched.clear()
    assert dispatch.negative_ack(ONE, 2, 0)
    assert dispatch.touched == {ONE}


def test_failure_of_an_earlier_handing_out_is_void() -> None:
    """Who was too slow does not fail what another one has now."""
    dispatch = _dispatch(OrderRule.NONE, None, ack_timeout_ms=50)
    _taken(dispatch)
    _taken(dispatch, 50)
    _taken(dispatch, 150)
    assert not dispatch.negative_ack(ONE, 0, 160, redelivery_count=0)
    assert dispatch.negative_ack(ONE, 0, 160, redelivery_count=1)


def test_acked_messages_leave_nothing_behind() -> None:
    """Over many acks in any state, what is kept stays as small as what is held."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.TAKEN_BACK, backoff=_BACKOFF)
    for offset in range(20_000):
        _add(dispatch, offset, b"%d" % (offset % 3))
        if offset % 3 == 0:
            dispatch.take(0)
            dispatch.negative_ack(ONE, offset, 0)
        dispatch.ack(ONE, [offset])
    assert (dispatch.queued, dispatch.unacked) == (0, 0)
    assert len(dispatch._ready) + len(dispatch._delayed) < 200
    assert not dispatch._parts[ONE].lines
    assert not dispatch._parts[ONE].plain
    assert dispatch._parts[ONE].waiting == 0
    assert not dispatch._deadlines


def test_message_that_waits_is_kept_while_others_are_acked() -> None:
    """What is dropped of outdated entries does not take the live ones along."""
    dispatch = _dispatch(OrderRule.TAKEN_BACK, b"a")
    _taken(dispatch)
    dispatch.negative_ack(ONE, 0, 0)
    for offset in range(1, 500):
        _add(dispatch, offset, b"b")
        dispatch.ack(ONE, [offset])
    assert len(dispatch._ready) + len(dispatch._delayed) < 200
    assert _taken(dispatch, 99) == []
    assert _taken(dispatch, 100) == [(0, 1)]


@pytest.mark.parametrize("order", list(OrderRule))
def test_a_cumulative_ack_lets_go_of_all_before_it(order: OrderRule) -> None:
    """Out, waiting for the next attempt, or never out: of its partition, and of no other."""
    dispatch = _dispatch(order, b"a", b"b", b"c", b"d", b"e")
    dispatch.add(TWO, range(2), [b"a", b"b"], [10, 11])
    dispatch.take(0, 3)
    assert dispatch.negative_ack(ONE, 1, 0)
    assert [dispatch.ack_cumulative(ONE, 3) for _ in range(2)] == [4, 0]
    assert sorted(dispatch.held()) == [(ONE, 4), (TWO, 0), (TWO, 1)]
    assert _taken(dispatch, 1_000) == [(4, 0), (10, 0), (11, 0)]


def test_a_cumulative_ack_finds_failed_messages_in_any_order() -> None:
    """Shared: the later one has failed first."""
    dispatch = _dispatch(OrderRule.NONE, None, None, None)
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 2, 0)
    assert dispatch.negative_ack(ONE, 0, 0)
    assert dispatch.ack_cumulative(ONE, 1) == 2
    assert list(dispatch.held()) == [(ONE, 2)]


def test_nothing_is_held_of_a_partition_that_gave_nothing() -> None:
    dispatch = _dispatch(OrderRule.NONE, None)
    assert dispatch.ack(TWO, [0]) == dispatch.ack_cumulative(TWO, 5) == 0
    assert not dispatch.negative_ack(TWO, 0, 0)
    assert dispatch.redeliveries(TWO) is NO_REDELIVERIES
    assert list(dispatch.held()) == [(ONE, 0)]


def test_what_is_not_out_does_not_fail() -> None:
    """Its receiver has acked it, or nobody has received it yet."""
    dispatch = _dispatch(OrderRule.TAKEN_BACK, b"a", b"a")
    dispatch.take(0)
    dispatch.ack(ONE, [0])
    assert not any(dispatch.negative_ack(ONE, offset, 0) for offset in range(3))
    assert _taken(dispatch) == [(1, 0)]
    assert dispatch.counts.negative_acks == 0


def test_messages_come_in_their_turn_across_partitions() -> None:
    """Spans of a call and its neighbours, with one that was acked before it was out."""
    dispatch: Dispatch[str] = Dispatch(OrderRule.TAKEN_BACK, backoff=_BACKOFF)
    dispatch.add(ONE, range(5, 8), [b"a", b"b", b"a"], ["5", "6", "7"])
    dispatch.add(TWO, range(2), [b"a", b"a"], ["0", "1"])
    dispatch.add(ONE, range(9, 11), [b"a", b"b"], ["9", "10"])
    assert dispatch.ack(ONE, [6, 99]) == 1
    assert dispatch.take(0, 1) == [(ONE, 5, "5", 0)]
    assert dispatch.take(0, 2) == [(ONE, 7, "7", 0), (TWO, 0, "0", 0)]
    assert dispatch.negative_ack(ONE, 5, 0)
    assert dispatch.counts.taken_back == 1
    assert [one[2] for one in dispatch.take(0, 9)] == ["1", "10"]
    assert [one[1:] for one in dispatch.take(100, 9)] == [(5, "5", 1), (7, "7", 1), (9, "9", 0)]


def test_failed_message_that_is_due_comes_before_those_never_out() -> None:
    """Of a span that was handed out in parts, too."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.NONE, backoff=_BACKOFF)
    dispatch.add(ONE, range(5), [None] * 5, range(5))
    assert [dispatch.take(0)[0][2] for _ in range(3)] == [0, 1, 2]
    assert dispatch.negative_ack(ONE, 2, 0)
    assert _taken(dispatch, 100) == [(2, 1), (3, 0), (4, 0)]


def test_message_comes_behind_a_waiting_one_of_its_key_however_late() -> None:
    """As long as one waits, lines are kept: others come in, go out, and are acked meanwhile."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.TAKEN_BACK, backoff=_BACKOFF, lined_for=0)
    dispatch.add(ONE, range(2), [b"a", b"a"], [0, 1])
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 0, 0)
    _add(dispatch, 2, b"b")
    assert dispatch.ack(ONE, [1]) == 1
    assert _taken(dispatch) == [(2, 0)]
    _add(dispatch, 3, b"a")
    assert _taken(dispatch, 99) == []
    assert _taken(dispatch, 100) == [(0, 1), (3, 0)]


def test_lines_are_kept_for_a_while_after_a_failure() -> None:
    """Then messages are handed out as they come again, and still those of a key in order."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.TAKEN_BACK, backoff=_BACKOFF, lined_for=5)
    dispatch.add(ONE, range(2), [b"a", b"b"], [0, 1])
    _taken(dispatch)
    dispatch.negative_ack(ONE, 0, 0)
    part, offset = dispatch._parts[ONE], 2
    assert not part.plain
    while not part.plain:
        _add(dispatch, offset, b"a")
        _taken(dispatch, 100)
        dispatch.ack(ONE, range(1, offset))
        offset += 1
        assert offset < 10
    assert offset > 5
    assert list(part.entries) == [0]
    assert dispatch.negative_ack(ONE, 0, 100)
    assert _taken(dispatch, 299) == []
    assert [one for one, _ in _taken(dispatch, 300)] == [0, offset - 1]


@pytest.mark.parametrize("order", list(OrderRule))
def test_what_has_failed_too_often_is_dead(order: OrderRule) -> None:
    """It is not handed out any more, and holds its key until it is acked."""
    dispatch: Dispatch[str] = Dispatch(
        order, limits=DispatchLimits(redeliveries=1), backoff=_BACKOFF
    )
    dispatch.add(ONE, range(2), [b"a", b"a"], ["0", "1"])
    behind = order is OrderRule.NONE
    for now_ms in (0, 1_000):
        assert "0" in [one[2] for one in dispatch.take(now_ms, 9)]
        assert dispatch.dead() == []
        assert dispatch.negative_ack(ONE, 0, now_ms)
    assert dispatch.dead() == [DeadMessage(ONE, 0, "0", 2, FailureCause.NEGATIVE_ACK)]
    assert dispatch.counts.dead == 1
    assert dispatch.next_change_ms() is None
    assert [one[2] for one in dispatch.take(9_000, 9)] == []
    assert not dispatch.negative_ack(ONE, 0, 9_000)
    assert dispatch.redeliveries(ONE).among(range(9)) == ({0: 2, 1: 1} if behind else {0: 2})
    assert dispatch.ack(ONE, [0]) == 1
    assert dispatch.dead() == []
    assert [one[2] for one in dispatch.take(9_000, 9)] == ([] if behind else ["1"])


def test_deliveries_of_earlier_lives_count() -> None:
    """One that was out too often is dead when it comes; taking back is no failure."""
    dispatch: Dispatch[str] = Dispatch(
        OrderRule.TAKEN_BACK, limits=DispatchLimits(redeliveries=2), backoff=_BACKOFF
    )
    earlier = Redeliveries.of({1: 2, 3: 3}, out=range(0))
    dispatch.add(ONE, range(5), [b"a", b"a", b"a", b"b", b"b"], list("01234"), redeliveries=earlier)
    assert [one.message for one in dispatch.dead()] == ["3"]
    assert dispatch.dead()[0].cause is FailureCause.DEATH
    assert [(one[2], one[3]) for one in dispatch.take(0, 9)] == [("0", 0), ("1", 2), ("2", 0)]
    assert dispatch.redeliveries(ONE).among(range(9)) == {0: 1, 1: 3, 2: 1, 3: 3}
    assert dispatch.touched == {ONE}
    dispatch.negative_ack(ONE, 0, 0)
    assert dispatch.redeliveries(ONE).among(range(9)) == {0: 1, 1: 2, 3: 3}


def test_however_many_are_out_are_one_span() -> None:
    dispatch: Dispatch[int] = Dispatch(
        OrderRule.NONE, limits=DispatchLimits(receiver_queue=200_000, unacked=0)
    )
    for first in range(0, 200_000, 50_000):
        offsets = range(first, first + 50_000)
        dispatch.add(ONE, offsets, [None] * 50_000, offsets)
    assert len(dispatch.take(0, 200_000)) == dispatch.unacked == 200_000
    dispatch.negative_ack(ONE, 7, 0)
    assert dispatch.redeliveries(ONE).spans == ((0, 200_000, 1),)
    assert dispatch.ack(ONE, range(0, 200_000, 2)) == 100_000


def test_deliveries_are_told_from_what_is_held_in_lines_and_behind_them() -> None:
    """Two have failed and are out again with an acked one between them, two more came later."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.TAKEN_BACK, backoff=_BACKOFF, lined_for=0)
    dispatch.add(ONE, range(3), [b"a", b"b", b"c"], range(3))
    _taken(dispatch)
    assert dispatch.negative_ack(ONE, 0, 0)
    assert dispatch.negative_ack(ONE, 2, 0)
    dispatch.ack(ONE, [1])
    assert _taken(dispatch, 100) == [(0, 1), (2, 1)]
    dispatch.add(ONE, range(3, 6), [b"a", b"b", b"c"], range(3, 6))
    assert len(dispatch.take(100, 2)) == 2
    assert dispatch.redeliveries(ONE).spans == ((0, 3, 2), (3, 5, 1))


def test_what_was_never_out_has_no_delivery_between_those_that_were() -> None:
    """Shared: 0 is out, 1 never was, and 2 was out in an earlier life."""
    dispatch = _dispatch(OrderRule.NONE, None, None)
    earlier = Redeliveries.of({2: 1}, out=range(0))
    dispatch.add(ONE, range(2, 3), [None], [2], redeliveries=earlier)
    assert dispatch.take(0) == [(ONE, 0, 0, 0)]
    assert dispatch.redeliveries(ONE).spans == ((0, 1, 1), (2, 3, 1))


def test_what_is_acked_between_deliveries_makes_no_second_span() -> None:
    """Also where nothing is held but what was out in an earlier life."""
    dispatch: Dispatch[int] = Dispatch(OrderRule.NONE, backoff=_BACKOFF)
    earlier = Redeliveries.of({0: 1, 4: 1}, out=range(0))
    dispatch.add(ONE, range(5), [None] * 5, range(5), redeliveries=earlier)
    assert dispatch.ack(ONE, range(1, 4)) == 3
    assert dispatch.redeliveries(ONE).spans == ((0, 5, 1),)


@pytest.mark.parametrize(("held", "offset", "last"), [(2, 1, 1), (0, -1, -1)])
def test_message_that_comes_too_late_is_refused(held: int, offset: int, last: int) -> None:
    """Messages of a partition come in the order of their offsets, from 0 on."""
    dispatch = _dispatch(OrderRule.NONE, *[None] * held)
    with pytest.raises(ValueError, match=rf"^offset {offset} of .* comes after {last}$"):
        _add(dispatch, offset, None)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"receiver_queue": 0}, "receiver_queue 0: expected at least 1"),
        ({"unacked": -1}, "a limit is negative"),
        ({"ack_timeout_ms": -1}, "a limit is negative"),
        ({"redeliveries": -1}, "a limit is negative"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int], text: str) -> None:
    """No room to read, or a negative limit, is a mistake."""
    with pytest.raises(ValueError, match=f"^{text}$"):
        DispatchLimits(**limits)


def test_smallest_limits_are_room_for_one_message_and_no_second_attempt() -> None:
    dispatch = _dispatch(OrderRule.NONE, None, receiver_queue=1, redeliveries=0)
    assert dispatch.room == 0
    assert _taken(dispatch) == [(0, 0)]
    assert dispatch.room == 1
    assert dispatch.negative_ack(ONE, 0, 0)
    assert [one.offset for one in dispatch.dead()] == [0]


def test_usual_backoff() -> None:
    """A second at first and a minute at most, as Pulsar's multiplier backoff."""
    assert [NEGATIVE_ACK_BACKOFF.delay_ms(failures) for failures in (1, 2, 9)] == [
        1_000,
        2_000,
        60_000,
    ]
