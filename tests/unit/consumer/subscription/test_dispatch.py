"""What is handed out, case by case; `test_dispatch_machine.py` meets all others."""

from __future__ import annotations

import pytest

from sequitur.consumer import SourcePartition
from sequitur.consumer.subscription.dispatch import (
    NEGATIVE_ACK_BACKOFF,
    Dispatch,
    DispatchLimits,
    OrderRule,
)
from sequitur.producer.kafka.backoff import Backoff

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
    """Order is that of a partition, as in Kafka."""
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
    assert _taken(dispatch, 50) == []
    assert (dispatch.counts.timed_out, dispatch.unacked) == (1, 0)
    assert not dispatch.negative_ack(ONE, 0, 60)
    assert _taken(dispatch, 150) == [(0, 1)]


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
    assert not dispatch._deadlines


def test_message_that_comes_too_late_is_refused() -> None:
    """Messages of a partition come in the order of their offsets."""
    dispatch = _dispatch(OrderRule.NONE, None, None)
    with pytest.raises(ValueError, match="offset 1 of"):
        _add(dispatch, 1, None)


@pytest.mark.parametrize("limits", [{"receiver_queue": 0}, {"unacked": -1}, {"ack_timeout_ms": -1}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    """No room to read, or a negative limit, is a mistake."""
    with pytest.raises(ValueError, match=r"expected at least 1|negative"):
        DispatchLimits(**limits)


def test_usual_backoff() -> None:
    """A second at first and a minute at most, as Pulsar's multiplier backoff."""
    assert [NEGATIVE_ACK_BACKOFF.delay_ms(failures) for failures in (1, 2, 9)] == [
        1_000,
        2_000,
        60_000,
    ]
